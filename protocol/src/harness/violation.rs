//! Violations of the rules of a stream of hook events.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limits;

macro_rules! hook_rules {
    ($($(#[$doc:meta])* $variant:ident = $text:literal;)*) => {
        /// A rule of a stream of hook events, named by its violation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum HookRule {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)*
            /// A rule of a later version.
            #[serde(rename = "unknown", other)]
            Unknown,
        }

        impl HookRule {
            /// Every rule of this version.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name in documents.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Unknown => "unknown",
                }
            }
        }
    };
}

hook_rules! {
    /// A line exceeds [`limits::HOOK_EVENT_BYTES`].
    LineTooLong = "line_too_long";
    /// A line is not a JSON object.
    InvalidJson = "invalid_json";
    /// A line breaks the schema of its event type.
    InvalidEvent = "invalid_event";
    /// A number is not larger than the one before.
    SeqNotIncreasing = "seq_not_increasing";
    /// A step began before the one before it ended.
    NestedStep = "nested_step";
    /// The index of a step is not the one before plus 1.
    StepIndexNotSequential = "step_index_not_sequential";
    /// A step ended that had not begun.
    StepEndWithoutStart = "step_end_without_start";
    /// A step ended under another index than it began.
    StepEndMismatch = "step_end_mismatch";
    /// No control was acknowledged after the end of a step.
    AckMissing = "ack_missing";
    /// A control was acknowledged although no step had ended.
    AckWithoutStepEnd = "ack_without_step_end";
    /// A control was acknowledged under another index than that of the step that had ended.
    AckStepMismatch = "ack_step_mismatch";
    /// The acknowledged version is of no control that was written.
    ControlVersionUnknown = "control_version_unknown";
    /// The acknowledged action is not the action of the control.
    ControlActionMismatch = "control_action_mismatch";
    /// The acknowledged number is not the number of the control.
    ControlSeqMismatch = "control_seq_mismatch";
    /// A step began after the harness had acknowledged `stop`.
    StepAfterStop = "step_after_stop";
    /// A call of a model or tool names no step although steps were seen.
    StepIndexMissing = "step_index_missing";
    /// There are no events although the integration level requires them.
    EventsMissing = "events_missing";
    /// The file of events cannot be read, or only in part.
    EventsUnreadable = "events_unreadable";
}

impl fmt::Display for HookRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookViolation {
    /// The rule.
    pub rule: HookRule,
    /// Number of the event, if it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Line of the stream, from 1; 0 for a stream without lines.
    pub line: u64,
    /// The found and the expected; at most [`limits::HOOK_VIOLATION_BYTES`], without control
    /// characters.
    pub message: String,
}

/// The violations of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookViolations {
    /// Their number.
    pub total: u64,
    /// The first of them, at most [`limits::HOOK_VIOLATIONS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<HookViolation>,
}

impl HookViolations {
    /// Adds a violation; keeps its text while there are few.
    pub fn add(&mut self, rule: HookRule, line: u64, seq: Option<u64>, message: &str) {
        self.total += 1;
        if self.first.len() < limits::HOOK_VIOLATIONS {
            let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
            let message = message.chars().map(clean).collect();
            let message = limits::shorten(message, limits::HOOK_VIOLATION_BYTES);
            self.first.push(HookViolation { rule, seq, line, message });
        }
    }
}
