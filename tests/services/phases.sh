# Wall and processor seconds of the phases of a script. Sourced by tests/run and .ci/run, which names
# the file of its phases in ROLLOUT_PHASES: tests/run then adds its own.

# The file: a line `WALL PROCESSOR NAME` for each phase.
phases=

# phases_file FILE: begins, and keeps what is in the file.
phases_file() {
  phases=$1
  : >>"$phases"
  export ROLLOUT_PHASES=$phases
}

# Begins a phase.
phase_begin() {
  times >"$phases.begin.$BASHPID"
  phase_began=$EPOCHREALTIME
}

# phase_end NAME: ends the phase that has begun. Its processor time is that of the child processes
# that ended in it and were waited for.
phase_end() {
  local now=$EPOCHREALTIME
  local begin=$phases.begin.$BASHPID end=$phases.end.$BASHPID
  times >"$end"
  awk -v wall="$phase_began $now" -v name="$1" '
    function seconds(text, parts) { sub(/s$/, "", text); split(text, parts, "m"); return parts[1] * 60 + parts[2] }
    { total[FILENAME] = seconds($1) + seconds($2) }
    END {
      split(wall, at, " ")
      printf "%.1f %.1f %s\n", at[2] - at[1], total[ARGV[2]] - total[ARGV[1]], name
    }' "$begin" "$end" >>"$phases"
  rm -f "$begin" "$end"
}

# phase NAME COMMAND…: a phase of one command, whose exit code it returns.
phase() {
  local name=$1 status=0
  shift
  phase_begin
  "$@" || status=$?
  phase_end "$name"
  return "$status"
}

# Prints the table.
phases_print() {
  printf '%10s %10s  %s\n' "wall s" "cpu s" "phase"
  while read -r wall cpu name; do printf '%10s %10s  %s\n' "$wall" "$cpu" "$name"; done <"$phases"
}
