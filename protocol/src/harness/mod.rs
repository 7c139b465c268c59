//! The contract between a trial and a program that attempts it, the harness: the documents that it
//! gets (`trial_input_v1`, `control_plane_v1`) and those that it writes (`trial_output_v1`,
//! `hook_events_v1`).
//!
//! Everything here is pure. Documents of a harness are read with the limits of [`crate::limits`]: a
//! fault is reported and never stops the reader.

mod control;
mod control_session;
mod event_json;
mod hook_event;
mod ids;
mod integration_level;
mod json_object;
mod line_splitter;
mod manifest;
mod parse_event;
mod trial_input;
mod trial_output;
mod validator;
mod violation;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use control::{ControlAction, ControlDocument, ControlFile, WrittenControl};
pub use control_session::{
    ControlAcknowledgement, ControlRefusal, ControlRequest, ControlSession, HarnessControl,
};
pub use hook_event::{
    CallOutcome, CallStatus, CallTiming, ControlAck, HookError, HookEvent, HookEventBody,
    HookEventType, ModelCall, ModelIdentity, PayloadRedaction, RedactionMode, StepBudgets,
    TokenUsage, ToolCall, ToolIdentity,
};
pub use ids::TrialIds;
pub use integration_level::IntegrationLevel;
pub use json_object::FieldError;
pub use line_splitter::{LineSplitter, SplitLine};
pub use manifest::{HarnessManifest, HooksDeclaration, ManifestError, StepDeclaration};
pub use parse_event::{HookEventError, parse_event};
pub use trial_input::{
    ControlPlane, ControlPlaneMode, RequestedNetwork, TrialDesign, TrialInput, TrialNetwork,
    TrialPaths, TrialRuntime, TrialTimeouts, TrialWorkload, WorkloadType,
};
pub use trial_output::{
    HarnessOutcome, MetricValue, Objective, ObjectiveDirection, OutputCheckpoint, OutputError,
    OutputFileRef, TrialOutput, TrialOutputError, last_line,
};
pub use validator::{HookStreamSummary, HookStreamValidator};
pub use violation::{HookRule, HookViolation, HookViolations};
