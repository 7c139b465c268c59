//! Handles of a farm: every answer is given when the records behind it are durable.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use rollout_protocol::farm::{
    AckReceipt, AdmissionRefusal, AdmittedGroup, CancelReceipt, Completion, FarmStatus, GroupEnd,
    GroupId, GroupStatus, SubmitReceipt,
};
use rollout_protocol::limits::{ANSWER_METADATA_BYTES, COMPLETIONS_PER_READ};
use tokio::time::{Instant, timeout_at};

use super::core::{FarmInput, FarmReply};
use super::model_calls::FarmCalls;
use super::state::FarmShared;

/// The session of a farm has ended. Everything that was answered is kept; what was not answered may
/// or may not have been recorded, and can be sent again to the next session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot reach the farm: its session has ended; open the farm again")]
pub struct FarmEnded;

/// Completions of one read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CompletionPage {
    /// The completions, in the order of their cursors.
    pub completions: Vec<Arc<Completion>>,
    /// Where the next read begins.
    pub next_after: u64,
    /// Length of their metadata as JSON.
    pub metadata_bytes: u64,
}

/// Groups that are cancelled at once when a farm is discarded.
const GROUPS_AT_ONCE: usize = 16;

/// A farm that is open in this process. Clones share it.
#[derive(Debug, Clone)]
pub struct FarmHandle {
    shared: Arc<FarmShared>,
}

impl FarmHandle {
    pub(super) fn new(shared: Arc<FarmShared>) -> Self {
        Self { shared }
    }

    async fn ask(&self, make: impl FnOnce(u64) -> FarmInput) -> Result<FarmReply, FarmEnded> {
        self.shared.ask(make).ok_or(FarmEnded)?.await.map_err(|_| FarmEnded)
    }

    async fn ask_status(
        &self,
        make: impl FnOnce(u64) -> FarmInput,
    ) -> Result<FarmStatus, FarmEnded> {
        match self.ask(make).await? {
            FarmReply::Status(status) => Ok(self.with_calls(*status)),
            _ => Err(FarmEnded),
        }
    }

    fn with_calls(&self, status: FarmStatus) -> FarmStatus {
        FarmStatus { model_calls: self.shared.calls.counts(), ..status }
    }

    /// The side towards workers of its samples' model calls.
    pub fn model_calls(&self) -> FarmCalls {
        FarmCalls::new(Arc::clone(&self.shared))
    }

    /// Submits a group whose documents are stored. The same group again has no further effect.
    ///
    /// # Errors
    /// [`FarmEnded`]; the answer of the farm may be a refusal.
    pub async fn submit(
        &self,
        group: AdmittedGroup,
    ) -> Result<Result<SubmitReceipt, AdmissionRefusal>, FarmEnded> {
        let group = Box::new(group);
        match self.ask(|id| FarmInput::Submit { id, group }).await? {
            FarmReply::Submitted(answer) => Ok(answer),
            _ => Err(FarmEnded),
        }
    }

    /// Cancels a group, also one that was not submitted yet: its id is never admitted then.
    ///
    /// # Errors
    /// [`FarmEnded`]; the answer of the farm may be that it can keep no more ids.
    pub async fn cancel(
        &self,
        group: GroupId,
    ) -> Result<Result<CancelReceipt, AdmissionRefusal>, FarmEnded> {
        match self.ask(|id| FarmInput::Cancel { id, group }).await? {
            FarmReply::Cancelled(answer) => Ok(answer),
            _ => Err(FarmEnded),
        }
    }

    /// Acknowledges completions of a consumer, by their cursors: they are never shown again.
    ///
    /// # Errors
    /// [`FarmEnded`].
    pub async fn acknowledge(
        &self,
        consumer: impl Into<String>,
        completions: Vec<u64>,
    ) -> Result<AckReceipt, FarmEnded> {
        let consumer = consumer.into();
        match self.ask(|id| FarmInput::Acknowledge { id, consumer, completions }).await? {
            FarmReply::Acknowledged(receipt) => Ok(receipt),
            _ => Err(FarmEnded),
        }
    }

    /// Says that the trainer's policy has this version. Samples that are too old for the farm's
    /// bounds are cancelled.
    ///
    /// # Errors
    /// [`FarmEnded`].
    pub async fn set_policy_version(&self, version: u64) -> Result<FarmStatus, FarmEnded> {
        self.ask_status(|id| FarmInput::PolicyVersion { id, version }).await
    }

    /// Pauses the farm: no sample begins, no deadline passes, and no new model call is sent. Calls
    /// in flight go on; the status counts them. Returns when all workers keep new calls back, or
    /// after ten seconds; the status counts workers that have not said so.
    ///
    /// # Errors
    /// [`FarmEnded`].
    pub async fn pause(&self) -> Result<FarmStatus, FarmEnded> {
        let status = self.ask_status(|id| FarmInput::Pause { id }).await?;
        self.shared.calls.wait_until_applied().await;
        Ok(self.with_calls(status))
    }

    /// Ends a pause, with the version of the policy from now on if it changed.
    ///
    /// # Errors
    /// [`FarmEnded`].
    pub async fn resume(&self, version: Option<u64>) -> Result<FarmStatus, FarmEnded> {
        self.ask_status(|id| FarmInput::Resume { id, version }).await
    }

    /// Closes the farm: no more groups are admitted, and the run ends when every sample has ended
    /// and every completion is acknowledged.
    ///
    /// # Errors
    /// [`FarmEnded`].
    pub async fn close(&self) -> Result<FarmStatus, FarmEnded> {
        self.ask_status(|id| FarmInput::Close { id }).await
    }

    /// The state of the farm, which may be ahead of the journal by a moment. At least one group counts as
    /// open while a completion cannot be read yet: readers of a closed farm end when no group is open.
    pub fn status(&self) -> FarmStatus {
        let state = self.shared.state();
        let mut status = state.core.status();
        let newest = state.core.completions().next_back();
        if newest.is_some_and(|one| !state.readable.contains_key(&one.cursor)) {
            status.open_groups = status.open_groups.max(1);
        }
        drop(state);
        self.with_calls(status)
    }

    /// Bytes that the groups need which the farm holds, about.
    pub fn held_bytes(&self) -> u64 {
        self.shared.state().core.held_bytes()
    }

    /// Whether a group with this id may be admitted: the farm is open, and does not know the id.
    pub fn can_admit(&self, group: &GroupId) -> bool {
        let state = self.shared.state();
        let is_known =
            state.core.group_status(group).is_some() || state.core.former_group(group).is_some();
        !is_known && !state.core.is_closed()
    }

    /// The state of a group that the farm holds; `None` for one that was never admitted, or is ended
    /// and acknowledged.
    pub fn group(&self, group: &GroupId) -> Option<GroupStatus> {
        self.shared.state().core.group_status(group)
    }

    /// How a group ended that the farm remembers and no longer holds: it is acknowledged, or was
    /// cancelled before it came.
    pub fn former_group(&self, group: &GroupId) -> Option<GroupEnd> {
        self.shared.state().core.former_group(group)
    }

    /// A durable completion that its consumer has not acknowledged.
    pub fn completion(&self, cursor: u64) -> Option<Arc<Completion>> {
        let state = self.shared.state();
        state.readable.get(&cursor).map(|one| Arc::clone(&one.completion))
    }

    /// Cancels every group, acknowledges every completion and closes the farm: the run ends when its
    /// executions have ended.
    ///
    /// # Errors
    /// [`FarmEnded`].
    pub async fn discard(&self) -> Result<(), FarmEnded> {
        // No group comes after this.
        self.close().await?;
        let groups = self.shared.state().core.open_groups();
        // This bounds the bytes that are written at once.
        for some in groups.chunks(GROUPS_AT_ONCE) {
            try_join_all(some.iter().map(|group| self.cancel(group.clone()))).await?;
        }
        let mut cursors: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for one in self.shared.state().readable.values() {
            let completion = &one.completion;
            cursors.entry(completion.consumer.clone()).or_default().push(completion.cursor);
        }
        for (consumer, cursors) in cursors {
            for chunk in cursors.chunks(COMPLETIONS_PER_READ) {
                self.acknowledge(consumer.clone(), chunk.to_vec()).await?;
            }
        }
        Ok(())
    }

    /// Reads the completions of a consumer after a cursor that it has not acknowledged, at most
    /// `limit`, and at most one if their metadata is longer than [`ANSWER_METADATA_BYTES`]. Waits up to `wait` for the first one. Gaps in the cursors are completions that were
    /// acknowledged, or are of other consumers.
    ///
    /// # Errors
    /// [`FarmEnded`] when there is nothing to read and the session has ended.
    pub async fn completions(
        &self,
        consumer: &str,
        after: u64,
        limit: usize,
        wait: Duration,
    ) -> Result<CompletionPage, FarmEnded> {
        let until = Instant::now() + wait;
        let mut newest = self.shared.newest.subscribe();
        loop {
            newest.borrow_and_update();
            let (page, ended) = self.read(consumer, after, limit);
            if !page.completions.is_empty() {
                return Ok(page);
            }
            if ended {
                return Err(FarmEnded);
            }
            if timeout_at(until, newest.changed()).await.is_err() {
                return Ok(page);
            }
        }
    }

    fn read(&self, consumer: &str, after: u64, limit: usize) -> (CompletionPage, bool) {
        let limit = limit.min(COMPLETIONS_PER_READ);
        let state = self.shared.state();
        let range = (Bound::Excluded(after), Bound::Unbounded);
        let of_consumer =
            state.readable.range(range).filter(|(_, one)| one.completion.consumer == consumer);
        let mut completions: Vec<Arc<Completion>> = Vec::new();
        let mut bytes = 0;
        for (_, one) in of_consumer.take(limit) {
            let more = bytes + one.metadata_bytes;
            if more > ANSWER_METADATA_BYTES && !completions.is_empty() {
                break;
            }
            bytes = more;
            completions.push(Arc::clone(&one.completion));
        }
        let next_after = completions.last().map_or(after, |last| last.cursor);
        (CompletionPage { completions, next_after, metadata_bytes: bytes }, state.ended)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rollout_protocol::Timestamp;
    use rollout_protocol::digest::Digest;
    use rollout_protocol::farm::{
        CancelReason, FarmSettings, GroupRequest, RolloutSpec, SampleEnd, SampleResult,
    };
    use rollout_protocol::wire::offer::SizeClass;

    use super::*;

    fn admitted(name: &str) -> AdmittedGroup {
        let request = GroupRequest::new(name.parse().expect("an id"), "d/t", 1);
        let digest = Digest::from_bytes([7; 32]);
        let class = SizeClass::default();
        let spec = RolloutSpec { settings: digest, agent: digest, task: digest, class, lane: 0 };
        AdmittedGroup { content: request.content().expect("a digest"), request, spec }
    }

    /// Decides an input, and carries out what it leads to.
    fn step(shared: &FarmShared, make: impl FnOnce(u64) -> FarmInput) {
        let _answer = shared.ask(make).expect("it is open");
        let effects = shared.state().decide(Timestamp::UNIX_EPOCH).effects;
        shared.carry_out(effects);
    }

    #[test]
    fn read_is_bounded_by_metadata_and_goes_on_after_it() {
        let shared = Arc::new(FarmShared::new(FarmSettings::new("f")));
        let handle = FarmHandle::new(Arc::clone(&shared));
        let text = serde_json::Value::String("x".repeat(261_000));
        let metadata = Arc::new([("prompt".to_owned(), text)].into_iter().collect());
        for name in ["g", "h"] {
            let AdmittedGroup { request, spec, .. } = admitted(name);
            let request = GroupRequest { n: 60, metadata: Arc::clone(&metadata), ..request };
            let content = request.content().expect("a digest");
            let group = AdmittedGroup { content, request, spec };
            step(&shared, |id| FarmInput::Submit { id, group: Box::new(group.clone()) });
            step(&shared, |id| FarmInput::Cancel { id, group: group.request.group.clone() });
        }
        let (mut after, mut pages) = (0, Vec::new());
        // All share their metadata, which is written once.
        let mut lengths = HashMap::new();
        loop {
            let (page, _) = handle.read("train", after, usize::MAX);
            if page.completions.is_empty() {
                break;
            }
            let length = |one: &Arc<Completion>| {
                let of = Arc::as_ptr(&one.metadata);
                *lengths.entry(of).or_insert_with(|| one.metadata_bytes())
            };
            let bytes: u64 = page.completions.iter().map(length).sum();
            assert!(bytes <= ANSWER_METADATA_BYTES, "{bytes}");
            assert_eq!(page.metadata_bytes, bytes);
            after = page.next_after;
            pages.push(page.completions.len());
        }
        assert_eq!((pages.len(), pages.iter().sum::<usize>(), after), (15, 120, 120));
    }

    #[test]
    fn group_that_is_known_and_group_of_closed_farm_cannot_be_admitted() {
        let shared = Arc::new(FarmShared::new(FarmSettings::new("f")));
        let handle = FarmHandle::new(Arc::clone(&shared));
        let id = |name: &str| -> GroupId { name.parse().expect("an id") };
        step(&shared, |id| FarmInput::Submit { id, group: Box::new(admitted("held")) });
        step(&shared, |number| FarmInput::Cancel { id: number, group: id("cancelled") });
        let can_admit = || ["held", "cancelled", "new"].map(|name| handle.can_admit(&id(name)));
        assert_eq!(can_admit(), [false, false, true]);
        step(&shared, |id| FarmInput::Close { id });
        assert_eq!(can_admit(), [false; 3]);
    }

    #[test]
    fn group_counts_as_open_until_its_completion_can_be_read() {
        let shared = Arc::new(FarmShared::new(FarmSettings::new("f")));
        let handle = FarmHandle::new(Arc::clone(&shared));
        let decide = || shared.state().decide(Timestamp::UNIX_EPOCH).effects;
        let group = Box::new(admitted("g"));
        let _answer = shared.ask(|id| FarmInput::Submit { id, group }).expect("it is open");
        let admission = decide();
        shared.carry_out(admission);
        let begun = shared.state().core.begin_next(1);
        let [sample] = begun.as_slice() else { panic!("{begun:?}") };
        let empty = SampleResult::cancelled(CancelReason::ByUser);
        let result = SampleResult { end: SampleEnd::Completed, reward: Some(1.0), ..empty };
        shared.state().add_settled(sample.item, result);

        // Its records are decided, and not durable.
        let completion = decide();
        assert_eq!(shared.state().core.status().open_groups, 0, "the core has ended the group");
        assert_eq!(handle.status().open_groups, 1);
        assert_eq!(handle.completion(1), None);
        shared.carry_out(completion);
        assert_eq!(handle.status().open_groups, 0);
        assert!(handle.completion(1).is_some());
    }
}
