{{/*
The users of the bundled server, as `examples/nats/roles` writes them: one for coordinators and one for
the workers of the pool. A test compares both texts. Arguments: dictionary of `root`, `coordinator` and
`worker`, the passwords.
*/}}
{{- define "rollout.roles" -}}
{{- $prefix := .root.Values.nats.prefix -}}
{{- $pool := .root.Values.worker.pool -}}
{{- $upper := upper $prefix -}}
{{- $work := printf "%s_WORK" $upper -}}
{{- $reports := printf "%s_REPORTS" $upper -}}
{{- $runs := printf "KV_%s_RUNS" $upper -}}
{{- $workers := printf "KV_%s_WORKERS" $upper -}}
{{- $publish := list "$JS.API.INFO" (printf "%s.v1.work.>" $prefix) (printf "%s.v1.report.>" $prefix) (printf "%s.v1.control.*" $prefix) (printf "%s.v1.command.*" $prefix) (printf "$KV.%s_RUNS.>" $upper) (printf "$KV.%s_WORKERS.*" $upper) -}}
{{- range list $work $reports $runs $workers -}}
{{- $publish = concat $publish (list (printf "$JS.API.STREAM.INFO.%s" .) (printf "$JS.API.STREAM.CREATE.%s" .) (printf "$JS.API.STREAM.UPDATE.%s" .) (printf "$JS.API.STREAM.MSG.GET.%s" .)) -}}
{{- end -}}
{{- $publish = concat $publish (list (printf "$JS.API.DIRECT.GET.%s.>" $work) (printf "$JS.API.STREAM.PURGE.%s" $work) (printf "$JS.API.STREAM.PURGE.%s" $reports) (printf "$JS.API.STREAM.PURGE.%s" $runs) (printf "$JS.API.CONSUMER.CREATE.%s.>" $work) (printf "$JS.API.CONSUMER.INFO.%s.*" $work) (printf "$JS.API.CONSUMER.LIST.%s" $work) (printf "$JS.API.CONSUMER.CREATE.%s.>" $reports) (printf "$JS.API.CONSUMER.MSG.NEXT.%s.*" $reports) (printf "$JS.API.CONSUMER.DELETE.%s.*" $reports)) -}}
{{- $hear := list (printf "%s.v1.claim.*" $prefix) (printf "%s.v1.claim.*.*" $prefix) (printf "%s.v1.command.*" $prefix) (printf "%s.v1.control.*" $prefix) (printf "$KV.%s_WORKERS.*" $upper) -}}
authorization: { users: [
{{ include "rollout.role" (dict "user" (printf "%s-coordinator" $prefix) "password" .coordinator "publish" $publish "hear" $hear "more" "allow_responses: true") }}
{{- $publish = list "$JS.API.INFO" (printf "%s.v1.report.%s.*" $prefix $pool) (printf "%s.v1.claim.%s.*" $prefix $pool) (printf "$KV.%s_WORKERS.*" $upper) (printf "$JS.API.STREAM.INFO.%s" $work) (printf "$JS.API.STREAM.INFO.%s" $reports) (printf "$JS.API.STREAM.INFO.%s" $workers) (printf "$JS.API.STREAM.MSG.GET.%s" $workers) (printf "$JS.API.STREAM.MSG.GET.%s" $runs) (printf "$JS.API.CONSUMER.LIST.%s" $work) -}}
{{- range list "c0" "c1" "c2" "c3" "c4" "c5" "c6" "c7" "c8" "c9" "solo" -}}
{{- $consumer := printf "%s.%s-%s" $work $pool . -}}
{{- $publish = concat $publish (list (printf "$JS.API.CONSUMER.MSG.NEXT.%s" $consumer) (printf "$JS.ACK.%s.>" $consumer) (printf "$JS.ACK.*.*.%s.>" $consumer)) -}}
{{- end }}
{{ include "rollout.role" (dict "user" (printf "%s-worker-%s" $prefix $pool) "password" .worker "publish" $publish "hear" (list (printf "%s.v1.control.*" $prefix)) "more" "allow_responses: { max: 1, expires: \"1h\" }") }}
] }
{{- end -}}

{{/* A user that may publish to the subjects in `publish` and subscribe to those in `hear`. */}}
{{- define "rollout.role" }}  {
    user: "{{ .user }}", password: "{{ .password }}"
    permissions: {
      publish: { allow: [
{{- range .publish }}
      "{{ . }}"
{{- end }}
      ] }
      subscribe: { allow: [
{{- range append .hear (printf "_INBOX.%s.>" .user) }}
      "{{ . }}"
{{- end }}
      ] }
      {{ .more }}
    }
  }
{{- end -}}

{{/* A password: the one in the cluster, or a new one. Arguments: list of the root context, the secret and the key. */}}
{{- define "rollout.password" -}}
{{- $root := index . 0 -}}
{{- $found := get (lookup "v1" "Secret" $root.Release.Namespace (index . 1)) "data" | default dict -}}
{{- if hasKey $found (index . 2) -}}
{{- get $found (index . 2) | b64dec -}}
{{- else -}}
{{- randAlphaNum 40 -}}
{{- end -}}
{{- end -}}
