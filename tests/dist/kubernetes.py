"""The checks of objects for kubernetes.sh."""

import json
import pathlib
import re
import sys

import yaml

work, repository = map(pathlib.Path, sys.argv[1:])


def objects(name):
    return [one for one in yaml.safe_load_all((work / f"{name}.yaml").read_text()) if one]


def check(condition, message):
    if not condition:
        sys.exit(f"FAILED: {message}")


def restricted(pod, name):
    """The profile `restricted` of the Pod Security Standards, and a root that is read-only."""
    outer = pod["securityContext"]
    check(outer["runAsNonRoot"] and outer["runAsUser"] == 65532, f"{name}: the user")
    check(outer["seccompProfile"]["type"] == "RuntimeDefault", f"{name}: seccomp")
    check(not pod["automountServiceAccountToken"] and not pod["enableServiceLinks"], f"{name}: what Kubernetes adds")
    check(not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), f"{name}: host namespaces")
    check(all({"configMap", "secret"} & volume.keys() for volume in pod["volumes"]), f"{name}: volumes")
    for container in pod["containers"]:
        inner = container["securityContext"]
        check(inner["allowPrivilegeEscalation"] is False and inner["readOnlyRootFilesystem"], f"{name}: the container")
        check(inner["capabilities"] == {"drop": ["ALL"]}, f"{name}: capabilities")


def normal(one):
    """Without what differs on purpose: labels of Helm, the hash of the configuration."""
    text = json.dumps(one, sort_keys=True)
    text = re.sub(r'"lisa-[a-z0-9]{10}"', '"lisa"', text)
    one = json.loads(text)
    labels = one["metadata"]["labels"]
    for key in "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart":
        labels.pop(key, None)
    if one["kind"] == "Deployment":
        one["spec"]["template"]["metadata"].pop("annotations", None)
    return one


def named(name):
    return {(one["kind"], one["metadata"]["name"]): one for one in map(normal, objects(name))}


def tls():
    manifests, chart = named("tls-manifests"), named("tls-chart")
    check(manifests == chart, "with TLS, the chart differs from the manifests")
    roles = [one["spec"]["template"]["spec"]["containers"][0] for (kind, _), one in chart.items() if kind == "Deployment"]
    schemes = {container[probe]["httpGet"].get("scheme") for container in roles for probe in ("livenessProbe", "readinessProbe")}
    check(len(roles) == 3 and schemes == {"HTTPS"}, f"schemes of the probes: {schemes}")
    found = named("tls-all")
    variables = {variable["name"] for variable in found["Deployment", "lisa-manager"]["spec"]["template"]["spec"]["containers"][0]["env"]}
    check("LISA_HTTP__TLS__CLIENT_CA_FILE" in variables, f"variables: {variables}")
    endpoint = found["ServiceMonitor", "lisa"]["spec"]["endpoints"][0]
    check((endpoint["scheme"], endpoint["tlsConfig"]) == ("https", {"serverName": "lisa"}), f"endpoint: {endpoint}")
    print("ok: with TLS, in the chart as in the manifests")


def compare():
    manifests, chart = named("manifests"), named("chart")
    check(manifests.keys() == chart.keys(), f"only in one of both: {manifests.keys() ^ chart.keys()}")
    # KEDA sets the number of consumers. The chart leaves it out then; with manifests, KEDA overrides it.
    chart["Deployment", "lisa-consumer"]["spec"]["replicas"] = 2
    # With manifests, the operator sets the namespace: nobody gets the token until then.
    trigger = manifests["ScaledObject", "lisa-consumer"]["spec"]["triggers"][0]["metadata"]
    check(".NAMESPACE." in trigger["scalerAddress"], "the manifests name a namespace")
    trigger["scalerAddress"] = trigger["scalerAddress"].replace(".NAMESPACE.", ".default.")
    for key, one in manifests.items():
        check(one == chart[key], f"{key} differs:\n{json.dumps(one, indent=1)}\n{json.dumps(chart[key], indent=1)}")
    print(f"ok: the chart has the same {len(manifests)} objects as the manifests")
    return manifests


def others():
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects("other")}
    replicas = {name: one["spec"]["replicas"] for (kind, name), one in found.items() if kind == "Deployment"}
    check(replicas == {"shop-lisa-producer": 2, "shop-lisa-manager": 3, "shop-lisa-consumer": 2}, f"replicas: {replicas}")
    producer, consumer = (found["Deployment", f"shop-lisa-{role}"]["spec"]["template"]["spec"] for role in ("producer", "consumer"))
    check(producer["nodeSelector"] == {"disk": "ssd"} and "nodeSelector" not in consumer, "pod")
    check(consumer["containers"][0]["env"][-1] == {"name": "LISA_LOG", "value": "debug"}, "extraEnv")
    check(consumer["volumes"][-1]["name"] == consumer["containers"][0]["volumeMounts"][-1]["name"] == "hook", "extraVolumes")
    check(len(producer["volumes"]) == 2 and len(producer["containers"][0]["volumeMounts"]) == 2, "volumes of another role")
    check([one["terminationGracePeriodSeconds"] for one in (producer, consumer)] == [30, 90], "terminationGracePeriodSeconds")
    check(producer["containers"][0]["image"] == "lisa:other", "image.tag")
    check(producer["volumes"][1]["secret"]["secretName"] == "mine", "secret")
    check(not any(kind in ("ServiceMonitor", "ScaledObject") for kind, _ in found), "objects of operators")
    print("ok: the values of the chart")


def scaler(manifests):
    """The address of the trigger leads to the listener of the manager, and the token is one of the consumers' variables."""
    trigger = manifests["ScaledObject", "lisa-consumer"]["spec"]["triggers"][0]["metadata"]
    host, port = trigger["scalerAddress"].split(":")
    service = manifests["Service", host.split(".")[0]]["spec"]
    name = next(one["targetPort"] for one in service["ports"] if one["port"] == int(port))
    manager, consumer = (manifests["Deployment", f"lisa-{role}"]["spec"]["template"]["spec"]["containers"][0] for role in ("manager", "consumer"))
    number = next(one["containerPort"] for one in manager["ports"] if one["name"] == name)
    listen = next(one["value"] for one in manager["env"] if one["name"] == "LISA_MANAGER__KEDA__LISTEN")
    check(listen == f"0.0.0.0:{number}", f"the scaler listens on {listen}")
    allowed = [one["ports"] for one in manifests["NetworkPolicy", "lisa-manager"]["spec"]["ingress"]]
    check([{"port": name}] in allowed, "the network policy blocks the scaler")
    token = next(one for one in consumer["env"] if one["name"] == trigger["tokenFromEnv"])
    check(token["valueFrom"]["secretKeyRef"] == {"name": "lisa", "key": "read-token"}, "the token of the trigger")
    (work / "trigger.json").write_text(json.dumps(trigger))


version = re.search(r'^version = "(.*)"$', (repository / "Cargo.toml").read_text(), re.M)[1]
manifests = compare()
others()
tls()
for role in "producer", "manager", "consumer":
    pod = manifests["Deployment", f"lisa-{role}"]["spec"]["template"]["spec"]
    restricted(pod, role)
    container = pod["containers"][0]
    check(container["image"] == f"lisa:{version}", f"the image of the {role} is not of version {version}")
    paths = [container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")]
    paths.append(manifests["ServiceMonitor", "lisa"]["spec"]["endpoints"][0]["path"])
    (work / f"{role}.paths").write_text("\n".join(paths) + "\n")
print("ok: the profile restricted of the Pod Security Standards; versions")
(work / "lisa.toml").write_text(manifests["ConfigMap", "lisa"]["data"]["lisa.toml"])
scaler(manifests)
custom = [one for one in manifests.values() if one["kind"] in ("ScaledObject", "ServiceMonitor")]
(work / "crds.json").write_text(json.dumps(custom))
