# Runs under attack: jobs and searches whose processes are killed, stopped and cut off.
# Sourced by tests/run.

# Minutes of attack for each run, and the seeds that choose what is done when.
readonly chaos_minutes_job=3 chaos_minutes_search=1 chaos_seeds="1 2 3"

# The first run that fails ends them. Needs a server.
chaos_runs() {
  if [ "$ROLLOUT_TEST_NATS" = no ]; then return 0; fi
  local seed kind
  for seed in $chaos_seeds; do
    chaos_run "$seed" "$chaos_minutes_job"
    chaos_run "$seed" "$chaos_minutes_job" --store s3
    for kind in nats here; do chaos_run "$seed" "$chaos_minutes_search" --search "$kind"; done
  done
}

# chaos_run SEED MINUTES OPTION…
chaos_run() {
  local seed=$1 minutes=$2
  shift 2
  say "chaos --seed $seed --minutes $minutes $*"
  run_marked "$repository/tests/chaos" --seed "$seed" --minutes "$minutes" "$@"
}
