{{/* What the strictest profile asks of every container. */}}
{{- define "kwokfleet.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The sidecar that keeps a checkout: there before the daemon, gone after it. */}}
{{- define "kwokfleet.gitSync" -}}
{{- with .Values.source.gitSync -}}
- name: git-sync
  image: {{ .image }}
  imagePullPolicy: IfNotPresent
  restartPolicy: Always
  args:
    - --repo={{ required "source.gitSync.url: name the repository" .url }}
    - --ref={{ .ref }}
    - --root=/git
    - --link=current
    - --period={{ .period }}
    - --max-failures=-1
    - --http-bind=:1234
  envFrom:
    - secretRef: {name: kwokfleet-git-sync, optional: true}
  ports:
    - {name: git-sync, containerPort: 1234}
  startupProbe:
    httpGet: {path: /, port: git-sync}
    periodSeconds: 2
    failureThreshold: 150
  resources:
    requests: {cpu: 10m, memory: 64Mi}
    limits: {memory: 512Mi}
  securityContext:
    {{- include "kwokfleet.confined" $ | nindent 4 }}
  volumeMounts:
    - {name: git, mountPath: /git}
    - {name: git-tmp, mountPath: /tmp}
{{- end }}
{{- end }}
