# Finds what the tests left behind: processes, containers, networks, control groups, mounts, files.
# What was there before, or belongs to a living process of somebody else, is not ours. Sourced by
# tests/run.

# In the environment of cargo and all it starts, with a value only this run has.
readonly leftovers_variable=ROLLOUT_TEST_MARK
# Labels that name the owner of what the program under test creates.
readonly leftovers_label='dev[.]rollout[.]owner='

leftovers_mark() {
  leftovers_containers >"$work/containers.before"
  leftovers_networks >"$work/networks.before"
  leftovers_cgroups >"$work/cgroups.before"
}

leftovers_containers() { [ "$with_docker" = no ] || docker ps --all --no-trunc --format '{{.ID}} {{.Names}} {{.Labels}}' | leftovers_ours; }
leftovers_networks() { [ "$with_docker" = no ] || docker network ls --no-trunc --format '{{.ID}} {{.Name}} {{.Labels}}' | leftovers_ours; }
leftovers_ours() { { grep -E " [^ ]* .*$leftovers_label" || true; } | cut -d " " -f 1,2 | sort; }
leftovers_cgroups() { find /sys/fs/cgroup -type d -name 'rollout*' 2>/dev/null | sort; }

# Processes with our mark in their environment, or with our scratch in their arguments or mounts
# (a sandbox starts from an empty environment).
leftovers_processes() {
  local process pid
  for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    if grep -qaF "$leftovers_variable=$work" "$process/environ" 2>/dev/null ||
      grep -qaF "$scratch" "$process/cmdline" 2>/dev/null ||
      grep -qF "$scratch" "$process/mountinfo" 2>/dev/null; then
      printf '%s %s\n' "$pid" "$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null | cut -c 1-120)"
    fi
  done
}
leftovers_no_processes() { [ -z "$(leftovers_processes)" ]; }

# Says what is left, removes it, and fails if there was anything.
leftovers_check() {
  [ -e "$work/cgroups.before" ] || return 0
  local found=0 line
  if ! wait_until 10 leftovers_no_processes; then
    leftovers_report "process" < <(leftovers_processes)
    while read -r line; do kill -KILL "${line%% *}" 2>/dev/null; done < <(leftovers_processes)
    found=1
  fi
  leftovers_new containers docker rm --force --volumes || found=1
  leftovers_new networks docker network rm || found=1
  leftovers_new cgroups rmdir || found=1
  local below
  below=$(awk -v below="$scratch/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo)
  if [ -n "$below" ]; then
    leftovers_report "mount" <<<"$below"
    while read -r line; do umount -l "$line"; done <<<"$below"
    found=1
  fi
  # Failed tests keep their directories on purpose.
  if [ "${status:-0}" -eq 0 ] && [ -n "$(ls -A "$scratch")" ]; then
    find "$scratch" -mindepth 1 -maxdepth 2 | head -n 20 | leftovers_report "file"
    found=1
  fi
  return "$found"
}

# leftovers_new KIND COMMAND…: reports and removes, with the command, what was not there before.
leftovers_new() {
  local kind=$1 new line
  shift
  new=$("leftovers_$kind" | comm -13 "$work/$kind.before" -)
  [ -n "$new" ] || return 0
  leftovers_report "${kind%s}" <<<"$new"
  while read -r line; do "$@" "${line%% *}" >/dev/null 2>&1; done <<<"$new"
  return 1
}

leftovers_report() { while read -r line; do say "LEFT BEHIND: $1 $line"; done; }
