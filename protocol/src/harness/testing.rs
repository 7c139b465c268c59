//! Streams of hook events for tests.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::control::{ControlAction, ControlDocument, WrittenControl};
use super::ids::TrialIds;
use super::line_splitter::SplitLine;
use super::validator::{HookStreamSummary, HookStreamValidator};

/// Ids of a trial.
pub(super) fn ids() -> TrialIds {
    TrialIds {
        run_id: "run".into(),
        trial_id: "trial".into(),
        variant_id: "agent".into(),
        task_id: "task".into(),
        repl_idx: 0,
    }
}

/// The control with which the trial begins.
pub(super) fn first_control() -> WrittenControl {
    ControlDocument::initial(Timestamp::UNIX_EPOCH).to_file().written
}

/// A control that asks for the end.
pub(super) fn stop_control() -> WrittenControl {
    let first = ControlDocument::initial(Timestamp::UNIX_EPOCH);
    first.next(ControlAction::Stop, None, "test", Timestamp::UNIX_EPOCH).to_file().written
}

/// An event of `event_type` with the common properties and those of `more`.
pub(super) fn event(event_type: &str, seq: u64, more: &Value) -> Value {
    let mut event = json!({
        "event_type": event_type, "ts": "2026-01-02T03:04:05Z", "seq": seq, "ids": ids(),
    });
    let more = more.as_object().expect("an object").clone();
    event.as_object_mut().expect("an object").extend(more);
    event
}

/// Writes a stream with ascending numbers.
#[derive(Debug, Default)]
pub(super) struct StreamWriter {
    pub(super) lines: Vec<Value>,
}

impl StreamWriter {
    pub(super) fn add(&mut self, event_type: &str, more: &Value) -> &mut Self {
        let seq = self.lines.len() as u64;
        self.lines.push(event(event_type, seq, more));
        self
    }

    pub(super) fn start(&mut self, step: u64) -> &mut Self {
        self.add("agent_step_start", &json!({ "step_index": step }))
    }

    pub(super) fn end(&mut self, step: u64) -> &mut Self {
        self.add("agent_step_end", &json!({ "step_index": step }))
    }

    pub(super) fn ack(&mut self, step: u64, control: WrittenControl) -> &mut Self {
        let more = json!({
            "step_index": step, "control_version": control.version, "control_seq": control.seq,
            "action_observed": control.action, "action_taken": control.action,
        });
        self.add("control_ack", &more)
    }

    pub(super) fn step(&mut self, step: u64) -> &mut Self {
        self.start(step).end(step).ack(step, first_control())
    }

    pub(super) fn push(&mut self, line: Value) -> &mut Self {
        self.lines.push(line);
        self
    }

    pub(super) fn set(&mut self, line: usize, key: &str, value: Value) -> &mut Self {
        self.lines[line][key] = value;
        self
    }

    /// Checks the stream.
    pub(super) fn check(&self) -> HookStreamSummary {
        check(self.lines.iter().map(Value::to_string), true)
    }
}

/// Checks the lines of a stream against both controls.
pub(super) fn check<T: AsRef<[u8]>>(
    lines: impl IntoIterator<Item = T>,
    requires_acks: bool,
) -> HookStreamSummary {
    let mut validator = HookStreamValidator::new(requires_acks);
    validator.add_control(first_control());
    validator.add_control(stop_control());
    for line in lines {
        validator.push(SplitLine::Complete(line.as_ref()));
    }
    validator.finish()
}
