"""A job for executors: trials that end, heed controls, or wait until they are cancelled."""

from __future__ import annotations

from typing import Any

from daemon import Daemon

HEEDING = r"""
ids=$(sed 's/.*"ids":\({[^}]*}\).*/\1/' "$ROLLOUT_TRIAL_INPUT")
seq=0 step=0 action=continue
emit() {
  printf '{"event_type":"%s","ts":"%s","seq":%d,"ids":%s,"step_index":%d%s}\n' \
    "$1" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$seq" "$ids" "$step" "$2" >>"$ROLLOUT_EVENTS_PATH"
  seq=$((seq + 1))
}
while [ "$action" != stop ]; do
  emit agent_step_start
  sleep 0.2
  emit agent_step_end
  control=$(cat "$ROLLOUT_CONTROL_PATH"; echo x)
  version=$(printf %s "${control%x}" | sha256sum | cut -d' ' -f1)
  action=$(printf %s "$control" | sed -n 's/.*"action":"\([a-z]*\)".*/\1/p')
  emit control_ack ",\"control_version\":\"sha256:$version\",\"action_observed\":\"$action\""
  step=$((step + 1))
done
printf '{"schema_version":"trial_output_v1","ids":%s,"outcome":"success"}' "$ids" \
  >"$ROLLOUT_TRIAL_OUTPUT"
"""
"""A harness that runs steps until it reads `stop`, then writes its output."""


def executor_job(daemon: Daemon, **settings: Any) -> dict[str, Any]:
    """Return a job with the agents `writes`, `heeds` and `waits`."""
    harness = {
        "command": HEEDING,
        "integration_level": "cli_events",
        "events_path": "/logs/agent/e.jsonl",
    }
    agents = [
        {"name": "writes", "execute": "echo hello"},
        {"name": "heeds", "harness": harness},
        {"name": "waits", "execute": "sleep 600"},
    ]
    return daemon.job(agents=agents, n_concurrent_trials=3, **settings)
