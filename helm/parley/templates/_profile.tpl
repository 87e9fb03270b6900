{{- define "parley.profileText" -}}
{{- if .Values.profile.content -}}
{{ .Values.profile.content }}
{{- else -}}
{{- $path := printf "files/profiles/%s.yaml" .Values.profile.name -}}
{{- required (printf "profile.name: the chart holds no profile %q: give its text as profile.content" .Values.profile.name) (.Files.Get $path) -}}
{{- end -}}
{{- end -}}

{{/* The settings that the profile gives a service, as a YAML map: root, component */}}
{{- define "parley.profileSettings" -}}
{{- $profile := include "parley.profileText" .root | fromYaml -}}
{{- if hasKey $profile "Error" -}}
{{- fail (printf "profile.content is no YAML: %s" $profile.Error) -}}
{{- end -}}
{{- dig "services" .component dict $profile | toYaml -}}
{{- end -}}

{{/* Which engine a service takes: "embedded" or the name of a model's: root, component */}}
{{- define "parley.engine" -}}
{{- $variable := printf "PARLEY_%s" (upper .component) -}}
{{- $settings := mergeOverwrite (include "parley.profileSettings" . | fromYaml) (.root.Values.settings | default dict | deepCopy) ((index .root.Values .component).settings | default dict | deepCopy) -}}
{{- get $settings $variable | default "embedded" -}}
{{- end -}}

{{/* "true" where a native model thinks */}}
{{- define "parley.isNative" -}}
{{- ne (include "parley.engine" (dict "root" . "component" "thinker")) "embedded" -}}
{{- end -}}
