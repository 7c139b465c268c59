# Wall and processor seconds of the phases of a script. Sourced by tests/run and .ci/run, which names
# the file of its phases in ROLLOUT_PHASES: tests/run then adds its own.

# The file: a line `WALL PROCESSOR NAME` for each phase.
phases=

# phases_file FILE: begins, and keeps what is in the file.
phases_file() {
  phases=$1
  : >>"$phases"
  phases_began=${EPOCHREALTIME/,/.}
  export ROLLOUT_PHASES=$phases
}

# Begins a phase.
phase_begin() {
  times >"$phases.begin.$BASHPID"
  phase_began=${EPOCHREALTIME/,/.}
}

# phase_end NAME [SECONDS]: ends the phase that has begun. Its processor time is that of the child
# processes that ended in it, less the seconds of those that belong to another phase.
phase_end() {
  local now=${EPOCHREALTIME/,/.}
  local begin=$phases.begin.$BASHPID end=$phases.end.$BASHPID
  times >"$end"
  awk -v wall="$phase_began $now" -v name="$1" -v less="${2:-0}" '
    function seconds(text, parts) { sub(/s$/, "", text); sub(/,/, ".", text); split(text, parts, "m"); return parts[1] * 60 + parts[2] }
    { total[FILENAME] = seconds($1) + seconds($2) }
    END {
      split(wall, at, " ")
      printf "%.1f %.1f %s\n", at[2] - at[1], total[ARGV[2]] - total[ARGV[1]] - less, name
    }' "$begin" "$end" >>"$phases"
  rm -f "$begin" "$end"
}

# phase_processor NAME: prints the processor seconds of a phase that has ended, else 0.
phase_processor() { awk -v name="$1" '$3 == name { found = $2 } END { print found + 0 }' "$phases"; }

# phase NAME COMMAND…: a phase of one command, whose exit code it returns.
phase() {
  local name=$1 status=0
  shift
  phase_begin
  "$@" || status=$?
  phase_end "$name"
  return "$status"
}

# Adds a line for this shell from the call of phases_file on, with all its processor time.
phase_total() {
  echo 0m0s 0m0s >"$phases.begin.$BASHPID"
  phase_began=$phases_began
  phase_end all
}

# Prints the table.
phases_print() {
  printf '%10s %10s  %s\n' "wall s" "cpu s" "phase"
  while read -r wall cpu name; do printf '%10s %10s  %s\n' "$wall" "$cpu" "$name"; done <"$phases"
}
