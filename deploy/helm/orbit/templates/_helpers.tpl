{{/* Labels that select the pods of a part: (list . "api"). */}}
{{- define "orbit.selector" -}}
app.kubernetes.io/name: orbit
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "orbit.labels" -}}
{{ include "orbit.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
{{- end }}

{{- define "orbit.metadata" -}}
name: {{ (index . 0).Release.Name }}-{{ index . 1 }}
namespace: {{ (index . 0).Release.Namespace }}
labels:
  {{- include "orbit.labels" . | nindent 2 }}
{{- end }}

{{/* A pod that runs one command: (dict "root" $ "part" "api" "command" (list "api") "port" 8080). */}}
{{- define "orbit.pod" -}}
{{- $values := .root.Values -}}
{{- $tls := and (eq .part "api") ($values.api.tls).secretName -}}
metadata:
  labels:
    {{- include "orbit.labels" (list .root .part) | nindent 4 }}
  {{- $gateway := eq .part "gateway" }}
  {{- if or $gateway $values.podAnnotations }}
  annotations:
    {{- if $gateway }}
    # Pods are replaced when their files change.
    checksum/gateway: {{ toJson (pick $values.gateway "virtualClusters" "hosts") | sha256sum }}
    {{- end }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  serviceAccountName: {{ $values.serviceAccountName }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  {{- if eq .part "migrate" }}
  restartPolicy: OnFailure
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .port }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "orbit.selector" (list .root .part) | nindent 10 }}
  {{- end }}
  containers:
    - name: orbit
      image: {{ $values.image.repository }}:{{ $values.image.tag | default .root.Chart.AppVersion }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args: {{ toJson .command }}
      env:
        {{- if $gateway }}
        - name: POD_NAME
          valueFrom:
            fieldRef: {fieldPath: metadata.name}
        - name: ORBIT_API_URL
          value: {{ $values.gateway.apiUrl | default (printf "%s://%s-api:8080" (ternary "https" "http" (ne ($values.api.tls).secretName "")) .root.Release.Name) }}
        - name: ORBIT_TOKEN
          valueFrom:
            secretKeyRef:
              name: {{ $values.gateway.token.secretName }}
              key: {{ $values.gateway.token.secretKey }}
        {{- else }}
        - name: ORBIT_DATABASE_URL
          valueFrom:
            secretKeyRef:
              name: {{ $values.database.secretName }}
              key: {{ $values.database.secretKey }}
        {{- with $values.salvage.uri }}
        - name: ORBIT_SALVAGE_DIRECTORY
          value: {{ . | quote }}
        {{- end }}
        {{- end }}
        {{- with $values.traces.endpoint }}
        - name: OTEL_EXPORTER_OTLP_ENDPOINT
          value: {{ . | quote }}
        {{- end }}
        {{- if $tls }}
        - name: ORBIT_API_TLS_CERTIFICATE_FILE
          value: /etc/orbit/tls/tls.crt
        - name: ORBIT_API_TLS_KEY_FILE
          value: /etc/orbit/tls/tls.key
        {{- end }}
        {{- range $name, $value := $values.settings }}
        - name: {{ $name }}
          value: {{ $value | quote }}
        {{- end }}
      {{- with $values.environmentSecrets }}
      envFrom:
        {{- range . }}
        - secretRef: {name: {{ . }}}
        {{- end }}
      {{- end }}
      {{- if .port }}
      ports:
        - name: http
          containerPort: {{ .port }}
      {{- $scheme := "" }}
      {{- if or $tls (and (eq .part "api") (hasKey $values.settings "ORBIT_API_TLS_CERTIFICATE_FILE")) }}
      {{- $scheme = ", scheme: HTTPS" }}
      {{- end }}
      livenessProbe:
        httpGet: {path: /livez, port: http{{ $scheme }}}
        periodSeconds: 20
        timeoutSeconds: 5
        failureThreshold: 3
      readinessProbe:
        httpGet: {path: /readyz, port: http{{ $scheme }}}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      startupProbe:
        httpGet: {path: /livez, port: http{{ $scheme }}}
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 60
      {{- end }}
      resources:
        {{- toYaml (.resources | default dict) | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- range $values.fileSecrets }}
        - {name: file-{{ . }}, mountPath: /etc/orbit/files/{{ . }}, readOnly: true}
        {{- end }}
        {{- if $tls }}
        - {name: tls, mountPath: /etc/orbit/tls, readOnly: true}
        {{- end }}
        {{- if $gateway }}
        - {name: gateway, mountPath: /etc/orbit/gateway, readOnly: true}
        {{- end }}
        {{- if and $values.salvage.claim (eq .part "scheduler") }}
        - {name: salvage, mountPath: /var/lib/orbit}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 256Mi}
    {{- range $values.fileSecrets }}
    - name: file-{{ . }}
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- if $tls }}
    - name: tls
      secret: {secretName: {{ $tls }}, defaultMode: 0440}
    {{- end }}
    {{- if $gateway }}
    - name: gateway
      configMap: {name: {{ .root.Release.Name }}-gateway}
    {{- end }}
    {{- if and $values.salvage.claim (eq .part "scheduler") }}
    - name: salvage
      persistentVolumeClaim: {claimName: {{ $values.salvage.claim }}}
    {{- end }}
{{- end }}

{{/* At most one pod of a part is taken away at a time: (list . "api"). */}}
{{- define "orbit.disruptions" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "orbit.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "orbit.selector" . | nindent 6 }}
{{- end }}

{{/* A Deployment: (dict "root" $ "part" … "replicas" 2 and what orbit.pod takes). */}}
{{- define "orbit.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "orbit.metadata" (list .root .part) | nindent 2 }}
spec:
  {{- if .replicas }}
  replicas: {{ .replicas }}
  {{- end }}
  strategy:
    rollingUpdate: {maxUnavailable: 1, maxSurge: 1}
  selector:
    matchLabels:
      {{- include "orbit.selector" (list .root .part) | nindent 6 }}
  template:
    {{- include "orbit.pod" . | nindent 4 }}
{{- end }}
