# Detection of leftovers: processes, containers, networks, volumes, control groups, mounts, files. An
# engine may be shared, so this touches only objects that carry this run's mark or name this run's
# scratch directory. Sourced by tests/run.

# Set for cargo and its child processes, to a value unique to this run.
readonly leftovers_variable=ROLLOUT_TEST_MARK

leftovers_mark() { leftovers_cgroups >"$work/cgroups.before"; }

# The program under test labels its objects with their owner, whose lock file is in the scratch.
leftovers_containers() {
  [ "$with_docker" = no ] || docker ps --all --no-trunc --format '{{.ID}} {{.Names}} {{.Labels}}' |
    leftovers_of_scratch
}
leftovers_networks() {
  [ "$with_docker" = no ] || docker network ls --no-trunc --format '{{.ID}} {{.Name}} {{.Labels}}' |
    leftovers_of_scratch
}
leftovers_volumes() {
  [ "$with_docker" = no ] || docker volume ls --format '{{.Name}} {{.Name}} {{.Labels}}' |
    leftovers_of_scratch
}
leftovers_of_scratch() {
  local id name labels
  while read -r id name labels; do
    [[ $labels != *"$scratch/"* ]] || echo "$id $name"
  done
}
# Control groups have no owner: new ones without processes are reported, but not removed.
leftovers_cgroups() { find /sys/fs/cgroup -type d -name 'sandbox-*' 2>/dev/null | sort; }
leftovers_empty_cgroups() {
  local group
  while read -r group; do
    [ -n "$(cat "$group/cgroup.procs" 2>/dev/null)" ] || echo "$group"
  done < <(leftovers_cgroups | comm -13 "$work/cgroups.before" -)
}
leftovers_no_cgroups() { [ -z "$(leftovers_empty_cgroups)" ]; }

# Processes with this run's mark in their environment, or its scratch in their arguments or mounts (a
# sandbox starts with an empty environment).
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

# Reports and removes leftovers; fails if there are any.
leftovers_check() {
  [ -e "$work/cgroups.before" ] || return 0
  local found=0 line
  if ! wait_until 10 leftovers_no_processes; then
    leftovers_report "process" < <(leftovers_processes)
    while read -r line; do kill -KILL "${line%% *}" 2>/dev/null; done < <(leftovers_processes)
    found=1
  fi
  leftovers_remove containers docker rm --force --volumes || found=1
  leftovers_remove networks docker network rm || found=1
  leftovers_remove volumes docker volume rm || found=1
  if ! wait_until 5 leftovers_no_cgroups; then
    leftovers_report "control group" < <(leftovers_empty_cgroups)
    found=1
  fi
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

# leftovers_remove KIND COMMAND…: reports the leftovers of a kind and removes them with the command.
leftovers_remove() {
  local kind=$1 left line
  shift
  left=$("leftovers_$kind")
  [ -n "$left" ] || return 0
  leftovers_report "${kind%s}" <<<"$left"
  while read -r line; do "$@" "${line%% *}" >/dev/null 2>&1; done <<<"$left"
  return 1
}

leftovers_report() { while read -r line; do say "LEFT BEHIND: $1 $line"; done; }
