{{- define "evenq.name" -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" .Release.Name) }}
{{- fail (printf "release name %q: Services are named after it, so it begins with a letter and has lower-case letters, digits and '-' only, no dots. Choose another name" .Release.Name) }}
{{- end }}
{{- if contains "evenq" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-evenq" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{/* Labels of one service: call with (dict "root" $ "service" "broker"), and "group" for the copies of one broker group. */}}
{{- define "evenq.selector" -}}
app.kubernetes.io/name: evenq
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .service }}
{{- with .group }}
evenq.io/broker-group: {{ . }}
{{- end }}
{{- end }}

{{- define "evenq.labels" -}}
{{ include "evenq.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* A digest takes precedence over the tag. */}}
{{- define "evenq.image" -}}
{{- $digest := index .root.Values.image.digests .service -}}
{{ .root.Values.image.registry }}/{{ .service }}{{ if $digest }}@{{ $digest }}{{ else }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "evenq.cluster" -}}
{{ .Values.cluster | default .Release.Name }}
{{- end }}

{{/* The access point without its port. Every certificate contains it, so servers use it to verify each other. */}}
{{- define "evenq.host" -}}
{{ include "evenq.name" . }}.{{ .Release.Namespace }}.svc.cluster.local
{{- end }}

{{/* Broker groups, and copies of each. */}}
{{- define "evenq.groups" -}}
{{ .Values.broker.groups | default 2 }}
{{- end }}

{{- define "evenq.copies" -}}
{{- $broker := .Values.broker }}
{{- if and $broker.replicas (not $broker.groups) }}
{{- fail (printf "broker.replicas is now the number of copies of each broker group, and broker.groups the number of groups; earlier charts called groups replicas. Set both: broker.groups=%d,broker.replicas=1 keeps %d broker(s) of one copy, broker.groups=1,broker.replicas=3 makes one group of three copies" (int $broker.replicas) (int $broker.replicas)) }}
{{- end }}
{{- $broker.replicas | default 1 }}
{{- end }}

{{/* Copies that joined a broker of one copy: copy 0 keeps its StatefulSet and volume, the others have a StatefulSet for each group. */}}
{{- define "evenq.grown" -}}
{{- if and .Values.broker.replication.fromOneCopy (ne (include "evenq.copies" .) "1") }}yes{{ end }}
{{- end }}

{{/* Whether this upgrade adds copies to brokers of one copy: these restart when the new copies forward clients. Without a cluster
(helm template) this is not known, and they restart immediately. */}}
{{- define "evenq.growing" -}}
{{- if include "evenq.grown" . }}
{{- $one := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-broker" (include "evenq.name" .)) }}
{{- if and $one (not (dig "metadata" "annotations" "evenq.io/from-one-copy" "" $one)) }}yes{{ end }}
{{- end }}
{{- end }}

{{/* Names of the broker groups that have copies, which are the brokers' names. */}}
{{- define "evenq.brokerGroups" -}}
{{- $name := printf "%s-broker" (include "evenq.name" .) }}
{{- $groups := list }}
{{- range $group := until (int (include "evenq.groups" .)) }}{{ $groups = append $groups (printf "%s-%d" $name $group) }}{{ end }}
{{- join " " $groups }}
{{- end }}

{{/* Pods of the copies of a group, in their order. Call with root, group. */}}
{{- define "evenq.copyPods" -}}
{{- $grown := include "evenq.grown" .root }}
{{- range $copy := until (int (include "evenq.copies" .root)) }}{{ if $copy }} {{ end }}{{ $.group }}{{ if or $copy (not $grown) }}-{{ $copy }}{{ end }}{{ end }}
{{- end }}

{{/* A pod of a broker, for commands in texts. */}}
{{- define "evenq.brokerPod" -}}
{{ include "evenq.name" . }}-broker-0{{ if and (ne (include "evenq.copies" .) "1") (not (include "evenq.grown" .)) }}-0{{ end }}
{{- end }}

{{/* The port that clients use. */}}
{{- define "evenq.clientPort" -}}
{{ if .Values.tls.enabled }}{{ .Values.tls.port }}{{ else }}{{ .Values.broker.port }}{{ end }}
{{- end }}

{{/* host:port of every nameserver, joined with commas. */}}
{{- define "evenq.nameservers" -}}
{{- $name := include "evenq.name" . -}}
{{- range $i := until (int .Values.nameserver.replicas) -}}
{{- if $i }},{{ end }}{{ $name }}-nameserver-{{ $i }}.{{ $name }}-nameserver.{{ $.Release.Namespace }}.svc.cluster.local:{{ $.Values.nameserver.port }}
{{- end -}}
{{- end }}

{{- define "evenq.podMetadata" -}}
labels:
  {{- include "evenq.selector" . | nindent 2 }}
  {{- with .root.Values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
annotations:
  {{- if and .root.Values.metrics.annotations (not (has .service (list "console" "tables"))) }}
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ .root.Values.metrics.port | quote }}
  prometheus.io/path: /metrics
  {{- end }}
  evenq/component: {{ .service }}
  {{- with .root.Values.podAnnotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{- define "evenq.podSecurity" -}}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Scheduling of a service's pods: its own values, otherwise those of the chart, otherwise different nodes. Call with root, service,
values, and for copies their group: only copies of one group run on different nodes. `peers`: the selector of these pods, if they have
no common label. */}}
{{- define "evenq.placement" -}}
{{- $spread := .values.spread | default (empty .group | ternary "soft" "host") }}
{{- $hard := dict "topology.kubernetes.io/zone" (eq $spread "hard") "kubernetes.io/hostname" (has $spread (list "host" "hard")) }}
{{- with .values.priorityClassName | default .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector | default .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations | default .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else if ne $spread "none" }}
topologySpreadConstraints:
  {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: {{ get $hard $key | ternary "DoNotSchedule" "ScheduleAnyway" }}
    labelSelector: {{- include "evenq.apart" $ | nindent 6 }}
  {{- end }}
{{- end }}
{{- with .values.affinity | default .root.Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- else }}
{{- if ne $spread "none" }}
affinity:
  podAntiAffinity:
    {{- if get $hard "kubernetes.io/hostname" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector: {{- include "evenq.apart" . | nindent 10 }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector: {{- include "evenq.apart" . | nindent 12 }}
    {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Scheduling and resources of pods of one command: the brokers' scheduling. */}}
{{- define "evenq.commandPod" -}}
{{- $broker := .Values.broker }}
{{- with $broker.priorityClassName | default .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $broker.nodeSelector | default .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $broker.tolerations | default .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Selector of pods that run on different nodes. Call as evenq.placement. */}}
{{- define "evenq.apart" -}}
{{- if .peers -}}
matchExpressions: [{key: statefulset.kubernetes.io/pod-name, operator: In, values: {{ toJson .peers }}}]
{{- else -}}
matchLabels: {{- include "evenq.selector" . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "evenq.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Probes over gRPC; over HTTP with TLS, which the kubelet's gRPC probes do not support, and for copies (`http`), of which only the leader
opens the gRPC port. The port opens after the recovery of the log. Startup checks liveness: a broker that starts on a full disk is not
ready, and a restart would not help. Call with (dict "root" $ "port" 8081 "startupSeconds" 120 "http" false). */}}
{{- define "evenq.probes" -}}
{{- $live := dict "grpc" (dict "port" .port "service" "liveness") }}
{{- $ready := dict "grpc" (dict "port" .port "service" "readiness") }}
{{- if or .http .root.Values.tls.enabled }}
{{- $live = dict "httpGet" (dict "port" "metrics" "path" "/healthz") }}
{{- $ready = dict "httpGet" (dict "port" "metrics" "path" "/readyz") }}
{{- end }}
startupProbe:
  {{- toYaml $live | nindent 2 }}
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: {{ .startupSeconds }}
readinessProbe:
  {{- toYaml $ready | nindent 2 }}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  {{- toYaml $live | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{/* gRPC and metrics of one server. Call with (dict "root" $ "service" "broker" "port" 8081 "tlsPort" 8443). */}}
{{- define "evenq.ports" -}}
{{- $metrics := int .root.Values.metrics.port }}
{{- $tls := .root.Values.tls }}
{{- if or (and $tls.enabled (eq $metrics (int .tlsPort))) (and (or (not $tls.enabled) $tls.keepPlain) (eq $metrics (int .port))) }}
{{- fail (printf "metrics.port %d is a port of the %s as well; choose another one" $metrics .service) }}
{{- end }}
{{- if not .root.Values.tls.enabled }}
- {name: grpc, containerPort: {{ .port }}}
{{- else }}
- {name: grpc, containerPort: {{ .tlsPort }}}
{{- if and .root.Values.tls.keepPlain (ne (int .port) (int .tlsPort)) }}
- {name: plain, containerPort: {{ .port }}}
{{- end }}
{{- end }}
- {name: metrics, containerPort: {{ .root.Values.metrics.port }}}
{{- end }}

{{/* The gRPC implementation and its limits. Call with root, service, values. */}}
{{- define "evenq.frontEnv" -}}
{{- $front := printf "EVENQ_%s_FRONT" (upper .service) }}
- {name: {{ $front }}, value: {{ .root.Values.front }}}
{{- range $key, $value := .values.frontLimits }}
- {name: {{ $front }}_LIMITS__{{ snakecase $key | upper }}, value: {{ int64 $value | quote }}}
{{- end }}
{{- end }}

{{/* Variables of a server's container: those of the chart, `settings` and `extraEnv`; the last two take precedence. Each name occurs once:
of two with one name, an upgrade that removes one removes both, and the setting would have its default. Call with the service's values
and `own`, the chart's variables as YAML. */}}
{{- define "evenq.env" -}}
{{- $given := dict }}
{{- $order := list }}
{{- range $key, $value := .values.settings }}
{{- $_ := set $given $key (dict "name" $key "value" $value) }}
{{- $order = append $order $key }}
{{- end }}
{{- range .values.extraEnv }}
{{- $_ := set $given .name . }}
{{- $order = append $order .name }}
{{- end }}
{{- $rows := list }}
{{- $names := list }}
{{- range fromYamlArray .own }}
{{- if not (hasKey $given .name) }}
{{- $rows = append $rows . }}
{{- else if has .name (list "POD_NAME" "POD_IP") }}
{{- /* First, because other variables refer to it, and Kubernetes expands only earlier ones. */}}
{{- $rows = append $rows (get $given .name) }}
{{- $names = append $names .name }}
{{- end }}
{{- end }}
{{- range $name := $order }}
{{- if not (has $name $names) }}
{{- $rows = append $rows (get $given $name) }}
{{- $names = append $names $name }}
{{- end }}
{{- end }}
{{- toYaml $rows }}
{{- end }}

{{/* With signed calls: the users file of a Secret, mounted as a folder so that it receives changes. Then TLS. */}}
{{- define "evenq.securityEnv" -}}
{{- $prefix := printf "EVENQ_%s" (upper .service) }}
{{- $tls := .root.Values.tls }}
{{- if .root.Values.auth.enabled }}
- {name: {{ $prefix }}_AUTH__ENABLED, value: "true"}
- {name: {{ $prefix }}_AUTH__USERS, value: /etc/evenq/auth/users.toml}
{{- else if eq .service "nameserver" }}
- {name: {{ $prefix }}_REGISTER_FROM, value: {{ join "," .root.Values.nameserver.registerFrom | quote }}}
{{- end }}
{{- if not $tls.enabled }}
- {name: {{ $prefix }}_PORT, value: {{ .port | quote }}}
{{- else }}
- {name: {{ $prefix }}_PORT, value: {{ and $tls.keepPlain (ne (int .port) (int .tlsPort)) | ternary (toString .port) "-1" | quote }}}
- {name: {{ $prefix }}_TLS__PORT, value: {{ .tlsPort | quote }}}
- {name: {{ $prefix }}_TLS__CERTIFICATE, value: /etc/evenq/tls/tls.crt}
- {name: {{ $prefix }}_TLS__KEY, value: /etc/evenq/tls/tls.key}
{{- if or (eq $tls.clientCertificates "all") (and (eq $tls.clientCertificates "servers") (ne .service "broker")) }}
- {name: {{ $prefix }}_TLS__CLIENT_CA, value: /etc/evenq/tls/ca.crt}
{{- end }}
- {name: {{ $prefix }}_TLS__PEERS, value: "true"}
- {name: {{ $prefix }}_TLS__PEER_CA, value: /etc/evenq/tls/ca.crt}
- {name: {{ $prefix }}_TLS__PEER_SERVER_NAME, value: {{ include "evenq.host" .root }}}
{{- end }}
{{- end }}

{{/* Defaults of `evenq` commands in a pod: access point, an operator's keys unless `withoutKeys` or other `credentials`, the CA. Call
with (dict "root" $ "host" "127.0.0.1"). */}}
{{- define "evenq.commandEnv" -}}
- {name: EVENQ_ENDPOINT, value: "{{ if .root.Values.tls.enabled }}evenqs://{{ end }}{{ .host }}:{{ include "evenq.clientPort" .root }}"}
{{- if and .root.Values.auth.enabled (not .withoutKeys) }}
- {name: EVENQ_CREDENTIALS, value: /etc/evenq/auth/{{ .credentials | default "operator.toml" }}}
{{- end }}
{{- if .root.Values.tls.enabled }}
- {name: EVENQ_TLS_CA, value: /etc/evenq/tls/ca.crt}
- {name: EVENQ_TLS_SERVER_NAME, value: {{ include "evenq.host" .root }}}
{{- if eq .root.Values.tls.clientCertificates "all" }}
- {name: EVENQ_TLS_CERTIFICATE, value: /etc/evenq/tls/tls.crt}
- {name: EVENQ_TLS_KEY, value: /etc/evenq/tls/tls.key}
{{- end }}
{{- end }}
{{- end }}

{{- define "evenq.authSecret" -}}
{{ .Values.auth.existingSecret | default (printf "%s-auth" (include "evenq.name" .)) }}
{{- end }}

{{- define "evenq.tlsSecret" -}}
{{ .Values.tls.existingSecret | default (printf "%s-tls" (include "evenq.name" .)) }}
{{- end }}

{{/* Mounts and volumes of keys and certificates, then the user's own. Call with (dict "root" $ "values" .Values.broker). */}}
{{- define "evenq.mounts" -}}
{{- if .root.Values.auth.enabled }}
- {name: auth, mountPath: /etc/evenq/auth, readOnly: true}
{{- end }}
{{- if .root.Values.tls.enabled }}
- {name: tls, mountPath: /etc/evenq/tls, readOnly: true}
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "evenq.volumes" -}}
{{- if .root.Values.auth.enabled }}
- name: auth
  secret: {secretName: {{ include "evenq.authSecret" .root }}, defaultMode: 0440{{ if .optional }}, optional: true{{ end }}}
{{- end }}
{{- if .root.Values.tls.enabled }}
- name: tls
  secret: {secretName: {{ include "evenq.tlsSecret" .root }}, defaultMode: 0440{{ if .optional }}, optional: true{{ end }}}
{{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The certificates of a pod that only calls brokers. */}}
{{- define "evenq.clientTls" -}}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "evenq.tlsSecret" . }}
    defaultMode: 0440
    {{- if ne .Values.tls.clientCertificates "all" }}
    # Not the private key, with which nameservers and rebalancers accept a server.
    items: [{key: ca.crt, path: ca.crt}]
    {{- end }}
{{- end }}
{{- end }}

{{/* Secret with the keys of the exporter of tables: its own user, unless the values name another one. */}}
{{- define "evenq.tablesSecret" -}}
{{- if and .Values.auth.existingSecret (not .Values.tables.credentialsSecret) }}
{{- fail "tables.enabled with auth.existingSecret needs tables.credentialsSecret: the name of a Secret with credentials.toml (access_key and secret_key) of a user with describe on cluster, and consume on topic:* and group:evenq-table-*" }}
{{- end }}
{{- .Values.tables.credentialsSecret | default (printf "%s-user-evenq-tables" (include "evenq.name" .)) }}
{{- end }}

{{/* Peers of a NetworkPolicy: namespaces by name, "*" = all. */}}
{{- define "evenq.namespaces" -}}
{{- if has "*" .names -}}
- namespaceSelector: {}
{{- else -}}
- namespaceSelector:
    matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: {{ toJson .names }}}]
{{- end }}
{{- end }}

{{/* Fails for a kind that the cluster does not have. Without a cluster (helm template) it never fails. Call with root, kind, value,
instead. */}}
{{- define "evenq.needsKind" -}}
{{- $known := .root.Capabilities.APIVersions }}
{{- if and ($known.Has "apps/v1/StatefulSet") (not ($known.Has .kind)) }}
{{- fail (printf "%s needs the kind %s, which this cluster does not have. Nothing was changed: %s" .value .kind .instead) }}
{{- end }}
{{- end }}

{{/* Whether an object is created; "auto": if the cluster has its kind. Call with (dict "root" $ "wanted" "auto" "kind" "PodMonitor"). */}}
{{- define "evenq.wanted" -}}
{{- if eq (toString .wanted) "auto" }}
{{- if .root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind) }}yes{{ end }}
{{- else if eq (toString .wanted) "true" }}yes{{ end }}
{{- end }}
