//! Events of a harness while its trial runs, and then those of the record.
//!
//! While an execution runs, its events come from the chunks that its worker announced. They are
//! provisional: the log in the record of the execution that settles the trial is authoritative. Events
//! that were sent before are compared with it by digest. If they differ, all events are sent again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use rollout_base::backoff::error_chain;
use rollout_engine::core::AnnouncedChunk;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::harness::HookEvent;
use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::record::Settlement;
use rollout_protocol::spec::task::TaskSpec;
use rollout_store::{BlobStore, get_json};

use super::recorded_events::{EventLogs, recorded_events};
use super::run::references;
use super::states::{TrialProgress, TrialStates};
use super::{ExecutorError, TrialEvent, TrialEventStream};
use crate::plan::JobPlan;
use crate::results::view::{
    AnnouncedLogs, HookEventRead, HookLog, HookLogContent, HookLogCursor, announced_logs,
};

/// The events of a trial from the event with the number `from` on.
pub(super) fn live_events(
    states: Arc<TrialStates>,
    store: Arc<dyn BlobStore>,
    plan: Arc<JobPlan>,
    trial: ItemId,
    from: u64,
) -> TrialEventStream {
    let source = EventSource {
        states,
        store,
        plan,
        trial,
        from,
        seen: 0,
        step_names: None,
        live: None,
        ready: VecDeque::new(),
        recorded: None,
    };
    stream::try_unfold(source, |mut source| async move {
        let event = source.next_event().await?;
        Ok(event.map(|event| (event, source)))
    })
    .boxed()
}

/// A position in the events of a trial.
struct EventSource {
    states: Arc<TrialStates>,
    store: Arc<dyn BlobStore>,
    plan: Arc<JobPlan>,
    trial: ItemId,
    from: u64,
    /// Revision of the announcements that were read.
    seen: u64,
    /// Names of the task's steps, once they are needed.
    step_names: Option<Vec<Option<String>>>,
    /// The execution whose events were sent last, while it runs.
    live: Option<LiveExecution>,
    /// Events of the last chunk.
    ready: VecDeque<TrialEvent>,
    /// The rest of the stream, once the trial is settled.
    recorded: Option<TrialEventStream>,
}

impl EventSource {
    async fn next_event(&mut self) -> Result<Option<TrialEvent>, ExecutorError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if let Some(recorded) = &mut self.recorded {
                return recorded.try_next().await;
            }
            if self.read_chunk().await {
                continue;
            }
            match self.states.wait_progress(&self.trial, self.seen).await? {
                TrialProgress::Settled(settlement) => {
                    self.recorded = Some(self.recorded_rest(&settlement).await?);
                }
                TrialProgress::Announced { revision, chunks } => {
                    self.seen = revision;
                    self.announce(&chunks);
                }
            }
        }
    }

    fn announce(&mut self, chunks: &[AnnouncedChunk]) {
        let Some(exec) = chunks.first().map(|chunk| chunk.exec) else { return };
        if self.live.as_ref().is_none_or(|live| live.exec != exec) {
            self.live = Some(LiveExecution::new(exec));
        }
        if let Some(live) = &mut self.live {
            live.announced = announced_logs(chunks);
        }
    }

    /// Reads the next announced chunk that has wanted events. Returns whether there was one. After a
    /// failure, the next announcement tries again: the record has every event.
    async fn read_chunk(&mut self) -> bool {
        let next = self.live.as_ref().and_then(|live| live.next_chunk(self.from));
        let Some(next) = next else { return false };
        if let Err(error) = self.read_announced(next).await {
            let why = error_chain(&error);
            tracing::debug!("trial {}: cannot read events while it runs: {why}", self.trial);
            if let Some(live) = &mut self.live {
                live.announced.clear();
            }
        }
        true
    }

    async fn read_announced(&mut self, next: NextChunk) -> Result<(), ExecutorError> {
        let name = self.step_name(next.log.step).await?;
        let Some(live) = &mut self.live else { return Ok(()) };
        let events = live.read(&*self.store, &next).await?;
        for (number, event) in events.into_iter().filter(|(number, _)| *number >= self.from) {
            let event = TrialEvent { exec: live.exec, number, step: name.clone(), event };
            live.sent.add(&event);
            self.ready.push_back(event);
        }
        Ok(())
    }

    /// The name of a step, if the task has steps with names.
    async fn step_name(&mut self, step: u32) -> Result<Option<String>, ExecutorError> {
        let names = match &mut self.step_names {
            Some(names) => names,
            unknown => {
                let planned = self.plan.trials().find(|planned| planned.item == self.trial);
                let planned = planned
                    .ok_or_else(|| ExecutorError::UnknownTrial { trial: self.trial.to_string() })?;
                let task: TaskSpec = get_json(&*self.store, &planned.trial_ref.task).await?;
                unknown.insert(task.steps.into_iter().map(|step| step.name).collect())
            }
        };
        let index = usize::try_from(step).unwrap_or(usize::MAX);
        Ok(names.get(index).cloned().flatten())
    }

    /// The events of the record that were not sent; all of them if others were sent before.
    async fn recorded_rest(
        &mut self,
        settlement: &Settlement,
    ) -> Result<TrialEventStream, ExecutorError> {
        let Some(by) = &settlement.by else { return Ok(stream::empty().boxed()) };
        let exec = by.exec;
        let logs = references(&*self.store, settlement).await?.event_logs;
        let logs = EventLogs { exec, logs };
        let sent = self.live.take().filter(|live| live.exec == exec).map(|live| live.sent);
        if let Some(sent) = sent.filter(|sent| sent.count > 0) {
            let mut recorded = self.recorded(logs.clone());
            let mut compared = SentEvents::default();
            while compared.count < sent.count
                && let Some(event) = recorded.try_next().await?
            {
                compared.add(&event);
            }
            if compared.digest() == sent.digest() {
                return Ok(recorded);
            }
        }
        Ok(self.recorded(logs))
    }

    fn recorded(&self, logs: EventLogs) -> TrialEventStream {
        let store = Arc::clone(&self.store);
        let open = move |blob: BlobRef| {
            let store = Arc::clone(&store);
            async move { Ok(store.get(&blob.digest).await?) }.boxed()
        };
        recorded_events(logs, self.from, open)
    }
}

/// The announced events of one execution, as far as they were read.
struct LiveExecution {
    exec: ExecId,
    announced: AnnouncedLogs,
    cursor: HookLogCursor,
    /// The steps that were begun to read.
    steps: BTreeMap<u32, LiveStep>,
    /// Whether events are missing, or a step was begun again: only the record has the rest.
    is_broken: bool,
    sent: SentEvents,
}

/// A step, as far as its announced events were read.
#[derive(Debug, Clone, Copy)]
struct LiveStep {
    /// Number of its log.
    log: u32,
    /// Number of its next event.
    next: u64,
    /// Offset after the last chunk that was read.
    end: u64,
}

/// A chunk to read, with those before it.
struct NextChunk {
    log: HookLog,
    /// Number of the log.
    number: u32,
    /// Events of earlier steps.
    before: u64,
    /// Offset after the chunk.
    end: u64,
}

impl LiveExecution {
    fn new(exec: ExecId) -> Self {
        Self {
            exec,
            announced: AnnouncedLogs::new(),
            cursor: HookLogCursor::new(0),
            steps: BTreeMap::new(),
            is_broken: false,
            sent: SentEvents::default(),
        }
    }

    /// The first chunk that was not read and has an event with this number or a higher one.
    fn next_chunk(&self, from: u64) -> Option<NextChunk> {
        if self.is_broken {
            return None;
        }
        let last_step = self.steps.last_key_value().map(|(step, _)| *step);
        let mut before = 0;
        for (&step, (number, chunks)) in &self.announced {
            // Events of earlier steps than the last one that was read would be out of order.
            if last_step.is_none_or(|last| step >= last) {
                let read = self.steps.get(&step).filter(|read| read.log == *number);
                let end = read.map_or(0, |read| read.end);
                let wanted =
                    |chunk: &&AnnouncedChunk| chunk.end() > end && before + chunk.total > from;
                if let Some(at) = chunks.iter().position(|chunk| wanted(&chunk)) {
                    let (number, end) = (*number, chunks[at].end());
                    let content = HookLogContent::Chunks(number, chunks[..=at].to_vec());
                    let log = HookLog { step, name: None, content };
                    return Some(NextChunk { log, number, before, end });
                }
            }
            before += chunks.last().map_or(0, |chunk| chunk.total);
        }
        None
    }

    /// The events up to the end of a chunk that were not read before, with their numbers.
    async fn read(
        &mut self,
        store: &dyn BlobStore,
        next: &NextChunk,
    ) -> Result<Vec<(u64, HookEvent)>, ExecutorError> {
        let new = LiveStep { log: next.number, next: next.before, end: 0 };
        let mut step = self.steps.get(&next.log.step).copied().unwrap_or(new);
        if step.log != next.number {
            self.is_broken = true;
            return Ok(Vec::new());
        }
        let (mut events, mut is_broken) = (Vec::new(), false);
        let mut see = |read: HookEventRead<'_>| match read {
            HookEventRead::Event(event, _) if !is_broken => {
                events.push((step.next, event.clone()));
                step.next += 1;
            }
            HookEventRead::Event(..) => {}
            HookEventRead::Gap(_) | HookEventRead::Restarted => is_broken = true,
        };
        self.cursor.read(store, &next.log, &mut see).await?;
        step.end = next.end;
        self.steps.insert(next.log.step, step);
        self.is_broken |= is_broken;
        Ok(events)
    }
}

/// Number and digest of the events that were sent of an execution.
#[derive(Debug, Default)]
struct SentEvents {
    count: u64,
    hasher: DigestHasher,
}

impl SentEvents {
    fn add(&mut self, event: &TrialEvent) {
        self.count += 1;
        self.hasher.update_part(format!("{event:?}").as_bytes());
    }

    fn digest(self) -> Digest {
        self.hasher.finish()
    }
}

#[cfg(test)]
mod tests;
