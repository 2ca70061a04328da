{{/* Where the copies of a group reach each other: id=host:port, with commas. Call with root, group, domain, port. Copy 0 of a group that
grew has a Service of its own. */}}
{{- define "evenq.members" -}}
{{- $own := include "evenq.firstService" .root }}
{{- range $copy, $pod := splitList " " (include "evenq.copyPods" .) }}{{ if $copy }},{{ end }}{{ $copy }}=
{{- if and $own (not $copy) }}{{ $pod }}-first.{{ $.root.Release.Namespace }}.svc.cluster.local{{ else }}{{ $pod }}.{{ $.domain }}{{ end }}:{{ int $.port }}{{ end }}
{{- end }}

{{/* Whether copy 0 is reached by an address that stays when its pod is replaced. With TLS it would be a name that certificates lack. */}}
{{- define "evenq.firstService" -}}
{{- if and (include "evenq.grown" .) (not .Values.tls.enabled) }}yes{{ end }}
{{- end }}

{{/* Whether clients may reach the port of copies, to read from those that follow. */}}
{{- define "evenq.followerReads" -}}
{{- $wanted := toString .Values.networkPolicy.followerReads }}
{{- $served := ne (lower (toString (get .Values.broker.settings "EVENQ_BROKER_REPLICATION__FOLLOWER_READS"))) "false" }}
{{- if eq $wanted "auto" }}{{ and .Values.auth.enabled $served }}{{ else }}{{ $wanted }}{{ end }}
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
{{- if and .Values.external.enabled (eq (int $replication.port) (int .Values.external.doorPort)) }}
{{- fail (printf "external.doorPort %d is broker.replication.port as well; choose a free one" (int $replication.port)) }}
{{- end }}
{{- if and $replication.fromOneCopy (not (hasKey $broker.settings "EVENQ_BROKER_STORE__SEGMENT_BYTES")) }}
{{- fail (printf "broker.replication.fromOneCopy needs --set-string broker.settings.EVENQ_BROKER_STORE__SEGMENT_BYTES=N: the files of the log have one size at all copies, and the first copy's were made already. `kubectl -n %s exec %s-broker-0 -- cat /data/store/identity` shows it as segment_bytes (of each broker: it must be the same)" .Release.Namespace (include "evenq.name" .)) }}
{{- end }}
{{- if not (semverCompare ">=1.28.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "broker.replicas above 1 needs Kubernetes 1.28, whose pods have their number as a label; this is %s" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (eq (include "evenq.followerReads" .) "true") (not .Values.auth.enabled) }}
{{- fail "networkPolicy.followerReads=true needs auth.enabled: without signed calls any program that reaches broker.replication.port could speak for a copy, and what was acknowledged could be lost. Switch auth.enabled on, or leave followerReads at auto" }}
{{- end }}
{{- end }}
{{- $segment := get $broker.settings "EVENQ_BROKER_STORE__SEGMENT_BYTES" }}
{{- if and (or $segment $broker.replication.fromOneCopy) (hasKey $broker.settings "EVENQ_BROKER_STORE__SEGMENT_BYTES") }}
{{- if or (not (regexMatch "^[0-9]+$" $segment)) (lt (int64 $segment) 65536) (gt (int64 $segment) 2147483648) }}
{{- fail (printf "broker.settings.EVENQ_BROKER_STORE__SEGMENT_BYTES=%q: give the size of one log file as a whole number of bytes, 65536 to 2147483648. `kubectl -n %s exec %s-broker-0 -- cat /data/store/identity` shows that of a broker that runs, as segment_bytes" $segment .Release.Namespace (include "evenq.name" .)) }}
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
{{- fail (printf "broker.settings.EVENQ_BROKER_%s: the chart says it itself for copies; use broker.groups, broker.replicas and broker.replication" $key) }}
{{- end }}
{{- fail (printf "broker.settings.EVENQ_BROKER_%s: the chart says it itself: the name of each broker is that of its pod, and two brokers cannot have the same one" $key) }}
{{- end }}
{{- end }}
{{- if and (eq $copies 1) $broker.replication.fromOneCopy }}
{{- fail "broker.replication.fromOneCopy says that brokers of one copy get more: it needs broker.replicas 2 or 3" }}
{{- end }}
{{- include "evenq.checkFounded" . }}
{{- include "evenq.checkVolumes" . }}
{{- end }}

{{/* Kubernetes changes the volumes of no StatefulSet, and its refusal would come when half of the upgrade is done. */}}
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
{{- fail (printf "broker.storage.size=%s: the volumes of StatefulSet %s have %s, and volumes do not shrink. Nothing was changed. Leave it, or install another release beside this one, let producers go there, and uninstall this one when it is read empty" $storage.size .metadata.name $size) }}
{{- else if gt $wanted $there }}
{{- fail (printf "broker.storage.size=%s: the volumes of StatefulSet %s have %s, and Kubernetes does not change that of a StatefulSet. Nothing was changed. Grow the claims, then let this upgrade make the StatefulSets again around the pods that run: `kubectl -n %s patch pvc CLAIM --patch '{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"%s\"}}}}'` for each claim, `kubectl -n %s delete statefulset -l app.kubernetes.io/instance=%s,app.kubernetes.io/component=broker --cascade=orphan`, and the upgrade again; see docs/operating/kubernetes.md#larger-volumes" $storage.size .metadata.name $size $.Release.Namespace $storage.size $.Release.Namespace $.Release.Name) }}
{{- end }}
{{- if ne $storage.className ($claim.storageClassName | default "") }}
{{- fail (printf "broker.storage.className=%q: the volumes of StatefulSet %s have the class %q, and that stays. Nothing was changed. Install another release beside this one, let producers go there, and uninstall this one when it is read empty" $storage.className .metadata.name ($claim.storageClassName | default "")) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A size as Kubernetes writes it, in mebibytes. */}}
{{- define "evenq.mebibytes" -}}
{{- mul (int64 (regexFind "^[0-9]+" .)) (get (dict "Mi" 1 "Gi" 1024 "Ti" 1048576) (regexFind "[A-Za-z]+$" .) | default 1) }}
{{- end }}

{{/* What a group was founded with stays. Without a cluster (helm template) there is nothing to compare with. */}}
{{- define "evenq.checkFounded" -}}
{{- $copies := int (include "evenq.copies" .) }}
{{- $name := printf "%s-broker" (include "evenq.name" .) }}
{{- $new := "Install another release beside this one, let producers go there, and uninstall this one when it is read empty" }}
{{- $one := lookup "apps/v1" "StatefulSet" .Release.Namespace $name }}
{{- $group := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-0" $name) }}
{{- $grows := .Values.broker.replication.fromOneCopy }}
{{- if and $one $group (not $grows) }}
{{- fail (printf "the copies of this release joined brokers of one copy, whose data are still in StatefulSet %s: keep broker.replication.fromOneCopy=true. Nothing was changed" $name) }}
{{- else if and $one (gt $copies 1) (not $grows) }}
{{- fail (printf "this release has brokers of one copy (StatefulSet %s). To give them %d copies, with all they hold: --set broker.replication.fromOneCopy=true, from now on, see docs/operating/kubernetes.md#from-one-copy-to-three. Nothing was changed" $name $copies) }}
{{- else if and $group $grows (not $one) }}
{{- fail "broker.replication.fromOneCopy is for a release that had brokers of one copy, and this one was installed with copies: leave it out. Nothing was changed" }}
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
