{{- define "parley.valkeyName" -}}
{{ include "parley.fullname" . }}-valkey
{{- end -}}

{{- define "parley.redisEnv" -}}
{{- if .Values.redis.existingSecret }}
PARLEY_REDIS_URL_FILE: /etc/parley/redis/{{ .Values.redis.key }}
{{- else if .Values.redis.url }}
PARLEY_REDIS_URL: {{ .Values.redis.url | quote }}
{{- else }}
PARLEY_REDIS_URL: redis://{{ include "parley.valkeyName" . }}:6379/0
{{- end }}
{{- end -}}

{{- define "parley.mtlsEnv" -}}
{{- if .Values.mtls.existingSecret }}
PARLEY_TLS_CERTIFICATE: /etc/parley/mtls/tls.crt
PARLEY_TLS_KEY: /etc/parley/mtls/tls.key
PARLEY_TLS_CA: /etc/parley/mtls/ca.crt
{{- end }}
{{- end -}}

{{- define "parley.gatewayOwnEnv" -}}
PARLEY_HTTP_BIND: 0.0.0.0:8080
PARLEY_METRICS_BIND: 0.0.0.0:9090
PARLEY_ADVERTISE: $(POD_IP):8080
PARLEY_PROFILE: /etc/parley/profile/{{ .Values.profile.name }}.yaml
PARLEY_DRAIN_TIMEOUT_MS: {{ mul 1000 (int .Values.gateway.drain.seconds) | quote }}
{{ include "parley.redisEnv" . }}
{{ include "parley.mtlsEnv" . }}
{{- if .Values.mtls.existingSecret }}
PARLEY_TLS_SERVER_NAME: {{ .Values.mtls.serverName | quote }}
{{- end }}
{{- if .Values.auth.keys.existingSecret }}
PARLEY_KEYS_FILE: /etc/parley/keys/{{ .Values.auth.keys.key }}
{{- end }}
{{- if .Values.auth.keys.inRedis }}
PARLEY_KEYS_IN_REDIS: "true"
{{- end }}
{{- with .Values.auth.trustedProxies }}
PARLEY_TRUSTED_PROXIES: {{ join "," . | quote }}
{{- end }}
{{- with .Values.auth.allowedOrigins }}
PARLEY_ALLOWED_ORIGINS: {{ join "," . | quote }}
{{- end }}
{{- if .Values.tls.existingSecret }}
PARLEY_HTTP_TLS_CERTIFICATE: /etc/parley/tls/tls.crt
PARLEY_HTTP_TLS_KEY: /etc/parley/tls/tls.key
{{- end }}
{{- end -}}

{{/* root, component */}}
{{- define "parley.stageOwnEnv" -}}
{{- $values := index .root.Values .component -}}
{{- $ports := include "parley.ports" . | fromYaml -}}
{{- $onePod := and .root.Values.onePod.enabled (ne .component "vad") -}}
PARLEY_BIND: 0.0.0.0:{{ $ports.grpc }}
PARLEY_HTTP_BIND: 0.0.0.0:{{ $ports.http }}
PARLEY_ADVERTISE: $(POD_IP):{{ $ports.grpc }}
PARLEY_DRAIN_S: {{ int ($onePod | ternary .root.Values.onePod.drain.seconds $values.drain.seconds) | quote }}
{{- if ne (include "parley.modelNames" .) "" }}
PARLEY_MODELS: /models
{{- end }}
{{ include "parley.redisEnv" .root }}
{{ include "parley.mtlsEnv" .root }}
{{- if ne (include "parley.engine" .) "embedded" }}
PARLEY_CHECKPOINT: /checkpoint/{{ .root.Values.checkpoint.path }}
{{- end }}
{{- if eq (include "parley.onGpu" .) "true" }}
PARLEY_STAGES_ON_CARD: {{ $onePod | ternary (list "thinker" "talker" "vocoder") ($values.gpu.stagesOnCard | default (list .component)) | join "," }}
{{- if and $onePod .root.Values.onePod.mps.enabled }}
CUDA_MPS_PIPE_DIRECTORY: /mps/card/pipe
CUDA_MPS_LOG_DIRECTORY: /mps/card/log
{{- end }}
{{- end }}
{{- range list "OMP_NUM_THREADS" "OPENBLAS_NUM_THREADS" "MKL_NUM_THREADS" "NUMEXPR_NUM_THREADS" }}
{{ . }}: {{ int $values.threads | quote }}
{{- end }}
TOKENIZERS_PARALLELISM: "false"
{{- end -}}

{{/* The environment of a container. The profile's settings win over the chart's, the operator's over both: root, component */}}
{{- define "parley.env" -}}
{{- $values := index .root.Values .component -}}
{{- $own := eq .component "gateway" | ternary (include "parley.gatewayOwnEnv" .root) (include "parley.stageOwnEnv" .) | fromYaml -}}
{{- $env := mergeOverwrite $own (include "parley.profileSettings" . | fromYaml) -}}
{{- if eq (get $env "PARLEY_DEVICE") "auto" -}}
{{- $_ := set $env "PARLEY_DEVICE" (eq (include "parley.onGpu" .) "true" | ternary "cuda" "cpu") -}}
{{- end -}}
{{- /* the root is read-only: whatever caches, caches in HOME */}}
{{- $env = mergeOverwrite (dict "HOME" "/tmp" "PYTHONUNBUFFERED" "1") $env (.root.Values.settings | default dict | deepCopy) ($values.settings | default dict | deepCopy) -}}
{{- /* a name that is there twice is refused when it is applied by the server */}}
{{- range $values.extraEnv }}{{- $_ := unset $env .name }}{{- end -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- /* toJson: a number of a profile is not to become 1e+06 */}}
{{- range $name, $value := $env }}
- name: {{ $name }}
  value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- with $values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
