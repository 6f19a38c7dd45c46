{{/* What everything of ours carries. */}}
{{- define "kwokfleet.labels" -}}
app.kubernetes.io/name: kwokfleet
app.kubernetes.io/part-of: kwokfleet
app.kubernetes.io/component: daemon
{{- end }}

{{/* What tells the daemon's pods from all others. */}}
{{- define "kwokfleet.selector" -}}
app.kubernetes.io/name: kwokfleet
app.kubernetes.io/component: daemon
{{- end }}

{{- define "kwokfleet.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* A manifest below files/, which is the same as in the kustomize base: in the release's namespace, with its image. */}}
{{- define "kwokfleet.file" -}}
{{- $text := .root.Files.Get .path }}
{{- $text = regexReplaceAll "(?m)namespace: kwokfleet([ }]|$)" $text (printf "namespace: %s${1}" .root.Release.Namespace) }}
{{- $text = regexReplaceAll "image: ghcr.io/kwokfleet/kwokfleet:\\S+" $text (printf "image: %s" (include "kwokfleet.image" .root)) }}
{{- if .root.Values.kwokPods.enabled }}
{{- $text = regexReplaceAll "(name: kwokfleet-kwok}\nsubjects:\n  - {kind: ServiceAccount, name: kwokfleet)," $text "${1}-kwok," }}
{{- end }}
{{- $text }}
{{- if hasSuffix "/serviceaccount.yaml" .path }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}

{{/* How `kwokfleet run` is told where its files are. */}}
{{- define "kwokfleet.sourceArgs" -}}
{{- with .Values.source -}}
{{- if eq .type "git" -}}
- --git-url={{ required "source.git.url: name the repository" .git.url }}
- --git-ref={{ .git.ref }}
- --git-path={{ .git.path }}
- --git-interval={{ .git.interval }}
{{- else if eq .type "gitSync" -}}
- {{ printf "/git/current/%s" .gitSync.path | clean }}
{{- else -}}
- /fleets
{{- end }}
{{- end }}
{{- end }}
