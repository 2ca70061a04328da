{{/* Variables of a broker from the chart. Call as evenq.placement, with name and kind of the set (statefulset.yaml). */}}
{{- define "evenq.brokerEnv" -}}
{{- $replication := .root.Values.broker.replication }}
{{- $external := .root.Values.external }}
{{- if .copied }}
# All copies have the name of their group: to others, the leader is that broker.
{{- if .first }}
- name: EVENQ_BROKER_BROKER_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- else }}
- {name: EVENQ_BROKER_BROKER_NAME, value: {{ .set }}}
{{- end }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- if .first }}
- {name: EVENQ_BROKER_REPLICATION__BROKER_ID, value: "0"}
# Its data starts the group; the Job of this upgrade adds copies.
- {name: EVENQ_BROKER_REPLICATION__FROM_ONE_COPY, value: "true"}
{{- else }}
- name: EVENQ_BROKER_REPLICATION__BROKER_ID
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
{{- if include "evenq.grown" .root }}
# Until the group needs them, these copies forward clients to copy 0, before and during its restart.
- {name: EVENQ_BROKER_REPLICATION__FROM_ONE_COPY, value: "true"}
{{- end }}
{{- end }}
{{- $group := .first | ternary "$(EVENQ_BROKER_BROKER_NAME)" .set }}
- {name: EVENQ_BROKER_REPLICATION__MEMBERS, value: {{ include "evenq.members" (dict "root" .root "group" $group "domain" .domain "port" $replication.port) | quote }}}
- {name: EVENQ_BROKER_REPLICATION__RECORD, value: "lease:{{ $group }}"}
- {name: EVENQ_BROKER_REPLICATION__FORWARD_CLIENTS, value: "true"}
- {name: EVENQ_BROKER_REPLICATION__MODE, value: {{ $replication.mode }}}
- {name: EVENQ_BROKER_REPLICATION__MIN_IN_SYNC, value: {{ $replication.minInSync | quote }}}
{{- else }}
# The broker's name is the pod's name, which stays the same for its volume.
- name: EVENQ_BROKER_BROKER_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}
- {name: EVENQ_BROKER_HOST, value: "0.0.0.0"}
- {name: EVENQ_BROKER_METRICS_PORT, value: {{ .root.Values.metrics.port | quote }}}
- {name: EVENQ_BROKER_CLUSTER, value: {{ include "evenq.cluster" .root | quote }}}
- {name: EVENQ_BROKER_STORE__PATH, value: /data/store}
{{- if $external.enabled }}
- {name: EVENQ_BROKER_LISTENERS, value: "external{{ if .root.Values.tls.enabled }}+tls{{ end }}=0.0.0.0:{{ $external.doorPort }}"}
{{- if .shared }}
- {name: EVENQ_BROKER_SHARED_LISTENERS, value: external}
{{- end }}
{{- end }}
- {name: EVENQ_BROKER_ADVERTISE, value: {{ join "," .addresses | quote }}}
- {name: EVENQ_BROKER_NAMESERVERS, value: {{ include "evenq.nameservers" .root | quote }}}
{{- if .root.Values.rebalancer.enabled }}
- {name: EVENQ_BROKER_REBALANCER, value: "{{ include "evenq.name" .root }}-rebalancer.{{ .root.Release.Namespace }}.svc.cluster.local:{{ .root.Values.rebalancer.port }}"}
{{- end }}
- {name: EVENQ_BROKER_STORE__FLUSH, value: {{ .root.Values.broker.flush | quote }}}
- {name: EVENQ_BROKER_STORE__RETENTION_MS, value: {{ mul .root.Values.broker.retention.hours 3600000 | quote }}}
{{- if .root.Values.broker.retention.deleteOldestWhenFull }}
- {name: EVENQ_BROKER_STORE__DISK_FORCE_RATIO, value: "0.85"}
{{- end }}
- {name: EVENQ_BROKER_AUTO_CREATE_TOPICS, value: {{ .root.Values.broker.autoCreateTopics | quote }}}
- {name: EVENQ_BROKER_AUTO_CREATE_GROUPS, value: {{ .root.Values.broker.autoCreateGroups | quote }}}
- {name: EVENQ_BROKER_DEFAULT_QUEUES, value: {{ .root.Values.broker.defaultQueues | quote }}}
{{- include "evenq.securityEnv" . | nindent 0 }}
{{- include "evenq.frontEnv" . | nindent 0 }}
# For commands in this pod; the broker does not read them.
{{- include "evenq.commandEnv" (dict "root" .root "host" (.copied | ternary (include "evenq.host" .root) "127.0.0.1")) | nindent 0 }}
{{- end }}
