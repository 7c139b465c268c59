//! Farms: open runs that a trainer asks for groups of samples, and whose results it reads in one
//! order.
//!
//! A group is `n` samples of one task under one policy version. Every sample that a group owes ends
//! with one [`Completion`], whose cursor is a dense integer. A sample that the infrastructure lost
//! may be replaced by its next generation. See `docs/farm.md` for the states and guarantees.

mod completion;
mod group;
mod record;
mod refusal;
mod sample;
mod settings;
mod snapshot;
mod status;

pub use completion::{Completion, PolicyVersions};
pub use group::{
    AdmittedGroup, GroupPolicy, GroupRequest, InlineTask, InvalidGroup, ModelEndpoint, RolloutSpec,
    TaskChoice,
};
pub use record::{FarmRecord, LateResult, LostGeneration, SampleSlot};
pub use refusal::{AdmissionRefusal, BusyLimit};
pub use sample::{
    CancelReason, GroupEnd, LossCause, OutageCause, SampleEnd, SampleExecution, SampleResult,
};
pub use settings::{FarmLimits, FarmSettings, InvalidFarmSettings, StalenessBounds};
pub use snapshot::{
    EndingSlot, FarmCounters, FarmOutage, FinishedGroup, GroupSnapshot, OpenSlot, SlotOutage,
};
pub use status::{
    AckReceipt, CancelReceipt, FarmModelCalls, FarmPause, FarmStatus, FarmTotals, GroupStatus,
    SubmitReceipt, SubmittedGroup,
};

pub use crate::sample_key::{GroupId, InvalidGroupId, SampleKey};
