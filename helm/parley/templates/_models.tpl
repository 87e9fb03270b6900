{{/* Embedded models that a service reads, space separated: root, component */}}
{{- define "parley.modelNames" -}}
{{- if eq (include "parley.engine" .) "embedded" -}}
{{- $names := (index .root.Values .component).models -}}
{{- if and (eq .component "thinker") (eq (include "parley.llm" .root) "openai-chat") -}}
{{- $names = without $names "smollm2-135m" -}}
{{- end -}}
{{- join " " $names -}}
{{- end -}}
{{- end -}}

{{/* Who answers in a conversation of embedded models */}}
{{- define "parley.llm" -}}
{{- $settings := mergeOverwrite (include "parley.profileSettings" (dict "root" . "component" "thinker") | fromYaml) (.Values.settings | default dict | deepCopy) (.Values.thinker.settings | default dict | deepCopy) -}}
{{- get $settings "PARLEY_LLM" | default "embedded" -}}
{{- end -}}

{{- define "parley.modelsClaim" -}}
{{- .Values.models.volume.existingClaim | default (printf "%s-models" (include "parley.fullname" .)) -}}
{{- end -}}

{{- define "parley.checkpointClaim" -}}
{{- .Values.checkpoint.volume.existingClaim | default (printf "%s-checkpoint" (include "parley.fullname" .)) -}}
{{- end -}}

{{/* "true" where the models lie in a volume that pods share */}}
{{- define "parley.modelsShared" -}}
{{- or (ne .Values.models.volume.existingClaim "") (ne .Values.models.volume.size "") -}}
{{- end -}}

{{- define "parley.modelsVolume" -}}
{{- if eq (include "parley.modelsShared" .) "true" -}}
persistentVolumeClaim: {claimName: {{ include "parley.modelsClaim" . | quote }}}
{{- else -}}
emptyDir: {sizeLimit: 2Gi}
{{- end -}}
{{- end -}}

{{/* Told apart by what is fetched, so that another checkpoint is not taken for fetched */}}
{{- define "parley.checkpointMark" -}}
{{- $download := .Values.checkpoint.download -}}
/checkpoint/.fetched-{{ list $download.repo $download.revision .Values.checkpoint.path | join " " | sha256sum | trunc 12 }}
{{- end -}}

{{/* Init containers of a pod that serves stages: root, component (of the pod), conf */}}
{{- define "parley.stageInit" -}}
{{- $root := .root -}}
{{- $fetched := dict -}}
{{- $checkpoint := false -}}
{{- range (include "parley.members" . | fromYaml).items -}}
{{- $member := dict "root" $root "component" . -}}
{{- $names := include "parley.modelNames" $member -}}
{{- if $names -}}{{- $_ := set $fetched . $names -}}{{- end -}}
{{- $checkpoint = or $checkpoint (ne (include "parley.engine" $member) "embedded") -}}
{{- end -}}
{{- if ne $root.Values.models.fetch "none" }}
{{- range $member, $names := $fetched }}
{{- if eq $root.Values.models.fetch "init" }}
- name: models-{{ $member }}
  {{- include "parley.fetchModels" (dict "root" $root "component" $member "names" $names) | nindent 2 }}
{{- else }}
- name: wait-models-{{ $member }}
  # the stamp is the last file of a model that becomes visible
  args: [sh, -ec, "for name in {{ $names }}; do until [ -e /models/$name/.parley-model.json ]; do sleep 2; done; done"]
  {{- include "parley.waiting" (dict "root" $root "component" $member "volume" "models") | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $checkpoint $root.Values.checkpoint.download.enabled }}
- name: wait-checkpoint
  args: [sh, -ec, "until [ -e {{ include "parley.checkpointMark" $root }} ]; do sleep 5; done"]
  {{- include "parley.waiting" (dict "root" $root "component" (eq .component "native" | ternary "thinker" .component) "volume" "checkpoint") | nindent 2 }}
{{- end }}
{{- end -}}

{{/* root, component, volume */}}
{{- define "parley.waiting" -}}
image: {{ include "parley.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- toYaml .root.Values.securityContext | nindent 2 }}
resources:
  {{- toYaml .root.Values.models.waitResources | nindent 2 }}
volumeMounts:
  - {name: {{ .volume }}, mountPath: /{{ .volume }}, readOnly: true}
{{- end -}}

{{/* The image of a component fetches and converts what that component reads: root, component, names */}}
{{- define "parley.fetchModels" -}}
image: {{ include "parley.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: [python, -m, parley.models, fetch, {{ splitList " " .names | join ", " }}]
securityContext:
  {{- toYaml .root.Values.securityContext | nindent 2 }}
env:
  - {name: HOME, value: /tmp}
  - {name: PARLEY_MODELS, value: /models}
  {{- with .root.Values.models.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- toYaml .root.Values.models.resources | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: models, mountPath: /models}
{{- end -}}
