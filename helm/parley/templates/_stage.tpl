{{/* A stage's container: root, component */}}
{{- define "parley.stageContainer" -}}
{{- $root := .root -}}
{{- $values := index $root.Values .component -}}
{{- $onePod := and $root.Values.onePod.enabled (ne .component "vad") -}}
{{- $conf := $onePod | ternary $root.Values.onePod $values -}}
{{- $ports := include "parley.ports" . | fromYaml -}}
- name: {{ .component }}
  image: {{ include "parley.image" . }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  args: [python, -m, {{ .component }}_svc]
  securityContext:
    {{- toYaml $root.Values.securityContext | nindent 4 }}
  env:
    {{- include "parley.env" . | nindent 4 }}
  ports:
    - {name: {{ $ports.grpcName }}, containerPort: {{ $ports.grpc }}}
    - {name: {{ $ports.httpName }}, containerPort: {{ $ports.http }}}
  startupProbe:
    {{- include "parley.probe" (dict "root" $root "ports" $ports "name" "startup") | nindent 4 }}
    periodSeconds: 5
    failureThreshold: {{ div (add (include "parley.startupSeconds" (dict "root" $root "component" .component "conf" $conf)) 4) 5 }}
  readinessProbe:
    {{- include "parley.probe" (dict "root" $root "ports" $ports "name" "ready") | nindent 4 }}
    periodSeconds: 2
    timeoutSeconds: 2
    failureThreshold: 2
  livenessProbe:
    {{- include "parley.probe" (dict "root" $root "ports" $ports "name" "live") | nindent 4 }}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 3
  {{- with include "parley.preStop" $conf }}
  {{- . | nindent 2 }}
  {{- end }}
  resources:
    {{- include "parley.resources" . | nindent 4 }}
  volumeMounts:
    {{- include "parley.mounts" (dict "root" $root "component" .component "conf" $conf) | nindent 4 }}
    {{- if ne (include "parley.modelNames" .) "" }}
    - {name: models, mountPath: /models, readOnly: true}
    {{- end }}
    {{- if ne (include "parley.engine" .) "embedded" }}
    - {name: checkpoint, mountPath: /checkpoint, readOnly: true}
    {{- end }}
    {{- if $conf.shmSize }}
    - {name: shm, mountPath: /dev/shm}
    {{- end }}
    {{- if and $onePod $root.Values.onePod.mps.enabled }}
    - {name: mps, mountPath: /mps}
    {{- end }}
{{- end -}}

{{/* The kubelet's gRPC probe speaks no TLS, so under mTLS the same states are asked over HTTP: root, ports, name */}}
{{- define "parley.probe" -}}
{{- if .root.Values.mtls.existingSecret -}}
httpGet: {path: /health/{{ .name }}, port: {{ .ports.httpName }}}
{{- else -}}
grpc: {port: {{ .ports.grpc }}, service: {{ .name }}}
{{- end -}}
{{- end -}}

{{- define "parley.preStop" -}}
{{- if gt (int .drain.preStopSeconds) 0 -}}
lifecycle:
  # exec: the sleep action is switched off in 1.29
  preStop: {exec: {command: [sleep, {{ int .drain.preStopSeconds | quote }}]}}
{{- end -}}
{{- end -}}

{{/* What a container asks for, with its GPU: root, component */}}
{{- define "parley.resources" -}}
{{- $values := index .root.Values .component -}}
{{- $resources := deepCopy $values.resources -}}
{{- if and (hasKey $values "gpu") (gt (int $values.gpu.count) 0) -}}
{{- $gpu := dict $values.gpu.resourceName (int $values.gpu.count) -}}
{{- range list "requests" "limits" -}}
{{- $_ := set $resources . (mergeOverwrite (get $resources . | default dict) $gpu) -}}
{{- end -}}
{{- end -}}
{{- if and .root.Values.onePod.enabled .root.Values.onePod.claim.enabled (ne .component "vad") -}}
{{- $_ := set $resources "claims" (list (dict "name" "gpu")) -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}

{{/* root, component (of the pod), conf */}}
{{- define "parley.stageVolumes" -}}
{{- $root := .root -}}
{{- $models := "" -}}
{{- $checkpoint := false -}}
{{- range (include "parley.members" . | fromYaml).items -}}
{{- $member := dict "root" $root "component" . -}}
{{- $models = printf "%s%s" $models (include "parley.modelNames" $member) -}}
{{- $checkpoint = or $checkpoint (ne (include "parley.engine" $member) "embedded") -}}
{{- end -}}
{{ include "parley.volumes" . }}
{{- if $models }}
- name: models
  {{- include "parley.modelsVolume" $root | nindent 2 }}
{{- end }}
{{- if $checkpoint }}
- name: checkpoint
  persistentVolumeClaim: {claimName: {{ include "parley.checkpointClaim" $root | quote }}}
{{- end }}
{{- if .conf.shmSize }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .conf.shmSize | quote }}}
{{- end }}
{{- if eq .component "native" }}
{{- if $root.Values.onePod.mps.enabled }}
- name: mps
  emptyDir: {sizeLimit: 64Mi}
{{- end }}
{{- end }}
{{- end -}}
