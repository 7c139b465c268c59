# The program of the README's first command, for the test of its size. Sourced by tests/run.

# Exports ROLLOUT_TEST_RELEASE_PROGRAM, if the program can be built.
release_program_build() {
  [ -z "${ROLLOUT_TEST_RELEASE_PROGRAM:-}" ] || return 0
  # The test knows the size on this platform.
  [ "$(uname -sm)" = "Linux x86_64" ] || return 0
  say "building the program of the default features"
  if run_cargo cargo build --release --locked >"$logs/release-program.log" 2>&1; then
    export ROLLOUT_TEST_RELEASE_PROGRAM=${CARGO_TARGET_DIR:-$repository/target}/release/rollout
  else
    lack "the program of the default features (log: $logs/release-program.log)"
  fi
}
