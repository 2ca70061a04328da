{{/* Where the copies of a group reach each other: id=host:port, with commas. Call with set, copies, domain, port. */}}
{{- define "evenq.members" -}}
{{- range $copy := until .copies }}{{ if $copy }},{{ end }}{{ $copy }}={{ $.set }}-{{ $copy }}.{{ $.domain }}:{{ int $.port }}{{ end }}
{{- end }}

{{/* Refuses what cannot be, or what a release that runs cannot become; renders nothing. */}}
{{- define "evenq.checkCopies" -}}
{{- $broker := .Values.broker }}
{{- $copies := int (include "evenq.copies" .) }}
{{- if gt $copies 3 }}
{{- fail (printf "broker.replicas=%d: a group has 1, 2 or 3 copies. For more throughput raise broker.groups" $copies) }}
{{- end }}
{{- if gt $copies 1 }}
{{- $replication := $broker.replication }}
{{- if gt (int $replication.minInSync) $copies }}
{{- fail (printf "broker.replication.minInSync=%d: of %d copies (broker.replicas) no more than %d can be in sync, so nothing would ever be taken" (int $replication.minInSync) $copies $copies) }}
{{- end }}
{{- if gt (int $broker.maxUnavailable) 1 }}
{{- fail (printf "broker.maxUnavailable=%d: with copies it is 1 for each group, or a drain of nodes could take those that hold what was acknowledged" (int $broker.maxUnavailable)) }}
{{- end }}
{{- if has (int $replication.port) (list (int $broker.port) (int .Values.tls.port) (int .Values.metrics.port)) }}
{{- fail (printf "broker.replication.port %d is another port of the broker; choose a free one" (int $replication.port)) }}
{{- end }}
{{- if .Values.external.enabled }}
{{- fail "external.enabled with broker.replicas above 1: only the leader of a group serves clients, and a Service cannot tell which pod that is. Clients outside the cluster need broker.replicas=1, or a network that reaches pods by name" }}
{{- end }}
{{- if not (semverCompare ">=1.28.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "broker.replicas above 1 needs Kubernetes 1.28, whose pods have their number as a label; this is %s" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- range $key := list "BROKER_NAME" "REPLICATION__BROKER_ID" "REPLICATION__MEMBERS" "REPLICATION__RECORD" "REPLICATION__MODE" "REPLICATION__MIN_IN_SYNC" "REPLICATION__PORT" }}
{{- if hasKey $broker.settings (printf "EVENQ_BROKER_%s" $key) }}
{{- fail (printf "broker.settings.EVENQ_BROKER_%s: the chart says it itself for copies; use broker.groups, broker.replicas and broker.replication" $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- include "evenq.checkFounded" . }}
{{- end }}

{{/* What a group was founded with stays. Without a cluster (helm template) there is nothing to compare with. */}}
{{- define "evenq.checkFounded" -}}
{{- $copies := int (include "evenq.copies" .) }}
{{- $name := printf "%s-broker" (include "evenq.name" .) }}
{{- $new := "Install another release beside this one, let producers go there, and uninstall this one when it is read empty" }}
{{- $one := lookup "apps/v1" "StatefulSet" .Release.Namespace $name }}
{{- $group := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-0" $name) }}
{{- if and $one (gt $copies 1) }}
{{- fail (printf "this release has brokers of one copy (StatefulSet %s); broker.replicas=%d would leave their data behind: copies cannot be added to them. %s" $name $copies $new) }}
{{- end }}
{{- if $group }}
{{- $founded := dig "metadata" "annotations" dict $group }}
{{- $replication := .Values.broker.replication }}
{{- range $row := list
  (list "replicas" "broker.replicas" $copies)
  (list "min-in-sync" "broker.replication.minInSync" (int $replication.minInSync))
  (list "replication-port" "broker.replication.port" (int $replication.port)) }}
{{- $there := get $founded (printf "evenq.io/%s" (index $row 0)) }}
{{- if and $there (ne (int $there) (int (index $row 2))) (or (gt $copies 1) (eq (index $row 0) "replicas")) }}
{{- fail (printf "%s=%d: the groups of this release were founded with %s, and that stays. Nothing was changed. %s" (index $row 1) (int (index $row 2)) $there $new) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
