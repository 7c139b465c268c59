# docker compose, needed by environments with services: the installed one, else the one of a newer
# Debian suite. Sourced by tests/run.

readonly compose_suite=trixie

# Exports ROLLOUT_TEST_COMPOSE: the program, or `no`.
compose_find() {
  if [ -n "${ROLLOUT_TEST_COMPOSE:-}" ]; then
    say "using docker compose from ROLLOUT_TEST_COMPOSE: $ROLLOUT_TEST_COMPOSE"
    return 0
  fi
  local program directory
  for directory in "$HOME/.docker" /usr/local/lib/docker /usr/local/libexec/docker \
    /usr/lib/docker /usr/libexec/docker; do
    program=$directory/cli-plugins/docker-compose
    if compose_is_new_enough "$program"; then
      compose_use "$program"
      return 0
    fi
  done
  directory=$cache/compose/$compose_suite
  program=$directory/usr/libexec/docker/cli-plugins/docker-compose
  if [ ! -x "$program" ] &&
    ! suite_unpack "$compose_suite" docker-compose "$directory" >"$logs/compose.log" 2>&1; then
    say "cannot unpack docker-compose from $compose_suite: $(tail -n 1 "$logs/compose.log")"
  fi
  if compose_is_new_enough "$program"; then
    compose_use "$program"
  else
    export ROLLOUT_TEST_COMPOSE=no
    lack "docker compose 2 or newer: tests with services are ignored (log: $logs/compose.log)"
    return 1
  fi
}

compose_use() {
  export ROLLOUT_TEST_COMPOSE=$1
  say "docker compose $("$1" version --short 2>/dev/null): $1"
}
compose_is_new_enough() { "$1" version --short 2>/dev/null | grep -q '^v\{0,1\}\([2-9]\|[1-9][0-9]\)\.'; }
