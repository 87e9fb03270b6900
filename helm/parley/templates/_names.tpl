{{- define "parley.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "parley.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "parley.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "parley.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* root, component */}}
{{- define "parley.selector" -}}
app.kubernetes.io/name: {{ include "parley.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* root, component */}}
{{- define "parley.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_") }}
{{ include "parley.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: parley
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The labels of a pod. No version of the chart: a new chart alone replaces no pod, and a Job cannot change: root, component, conf */}}
{{- define "parley.podLabels" -}}
{{ include "parley.selector" . }}
app.kubernetes.io/part-of: parley
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- with .conf.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image's registry, where its repository names none of its own: root, image */}}
{{- define "parley.repository" -}}
{{- with .root.Values.image.registry }}{{ . | trimSuffix "/" }}/{{ end }}{{ .image.repository }}
{{- end -}}

{{/* root, component */}}
{{- define "parley.image" -}}
{{- $image := (index .root.Values .component).image -}}
{{- $suffix := eq (include "parley.onGpu" .) "true" | ternary .root.Values.image.suffix.gpu .root.Values.image.suffix.cpu -}}
{{- $repository := include "parley.repository" (dict "root" .root "image" $image) -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default (printf "%s%s" (.root.Values.image.tag | default .root.Chart.AppVersion) $suffix) }}
{{- end -}}
{{- end -}}

{{/* "true" for a component that runs on a GPU: root, component */}}
{{- define "parley.onGpu" -}}
{{- if has .component (list "thinker" "talker" "vocoder") -}}
{{- or .root.Values.onePod.enabled (gt (int (index .root.Values .component).gpu.count) 0) -}}
{{- end -}}
{{- end -}}

{{/* Components that gateways dial, a kind of pod each; `native` is the pod of all three. A YAML list under `items` */}}
{{- define "parley.dialled" -}}
items: {{ ternary (list "vad" "native") (list "vad" "thinker" "talker" "vocoder") .Values.onePod.enabled | toJson }}
{{- end -}}

{{/* Containers of a pod that serve stages: component -> YAML list under `items` */}}
{{- define "parley.members" -}}
items: {{ eq .component "native" | ternary (list "thinker" "talker" "vocoder") (list .component) | toJson }}
{{- end -}}

{{/* Ports of a stage's container. In one pod all share an address: root, component */}}
{{- define "parley.ports" -}}
{{- $step := 0 -}}
{{- $suffix := "" -}}
{{- if and .root.Values.onePod.enabled (has .component (list "thinker" "talker" "vocoder")) -}}
{{- $step = index (dict "thinker" 0 "talker" 1 "vocoder" 2) .component -}}
{{- $suffix = printf "-%s" .component -}}
{{- end -}}
grpc: {{ add 50051 $step }}
http: {{ add 9090 $step }}
grpcName: grpc{{ $suffix }}
httpName: metrics{{ $suffix }}
{{- end -}}

{{/* What the gateway's port speaks */}}
{{- define "parley.scheme" -}}
{{ empty .Values.tls.existingSecret | ternary "http" "https" }}
{{- end -}}
