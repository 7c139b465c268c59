# A Docker engine: the running one, or a new one with its own data directory. Sourced by tests/run.

docker_pid=
docker_data=
docker_bridge=
docker_forwards=no
readonly docker_forward=(-s 172.29.0.0/16 -d 172.29.0.0/16 -j ACCEPT)

docker_answers() { timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

docker_start() {
  command -v docker >/dev/null || return 1
  if docker_answers; then
    say "using the running Docker engine: $(docker version --format '{{.Server.Version}}')"
    return 0
  fi
  if ! command -v dockerd >/dev/null; then
    lack "a Docker engine (DOCKER_HOST=${DOCKER_HOST:-default socket} does not answer): $(without dockerd)"
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    lack "a Docker engine: none answers, and only root can start one: $(without dockerd)"
    return 1
  fi
  # Left by killed runs: only one runs at a time.
  rm -rf "$cache"/engine.* 2>/dev/null || true
  # Not below $work, which may lie in memory.
  docker_data=$(mktemp -d "$cache/engine.XXXXXX")
  mkdir -p "$work/run"
  local network=()
  docker_network || return 1
  export DOCKER_HOST=unix://$work/docker.sock
  # The engine starts itself again for each archive call: with less garbage collection that takes 34 ms
  # instead of 44.
  GOGC=400 setsid dockerd --data-root "$docker_data" --exec-root "$work/run" --pidfile "$work/docker.pid" \
    "${network[@]}" -H "$DOCKER_HOST" >"$logs/dockerd.log" 2>&1 </dev/null 3>&- 9>&- &
  docker_pid=$!
  if ! wait_until 60 docker_answers_or_ended || ! docker_answers; then
    grep -E 'level=(error|fatal)|^failed' "$logs/dockerd.log" | tail -n 3 || true
    lack "a Docker engine: dockerd does not start (log: $logs/dockerd.log): $(without dockerd)"
    return 1
  fi
  say "started a Docker engine: $(docker version --format '{{.Server.Version}}')"
}

# Puts the engine's network options into `network`. Beside another engine it gets its own bridge and
# addresses and no firewall rules: a starting engine would replace those of the other one.
docker_network() {
  if ! grep -qsx dockerd /proc/[0-9]*/comm; then
    [ -e /sys/class/net/docker0 ] || docker_bridge=docker0
    return 0
  fi
  if ! command -v ip >/dev/null; then
    lack "a Docker engine: another one runs but does not answer, and a second one needs the program ip"
    return 1
  fi
  docker_bridge=rollout$$
  ip link add name "$docker_bridge" type bridge &&
    ip address add 172.29.255.1/24 dev "$docker_bridge" &&
    ip link set "$docker_bridge" up || return 1
  # The other engine drops traffic between containers that no rule allows.
  if command -v iptables >/dev/null && iptables -I FORWARD "${docker_forward[@]}" 2>/dev/null; then
    docker_forwards=yes
  fi
  network=(--bridge "$docker_bridge" --iptables=false
    --default-address-pool base=172.29.0.0/17,size=26)
}

docker_answers_or_ended() { docker_answers || docker_ended; }
docker_ended() { ! kill -0 "$docker_pid" 2>/dev/null; }

docker_stop() {
  docker_end
  if [ -n "$docker_bridge" ] && command -v ip >/dev/null; then
    ip link delete "$docker_bridge" 2>/dev/null
  fi
  [ "$docker_forwards" = no ] || iptables -D FORWARD "${docker_forward[@]}" 2>/dev/null
  [ -z "$docker_data" ] || rm -rf "$docker_data"
  return 0
}

docker_end() {
  [ -n "$docker_pid" ] || return 0
  kill -TERM "$docker_pid" 2>/dev/null
  wait_until 30 docker_ended || kill -KILL "$docker_pid" 2>/dev/null
  local mount
  while read -r mount; do umount -l "$mount"; done < <(
    awk -v work="$work/" -v data="$docker_data/" \
      'index($5, work) == 1 || index($5, data) == 1 { print $5 }' /proc/self/mountinfo
  )
  return 0
}
