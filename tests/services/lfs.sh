# git-lfs, needed by repositories with large files: the installed one, else the one of a Debian suite.
# Sourced by tests/run.

# A newer suite would need a newer C library.
readonly lfs_suite=bookworm

# Exports ROLLOUT_TEST_LFS: the program, or `no`.
lfs_find() {
  if [ -n "${ROLLOUT_TEST_LFS:-}" ]; then
    say "using git-lfs from ROLLOUT_TEST_LFS: $ROLLOUT_TEST_LFS"
    return 0
  fi
  local program directory=$cache/lfs/$lfs_suite
  program=$(command -v git-lfs) || program=$directory/usr/bin/git-lfs
  if [ ! -x "$program" ] &&
    ! suite_unpack "$lfs_suite" git-lfs "$directory" >"$logs/lfs.log" 2>&1; then
    say "cannot unpack git-lfs from $lfs_suite: $(tail -n 1 "$logs/lfs.log")"
  fi
  if "$program" version >/dev/null 2>&1; then
    export ROLLOUT_TEST_LFS=$program
    say "$("$program" version | cut -d ' ' -f 1): $program"
  else
    export ROLLOUT_TEST_LFS=no
    lack "git-lfs: tests that fetch Git LFS files are ignored (log: $logs/lfs.log)"
    return 1
  fi
}
