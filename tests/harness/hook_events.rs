//! A harness that writes many hook events, and readings of them by `rollout events`.

use rollout_protocol::exit::ExitCode;
use serde_json::Value;

use crate::gate::Gate;
use crate::program::RunningProgram;
use crate::project::Project;

/// A harness that writes hook events in bursts, with gaps, and acknowledges its control after each
/// step. `BURSTS` bursts have `STEPS` steps of 4 events each.
const HARNESS: &str = r#"
ids=$(sed 's/.*"ids":\({[^}]*}\).*/\1/' "$ROLLOUT_TRIAL_INPUT")
version="sha256:$(sha256sum <"$ROLLOUT_CONTROL_PATH" | cut -d' ' -f1)"
for burst in $(seq 0 $((BURSTS - 1))); do
  [ "$burst" -ne $((BURSTS / 2)) ] || { HELD; }
  awk -v burst="$burst" -v steps="STEPS" -v ids="$ids" -v version="$version" '
    function emit(kind, step, more) {
      printf "{\"event_type\":\"%s\",\"ts\":\"2026-01-02T03:04:05Z\",\"seq\":%d,\"ids\":%s,\"step_index\":%d%s}\n",
        kind, seq++, ids, step, more
    }
    BEGIN {
      seq = burst * steps * 4
      for (step = burst * steps; step < (burst + 1) * steps; step++) {
        emit("agent_step_start", step, "")
        emit("model_call_end", step, ",\"call_id\":\"c\",\"outcome\":{\"status\":\"ok\"}")
        emit("agent_step_end", step, "")
        emit("control_ack", step, ",\"control_version\":\"" version "\",\"action_observed\":\"continue\"")
      }
    }' >>"$ROLLOUT_EVENTS_PATH"
  sleep PAUSE
done
echo done >answer.txt
printf '{"schema_version":"trial_output_v1","ids":%s,"outcome":"success"}' "$ids" \
  >"$ROLLOUT_TRIAL_OUTPUT"
"#;

/// A job with one trial whose harness writes hook events.
#[derive(Debug, Clone, Copy)]
pub struct EventfulJob {
    /// Name of the job.
    pub name: &'static str,
    /// Bursts of events.
    pub bursts: u64,
    /// Steps in each of them, of 4 events.
    pub steps: u64,
    /// Seconds after each burst.
    pub pause: f64,
}

impl EventfulJob {
    /// Number of its events. They are numbered from 0 without a gap.
    pub fn events(&self) -> u64 {
        self.bursts * self.steps * 4
    }

    /// Writes the job and its task into a project.
    pub fn write(&self, project: &Project) {
        self.write_with(project, ":");
    }

    /// The same with a harness that waits at a gate when half of its events are written.
    pub fn write_held(&self, project: &Project, gate: &Gate) {
        self.write_with(project, &gate.wait_command());
    }

    fn write_with(&self, project: &Project, held: &str) {
        let Self { name, bursts, steps, pause } = self;
        let command = HARNESS
            .replace("BURSTS", &bursts.to_string())
            .replace("STEPS", &steps.to_string())
            .replace("PAUSE", &pause.to_string())
            .replace("HELD", held);
        let command = Value::String(command).to_string();
        let job = format!(
            "name: {name}\n\
             environment: {{type: process, provider_config: {{ignore_dockerfile: true}}}}\n\
             agents:\n  - name: eventful\n    harness: {{command: {command}, \
             integration_level: cli_events, events_path: /logs/agent/events.jsonl}}\n\
             datasets: [{{path: tasks}}]\n"
        );
        project.write_file("job.yaml", &job);
        project.write_small_task("echo 1 >/logs/verifier/reward.txt\n");
    }

    /// Starts `rollout events --json` for its trial, with further arguments.
    pub fn start_reading(&self, project: &Project, more: &[&str]) -> RunningProgram {
        let directory = project.results(self.name).path().display().to_string();
        project.rollout(&[&["events", &directory, "eventful", "--json"], more].concat())
    }

    /// The lines of `rollout events` now.
    #[track_caller]
    pub fn read(&self, project: &Project, more: &[&str]) -> Vec<Value> {
        let ended = self.start_reading(project, more).wait(DEADLINE);
        parse(&ended.expect_code(ExitCode::Success).stdout)
    }
}

/// Longest time for one reading.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(60);

/// The whole lines of a reading, which may still run.
#[track_caller]
pub fn parse(stdout: &str) -> Vec<Value> {
    let whole = stdout.rfind('\n').map_or("", |end| &stdout[..end]);
    whole.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// The executions in lines of events, in their order, each once.
pub fn executions(lines: &[Value]) -> Vec<String> {
    let mut found: Vec<String> =
        lines.iter().map(|line| line["exec"].as_str().expect("an execution").to_owned()).collect();
    found.dedup();
    found
}

/// Fails unless lines are the events of one execution from `from` on, in order and without a gap.
/// Returns the number after the last one.
#[track_caller]
pub fn assert_gapless(lines: &[Value], from: u64) -> u64 {
    for (line, seq) in lines.iter().zip(from..) {
        let numbers = (line["seq"].as_u64(), line["event"]["seq"].as_u64());
        assert_eq!(numbers, (Some(seq), Some(seq)), "{line:#}");
    }
    assert!(executions(lines).len() <= 1, "of one execution");
    from + lines.len() as u64
}
