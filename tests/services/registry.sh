# An empty image registry on a free port of 127.0.0.1. Sourced by tests/run.

registry_pid=

registry_start() {
  # install_packages has already reported a missing program.
  command -v docker-registry >/dev/null || return 1
  local port tries
  for tries in 1 2 3 4 5; do
    port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
    registry_configuration "$port" >"$work/registry.yml"
    setsid docker-registry serve "$work/registry.yml" >"$logs/registry.log" 2>&1 </dev/null 3>&- 9>&- &
    registry_pid=$!
    # The registry exits if the port is in use; then another port is tried.
    if wait_until 20 registry_answers_or_ended "$port" && ! registry_ended; then
      export ROLLOUT_TEST_REGISTRY=127.0.0.1:$port
      say "started a registry on $ROLLOUT_TEST_REGISTRY"
      return 0
    fi
    registry_stop
  done
  lack "an image registry (log: $logs/registry.log): $(without docker-registry)"
  return 1
}

registry_configuration() {
  cat <<TEXT
version: 0.1
log: {level: info}
storage:
  filesystem: {rootdirectory: $work/registry}
http:
  addr: 127.0.0.1:$1
TEXT
}

registry_answers() {
  local line=
  { exec 8<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null || return 1
  printf 'GET /v2/ HTTP/1.0\r\n\r\n' >&8
  read -r -t 5 line <&8 || true
  exec 8>&-
  [[ $line == *" 200 "* ]]
}
registry_ended() { ! kill -0 "$registry_pid" 2>/dev/null; }
registry_answers_or_ended() { registry_ended || registry_answers "$1"; }

registry_stop() {
  [ -n "$registry_pid" ] || return 0
  kill -TERM "$registry_pid" 2>/dev/null
  wait_until 10 registry_ended || kill -KILL "$registry_pid" 2>/dev/null
  registry_pid=
}
