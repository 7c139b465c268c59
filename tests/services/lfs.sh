# git-lfs, which repositories with large files need: the one that is installed, else that of a Debian
# suite. Sourced by tests/run.

# Not a newer one: it would need a newer C library.
readonly lfs_suite=bookworm

# Exports ROLLOUT_TEST_LFS: the program, or `no`.
lfs_find() {
  if [ -n "${ROLLOUT_TEST_LFS:-}" ]; then
    say "using the git-lfs that ROLLOUT_TEST_LFS names: $ROLLOUT_TEST_LFS"
    return 0
  fi
  local program directory=$cache/lfs/$lfs_suite
  program=$(command -v git-lfs) || program=$directory/usr/bin/git-lfs
  if [ ! -x "$program" ] &&
    ! suite_unpack "$lfs_suite" git-lfs "$directory" >"$logs/lfs.log" 2>&1; then
    say "no git-lfs from $lfs_suite: $(tail -n 1 "$logs/lfs.log")"
  fi
  if "$program" version >/dev/null 2>&1; then
    export ROLLOUT_TEST_LFS=$program
    say "$("$program" version | cut -d ' ' -f 1): $program"
  else
    export ROLLOUT_TEST_LFS=no
    lack "git-lfs: no file of Git LFS is fetched (log: $logs/lfs.log)"
    return 1
  fi
}
