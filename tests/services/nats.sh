# nats-server: the one in PATH if it is new enough, and those of newer Debian suites, unpacked (not
# installed) from apt's mirror. The tests start servers themselves. Sourced by tests/run.

# The oldest supported server.
readonly nats_oldest=2.10.23
# A widely used one, for tests that need only one, and the newest.
readonly nats_suites="trixie sid"

# Exports ROLLOUT_TEST_NATS: the servers, separated by colons.
nats_find() {
  if [ -n "${ROLLOUT_TEST_NATS:-}" ]; then
    say "using nats-server from ROLLOUT_TEST_NATS: $ROLLOUT_TEST_NATS"
    return 0
  fi
  local found=() suite program
  if program=$(command -v nats-server) && nats_is_new_enough "$program"; then
    found+=("$program")
  fi
  for suite in $nats_suites; do
    program=$cache/nats/$suite/usr/sbin/nats-server
    if [ ! -x "$program" ] &&
      ! suite_unpack "$suite" nats-server "$cache/nats/$suite" >"$logs/nats-$suite.log" 2>&1; then
      say "cannot unpack nats-server from $suite: $(tail -n 1 "$logs/nats-$suite.log")"
      continue
    fi
    if nats_is_new_enough "$program"; then found+=("$program"); fi
  done
  if [ ${#found[@]} -eq 0 ]; then
    export ROLLOUT_TEST_NATS=no
    lack "nats-server $nats_oldest or newer: tests with a server are ignored (logs: $logs/nats-*.log)"
    return 1
  fi
  ROLLOUT_TEST_NATS=$(IFS=: && echo "${found[*]}")
  export ROLLOUT_TEST_NATS
  for program in "${found[@]}"; do say "nats-server $(nats_version "$program"): $program"; done
  for program in "${found[@]}"; do
    ! nats_forms_clusters "$program" || return 0
  done
  lack "nats-server 2.14.2 or newer: tests with clusters of servers are ignored"
}

nats_version() { "$1" --version 2>/dev/null | sed -n 's/^nats-server: v//p'; }
# As the tests do: `find_cluster_program` of tests/harness/nats.rs.
nats_forms_clusters() {
  local version
  version=$(nats_version "$1")
  case $version in
    2.12.*) printf '%s\n' 2.12.10 "$version" | sort --version-sort --check=quiet ;;
    *) printf '%s\n' 2.14.2 "$version" | sort --version-sort --check=quiet ;;
  esac
}
nats_is_new_enough() {
  local version
  version=$(nats_version "$1")
  [ -n "$version" ] && printf '%s\n' "$nats_oldest" "$version" | sort --version-sort --check=quiet
}
