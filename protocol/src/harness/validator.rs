//! The rules of a stream of hook events, as a state machine that is fed line by line.
//!
//! A violation is recorded and the stream is read on. After it, the machine continues from what the
//! harness stated, so that one mistake is one violation.

use std::collections::BTreeMap;

use super::control::{ControlAction, WrittenControl};
use super::hook_event::{ControlAck, HookEvent, HookEventBody, HookEventType};
use super::line_splitter::SplitLine;
use super::parse_event::{HookEventError, parse_event};
use super::violation::{HookRule, HookViolations};

/// Checks a stream of hook events. It may be fed while the harness runs.
#[derive(Debug)]
pub struct HookStreamValidator {
    requires_acks: bool,
    controls: Vec<WrittenControl>,
    /// Lines read so far.
    line: u64,
    /// The step that has begun and not ended.
    open_step: Option<u64>,
    /// The last step that began.
    last_step: Option<u64>,
    /// The step that ended and has no acknowledgement.
    pending_ack: Option<u64>,
    /// The harness acknowledged `stop`.
    stopped: bool,
    summary: HookStreamSummary,
}

/// The content of a stream so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HookStreamSummary {
    /// Valid events.
    pub total: u64,
    /// Valid events by type.
    pub counts: BTreeMap<HookEventType, u64>,
    /// The largest number of an event.
    pub last_seq: Option<u64>,
    /// Violations.
    pub violations: HookViolations,
}

impl HookStreamValidator {
    /// Checks a stream. `requires_acks` says whether a control must be acknowledged after each step.
    pub fn new(requires_acks: bool) -> Self {
        Self {
            requires_acks,
            controls: Vec::new(),
            line: 0,
            open_step: None,
            last_step: None,
            pending_ack: None,
            stopped: false,
            summary: HookStreamSummary::default(),
        }
    }

    /// Adds a control that was written. Acknowledgements are compared with controls only after the
    /// first one was added.
    pub fn add_control(&mut self, control: WrittenControl) {
        self.controls.push(control);
    }

    /// Reads the next line. Empty lines are ignored.
    pub fn push(&mut self, line: SplitLine<'_>) {
        self.line += 1;
        let parsed = match line {
            SplitLine::Complete(bytes) if bytes.trim_ascii().is_empty() => return,
            SplitLine::Complete(bytes) => parse_event(bytes),
            SplitLine::TooLong => Err(HookEventError::TooLong),
        };
        match parsed {
            Ok(event) => self.event(&event),
            Err(error) => {
                let rule = match &error {
                    HookEventError::TooLong => HookRule::LineTooLong,
                    HookEventError::NotAnObject(_) => HookRule::InvalidJson,
                    HookEventError::Schema(_) => HookRule::InvalidEvent,
                };
                self.violation(rule, None, &error.to_string());
            }
        }
    }

    /// The content so far.
    pub const fn summary(&self) -> &HookStreamSummary {
        &self.summary
    }

    /// Records a violation that was found outside of the lines.
    pub fn violation(&mut self, rule: HookRule, seq: Option<u64>, message: &str) {
        self.summary.violations.add(rule, self.line, seq, message);
    }

    /// Ends the stream.
    #[must_use]
    pub fn finish(mut self) -> HookStreamSummary {
        let seq = self.summary.last_seq;
        self.expect_no_pending_ack(seq);
        self.summary
    }

    fn event(&mut self, event: &HookEvent) {
        let seq = Some(event.seq);
        if let Some(last) = self.summary.last_seq.filter(|last| event.seq <= *last) {
            let message = format!("`seq` is {}, after {last}", event.seq);
            self.violation(HookRule::SeqNotIncreasing, seq, &message);
        }
        self.summary.last_seq = self.summary.last_seq.max(seq);
        self.summary.total += 1;
        *self.summary.counts.entry(event.body.event_type()).or_default() += 1;
        match (&event.body, event.step_index) {
            (HookEventBody::AgentStepStart, Some(step)) => self.step_start(event.seq, step),
            (HookEventBody::AgentStepEnd(_), Some(step)) => self.step_end(event.seq, step),
            (HookEventBody::ControlAck(ack), Some(step)) => self.control_ack(event.seq, step, ack),
            (HookEventBody::ModelCallEnd(_) | HookEventBody::ToolCallEnd(_), None)
                if self.last_step.is_some() =>
            {
                let message = format!("`{}` has no `step_index`", event.body.event_type());
                self.violation(HookRule::StepIndexMissing, seq, &message);
            }
            _ => {}
        }
    }

    fn step_start(&mut self, seq: u64, step: u64) {
        if self.stopped {
            let message = format!("step {step} began after `stop` was acknowledged");
            self.violation(HookRule::StepAfterStop, Some(seq), &message);
        }
        if let Some(open) = self.open_step {
            let message = format!("step {step} began before step {open} ended");
            self.violation(HookRule::NestedStep, Some(seq), &message);
        }
        self.expect_no_pending_ack(Some(seq));
        if let Some(last) = self.last_step.filter(|last| Some(step) != last.checked_add(1)) {
            let message = format!("step {step} began after step {last}");
            self.violation(HookRule::StepIndexNotSequential, Some(seq), &message);
        }
        (self.open_step, self.last_step) = (Some(step), Some(step));
    }

    fn step_end(&mut self, seq: u64, step: u64) {
        match self.open_step.take() {
            None => {
                let message = format!("step {step} ended, and no step had begun");
                self.violation(HookRule::StepEndWithoutStart, Some(seq), &message);
            }
            Some(open) if open != step => {
                let message = format!("step {step} ended, and step {open} had begun");
                self.violation(HookRule::StepEndMismatch, Some(seq), &message);
            }
            Some(_) => {}
        }
        self.pending_ack = Some(step);
    }

    fn control_ack(&mut self, seq: u64, step: u64, ack: &ControlAck) {
        match self.pending_ack.take() {
            None => {
                let message =
                    format!("a control was acknowledged for step {step}, which did not just end");
                self.violation(HookRule::AckWithoutStepEnd, Some(seq), &message);
            }
            Some(ended) if ended != step => {
                let message =
                    format!("a control was acknowledged for step {step}, not for {ended}");
                self.violation(HookRule::AckStepMismatch, Some(seq), &message);
            }
            Some(_) => {}
        }
        self.compare_with_control(seq, ack);
        self.stopped |= ack.action_observed == ControlAction::Stop;
    }

    /// Compares an acknowledgement with the control that it names.
    fn compare_with_control(&mut self, seq: u64, ack: &ControlAck) {
        let version = ack.control_version;
        let found = self.controls.iter().find(|control| control.version == version).copied();
        let Some(control) = found else {
            if !self.controls.is_empty() {
                let message = format!("no control of version `{version}` was written");
                self.violation(HookRule::ControlVersionUnknown, Some(seq), &message);
            }
            return;
        };
        if ack.action_observed != control.action {
            let message =
                format!("`action_observed` is {}, not {}", ack.action_observed, control.action);
            self.violation(HookRule::ControlActionMismatch, Some(seq), &message);
        }
        if let Some(stated) = ack.control_seq.filter(|stated| *stated != control.seq) {
            let message = format!("`control_seq` is {stated}, not {}", control.seq);
            self.violation(HookRule::ControlSeqMismatch, Some(seq), &message);
        }
    }

    fn expect_no_pending_ack(&mut self, seq: Option<u64>) {
        if let Some(ended) = self.pending_ack.take().filter(|_| self.requires_acks) {
            let message = format!("no control was acknowledged after step {ended}");
            self.violation(HookRule::AckMissing, seq, &message);
        }
    }
}
