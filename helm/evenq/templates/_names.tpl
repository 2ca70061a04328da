{{- define "evenq.name" -}}
{{- if contains "evenq" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-evenq" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{/* Labels of one service: call with (dict "root" $ "service" "broker"). */}}
{{- define "evenq.selector" -}}
app.kubernetes.io/name: evenq
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .service }}
{{- end }}

{{- define "evenq.labels" -}}
{{ include "evenq.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "evenq.image" -}}
{{ .root.Values.image.registry }}/{{ .service }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
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
  {{- if .root.Values.metrics.annotations }}
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
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "evenq.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Health over gRPC. The port opens once a long log is recovered, so startup asks for liveness: a broker that starts on a full
disk is not ready, and killing it would not help. Call with (dict "port" 8081). */}}
{{- define "evenq.probes" -}}
startupProbe:
  grpc: {port: {{ .port }}, service: liveness}
  periodSeconds: 1
  failureThreshold: 120
readinessProbe:
  grpc: {port: {{ .port }}, service: readiness}
  periodSeconds: 2
  failureThreshold: 2
livenessProbe:
  grpc: {port: {{ .port }}, service: liveness}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{- define "evenq.settings" -}}
{{- range $key, $value := . }}
- name: {{ $key }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* Signed calls only: the users file of a Secret, mounted whole so that its changes arrive. */}}
{{- define "evenq.authEnv" -}}
{{- if .root.Values.auth.enabled }}
- {name: EVENQ_{{ upper .service }}_AUTH__ENABLED, value: "true"}
- {name: EVENQ_{{ upper .service }}_AUTH__USERS, value: /etc/evenq/auth/users.toml}
{{- end }}
{{- end }}

{{- define "evenq.authMount" -}}
{{- if .Values.auth.enabled }}
- {name: auth, mountPath: /etc/evenq/auth, readOnly: true}
{{- end }}
{{- end }}

{{- define "evenq.authVolume" -}}
- name: auth
  secret:
    secretName: {{ required "auth.existingSecret must name a Secret with the key users.toml when auth.enabled is true" .Values.auth.existingSecret }}
    defaultMode: 0440
{{- end }}
