{{/* What a schema cannot see. Fails with the values at fault */}}
{{- define "parley.checks" -}}
{{- include "parley.checkStore" . -}}
{{- include "parley.checkExposure" . -}}
{{- include "parley.checkModels" . -}}
{{- include "parley.checkGpus" . -}}
{{- if not (regexMatch "^[a-z]" (include "parley.fullname" .)) -}}
{{- fail (printf "fullnameOverride: Services are named after the release, and no Service is called %q: begin with a letter" (include "parley.fullname" .)) -}}
{{- end -}}
{{- if and .Values.mtls.existingSecret (not .Values.mtls.serverName) -}}
{{- fail "mtls.serverName: the name in the stages' certificates, because replicas are dialled by address" -}}
{{- end -}}
{{- if and (eq (include "parley.scaler" .) "keda") (not .Values.autoscaling.prometheus.serverAddress) -}}
{{- fail "autoscaling.prometheus.serverAddress: where KEDA asks for the sessions" -}}
{{- end -}}
{{- range prepend (include "parley.dialled" . | fromYaml).items "gateway" -}}
{{- $autoscaling := (index $.Values (eq . "native" | ternary "onePod" .)).autoscaling -}}
{{- if lt (int $autoscaling.max) (int $autoscaling.min) -}}
{{- fail (printf "%s.autoscaling.max is less than its min" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "parley.checkStore" -}}
{{- $redis := .Values.redis -}}
{{- if and $redis.url $redis.existingSecret -}}
{{- fail "redis.url and redis.existingSecret: one store" -}}
{{- end -}}
{{- if .Values.valkey.enabled -}}
{{- if $redis.url -}}
{{- fail "redis.url names a store of your own: set valkey.enabled to false" -}}
{{- end -}}
{{- if ne (empty .Values.valkey.auth.existingSecret) (empty $redis.existingSecret) -}}
{{- fail "valkey.auth.existingSecret and redis.existingSecret go together: the server's password, and the URL with it" -}}
{{- end -}}
{{- else if $redis.url -}}
{{- $open := list -}}
{{- range .Values.networkPolicy.redisPorts -}}{{- $open = append $open (int .) -}}{{- end -}}
{{- $usual := contains "+sentinel:" $redis.url | ternary "26379" "6379" -}}
{{- range regexReplaceAll "^[a-z+]+://([^/?]*).*$" $redis.url "${1}" | splitList "," -}}
{{- $port := regexFind ":[0-9]+$" . | trimPrefix ":" | default $usual -}}
{{- if and $.Values.networkPolicy.enabled (not (has (int $port) $open)) -}}
{{- fail (printf "networkPolicy.redisPorts: redis.url names port %s, to which nobody would be let through" $port) -}}
{{- end -}}
{{- end -}}
{{- else if not $redis.existingSecret -}}
{{- fail "redis.url or redis.existingSecret: without valkey.enabled there is no store" -}}
{{- end -}}
{{- end -}}

{{- define "parley.checkExposure" -}}
{{- $exposed := or .Values.ingress.enabled .Values.httpRoute.enabled (ne .Values.gateway.service.type "ClusterIP") -}}
{{- if and $exposed (not .Values.auth.keys.existingSecret) (not .Values.auth.keys.inRedis) (not .Values.auth.anonymous) -}}
{{- fail "auth.keys: without a Secret of keys, or keys in the store, everybody is let in; auth.anonymous says that this is meant" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.host: the name that clients dial" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.parentRefs: the Gateway that the route belongs to" -}}
{{- end -}}
{{- end -}}

{{- define "parley.checkModels" -}}
{{- $root := . -}}
{{- range list "thinker" "talker" "vocoder" -}}
{{- if ne (include "parley.engine" (dict "root" $root "component" .)) "embedded" -}}
{{- if not (or $root.Values.checkpoint.volume.existingClaim $root.Values.checkpoint.volume.size) -}}
{{- fail "checkpoint.volume: a native model needs existingClaim, or a size to claim" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.checkpoint.download -}}
{{- if and .enabled (not (and .host .repo .revision)) -}}
{{- fail "checkpoint.download: host, repo and revision" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.models.fetch "job") (ne (include "parley.modelsShared" .) "true") -}}
{{- fail "models.fetch is job: models.volume needs existingClaim or size" -}}
{{- end -}}
{{- if and (eq .Values.models.fetch "none") (ne (include "parley.modelsShared" .) "true") -}}
{{- fail "models.fetch is none: models.volume.existingClaim names where the models lie" -}}
{{- end -}}
{{- end -}}

{{- define "parley.checkGpus" -}}
{{- $root := . -}}
{{- range list "thinker" "talker" "vocoder" -}}
{{- $component := . -}}
{{- $gpu := (index $root.Values .).gpu -}}
{{- range $part, $quantities := (index $root.Values .).resources -}}
{{- range $name, $_ := $quantities -}}
{{- if or (eq $name $gpu.resourceName) (hasPrefix "nvidia.com/" $name) -}}
{{- fail (printf "%s.resources.%s: say %s as %s.gpu.resourceName and count, or the service computes on processors beside it" $component $part $name $component) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (hasSuffix ".shared" $gpu.resourceName) (gt (int $gpu.count) 1) -}}
{{- fail (printf "%s.gpu.count: more than one share of a shared GPU gives no more of it, and plugins refuse it" .) -}}
{{- end -}}
{{- if and $root.Values.onePod.claim.enabled (gt (int $gpu.count) 0) -}}
{{- fail (printf "%s.gpu.count: with onePod.claim the claim is the GPU" .) -}}
{{- end -}}
{{- end -}}
{{- with .Values.onePod -}}
{{- if and .enabled (ne (include "parley.isNative" $root) "true") -}}
{{- fail "onePod.enabled: for a native model whose three services share a GPU" -}}
{{- end -}}
{{- if and .claim.enabled (not .enabled) -}}
{{- fail "onePod.claim: with onePod.enabled" -}}
{{- end -}}
{{- if and .claim.enabled (semverCompare "<1.34.0-0" $root.Capabilities.KubeVersion.Version) -}}
{{- fail "onePod.claim: claims of devices (resource.k8s.io/v1) need Kubernetes 1.34" -}}
{{- end -}}
{{- end -}}
{{- end -}}
