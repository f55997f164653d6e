// Validates the objects of custom resources, as JSON on standard input, against the schemas of their operators.
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";
import { TriggerAuthentication } from "@kubernetes-models/keda/keda.sh/v1alpha1/TriggerAuthentication";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";
import { readFileSync } from "node:fs";

const kinds = { ScaledObject, TriggerAuthentication, ServiceMonitor };
for (const object of JSON.parse(readFileSync(0, "utf8"))) {
  new kinds[object.kind](object).validate();
  console.log(`ok: ${object.kind} ${object.metadata.name}`);
}
