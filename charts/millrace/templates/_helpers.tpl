{{/* The release's name for things. */}}
{{- define "millrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Every role with its values: the defaults, and what it says itself. The
watcher is one; it has no mode. As JSON, for a template returns text. */}}
{{- define "millrace.roles" -}}
{{- $roles := dict -}}
{{- $defaults := .Values.controllers.defaults -}}
{{- range $name, $own := .Values.controllers -}}
{{- if ne $name "defaults" -}}
{{- $_ := set $roles $name (mergeOverwrite (deepCopy $defaults) (deepCopy $own)) -}}
{{- end -}}
{{- end -}}
{{- $own := omit .Values.watcher "kinds" "kindsMetadata" -}}
{{- $_ := set $roles "watcher" (omit (mergeOverwrite (deepCopy $defaults) (deepCopy $own)) "mode") -}}
{{- toJson $roles -}}
{{- end -}}

{{/* What never changes of a role: dict root, role. */}}
{{- define "millrace.selector" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{- define "millrace.labels" -}}
{{ include "millrace.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.global.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The account of a role: dict root, role, values. */}}
{{- define "millrace.account" -}}
{{- default (printf "%s-%s" (include "millrace.fullname" .root) .role) .values.serviceAccount.name -}}
{{- end -}}

{{- define "millrace.image" -}}
{{- $name := .Values.image.repository -}}
{{- with .Values.global.imageRegistry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- if .Values.image.digest -}}
{{ $name }}@{{ .Values.image.digest }}
{{- else -}}
{{ $name }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* Nine tenths of a memory limit in Mi or Gi, as GOMEMLIMIT takes it; nothing
for other units. */}}
{{- define "millrace.gomemlimit" -}}
{{- $limit := toString . -}}
{{- if hasSuffix "Mi" $limit -}}
{{ div (mul (trimSuffix "Mi" $limit | atoi) 9) 10 }}MiB
{{- else if hasSuffix "Gi" $limit -}}
{{ div (mul (trimSuffix "Gi" $limit | atoi) 9216) 10 }}MiB
{{- end -}}
{{- end -}}

{{/* The variables of a role: dict root, role, values. */}}
{{- define "millrace.env" -}}
{{- $v := .root.Values -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
{{- with .values.resources.limits }}{{ with .memory }}{{ with include "millrace.gomemlimit" . }}
- {name: GOMEMLIMIT, value: {{ . }}}
{{- end }}{{ end }}{{ end }}
- {name: MILLRACE_LOG_LEVEL, value: {{ $v.logLevel }}}
- {name: MILLRACE_LISTEN, value: ":8080"}
- {name: MILLRACE_NATS_URL, value: {{ required "nats.url must be set: where NATS is, such as nats://nats.nats:4222" $v.nats.url | quote }}}
- {name: MILLRACE_NATS_CLUSTER, value: {{ $v.cluster.id | quote }}}
- {name: MILLRACE_NATS_PARTITIONS, value: {{ $v.cluster.partitions | quote }}}
- {name: MILLRACE_NATS_REPLICAS, value: {{ $v.nats.replicas | quote }}}
- {name: MILLRACE_NATS_MAX_BYTES, value: {{ int64 $v.nats.maxBytes | quote }}}
{{- $auth := default $v.nats.auth .values.natsAuth }}
{{- if $auth.existingSecret }}
{{- if $auth.credsKey }}
- {name: MILLRACE_NATS_CREDS_FILE, value: /etc/millrace/nats/auth/{{ $auth.credsKey }}}
{{- else }}
- {name: MILLRACE_NATS_USER, value: {{ required "nats.auth.existingSecret needs credsKey, or user and passwordKey" $auth.user | quote }}}
- {name: MILLRACE_NATS_PASSWORD_FILE, value: /etc/millrace/nats/auth/{{ required "nats.auth.existingSecret needs credsKey, or user and passwordKey" $auth.passwordKey }}}
{{- end }}
{{- end }}
{{- if $v.nats.tls.existingSecret }}
- {name: MILLRACE_NATS_CA_FILE, value: /etc/millrace/nats/tls/ca.crt}
{{- if $v.nats.tls.certificate }}
- {name: MILLRACE_NATS_CERT_FILE, value: /etc/millrace/nats/tls/tls.crt}
- {name: MILLRACE_NATS_KEY_FILE, value: /etc/millrace/nats/tls/tls.key}
{{- end }}
{{- end }}
- {name: MILLRACE_KUBE_QPS, value: {{ .values.rateLimit.qps | quote }}}
- {name: MILLRACE_KUBE_BURST, value: {{ int64 .values.rateLimit.burst | quote }}}
{{- if eq .role "watcher" }}
- {name: MILLRACE_WATCHER_KINDS, value: {{ join "," $v.watcher.kinds | quote }}}
{{- with $v.watcher.kindsMetadata }}
- {name: MILLRACE_WATCHER_KINDS_METADATA, value: {{ join "," . | quote }}}
{{- end }}
{{- else }}
- {name: MILLRACE_CONTROLLER_MODE, value: {{ .values.mode }}}
- {name: MILLRACE_CONTROLLER_WRITE_QPS, value: {{ .values.rateLimit.writeQps | quote }}}
- {name: MILLRACE_CONTROLLER_WRITE_BURST, value: {{ int64 .values.rateLimit.writeBurst | quote }}}
{{- end }}
{{- $prefix := printf "MILLRACE_%s_" (upper .role) }}
{{- range $name, $value := .values.settings }}
{{- /* Without this a million would be 1e+06. */}}
{{- if kindIs "float64" $value }}{{ if eq (float64 (int64 $value)) $value }}{{ $value = int64 $value }}{{ end }}{{ end }}
- {name: {{ $prefix }}{{ snakecase $name | upper }}, value: {{ $value | quote }}}
{{- end }}
{{- with .values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}
