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

# The arguments of tests/run: options of cargo that select packages and targets, parts of names of
# tests, and what follows `--`, for the test programs.
options=() filters=() program_arguments=()

# arguments_read ARGUMENT…
arguments_read() {
  while [ $# -gt 0 ]; do
    case $1 in
      --)
        program_arguments=("${@:2}")
        return
        ;;
      -p | -F | -j | --package | --exclude | --features | --jobs | --target | --test | --bin | --bench | --example)
        options+=("$1" ${2+"$2"})
        shift
        ;;
      -*) options+=("$1") ;;
      *) filters+=("$1") ;;
    esac
    [ $# -eq 0 ] || shift
  done
}

tests_build() {
  set -o pipefail
  [ ! -t 1 ] || export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-always}
  cargo test --workspace --locked --no-run "${selection[@]}" "${options[@]}" 2>&1 | tee "$logs/build.log"
}

# Runs the tests that `selection` and the arguments select, and counts them.
tests_run() {
  local status=0
  passed=0 failed=0
  # cargo-nextest replaces what the test programs do with their arguments.
  if [ -n "$nextest" ] && [ ${#program_arguments[@]} -eq 0 ]; then
    if tests_targets; then
      say "running the tests with cargo-nextest $nextest, $threads at a time"
    else
      say "running the tests with cargo-nextest $nextest, $threads at a time and $processors unit tests"
    fi
    run_marked tests_nextest || status=$?
    tests_count_nextest
    tests_count tidy
    tests_count lib
  elif tests_targets || [ ${#program_arguments[@]} -gt 0 ]; then
    # One limit for all programs: that of the program whose tests share one engine, if it is one of them.
    local shown=$threads
    if [[ " ${selection[*]} ${options[*]} " == *docker* ]]; then shown=$threads_docker; fi
    say "running the tests with cargo test, $shown at a time"
    run_marked tests_shown "$shown" || status=$?
    tests_count shown
  else
    say "running the tests with cargo test, up to $((threads + processors + threads_docker)) at a time"
    tests_run_side_by_side || status=$?
  fi
  tests_report
  if [ "$status" -eq 0 ] && [ $((passed + failed)) -eq 0 ] && [[ " ${program_arguments[*]} " != *" --list "* ]]; then
    say "no test is selected: ${arguments[*]}"
    status=4
  fi
  return "$status"
}

# Where cargo-nextest writes what each test did.
readonly nextest_report=$repository/target/nextest/default/junit.xml

tests_nextest() {
  rm -f "$nextest_report"
  local run=(cargo nextest run --profile default --workspace --locked --test-threads "$threads")
  run+=("${selection[@]}" "${options[@]}" "${filters[@]}")
  if tests_targets; then
    "${run[@]}"
    return
  fi
  # cargo-nextest starts a process for each test: the program `tidy`, which reads all sources once, and
  # unit tests, which are many and short, run in one for each program.
  local status=0 short
  {
    tests_job "$processors" tidy --test tidy || status=$?
    tests_job "$processors" lib --lib || status=$?
    exit "$status"
  } &
  short=$!
  "${run[@]}" --no-tests pass --filterset 'not (binary(tidy) | kind(lib))' || status=$?
  wait "$short" || status=$?
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

# Whether packages or targets are named.
tests_targets() {
  local option
  for option in "${selection[@]}" "${options[@]}"; do
    case $option in
      -p* | --package* | --lib | --bin* | --test | --test=* | --tests | --example* | --doc) return 0 ;;
    esac
  done
  return 1
}

# Three sequences of programs at the same time: those that compute, those that wait, those of the engine.
# Unless tests are named, those with hundreds of pods, which are processes of this host, come after all
# others.
tests_run_side_by_side() {
  run_marked tests_sequences
  local status=$? log
  for log in "$logs"/tests-*.log; do tests_count "$(basename "$log" .log | cut -c 7-)"; done
  return "$status"
}

tests_sequences() {
  local status=0 sequence sequences=() skip=()
  [ ${#filters[@]} -gt 0 ] || skip=(--skip many_pods)
  {
    tests_job "$processors" lib --lib || status=$?
    tests_job "$processors" tidy --test tidy || status=$?
    tests_job "$processors" model --test model || status=$?
    tests_job "$processors" fast --test fast -- "${skip[@]}" || status=$?
    exit "$status"
  } &
  sequences+=($!)
  tests_job "$threads" real --test real &
  sequences+=($!)
  tests_job "$threads_docker" docker --test docker &
  sequences+=($!)
  for sequence in "${sequences[@]}"; do wait "$sequence" || status=$?; done
  if [ ${#filters[@]} -eq 0 ]; then tests_job 1 many_pods --test fast -- many_pods || status=$?; fi
  return "$status"
}

# tests_shown THREADS: `cargo test`, with its output on the terminal.
tests_shown() {
  set -o pipefail
  RUST_TEST_THREADS=$1 cargo test --workspace --locked --no-fail-fast "${selection[@]}" "${options[@]}" \
    -- "${filters[@]}" "${program_arguments[@]}" 2>&1 | tee "$logs/tests-shown.log"
}

# tests_job THREADS NAME TARGET… [-- ARGUMENT…]: `cargo test` of a target, with its output in a log.
# Prints what failed.
tests_job() {
  local threads=$1 name=$2 status=0 log=$logs/tests-$2.log target=()
  shift 2
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    target+=("$1")
    shift
  done
  RUST_TEST_THREADS=$threads cargo test --workspace --locked --no-fail-fast "${target[@]}" "${options[@]}" \
    -- "${filters[@]}" "${@:2}" >"$log" 2>&1 || status=$?
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
  printf '%d passed, %d failed, %d ignored\n' "$((passed - ignored))" "$failed" "$ignored"
}
