//! State that the planner and the handles of a farm share.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_protocol::Timestamp;
use rollout_protocol::farm::{Completion, FarmRecord, FarmSettings, SampleResult};
use rollout_protocol::id::ItemId;
use tokio::sync::{Notify, oneshot, watch};

use super::core::{FarmCore, FarmEffect, FarmInput, FarmOutput, FarmReply};
use super::metadata_lengths::MetadataLengths;
use super::model_calls::SharedCalls;

/// A farm of this process.
#[derive(Debug)]
pub(super) struct FarmShared {
    state: Mutex<FarmState>,
    /// Notified when there are new inputs.
    pub(super) growth: Arc<Notify>,
    /// The newest cursor that can be read.
    pub(super) newest: watch::Sender<u64>,
    /// Model calls of its samples.
    pub(super) calls: SharedCalls,
}

/// A completion that its consumer can read.
#[derive(Debug)]
pub(super) struct ReadableCompletion {
    pub(super) completion: Arc<Completion>,
    /// Length of its metadata as JSON.
    pub(super) metadata_bytes: u64,
}

#[derive(Debug)]
pub(super) struct FarmState {
    pub(super) core: FarmCore,
    settings: FarmSettings,
    /// Inputs that the core has not handled.
    inbox: Vec<FarmInput>,
    /// Settlements of samples that no record of the farm covers yet, by the order in which they came.
    settled: BTreeMap<u64, (ItemId, Box<SampleResult>)>,
    settled_order: HashMap<ItemId, u64>,
    next_settled: u64,
    /// Senders of inputs that wait for the answer.
    replies: HashMap<u64, oneshot::Sender<FarmReply>>,
    next_id: u64,
    /// Durable completions without a durable acknowledgement.
    pub(super) readable: BTreeMap<u64, ReadableCompletion>,
    /// Whether the session decides.
    started: bool,
    /// Whether the run has ended.
    pub(super) ended: bool,
}

/// Results of the inputs so far.
#[derive(Debug, Default)]
pub(super) struct FarmStep {
    pub(super) records: Vec<FarmRecord>,
    /// Ordinals of samples to cancel.
    pub(super) withdrawn: Vec<u64>,
    pub(super) forgotten: Vec<ItemId>,
    /// Effects that wait for the records.
    pub(super) effects: Vec<FarmEffect>,
}

impl FarmShared {
    pub(super) fn new(settings: FarmSettings) -> Self {
        let state = FarmState {
            core: FarmCore::new(),
            settings,
            inbox: Vec::new(),
            settled: BTreeMap::new(),
            settled_order: HashMap::new(),
            next_settled: 0,
            replies: HashMap::new(),
            next_id: 0,
            readable: BTreeMap::new(),
            started: false,
            ended: false,
        };
        Self {
            state: Mutex::new(state),
            growth: Arc::default(),
            newest: watch::Sender::new(0),
            calls: SharedCalls::default(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, FarmState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an input that is answered; `None` when the run has ended.
    pub(super) fn ask(
        &self,
        make: impl FnOnce(u64) -> FarmInput,
    ) -> Option<oneshot::Receiver<FarmReply>> {
        let (reply, answer) = oneshot::channel();
        let mut state = self.state();
        if state.ended {
            return None;
        }
        state.next_id += 1;
        let id = state.next_id;
        state.inbox.push(make(id));
        state.replies.insert(id, reply);
        drop(state);
        self.growth.notify_one();
        Some(answer)
    }

    /// Carries out effects whose records are durable.
    pub(super) fn carry_out(&self, effects: Vec<FarmEffect>) {
        let mut replies = Vec::new();
        let mut state = self.state();
        for effect in effects {
            match effect {
                FarmEffect::Reply { id, reply } => {
                    replies.extend(state.replies.remove(&id).map(|sender| (sender, reply)));
                }
                effect => state.show(effect),
            }
        }
        let model_calls = state.core.model_calls();
        drop(state);
        // Before the replies: a pause is answered when workers apply it.
        self.calls.want(model_calls);
        self.wake_readers();
        for (sender, reply) in replies {
            // A caller that no longer waits asks again.
            let _gone = sender.send(reply);
        }
    }

    /// Wakes readers if there are new completions.
    pub(super) fn wake_readers(&self) {
        let newest = self.state().readable.keys().next_back().copied().unwrap_or(0);
        self.newest.send_if_modified(|known| {
            let is_newer = *known < newest;
            *known = newest.max(*known);
            is_newer
        });
    }

    /// The run has ended: nothing is answered any more.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        state.replies.clear();
        state.inbox.clear();
        drop(state);
        // Readers wake and see that the run has ended.
        self.newest.send_modify(|_| {});
    }
}

impl FarmState {
    /// Applies a record of a former session.
    pub(super) fn replay(&mut self, at: Timestamp, record: &FarmRecord) {
        if let FarmRecord::Snapshot(_) = record {
            self.readable.clear();
        }
        let mut effects = Vec::new();
        self.core.apply(at, record, &mut effects);
        effects.into_iter().for_each(|effect| self.show(effect));
        match record {
            FarmRecord::Completed { completions } => {
                for completion in completions {
                    self.drop_if_covered(&completion.sample.item());
                }
            }
            FarmRecord::Refilled(lost) => self.drop_if_covered(&self.core.item(&lost.sample)),
            FarmRecord::Late(late) => self.drop_if_covered(&self.core.item(&late.sample)),
            _ => {}
        }
    }

    /// Whether the session has decided anything.
    pub(super) fn has_started(&self) -> bool {
        self.started
    }

    /// Shows durable completions, and hides acknowledged ones.
    fn show(&mut self, effect: FarmEffect) {
        match effect {
            FarmEffect::Completed(completions) => {
                let mut lengths = MetadataLengths::default();
                let readable = |completion: Arc<Completion>| {
                    let metadata_bytes = lengths.of(&completion);
                    (completion.cursor, ReadableCompletion { completion, metadata_bytes })
                };
                self.readable.extend(completions.into_iter().map(readable));
            }
            FarmEffect::Acknowledged(cursors) => {
                for cursor in cursors {
                    self.readable.remove(&cursor);
                }
            }
            FarmEffect::Reply { .. } | FarmEffect::Withdraw(_) | FarmEffect::Forget(_) => {}
        }
    }

    /// Forgets a settlement that the records of the farm cover.
    fn drop_if_covered(&mut self, item: &ItemId) {
        if self.core.find(item).is_none()
            && let Some(order) = self.settled_order.remove(item)
        {
            self.settled.remove(&order);
        }
    }

    /// The run has settled an item. While the journal is replayed, the sample may be unknown: in a
    /// compacted one the records of items precede those of the farm. The core ignores settlements of
    /// samples that stay unknown.
    pub(super) fn add_settled(&mut self, item: ItemId, result: SampleResult) {
        let is_forgotten = self.started && self.core.find(&item).is_none();
        if is_forgotten || self.settled_order.contains_key(&item) {
            return;
        }
        self.settled_order.insert(item, self.next_settled);
        self.settled.insert(self.next_settled, (item, Box::new(result)));
        self.next_settled += 1;
    }

    /// Lets the core handle everything that came since the last call.
    pub(super) fn decide(&mut self, now: Timestamp) -> FarmStep {
        let mut out = FarmOutput::default();
        let mut withdrawn = Vec::new();
        if !std::mem::replace(&mut self.started, true) {
            self.core.handle(now, FarmInput::Configure(self.settings.clone()), &mut out);
            // The former session may have died before the run was told.
            withdrawn = self.core.ending();
        }
        for (item, result) in std::mem::take(&mut self.settled).into_values() {
            self.core.handle(now, FarmInput::Settled { item, result }, &mut out);
        }
        self.settled_order.clear();
        for input in std::mem::take(&mut self.inbox) {
            self.core.handle(now, input, &mut out);
        }
        self.core.handle(now, FarmInput::Tick, &mut out);
        let FarmOutput { records, effects } = out;
        let mut step = FarmStep { records, withdrawn, ..FarmStep::default() };
        for effect in effects {
            match effect {
                FarmEffect::Withdraw(ordinals) => step.withdrawn.extend(ordinals),
                FarmEffect::Forget(items) => step.forgotten.extend(items),
                effect => step.effects.push(effect),
            }
        }
        step
    }
}
