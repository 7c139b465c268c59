//! Inputs and outputs of the core.

use std::sync::Arc;

use rollout_protocol::farm::{
    AckReceipt, AdmissionRefusal, AdmittedGroup, CancelReceipt, Completion, FarmRecord,
    FarmSettings, FarmStatus, GroupId, SampleResult, SubmitReceipt,
};
use rollout_protocol::id::ItemId;

/// One input. Inputs with an id are answered by [`FarmEffect::Reply`].
#[derive(Debug, Clone, PartialEq)]
pub enum FarmInput {
    /// A session has these settings.
    Configure(FarmSettings),
    /// The trainer asks for a group.
    Submit {
        /// Id of the input.
        id: u64,
        /// The group, with its documents.
        group: Box<AdmittedGroup>,
    },
    /// The trainer cancels a group.
    Cancel {
        /// Id of the input.
        id: u64,
        /// The group.
        group: GroupId,
    },
    /// A consumer has taken completions.
    Acknowledge {
        /// Id of the input.
        id: u64,
        /// The consumer.
        consumer: String,
        /// Cursors of the completions.
        completions: Vec<u64>,
    },
    /// The trainer has a policy of this version.
    PolicyVersion {
        /// Id of the input.
        id: u64,
        /// The version. One that is not newer changes nothing.
        version: u64,
    },
    /// The trainer pauses the farm.
    Pause {
        /// Id of the input.
        id: u64,
    },
    /// The trainer ends a pause.
    Resume {
        /// Id of the input.
        id: u64,
        /// The version of the policy from now on, if it changed.
        version: Option<u64>,
    },
    /// No more groups come.
    Close {
        /// Id of the input.
        id: u64,
    },
    /// The run has settled an item.
    Settled {
        /// The item.
        item: ItemId,
        /// The result.
        result: Box<SampleResult>,
    },
    /// Time passed.
    Tick,
}

/// One effect.
#[derive(Debug, Clone, PartialEq)]
pub enum FarmEffect {
    /// Answer an input.
    Reply {
        /// Id of the input.
        id: u64,
        /// The answer.
        reply: FarmReply,
    },
    /// These completions can be read from now on.
    Completed(Vec<Arc<Completion>>),
    /// These completions can no longer be read.
    Acknowledged(Vec<u64>),
    /// The run cancels the items with these ordinals.
    Withdraw(Vec<u64>),
    /// Nothing refers to these items any more.
    Forget(Vec<ItemId>),
}

/// The answer to an input.
#[derive(Debug, Clone, PartialEq)]
pub enum FarmReply {
    /// To [`FarmInput::Submit`].
    Submitted(Result<SubmitReceipt, AdmissionRefusal>),
    /// To [`FarmInput::Cancel`].
    Cancelled(Result<CancelReceipt, AdmissionRefusal>),
    /// To [`FarmInput::Acknowledge`].
    Acknowledged(AckReceipt),
    /// To the other inputs: the state after it.
    Status(Box<FarmStatus>),
}

/// Records and effects of inputs, in the order of decision.
#[derive(Debug, Default)]
pub struct FarmOutput {
    /// Records for the journal.
    pub records: Vec<FarmRecord>,
    /// Effects that may be carried out when these records are durable.
    pub effects: Vec<FarmEffect>,
}
