# Builds and runs the test programs: with cargo-nextest, or with `cargo test` for several of them at
# the same time. Sourced by tests/run.

# Tests at the same time, and of these in the program `docker`, which share one engine. Tests wait for
# processes and timers more than they compute. .config/nextest.toml has the limit of the group.
threads=${RUST_TEST_THREADS:-$((3 * $(nproc)))}
threads_docker=3
# Tests at the same time in a program whose tests compute.
processors=$(nproc)
# limit_threads NUMBER: lowers all three.
limit_threads() {
  threads=$1
  threads_docker=$((threads_docker < threads ? threads_docker : threads))
  processors=$((processors < threads ? processors : threads))
}
limit_threads "$threads"

# Tests that could not run, and parts of tests: a line `NAME<tab>REASON` or `NAME<tab>REASON<tab>part`.
export ROLLOUT_TEST_IGNORED=$work/ignored

# The oldest whose configuration has priorities, as in .config/nextest.toml.
readonly nextest_oldest=0.9.91

# Sets `nextest` to the version of cargo-nextest, or to nothing.
nextest=
nextest_find() {
  [ "${ROLLOUT_TEST_NEXTEST:-}" != no ] || return 0
  nextest=$(cargo nextest --version 2>/dev/null | sed -n '1s/^cargo-nextest \([^ ]*\).*/\1/p') || nextest=
  if [ -n "$nextest" ] && ! printf '%s\n' "$nextest_oldest" "$nextest" | sort --version-sort --check=quiet; then
    say "cargo-nextest $nextest is older than $nextest_oldest: not used"
    nextest=
  fi
}

# run_marked COMMAND…: in the background, with the directory and the mark of this run's files.
run_marked() { run_cargo marked "$@"; }
marked() {
  export TMPDIR=$scratch "$leftovers_variable=$work"
  "$@"
}

# tests_build ARGUMENT…
tests_build() {
  set -o pipefail
  [ ! -t 1 ] || export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-always}
  cargo test --workspace --locked --no-run "$@" 2>&1 | tee "$logs/build.log"
}

# tests_run ARGUMENT…: runs the tests that `selection` and the arguments select, and counts them.
tests_run() {
  local status=0
  passed=0 failed=0
  # Arguments after `--` are those of the test programs, which cargo-nextest replaces.
  if [ -n "$nextest" ] && [[ " $* " != *" -- "* ]]; then
    say "running the tests with cargo-nextest $nextest, $threads at a time"
    run_marked tests_nextest "$@" || status=$?
    tests_count_nextest
    tests_count tidy
    tests_count lib
  elif tests_selected "${selection[@]}" "$@" || [[ " $* " == *" -- "* ]]; then
    say "running the tests with cargo test, $threads at a time"
    run_marked tests_shown "${selection[@]}" "$@" || status=$?
    tests_count shown
  else
    say "running the tests with cargo test, up to $((threads + processors + threads_docker)) at a time"
    tests_run_side_by_side "$@" || status=$?
  fi
  tests_report
  if [ "$status" -eq 0 ] && [ $((passed + failed)) -eq 0 ] && [[ " $* " != *" --list "* ]]; then
    say "no test is selected: $*"
    status=4
  fi
  return "$status"
}

# Where cargo-nextest writes what each test did.
readonly nextest_report=$repository/target/nextest/default/junit.xml

tests_nextest() {
  rm -f "$nextest_report"
  local run=(cargo nextest run --profile default --workspace --locked --test-threads "$threads")
  if tests_selected "$@"; then
    "${run[@]}" "${selection[@]}" "$@"
    return
  fi
  # cargo-nextest starts a process for each test: the program `tidy`, which reads all sources once, and
  # unit tests, which are many and short, run in one for each program.
  local status=0 short
  {
    tests_job "$processors" tidy --test tidy "$@" || status=1
    tests_job "$processors" lib --lib "$@" || status=1
    exit "$status"
  } &
  short=$!
  "${run[@]}" --no-tests pass --filterset 'not (binary(tidy) | kind(lib))' "${selection[@]}" "$@" || status=$?
  wait "$short" || status=1
  return "$status"
}

tests_count_nextest() {
  local root broken
  [ -e "$nextest_report" ] || return 0
  root=$(grep -m 1 '^<testsuites ' "$nextest_report") || return 0
  broken=$(($(attribute failures "$root") + $(attribute errors "$root")))
  passed=$((passed + $(attribute tests "$root") - broken)) failed=$((failed + broken))
}
# attribute NAME ELEMENT: prints the number in an attribute, else 0.
attribute() {
  local number
  number=$(sed -n "s/.* $1=\"\([0-9]*\)\".*/\1/p" <<<"$2")
  echo "${number:-0}"
}

# Whether the arguments name packages or targets.
tests_selected() {
  local argument
  for argument in "$@"; do
    case $argument in
      --) break ;;
      -p* | --package* | --lib | --bin* | --test | --test=* | --tests | --example* | --doc) return 0 ;;
    esac
  done
  return 1
}

# Three sequences of programs at the same time: those that compute, those that wait, those of the engine.
# The tests with hundreds of pods, which are processes of this host, come after all others.
tests_run_side_by_side() {
  run_marked tests_sequences "$@"
  local status=$? log
  for log in "$logs"/tests-*.log; do tests_count "$(basename "$log" .log | cut -c 7-)"; done
  return "$status"
}

tests_sequences() {
  local status=0 sequence sequences=() skip=()
  [ $# -gt 0 ] || skip=(-- --skip many_pods)
  {
    tests_job "$processors" lib --lib "$@" || status=1
    tests_job "$processors" tidy --test tidy "$@" || status=1
    tests_job "$processors" model --test model "$@" || status=1
    tests_job "$processors" fast --test fast "$@" "${skip[@]}" || status=1
    exit "$status"
  } &
  sequences+=($!)
  tests_job "$threads" real --test real "$@" &
  sequences+=($!)
  tests_job "$threads_docker" docker --test docker "$@" &
  sequences+=($!)
  for sequence in "${sequences[@]}"; do wait "$sequence" || status=1; done
  if [ $# -eq 0 ]; then tests_job 1 many_pods --test fast many_pods || status=1; fi
  return "$status"
}

# tests_shown ARGUMENT…: `cargo test`, with its output on the terminal.
tests_shown() {
  set -o pipefail
  RUST_TEST_THREADS=$threads cargo test --workspace --locked --no-fail-fast "$@" 2>&1 |
    tee "$logs/tests-shown.log"
}

# tests_job THREADS NAME ARGUMENT…: `cargo test`, with its output in a log. Prints what failed.
tests_job() {
  local threads=$1 name=$2 status=0 log=$logs/tests-$2.log
  shift 2
  RUST_TEST_THREADS=$threads cargo test --workspace --locked --no-fail-fast "$@" >"$log" 2>&1 || status=$?
  sed -n "s/^test result: /$name: /p" "$log"
  [ "$status" -eq 0 ] || sed -n '/^failures:$/,/^test result: /p; /^error/p; /panicked at/p' "$log"
  return "$status"
}

# tests_count NAME: adds the tests of a job.
tests_count() {
  local line
  [ -e "$logs/tests-$1.log" ] || return 0
  while read -r line; do
    passed=$((passed + ${line% *})) failed=$((failed + ${line#* }))
  done < <(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p' "$logs/tests-$1.log")
}

# Prints which tests could not run, and how many ran. The test programs count the former as passed.
tests_report() {
  local ignored=0 name reason part
  if [ -e "$ROLLOUT_TEST_IGNORED" ]; then
    while IFS=$'\t' read -r name reason part; do
      if [ -n "$part" ]; then
        printf 'ignored in part: %s: %s\n' "$name" "$reason"
      else
        printf 'ignored: %s: %s\n' "$name" "$reason"
        ignored=$((ignored + 1))
      fi
    done < <(sort -u "$ROLLOUT_TEST_IGNORED" | sort -t $'\t' -s -u -k 1,1 -k 3,3)
  fi
  printf '%d passed, %d failed, %d skipped\n' "$((passed - ignored))" "$failed" "$ignored"
}
