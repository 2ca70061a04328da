{{/* Addresses of a group's copies for each other: id=host:port, with commas. Call with root, group, domain, port. Copy 0 of a group that
grew from one copy has its own Service. */}}
{{- define "evenq.members" -}}
{{- $own := include "evenq.firstService" .root }}
{{- range $copy, $pod := splitList " " (include "evenq.copyPods" .) }}{{ if $copy }},{{ end }}{{ $copy }}=
{{- if and $own (not $copy) }}{{ $pod }}-first.{{ $.root.Release.Namespace }}.svc.cluster.local{{ else }}{{ $pod }}.{{ $.domain }}{{ end }}:{{ int $.port }}{{ end }}
{{- end }}

{{/* Whether copy 0 has a stable address when its pod is replaced. Not with TLS, because certificates lack its name. */}}
{{- define "evenq.firstService" -}}
{{- if and (include "evenq.grown" .) (not .Values.tls.enabled) }}yes{{ end }}
{{- end }}

{{/* Whether clients may reach the port of copies, to read from followers. */}}
{{- define "evenq.followerReads" -}}
{{- $wanted := toString .Values.networkPolicy.followerReads }}
{{- $served := ne (lower (toString (get .Values.broker.settings "EVENQ_BROKER_REPLICATION__FOLLOWER_READS"))) "false" }}
{{- if eq $wanted "auto" }}{{ and .Values.auth.enabled $served }}{{ else }}{{ $wanted }}{{ end }}
{{- end }}

{{/* Fails for values that are not valid, or that a running release cannot change to; renders nothing. */}}
{{- define "evenq.checkCopies" -}}
{{- $broker := .Values.broker }}
{{- $copies := int (include "evenq.copies" .) }}
{{- if gt $copies 3 }}
{{- fail (printf "broker.replicas=%d: a group has 1, 2 or 3 copies. For more throughput raise broker.groups" $copies) }}
{{- end }}
{{- if gt $copies 1 }}
{{- $replication := $broker.replication }}
{{- if gt (int $replication.minInSync) $copies }}
{{- fail (printf "broker.replication.minInSync=%d: of %d copies (broker.replicas) at most %d can be in sync, so no message would ever be accepted" (int $replication.minInSync) $copies $copies) }}
{{- end }}
{{- if gt (int $broker.maxUnavailable) 1 }}
{{- fail (printf "broker.maxUnavailable=%d: with copies it is 1 for each group, otherwise a drain of nodes could stop all copies that have acknowledged messages" (int $broker.maxUnavailable)) }}
{{- end }}
{{- if has (int $replication.port) (list (int $broker.port) (int .Values.tls.port) (int .Values.metrics.port)) }}
{{- fail (printf "broker.replication.port %d is another port of the broker; choose a free one" (int $replication.port)) }}
{{- end }}
{{- if and .Values.external.enabled (eq (int $replication.port) (int .Values.external.doorPort)) }}
{{- fail (printf "external.doorPort %d is also broker.replication.port; choose a free one" (int $replication.port)) }}
{{- end }}
{{- if and $replication.fromOneCopy (not (hasKey $broker.settings "EVENQ_BROKER_STORE__SEGMENT_BYTES")) }}
{{- fail (printf "broker.replication.fromOneCopy needs --set-string broker.settings.EVENQ_BROKER_STORE__SEGMENT_BYTES=N: the files of the log have one size at all copies, and the first copy's were made already. `kubectl -n %s exec %s-broker-0 -- cat /data/store/identity` shows it as segment_bytes (of each broker: it must be the same)" .Release.Namespace (include "evenq.name" .)) }}
{{- end }}
{{- if not (semverCompare ">=1.28.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "broker.replicas above 1 needs Kubernetes 1.28, whose pods have their number as a label; this is %s" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (eq (include "evenq.followerReads" .) "true") (not .Values.auth.enabled) }}
{{- fail "networkPolicy.followerReads=true needs auth.enabled: without signed calls any program that reaches broker.replication.port could act as a copy, and acknowledged messages could be lost. Set auth.enabled=true, or leave followerReads at auto" }}
{{- end }}
{{- end }}
{{- $segment := get $broker.settings "EVENQ_BROKER_STORE__SEGMENT_BYTES" }}
{{- if and (or $segment $broker.replication.fromOneCopy) (hasKey $broker.settings "EVENQ_BROKER_STORE__SEGMENT_BYTES") }}
{{- if or (not (regexMatch "^[0-9]+$" $segment)) (lt (int64 $segment) 65536) (gt (int64 $segment) 2147483648) }}
{{- fail (printf "broker.settings.EVENQ_BROKER_STORE__SEGMENT_BYTES=%q: give the size of one log file as a whole number of bytes, 65536 to 2147483648. `kubectl -n %s exec %s-broker-0 -- cat /data/store/identity` shows the size of a running broker, as segment_bytes" $segment .Release.Namespace (include "evenq.name" .)) }}
{{- end }}
{{- end }}
{{- $given := keys $broker.settings }}
{{- range $broker.extraEnv }}{{ $given = append $given .name }}{{ end }}
{{- $fixed := list "BROKER_NAME" }}
{{- if gt $copies 1 }}
{{- $fixed = concat $fixed (list "REPLICATION__BROKER_ID" "REPLICATION__MEMBERS" "REPLICATION__RECORD" "REPLICATION__MODE" "REPLICATION__MIN_IN_SYNC" "REPLICATION__PORT" "REPLICATION__FROM_ONE_COPY" "REPLICATION__FORWARD_CLIENTS") }}
{{- end }}
{{- range $key := $fixed }}
{{- if has (printf "EVENQ_BROKER_%s" $key) $given }}
{{- if gt $copies 1 }}
{{- fail (printf "broker.settings.EVENQ_BROKER_%s: the chart sets it for copies; use broker.groups, broker.replicas and broker.replication" $key) }}
{{- end }}
{{- fail (printf "broker.settings.EVENQ_BROKER_%s: the chart sets it: the name of each broker is that of its pod, and two brokers cannot have the same one" $key) }}
{{- end }}
{{- end }}
{{- if and (eq $copies 1) $broker.replication.fromOneCopy }}
{{- fail "broker.replication.fromOneCopy adds copies to brokers of one copy: it needs broker.replicas 2 or 3" }}
{{- end }}
{{- include "evenq.checkFounded" . }}
{{- include "evenq.checkVolumes" . }}
{{- end }}

{{/* Kubernetes cannot change volumes of a StatefulSet, and would refuse only in the middle of the upgrade. */}}
{{- define "evenq.checkVolumes" -}}
{{- $storage := .Values.broker.storage }}
{{- $wanted := int64 (include "evenq.mebibytes" $storage.size) }}
{{- range (lookup "apps/v1" "StatefulSet" .Release.Namespace "").items }}
{{- $labels := .metadata.labels | default dict }}
{{- if and (eq (get $labels "app.kubernetes.io/instance") $.Release.Name) (eq (get $labels "app.kubernetes.io/name") "evenq") (eq (get $labels "app.kubernetes.io/component") "broker") }}
{{- $claim := (first .spec.volumeClaimTemplates).spec }}
{{- $size := $claim.resources.requests.storage }}
{{- $there := int64 (include "evenq.mebibytes" $size) }}
{{- if lt $wanted $there }}
{{- fail (printf "broker.storage.size=%s: the volumes of StatefulSet %s have %s, and volumes cannot shrink. Nothing was changed. Keep the size, or install another release, move producers to it, and uninstall this one when all of its messages are read" $storage.size .metadata.name $size) }}
{{- else if gt $wanted $there }}
{{- fail (printf "broker.storage.size=%s: the volumes of StatefulSet %s have %s, and Kubernetes cannot change the size in a StatefulSet. Nothing was changed. Grow the claims, then let this upgrade create the StatefulSets again around the running pods: `kubectl -n %s patch pvc CLAIM --patch '{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"%s\"}}}}'` for each claim, `kubectl -n %s delete statefulset -l app.kubernetes.io/instance=%s,app.kubernetes.io/component=broker --cascade=orphan`, and the upgrade again; see docs/operating/kubernetes.md#larger-volumes" $storage.size .metadata.name $size $.Release.Namespace $storage.size $.Release.Namespace $.Release.Name) }}
{{- end }}
{{- if ne $storage.className ($claim.storageClassName | default "") }}
{{- fail (printf "broker.storage.className=%q: the volumes of StatefulSet %s have the class %q, which cannot change. Nothing was changed. Install another release, move producers to it, and uninstall this one when all of its messages are read" $storage.className .metadata.name ($claim.storageClassName | default "")) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A size as Kubernetes writes it, in mebibytes. */}}
{{- define "evenq.mebibytes" -}}
{{- mul (int64 (regexFind "^[0-9]+" .)) (get (dict "Mi" 1 "Gi" 1024 "Ti" 1048576) (regexFind "[A-Za-z]+$" .) | default 1) }}
{{- end }}

{{/* Some values of a group cannot change. Without a cluster (helm template) there is nothing to compare. */}}
{{- define "evenq.checkFounded" -}}
{{- $copies := int (include "evenq.copies" .) }}
{{- $name := printf "%s-broker" (include "evenq.name" .) }}
{{- $new := "Install another release, move producers to it, and uninstall this one when all of its messages are read" }}
{{- $one := lookup "apps/v1" "StatefulSet" .Release.Namespace $name }}
{{- $group := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-0" $name) }}
{{- $grows := .Values.broker.replication.fromOneCopy }}
{{- if and $one $group (not $grows) }}
{{- fail (printf "the copies of this release joined brokers of one copy, whose data are still in StatefulSet %s: keep broker.replication.fromOneCopy=true. Nothing was changed" $name) }}
{{- else if and $one (gt $copies 1) (not $grows) }}
{{- fail (printf "this release has brokers of one copy (StatefulSet %s). To give them %d copies, with all of their data: --set broker.replication.fromOneCopy=true, from now on, see docs/operating/kubernetes.md#from-one-copy-to-three. Nothing was changed" $name $copies) }}
{{- else if and $group $grows (not $one) }}
{{- fail "broker.replication.fromOneCopy is for a release that had brokers of one copy, and this one was installed with copies: omit it. Nothing was changed" }}
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
{{- fail (printf "%s=%d: the groups of this release were created with %s, which cannot change. Nothing was changed. %s" (index $row 1) (int (index $row 2)) $there $new) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
