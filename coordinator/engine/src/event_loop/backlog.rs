//! The backlog of a job with remote workers: items without a result by size class, and those that no
//! worker of the pool could run. It is shown as an event, and in the run directory for readers.

use std::collections::BTreeMap;

use rollout_base::backoff::OutageLog;
use rollout_protocol::event::{EventKind, WaitingItems};

use super::{Engine, WorkerLocation};
use crate::RunError;
use crate::core::NewItem;

/// Lanes in one event: those with the most items.
const MAX_WAITING_LANES: usize = 64;

/// Items without a result of each lane.
#[derive(Debug)]
pub(super) struct Backlog {
    pending: Vec<u64>,
    /// The last event.
    shown: Option<EventKind>,
    /// Whether the run directory shows items that wait for a worker.
    is_in_directory: bool,
    /// Whether it does not show the last event yet, because its file could not be written.
    is_unwritten: bool,
    /// Whether the file can be written.
    log: OutageLog,
}

impl Default for Backlog {
    fn default() -> Self {
        Self {
            pending: Vec::new(),
            shown: None,
            is_in_directory: false,
            is_unwritten: false,
            log: OutageLog::new("the file about items that wait for a worker"),
        }
    }
}

impl Backlog {
    fn count(&mut self, lane: Option<u16>, count: impl FnOnce(u64) -> u64) {
        if let Some(pending) = lane.and_then(|lane| self.pending.get_mut(usize::from(lane))) {
            *pending = count(*pending);
        }
    }

    /// An item of a lane has its result.
    pub(super) fn settle(&mut self, lane: Option<u16>) {
        self.count(lane, |pending| pending.saturating_sub(1));
    }

    /// An item of a lane runs again.
    pub(super) fn reopen(&mut self, lane: Option<u16>) {
        self.count(lane, |pending| pending + 1);
    }
}

impl Engine {
    /// Begins the count, when the items that earlier sessions touched are known.
    pub(super) fn start_backlog(&mut self, touched: &[NewItem], workers: &WorkerLocation) {
        if let WorkerLocation::Local { .. } = workers {
            return;
        }
        self.backlog.pending = self.planner.lane_totals();
        // A session that was killed may have left the file.
        self.backlog.is_in_directory = true;
        for item in touched {
            if self.run.core.settled_spec(&item.item).is_some() {
                self.backlog.settle(Some(item.lane));
            }
        }
    }

    /// Shows the backlog if it changed.
    pub(super) async fn refresh_backlog(&mut self) -> Result<(), RunError> {
        if self.backlog.pending.is_empty() {
            return Ok(());
        }
        let waiting = self.waiting_for_worker();
        let mut pending = BTreeMap::new();
        for (needs, count) in self.planner.lanes().iter().zip(&self.backlog.pending) {
            *pending.entry(needs.class.to_string()).or_default() += count;
        }
        let event = EventKind::Backlog { pending, waiting_for_worker: waiting.clone() };
        if self.backlog.shown.as_ref() != Some(&event) {
            self.backlog.shown = Some(event.clone());
            self.emit(vec![event]).await;
            self.backlog.is_unwritten = true;
        }
        if self.backlog.is_unwritten {
            self.write_waiting(&waiting)?;
        }
        Ok(())
    }

    /// Items that no worker of the pool could run, those with the most first.
    fn waiting_for_worker(&self) -> Vec<WaitingItems> {
        let timeout_sec = self.run.core.unplaceable_timeout().map(|timeout| timeout.as_secs());
        let lanes = self.run.core.unplaceable().filter_map(|(lane, reason, _)| {
            let items = self.backlog.pending.get(usize::from(lane)).copied()?;
            let needs = self.planner.lanes().get(usize::from(lane))?;
            Some(WaitingItems {
                items,
                class: needs.class.to_string(),
                needs: needs.to_string(),
                reason: reason.to_owned(),
                timeout_sec,
            })
        });
        let mut waiting: Vec<_> = lanes.filter(|lane| lane.items > 0).collect();
        waiting.sort_by_key(|lane| std::cmp::Reverse(lane.items));
        waiting.truncate(MAX_WAITING_LANES);
        waiting
    }

    /// Shows in the run directory what waits. The file is only a hint for people.
    pub(super) fn write_waiting(&mut self, waiting: &[WaitingItems]) -> Result<(), RunError> {
        if waiting.is_empty() && !self.backlog.is_in_directory {
            self.backlog.is_unwritten = false;
            return Ok(());
        }
        let content = (!waiting.is_empty()).then_some(waiting);
        if self.write_hint(self.run.layout.waiting(), content, &self.backlog.log)? {
            self.backlog.is_in_directory = !waiting.is_empty();
            self.backlog.is_unwritten = false;
        }
        Ok(())
    }
}
