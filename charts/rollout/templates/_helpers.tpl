{{/* Names. A name of an object is at most 63 bytes, with a suffix of at most 22. */}}
{{- define "rollout.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "rollout.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "rollout.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "rollout.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rollout.trialNamespace" -}}
{{- default .Release.Namespace .Values.trials.namespace -}}
{{- end -}}

{{/* Labels. Arguments: list of the root context and the component. */}}
{{- define "rollout.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "rollout.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "rollout.labels" -}}
{{- $root := index . 0 -}}
{{ include "rollout.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods: without those that change with the version of the chart, which would replace pods. */}}
{{- define "rollout.podLabels" -}}
{{- $root := index . 0 -}}
{{ include "rollout.selectorLabels" . }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The image. Arguments: list of the root context, `slim` or `full`, and a tag that replaces the default. */}}
{{- define "rollout.image" -}}
{{- $root := index . 0 -}}
{{- $image := $root.Values.image -}}
{{- $slim := default $root.Chart.AppVersion $image.tag -}}
{{- $full := default (printf "%s-full" $slim) $image.fullTag -}}
{{- $tag := ternary $full $slim (eq (index . 1) "full") -}}
{{- printf "%s:%s" $image.repository (default $tag (index . 2)) | quote -}}
{{- end -}}

{{/* Fields of every pod. Arguments: list of the root context and the values of the component. */}}
{{- define "rollout.podSpec" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
securityContext: {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Secret of a role at the NATS server. Arguments: list of the root context and `coordinator` or `worker`. */}}
{{- define "rollout.natsSecret" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- $named := get $root.Values.nats.auth (printf "%sSecret" $role) -}}
{{- default (printf "%s-nats-%s" (include "rollout.fullname" $root) $role) $named -}}
{{- end -}}

{{- define "rollout.natsUrl" -}}
{{- if .Values.nats.enabled -}}
{{- printf "%s://%s-nats:4222" (ternary "tls" "nats" (not (empty .Values.nats.tls.existingSecret))) (include "rollout.fullname" .) -}}
{{- else -}}
{{- required "set `nats.url`, or `nats.enabled: true` for a server of the release" .Values.nats.url -}}
{{- end -}}
{{- end -}}

{{/* Variables of coordinators and workers. Arguments: list of the root context and the role. */}}
{{- define "rollout.env" -}}
{{- $root := index . 0 -}}
{{- $nats := $root.Values.nats -}}
{{- $secret := include "rollout.natsSecret" . -}}
- {name: HOME, value: /var/lib/rollout}
- {name: ROLLOUT_LOG_FORMAT, value: json}
- {name: ROLLOUT_STORE, value: {{ required "set `store.url` to the blob store, such as s3://bucket/prefix" $root.Values.store.url | quote }}}
- {name: ROLLOUT_NATS_URL, value: {{ include "rollout.natsUrl" $root | quote }}}
- {name: ROLLOUT_NAMESPACE, value: {{ $nats.prefix | quote }}}
- {name: ROLLOUT_LEASE, value: {{ $nats.lease | quote }}}
{{- $replicas := default (ternary $nats.replicas 1 $nats.enabled) $nats.streamReplicas | int }}
{{- if or (gt $replicas 1) $nats.streamReplicas }}
- {name: ROLLOUT_NATS_REPLICAS, value: {{ $replicas | quote }}}
{{- end }}
{{- if eq $nats.auth.method "password" }}
- name: ROLLOUT_NATS_USER
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: username}}
- name: ROLLOUT_NATS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: password}}
{{- else if eq $nats.auth.method "token" }}
- name: ROLLOUT_NATS_TOKEN
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: token}}
{{- else if eq $nats.auth.method "creds" }}
- {name: ROLLOUT_NATS_CREDS, value: /etc/rollout/nats/nats.creds}
{{- end }}
{{- end -}}

{{- define "rollout.envFrom" -}}
{{- with .Values.store.existingSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end -}}

{{/* Options of the NATS client that have no variable. */}}
{{- define "rollout.natsArgs" -}}
{{- if .Values.nats.tls.existingSecret }}
- --nats-ca=/etc/rollout/nats-tls/ca.crt
{{- if .Values.nats.tls.clientCertificate }}
- --nats-cert=/etc/rollout/nats-tls/tls.crt
- --nats-key=/etc/rollout/nats-tls/tls.key
{{- end }}
{{- end }}
{{- end -}}

{{/* Mounts and volumes of coordinators and workers, without that of their state. */}}
{{- define "rollout.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if eq .Values.nats.auth.method "creds" }}
- {name: nats-credentials, mountPath: /etc/rollout/nats, readOnly: true}
{{- end }}
{{- if .Values.nats.tls.existingSecret }}
- {name: nats-tls, mountPath: /etc/rollout/nats-tls, readOnly: true}
{{- end }}
{{- if .Values.store.existingClaim }}
- {name: blobs, mountPath: /blobs}
{{- end }}
{{- end -}}

{{- define "rollout.volumes" -}}
{{- $root := index . 0 -}}
- name: tmp
  emptyDir: {}
{{- if eq $root.Values.nats.auth.method "creds" }}
- name: nats-credentials
  secret:
    secretName: {{ include "rollout.natsSecret" . }}
    items: [{key: creds, path: nats.creds}]
{{- end }}
{{- with $root.Values.nats.tls.existingSecret }}
- name: nats-tls
  secret:
    secretName: {{ . }}
    items:
      - {key: ca.crt, path: ca.crt}
      {{- if $root.Values.nats.tls.clientCertificate }}
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
      {{- end }}
{{- end }}
{{- with $root.Values.store.existingClaim }}
- name: blobs
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- end -}}

{{/* Volume of run directories. */}}
{{- define "rollout.runsVolume" -}}
- name: runs
{{- if .Values.coordinator.persistence.enabled }}
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-runs" (include "rollout.fullname" .)) .Values.coordinator.persistence.existingClaim }}
{{- else }}
  emptyDir: {}
{{- end }}
{{- end -}}

{{/* Probes and port of a process with `--listen`. */}}
{{- define "rollout.probes" -}}
ports:
  - {name: metrics, containerPort: {{ .Values.metrics.port }}}
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end -}}
