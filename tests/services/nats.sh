# nats-server: the one in PATH if it is new enough, and those of newer Debian suites, unpacked and
# not installed, from the mirror that this machine's apt uses. The tests start servers themselves.
# Sourced by tests/run.

# The oldest server that is worked with.
readonly nats_oldest=2.10.23
# One that is widely used, which tests use that need just one, and the newest.
readonly nats_suites="trixie sid"

# Exports ROLLOUT_TEST_NATS: the servers, with colons in between.
nats_find() {
  if [ -n "${ROLLOUT_TEST_NATS:-}" ]; then
    say "using the nats-server that ROLLOUT_TEST_NATS names: $ROLLOUT_TEST_NATS"
    return 0
  fi
  local found=() suite program
  if program=$(command -v nats-server) && nats_is_new_enough "$program"; then
    found+=("$program")
  fi
  for suite in $nats_suites; do
    program=$cache/nats/$suite/usr/sbin/nats-server
    if [ ! -x "$program" ] && ! nats_unpack "$suite" >"$logs/nats-$suite.log" 2>&1; then
      say "no nats-server from $suite: $(tail -n 1 "$logs/nats-$suite.log")"
      continue
    fi
    if nats_is_new_enough "$program"; then found+=("$program"); fi
  done
  if [ ${#found[@]} -eq 0 ]; then
    export ROLLOUT_TEST_NATS=no
    lack "nats-server $nats_oldest or newer: no test with a server can run (logs: $logs/nats-*.log)"
    return 1
  fi
  ROLLOUT_TEST_NATS=$(IFS=: && echo "${found[*]}")
  export ROLLOUT_TEST_NATS
  for program in "${found[@]}"; do say "nats-server $(nats_version "$program"): $program"; done
}

nats_version() { "$1" --version 2>/dev/null | sed -n 's/^nats-server: v//p'; }
nats_is_new_enough() {
  local version
  version=$(nats_version "$1")
  [ -n "$version" ] && printf '%s\n' "$nats_oldest" "$version" | sort --version-sort --check=quiet
}

# Unpacks the package of a suite into the cache. In a shell of its own: errors end it.
nats_unpack() (
  set -e
  command -v apt-get && command -v dpkg-deb
  mirror=$(nats_mirror)
  [ -n "$mirror" ] || {
    echo "apt has no Debian mirror"
    exit 1
  }
  state=$work/apt-$1
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/unpacked" "$cache/nats"
  echo "deb $mirror $1 main" >"$state/sources.list"
  apt=(apt-get -q -o "Dir::Etc::SourceList=$state/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state/cache" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  (cd "$state" && "${apt[@]}" download nats-server)
  dpkg-deb -x "$state"/nats-server_*.deb "$state/unpacked"
  rm -rf "$cache/nats/$1"
  mv "$state/unpacked" "$cache/nats/$1"
)

# The mirror that apt's own sources name first.
nats_mirror() {
  { cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list \
    2>/dev/null || true; } |
    sed -n \
      -e 's/^URIs: *\([^ ]*\/debian\)\/\{0,1\}\( .*\)\{0,1\}$/\1/p' \
      -e 's/^deb  *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\/debian\)\/\{0,1\} .*/\2/p' | head -n 1
}
