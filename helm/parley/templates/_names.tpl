{{- define "parley.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* 40 characters, so that what is named after it has room. A digest stands for what is cut off: two long names stay two */}}
{{- define "parley.fullname" -}}
{{- $full := printf "%s-%s" .Release.Name (include "parley.name" .) -}}
{{- if .Values.fullnameOverride -}}
{{- $full = .Values.fullnameOverride -}}
{{- else if contains (include "parley.name" .) .Release.Name -}}
{{- $full = .Release.Name -}}
{{- end -}}
{{- $full = $full | replace "." "-" -}}
{{- if gt (len $full) 40 -}}
{{- $full = printf "%s-%s" ($full | trunc 31 | trimSuffix "-") ($full | sha256sum | trunc 8) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{/* Nothing else finds pods, and none of it can ever change. Quoted, for a release may be called `on` or `1e3`: root, component */}}
{{- define "parley.selector" -}}
app.kubernetes.io/name: {{ include "parley.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The operator's labels win, but for those that find things. root, component, extra: labels that win over all */}}
{{- define "parley.labels" -}}
{{- $labels := dict "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/part-of" "parley" -}}
{{- $fixed := include "parley.selector" . | fromYaml -}}
{{- $_ := set $fixed "helm.sh/chart" (printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_")) -}}
{{- $_ := set $fixed "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- toYaml (mergeOverwrite $labels (.root.Values.commonLabels | default dict | deepCopy) $fixed (.extra | default dict)) -}}
{{- end -}}

{{/* The labels of a pod. No version of the chart: a new chart alone replaces no pod, and a Job cannot change: root, component, conf */}}
{{- define "parley.podLabels" -}}
{{- $labels := dict "app.kubernetes.io/part-of" "parley" -}}
{{- $said := mergeOverwrite (.root.Values.commonLabels | default dict | deepCopy) (deepCopy (.conf.podLabels | default dict)) -}}
{{- toYaml (mergeOverwrite $labels $said (include "parley.selector" . | fromYaml)) -}}
{{- end -}}

{{/* An image with its registry, where its repository names none: root, image */}}
{{- define "parley.repository" -}}
{{- $host := splitList "/" .image.repository | first -}}
{{- $named := and (contains "/" .image.repository) (or (contains "." $host) (contains ":" $host) (eq $host "localhost")) -}}
{{- with .image.registry | default ($named | ternary "" .root.Values.image.registry) }}{{ . | trimSuffix "/" }}/{{ end }}{{ .image.repository }}
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
