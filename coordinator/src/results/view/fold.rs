//! The state of a run, record by record.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rollout_engine::core::{AnnouncedChunk, Core, CoreEffect, ItemSettlement, JournalRecord};
use rollout_engine::{CoreReplay, reopened_items};
use rollout_protocol::Timestamp;
use rollout_protocol::event::RunEvent;
use rollout_protocol::id::ItemId;

use super::events::{self, EventContext, NumberedEvent};
use super::sessions::SessionHistory;
use super::trials::ErrorSummary;
use crate::plan::JobPlan;
use crate::results::metrics::TrialScore;

/// Receives the events of a run in their order.
pub type EventReader<'a> = &'a mut dyn FnMut(NumberedEvent);

/// The state of a run. Feed it the records of the journal in order.
#[derive(Debug)]
pub struct RunFold {
    pub(super) job: String,
    pub(super) plan: Option<JobPlan>,
    pub(super) replay: CoreReplay,
    pub(super) sessions: SessionHistory,
    pub(super) settled: HashMap<ItemId, SettledItem>,
    pub(super) watched: Option<WatchedItem>,
    total: u64,
    /// Each worker's name once.
    workers: HashSet<Arc<str>>,
    /// Number of the next event.
    next_seq: u64,
}

/// A settled item: one small row.
#[derive(Debug)]
pub(super) struct SettledItem {
    pub(super) score: TrialScore,
    pub(super) error: Option<Box<ErrorSummary>>,
    pub(super) worker: Option<Arc<str>>,
    pub(super) total_sec: Option<f64>,
    pub(super) at: Timestamp,
}

/// An item of which everything is kept.
#[derive(Debug)]
pub(super) struct WatchedItem {
    pub(super) item: ItemId,
    /// The settlement in effect.
    pub(super) settlement: Option<ItemSettlement>,
    /// Epochs of the sessions that reopened it.
    pub(super) reopened: Vec<u32>,
    /// Hook events that were announced, by any execution.
    pub(super) event_chunks: Vec<AnnouncedChunk>,
}

impl RunFold {
    /// The state before the first record. `job` is the name of the job; `total` the number of items
    /// if there is no plan; `reopened` how often the journal reopens each item.
    pub fn new(
        job: String,
        plan: Option<JobPlan>,
        total: u64,
        reopened: HashMap<ItemId, u32>,
    ) -> Self {
        let planned = plan.iter().flat_map(JobPlan::trials);
        let planned = planned.map(|t| (t.item, t.ordinal, t.trial_ref.digest()));
        let replay = CoreReplay::for_reader(reopened, planned);
        let total = plan.as_ref().map_or(total, JobPlan::len);
        Self {
            job,
            plan,
            replay,
            sessions: SessionHistory::default(),
            settled: HashMap::new(),
            watched: None,
            total,
            workers: HashSet::new(),
            next_seq: 1,
        }
    }

    /// Keeps everything about an item.
    #[must_use]
    pub fn watching(self, item: ItemId) -> Self {
        let watched =
            WatchedItem { item, settlement: None, reopened: Vec::new(), event_chunks: Vec::new() };
        Self { watched: Some(watched), ..self }
    }

    /// Number of items of the plan; without a plan, as far as is known.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The plan; a search has none.
    pub fn plan(&self) -> Option<&JobPlan> {
        self.plan.as_ref()
    }

    /// When an item was settled, unless it runs again.
    pub fn settled_at(&self, item: &ItemId) -> Option<Timestamp> {
        self.settled.get(item).map(|settled| settled.at)
    }

    /// Applies a record, and passes its events to `read`.
    pub fn apply(
        &mut self,
        at: Timestamp,
        record: JournalRecord,
        mut read: Option<EventReader<'_>>,
    ) {
        self.sessions.add(at, &record);
        self.reopen(&record);
        self.keep_event_chunk(&record);
        let first = self.next_seq;
        self.next_seq += events::numbers_of(&record);
        let Self { job, plan, replay, sessions, settled, watched, total, workers, .. } = self;
        let context = EventContext { job, plan: plan.as_ref(), total: *total };
        let mut seq = first;
        if let Some(read) = &mut read {
            for kind in events::of_record(&record, replay.core(), sessions, context) {
                read(NumberedEvent { seq, event: RunEvent { at, kind } });
                seq += 1;
            }
        }
        replay.read(at, record, |core, effect| {
            if let CoreEffect::Settled(ended) = &effect {
                sessions.add_settled();
                settled.insert(ended.item, SettledItem::new(ended, workers));
                watch(watched, ended);
            }
            if events::is_event(&effect) {
                if let (Some(read), Some(plan)) = (&mut read, context.plan)
                    && let Some(kind) = events::of_effect(core, effect, plan)
                {
                    read(NumberedEvent { seq, event: RunEvent { at, kind } });
                }
                seq += 1;
            }
        });
        debug_assert!(seq <= self.next_seq, "a record has a number for each of its events");
    }

    /// The core's state.
    pub(super) fn core(&self) -> &Core {
        self.replay.core()
    }

    fn keep_event_chunk(&mut self, record: &JournalRecord) {
        if let (JournalRecord::EventChunk { chunk, .. }, Some(watched)) =
            (record, &mut self.watched)
            && chunk.item == watched.item
        {
            watched.event_chunks.push((**chunk).clone());
        }
    }

    /// Forgets the settlements that a record supersedes.
    fn reopen(&mut self, record: &JournalRecord) {
        for item in reopened_items(record) {
            self.settled.remove(item);
            if let Some(watched) = self.watched.as_mut().filter(|watched| watched.item == *item) {
                watched.settlement = None;
                watched.reopened.extend(match record {
                    JournalRecord::Reopened { epoch, .. } => Some(*epoch),
                    JournalRecord::Opened(opened) => Some(opened.epoch),
                    _ => None,
                });
            }
        }
    }
}

fn watch(watched: &mut Option<WatchedItem>, ended: &ItemSettlement) {
    if let Some(watched) = watched.as_mut().filter(|watched| watched.item == ended.item) {
        watched.settlement = Some(ended.clone());
    }
}

impl SettledItem {
    fn new(ended: &ItemSettlement, workers: &mut HashSet<Arc<str>>) -> Self {
        let by = ended.by.as_ref();
        let worker = by.map(|by| {
            let name = by.worker.as_str();
            workers.get(name).cloned().unwrap_or_else(|| {
                let name: Arc<str> = name.into();
                workers.insert(Arc::clone(&name));
                name
            })
        });
        let error = ended.verdict.error.as_ref();
        Self {
            score: TrialScore::from_verdict(&ended.verdict, &ended.superseded),
            error: error.map(|error| Box::new(ErrorSummary::new(error))),
            worker,
            total_sec: by.and_then(|by| by.durations.as_ref()).map(|times| times.total_sec),
            at: ended.at,
        }
    }
}
