{{/* Seconds from the end of a pod's life to its kill: root, component, conf */}}
{{- define "parley.grace" -}}
{{- $drain := .conf.drain -}}
{{- $needed := add (int $drain.preStopSeconds) (int $drain.seconds) (int $drain.marginSeconds) -}}
{{- $given := .conf.terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $given -}}
{{- $needed -}}
{{- else if lt (int $given) (int $needed) -}}
{{- fail (printf "%s.terminationGracePeriodSeconds: %d s would kill a drain of %d s (preStopSeconds + seconds + marginSeconds)" .component (int $given) $needed) -}}
{{- else -}}
{{- int $given -}}
{{- end -}}
{{- end -}}

{{/* Seconds that a start may take; null: as long as the engine needs, a native one reads 20 GB and captures graphs: root, component, conf */}}
{{- define "parley.startupSeconds" -}}
{{- if kindIs "invalid" .conf.startupSeconds -}}
{{- ne (include "parley.engine" .) "embedded" | ternary 900 120 -}}
{{- else -}}
{{- int .conf.startupSeconds -}}
{{- end -}}
{{- end -}}

{{/* Seconds until a rollout counts as stuck: one before drains (its GPU is free no sooner), images are pulled, models fetched and loaded
meanwhile: root, component, conf */}}
{{- define "parley.progressDeadline" -}}
{{- add (include "parley.startupSeconds" .) 900 (include "parley.grace" .) (.root.Values.checkpoint.download.enabled | ternary (int .root.Values.checkpoint.download.deadlineSeconds) 0) -}}
{{- end -}}

{{/* Where a pod runs, as whom, and how long it may take to leave: root, component, conf */}}
{{- define "parley.podSpec" -}}
serviceAccountName: {{ include "parley.serviceAccount" .root | quote }}
automountServiceAccountToken: false
# links would set PARLEY_... variables, which the processes take for settings
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "parley.grace" . }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .conf.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .conf.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .conf.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .conf.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .conf.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if kindIs "invalid" .conf.topologySpreadConstraints }}
  {{- $selector := include "parley.selector" . }}
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- else }}
  {{- toYaml .conf.topologySpreadConstraints | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "parley.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "parley.fullname" .) "default") -}}
{{- end -}}

{{/* How a Deployment replaces its pods. No GPU is free for a surge: conf, onGpu */}}
{{- define "parley.strategy" -}}
{{- if .conf.strategy -}}
{{ toYaml .conf.strategy }}
{{- else if eq .onGpu "true" -}}
type: RollingUpdate
rollingUpdate: {maxSurge: 0, maxUnavailable: 1}
{{- else -}}
type: RollingUpdate
rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
{{- end -}}
{{- end -}}

{{/* Secrets as files; all pods of the house have these: root, component */}}
{{- define "parley.secretVolumes" -}}
{{- $secrets := dict -}}
{{- $values := .root.Values -}}
{{- if $values.redis.existingSecret }}{{ $_ := set $secrets "redis" $values.redis.existingSecret }}{{ end }}
{{- if $values.redis.caSecret }}{{ $_ := set $secrets "redis-ca" $values.redis.caSecret }}{{ end }}
{{- if $values.mtls.existingSecret }}{{ $_ := set $secrets "mtls" $values.mtls.existingSecret }}{{ end }}
{{- if eq .component "gateway" }}
{{- if $values.auth.keys.existingSecret }}{{ $_ := set $secrets "keys" $values.auth.keys.existingSecret }}{{ end }}
{{- if $values.tls.existingSecret }}{{ $_ := set $secrets "tls" $values.tls.existingSecret }}{{ end }}
{{- end }}
{{- $secrets | toYaml -}}
{{- end -}}

{{- define "parley.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .conf.tmpSize | quote }}}
{{- range $name, $secret := include "parley.secretVolumes" . | fromYaml }}
- name: {{ $name }}
  # readable to the group that fsGroup gives the pod
  secret: {secretName: {{ $secret | quote }}, defaultMode: 0440}
{{- end }}
{{- with .conf.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* root, component, conf */}}
{{- define "parley.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- range $name, $_ := include "parley.secretVolumes" . | fromYaml }}
- {name: {{ $name }}, mountPath: /etc/parley/{{ $name }}, readOnly: true}
{{- end }}
{{- with .conf.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}
