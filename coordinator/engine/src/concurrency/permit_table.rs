//! Permit holders and waiting requests. Pure: time and the state of the run arrive with the calls.
//!
//! The stage of an execution is its latest mark, from a request or a heartbeat. Marks only grow, so
//! their order and repetitions make no difference.
//!
//! ```text
//! waiting, requested here        holds none: it has given up every earlier request
//! waiting, shown by a heartbeat  may hold one: a previous coordinator's answer may be on its way
//! running                        holds one
//! over, or a later stage         holds none of this stage
//! started over                   holds none from before, as its environment was removed
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::spec::eval::CommandKind;
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::stage::{StageProgress, StageStep};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Limits. An absent limit means unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConcurrencyLimits {
    /// Concurrent commands of [`CommandKind::Llm`].
    pub llm: Option<u32>,
    /// Concurrent commands of [`CommandKind::Sweep`].
    pub sweeps: Option<u32>,
    /// Minimum time between the starts of two commands of [`CommandKind::Llm`].
    pub interval: Option<Duration>,
}

impl ConcurrencyLimits {
    fn limit_for(&self, kind: CommandKind) -> usize {
        let cap = match kind {
            CommandKind::Llm => self.llm,
            CommandKind::Sweep => self.sweeps,
        };
        cap.map_or(usize::MAX, |cap| usize::try_from(cap).unwrap_or(usize::MAX))
    }
}

/// State of an execution as the run knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HolderStatus {
    /// Never heard of.
    Unknown,
    /// Running, as far as is known.
    Open,
    /// Reported or lost.
    Closed,
}

/// The concurrency permits of a run.
#[derive(Debug)]
pub(super) struct PermitTable {
    caps: ConcurrencyLimits,
    /// Whether every worker that may hold a permit of a previous session was heard.
    open: bool,
    executions: BTreeMap<ExecId, HolderEntry>,
    /// Executions in the last heartbeats of living workers.
    shown: BTreeSet<ExecId>,
    next_order: u64,
    /// Earliest time of the next start.
    next_start: Option<Instant>,
}

#[derive(Debug)]
struct HolderEntry {
    item: ItemId,
    mark: StageProgress,
    /// Its waiting request, if it was made here.
    request: Option<WaitingRequest>,
}

#[derive(Debug)]
struct WaitingRequest {
    order: u64,
    reply: oneshot::Sender<ClaimAnswer>,
}

impl HolderEntry {
    /// Whether it holds, or may hold, a permit of a kind.
    fn holds(&self, kind: CommandKind) -> bool {
        let has = match self.mark.step {
            StageStep::Waiting => self.request.is_none(),
            StageStep::Running => true,
            StageStep::Over => false,
        };
        has && self.mark.stage.kind() == Some(kind)
    }

    /// Advances to `mark`. Whether that changed anything.
    fn advance(&mut self, mark: StageProgress) -> bool {
        let further = mark > self.mark;
        if further {
            (self.mark, self.request) = (mark, None);
        }
        further
    }
}

impl PermitTable {
    pub(super) fn new(caps: ConcurrencyLimits) -> Self {
        Self {
            caps,
            open: false,
            executions: BTreeMap::new(),
            shown: BTreeSet::new(),
            next_order: 0,
            next_start: None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Starts granting: every worker that may hold a permit of a previous session was heard, or
    /// there was no previous session (`is_first`).
    pub(super) fn open(&mut self, now: Instant, is_first: bool) {
        self.open = true;
        if !is_first {
            // A command may have started just before the end of the previous session.
            self.next_start = self.caps.interval.map(|interval| now + interval);
        }
    }

    /// An execution requests the permit of the stage in `progress`. A repeated request keeps its
    /// position. The first request of an execution that started over gives up its former permit.
    pub(super) fn request(
        &mut self,
        item: ItemId,
        exec: ExecId,
        progress: StageProgress,
        reply: oneshot::Sender<ClaimAnswer>,
    ) {
        let mark = StageProgress { step: StageStep::Waiting, ..progress };
        let order = self.next_order();
        let entry =
            self.executions.entry(exec).or_insert(HolderEntry { item, mark, request: None });
        entry.advance(mark);
        if entry.mark == mark {
            let order = entry.request.take().map_or(order, |place| place.order);
            entry.request = Some(WaitingRequest { order, reply });
        } else if entry.mark == (StageProgress { step: StageStep::Running, ..mark }) {
            // The answer was lost on its way. A request for anything else arrived late.
            let _asks_again = reply.send(ClaimAnswer::Run);
        }
    }

    /// An execution reports the end of the stage in `progress`.
    pub(super) fn end(&mut self, exec: ExecId, progress: StageProgress) {
        if let Some(entry) = self.executions.get_mut(&exec) {
            entry.advance(StageProgress { step: StageStep::Over, ..progress });
        }
    }

    /// Takes in the last heartbeats; each execution comes with whether its worker is known to be
    /// alive.
    pub(super) fn update_from_heartbeats(
        &mut self,
        lines: impl Iterator<Item = (ItemId, ExecId, StageProgress, bool)>,
    ) {
        self.shown.clear();
        for (item, exec, mark, lives) in lines {
            if lives {
                self.shown.insert(exec);
            }
            let new = || HolderEntry { item, mark, request: None };
            self.executions.entry(exec).or_insert_with(new).advance(mark);
        }
    }

    /// Grants the available permits.
    pub(super) fn grant(
        &mut self,
        now: Instant,
        status: impl Fn(&ItemId, &ExecId) -> HolderStatus,
    ) {
        self.prune(&status);
        if !self.open {
            return;
        }
        for kind in [CommandKind::Llm, CommandKind::Sweep] {
            let mut waiters = self.waiters(kind, &status).into_values();
            while self.may_start(kind, now)
                && let Some(exec) = waiters.next()
            {
                if self.grant_to(&exec) && kind == CommandKind::Llm {
                    self.next_start = self.caps.interval.map(|interval| now + interval);
                }
            }
        }
    }

    /// When to grant again even if nothing happens.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let waits = |entry: &HolderEntry| {
            entry.request.is_some() && entry.mark.stage.kind() == Some(CommandKind::Llm)
        };
        let waits = self.executions.values().any(waits);
        self.next_start.filter(|due| self.open && waits && *due > now)
    }

    /// Whether a request waits.
    pub(super) fn is_wanted(&self) -> bool {
        self.executions.values().any(|entry| entry.request.is_some())
    }

    fn next_order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order
    }

    /// Removes executions that are over, and requests that were dropped.
    fn prune(&mut self, status: &impl Fn(&ItemId, &ExecId) -> HolderStatus) {
        let shown = &self.shown;
        self.executions.retain(|exec, entry| {
            let asks = entry.request.as_ref().is_some_and(|place| !place.reply.is_closed());
            match status(&entry.item, exec) {
                HolderStatus::Open => true,
                HolderStatus::Unknown => asks || shown.contains(exec),
                HolderStatus::Closed => shown.contains(exec),
            }
        });
    }

    /// Requests that would take a permit now, in order.
    fn waiters(
        &self,
        kind: CommandKind,
        status: &impl Fn(&ItemId, &ExecId) -> HolderStatus,
    ) -> BTreeMap<u64, ExecId> {
        let executions = self.executions.iter().filter_map(|(exec, entry)| {
            let place = entry.request.as_ref()?;
            let takes = entry.mark.stage.kind() == Some(kind)
                && !place.reply.is_closed()
                && status(&entry.item, exec) == HolderStatus::Open;
            takes.then_some((place.order, *exec))
        });
        executions.collect()
    }

    fn may_start(&self, kind: CommandKind, now: Instant) -> bool {
        let held = self.executions.values().filter(|entry| entry.holds(kind)).count();
        let is_due = kind != CommandKind::Llm || self.next_start.is_none_or(|due| due <= now);
        held < self.caps.limit_for(kind) && is_due
    }

    /// Grants a permit to an execution. Whether it holds one now.
    fn grant_to(&mut self, exec: &ExecId) -> bool {
        let Some(entry) = self.executions.get_mut(exec) else { return false };
        let Some(WaitingRequest { reply, .. }) = entry.request.take() else { return false };
        // It counts as running even if sending fails: the answer may have been read.
        let _asks_again = reply.send(ClaimAnswer::Run);
        entry.mark.step = StageStep::Running;
        true
    }
}

#[cfg(test)]
mod tests;
