{{- define "lisa.name" -}}
{{- if contains "lisa" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-lisa{{ end }}
{{- end }}

{{- define "lisa.secret" -}}
{{ .Values.secret | default (include "lisa.name" .) }}
{{- end }}

{{- define "lisa.scheme" -}}
{{ ternary "https" "http" (ne .Values.tls.secret "") }}
{{- end }}

{{- define "lisa.selector" -}}
app.kubernetes.io/name: lisa
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lisa.labels" -}}
{{ include "lisa.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}
