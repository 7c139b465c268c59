# A server in daily use for half an hour: nothing of ended work is left. Sourced by tests/run.

readonly soak_minutes=30

# Needs a server.
soak_run() {
  if [ "$ROLLOUT_TEST_NATS" = no ]; then return 0; fi
  say "soak --minutes $soak_minutes"
  run_marked "$repository/tests/soak" --minutes "$soak_minutes"
}
