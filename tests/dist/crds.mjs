// Validates the objects of custom resources, as JSON on standard input, against the schemas of their operators.
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";
import { readFileSync, readdirSync } from "node:fs";

const kinds = {
  ScaledObject: [ScaledObject, "keda/keda.sh/v1alpha1"],
  ServiceMonitor: [ServiceMonitor, "prometheus-operator/monitoring.coreos.com/v1"],
};

// The schemas allow unknown fields, which the operators ignore, so each name must occur in the types. Maps have any names.
function* names(value) {
  if (Array.isArray(value)) for (const one of value) yield* names(one);
  else if (value && typeof value === "object")
    for (const [name, one] of Object.entries(value)) {
      yield name;
      if (name !== "matchLabels" && name !== "metadata") yield* names(one);
    }
}

for (const object of JSON.parse(readFileSync(0, "utf8"))) {
  const [kind, folder] = kinds[object.kind];
  new kind(object).validate();
  const types = new URL(`node_modules/@kubernetes-models/${folder}`, import.meta.url).pathname;
  const text = readdirSync(types)
    .filter((file) => file.endsWith(".d.ts"))
    .map((file) => readFileSync(`${types}/${file}`, "utf8"))
    .join("\n");
  for (const name of names(object.spec))
    if (!new RegExp(`\\b${name}"?\\??:`).test(text) && name !== "matchLabels") throw new Error(`${object.kind} has no field ${name}`);
  console.log(`ok: ${object.kind} ${object.metadata.name}`);
}
