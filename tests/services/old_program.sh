# A program of an earlier version, for tests of upgrades: the last release before this commit, or a
# named commit. Sourced by tests/run.

# Used while there is no release.
readonly old_program_commit=${ROLLOUT_TEST_OLD_COMMIT:-99020be53b5ae3b2876bec38bd82123c967ce4f0}

# Exports ROLLOUT_TEST_OLD_PROGRAM: the program, or `no`. It is built once for each commit.
old_program_find() {
  [ "${ROLLOUT_TEST_OLD_PROGRAM:-}" != no ] || return 0
  if [ -n "${ROLLOUT_TEST_OLD_PROGRAM:-}" ]; then
    say "using the earlier version in ROLLOUT_TEST_OLD_PROGRAM: $ROLLOUT_TEST_OLD_PROGRAM"
    return 0
  fi
  export ROLLOUT_TEST_OLD_PROGRAM=no
  local named commit directory program log=$logs/old-program.log
  named=$(git -C "$repository" describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2>/dev/null) ||
    named=$old_program_commit
  if ! commit=$(git -C "$repository" rev-parse --verify --quiet "$named^{commit}" 2>/dev/null) ||
    ! git -C "$repository" cat-file -e "$commit" 2>/dev/null; then
    lack "earlier version: the git history lacks $named; upgrades are tested with this build alone"
    return 0
  fi
  directory=$cache/old-program program=$cache/old-program/rollout-$commit
  if [ ! -x "$program" ]; then
    say "building the earlier version $named"
    rm -rf "$directory"
    mkdir -p "$directory" "$work/old-program"
    git -C "$repository" archive "$commit" | tar -x -C "$work/old-program"
    old_program_build "$program" >"$log" 2>&1 || true
    rm -rf "$work/old-program"
  fi
  if "$program" --version >/dev/null 2>&1; then
    export ROLLOUT_TEST_OLD_PROGRAM=$program
    say "earlier version $named: $program"
  else
    lack "earlier version $named: upgrades are tested with this build alone (log: $log)"
  fi
}

# old_program_build PROGRAM
old_program_build() {
  run_cargo env CARGO_TARGET_DIR="$work/old-program/target" CARGO_PROFILE_DEV_DEBUG=0 \
    cargo build --locked --manifest-path "$work/old-program/Cargo.toml" \
    --package rollout-coordinator --bin rollout &&
    cp "$work/old-program/target/debug/rollout" "$1"
}
