# A Docker engine: the one that answers, or one of our own. Sourced by tests/run.

docker_pid=
docker_bridge_made=

docker_answers() { timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

docker_start() {
  command -v docker >/dev/null || return 1
  if docker_answers; then
    say "using the Docker engine that runs: $(docker version --format '{{.Server.Version}}')"
    return 0
  fi
  if ! command -v dockerd >/dev/null; then
    lack "a Docker engine (DOCKER_HOST=${DOCKER_HOST:-default socket} does not answer): $(without dockerd)"
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    lack "a Docker engine: none answers, and only root can start one; $(without dockerd)"
    return 1
  fi
  [ -e /sys/class/net/docker0 ] || docker_bridge_made=yes
  mkdir -p "$cache/docker" "$work/run"
  export DOCKER_HOST=unix://$work/docker.sock
  setsid dockerd --data-root "$cache/docker" --exec-root "$work/run" --pidfile "$work/docker.pid" \
    -H "$DOCKER_HOST" >"$logs/dockerd.log" 2>&1 </dev/null 3>&- 9>&- &
  docker_pid=$!
  if ! wait_until 60 docker_answers_or_ended || ! docker_answers; then
    grep -E 'level=(error|fatal)|^failed' "$logs/dockerd.log" | tail -n 3 || true
    lack "a Docker engine: dockerd does not come up here; $(without dockerd)"
    return 1
  fi
  say "started a Docker engine: $(docker version --format '{{.Server.Version}}')"
}
docker_answers_or_ended() { docker_answers || docker_ended; }
docker_ended() { ! kill -0 "$docker_pid" 2>/dev/null; }

docker_stop() {
  [ -n "$docker_pid" ] || return 0
  kill -TERM "$docker_pid" 2>/dev/null
  wait_until 30 docker_ended || kill -KILL "$docker_pid" 2>/dev/null
  local mount
  while read -r mount; do umount -l "$mount"; done \
    < <(awk -v below="$work/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo)
  if [ -n "$docker_bridge_made" ] && command -v ip >/dev/null; then
    ip link delete docker0 2>/dev/null
  fi
  return 0
}
