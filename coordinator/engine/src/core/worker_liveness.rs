//! Liveness of remote workers, from their heartbeats, claims and reports, and from their silence.
//! Nothing here is a decision, and nothing is journalled: a new session learns it again while it
//! watches for one lease.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rollout_protocol::id::{ExecId, ItemId, TryId, WorkerId};
use rollout_protocol::limits;
use rollout_protocol::wire::offer::SizeClass;

use super::RemoteTimeouts;
use super::deferred_claim::DeferredClaim;
use super::item::ItemEntry;
use super::parked::ParkedExecutions;

/// How long after the beginning of a watch a heartbeat shows what a worker held then, in
/// milliseconds: workers repeat it within a second.
const HEARTBEAT_SETTLE_MS: u64 = 1500;

/// Longest time between two heartbeats of a worker that takes work, in milliseconds: it waits for the
/// answer to the last one.
const HEARTBEAT_GAP_MS: u64 = 6000;

fn to_signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// State of remote workers. Times are on the monotonic clock of the inputs.
#[derive(Debug)]
pub(super) struct WorkerLiveness {
    pub(super) timeouts: LivenessTimeouts,
    /// When the session began.
    pub(super) session_began: u64,
    /// Since when heartbeats are watched without a break.
    pub(super) watched_since: u64,
    /// When heartbeats were last polled, and since when without a pause: after a pause of this
    /// process or of the queue even a living worker seems silent for a moment.
    pub(super) polled_at: u64,
    pub(super) polled_since: u64,
    /// Whether the watch began again because the queue was unreachable.
    pub(super) after_outage: bool,
    /// When each worker was last heard.
    pub(super) workers: HashMap<WorkerId, u64>,
    /// How long workers continue without the queue that said so and continue longer than
    /// `times.max_offline`.
    offline_limits: HashMap<WorkerId, u64>,
    /// When each worker that may run something was last heard, including before the session.
    pub(super) last_signs: HashMap<WorkerId, i64>,
    /// Since when every heartbeat was kept.
    kept_since: Option<i64>,
    /// Executions that were shown, claimed or announced.
    pub(super) shown: HashMap<ExecId, ExecutionLastSeen>,
    /// Items whose delivery a worker holds while its claim waits: when that was last shown or
    /// claimed.
    pub(super) awaiting_claim: HashMap<ItemId, u64>,
    /// Number of the last poll of heartbeats.
    pub(super) poll: u64,
    /// Deferred claims.
    pub(super) deferred_claims: BTreeMap<ExecId, DeferredClaim>,
    /// Offered items: exactly the items that hold a permit.
    pub(super) offered: BTreeMap<ItemId, OfferedItem>,
    /// Unstarted offers of each class.
    pub(super) unstarted: BTreeMap<SizeClass, usize>,
    /// Classes that returned permits unused, and until when they get none.
    pub(super) held_back: BTreeMap<SizeClass, u64>,
    /// Unwanted executions, and when to tell their workers (again).
    pub(super) unwanted: HashMap<ExecId, u64>,
    /// Executions that wait for a service.
    pub(super) parked: ParkedExecutions,
}

/// Timeouts in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct LivenessTimeouts {
    pub(super) lease: u64,
    /// An execution that was last shown longer ago is not shown.
    pub(super) silence: u64,
    pub(super) max_offline: u64,
}

impl LivenessTimeouts {
    fn new(bounds: &RemoteTimeouts) -> Self {
        let ms = |wait: std::time::Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        Self {
            lease: ms(bounds.lease),
            silence: ms(limits::worker_silence(bounds.lease)),
            max_offline: ms(bounds.max_offline),
        }
    }
}

/// The last sign of an execution.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExecutionLastSeen {
    pub(super) at: u64,
    /// Number of the poll that showed it last.
    pub(super) poll: u64,
}

/// One offered item.
#[derive(Debug)]
pub(super) struct OfferedItem {
    pub(super) try_id: TryId,
    pub(super) class: SizeClass,
    /// When it was offered, if that was in this session.
    offered_at: Option<u64>,
    /// Since when it is in the queue, as far as this session knows; `None` until the queue has
    /// accepted it.
    pub(super) published_at: Option<u64>,
    /// Whether it was offered before the watch began: its holder may not have been seen since.
    pub(super) inherited: bool,
    /// Whether a worker is known to have started it.
    pub(super) started: bool,
    /// Consecutive rounds in which it was nowhere.
    pub(super) missing: u8,
    /// Since when the queue lists it as delivered and no worker shows it.
    pub(super) unshown_since: Option<u64>,
    /// When its results were looked up because it was nowhere.
    pub(super) missing_lookup: Option<u64>,
    /// When its results were looked up because a worker that may have left some is gone.
    pub(super) loss_lookup: Option<u64>,
    /// Whether that lookup has ended, with or without results.
    pub(super) lookup_done: bool,
}

impl OfferedItem {
    fn new(try_id: TryId, class: SizeClass, started: bool) -> Self {
        Self {
            try_id,
            class,
            offered_at: None,
            published_at: None,
            inherited: false,
            started,
            missing: 0,
            unshown_since: None,
            missing_lookup: None,
            loss_lookup: None,
            lookup_done: false,
        }
    }

    /// Workers whose last heartbeat is older did not take this offer.
    fn takers_from(&self) -> Option<i64> {
        self.offered_at.map(|at| to_signed(at) - to_signed(HEARTBEAT_GAP_MS))
    }

    /// The offer was seen somewhere.
    pub(super) fn mark_found(&mut self) {
        (self.missing, self.unshown_since, self.missing_lookup) = (0, None, None);
    }
}

impl WorkerLiveness {
    pub(super) fn new(now: u64, bounds: &RemoteTimeouts) -> Self {
        Self {
            timeouts: LivenessTimeouts::new(bounds),
            session_began: now,
            watched_since: now,
            polled_at: now,
            polled_since: now,
            after_outage: false,
            workers: HashMap::new(),
            offline_limits: HashMap::new(),
            last_signs: HashMap::new(),
            kept_since: None,
            shown: HashMap::new(),
            awaiting_claim: HashMap::new(),
            poll: 0,
            deferred_claims: BTreeMap::new(),
            offered: BTreeMap::new(),
            unstarted: BTreeMap::new(),
            held_back: BTreeMap::new(),
            unwanted: HashMap::new(),
            parked: ParkedExecutions::default(),
        }
    }

    /// Heartbeats may have been missed: restarts the watch.
    pub(super) fn restart_watch(&mut self, now: u64) {
        self.watched_since = now;
        self.after_outage = true;
        for flight in self.offered.values_mut() {
            flight.inherited = true;
            flight.mark_found();
        }
    }

    /// Records a poll of the heartbeats.
    pub(super) fn record_poll(&mut self, now: u64) {
        if self.is_pause(now) {
            self.polled_since = now;
        }
        self.polled_at = now;
        self.poll += 1;
    }

    /// Whether the last poll of heartbeats is too long ago.
    fn is_pause(&self, now: u64) -> bool {
        now.saturating_sub(self.polled_at) > self.timeouts.silence / 5 * 4
    }

    /// Records since when every heartbeat was kept.
    pub(super) fn set_kept_since(&mut self, now: u64, kept: Duration) {
        let kept = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
        let since = to_signed(now).saturating_sub(kept);
        self.kept_since = Some(self.kept_since.map_or(since, |before| before.min(since)));
    }

    /// Records that a worker was heard this long ago, or is gone.
    pub(super) fn record_sign_of_life(
        &mut self,
        now: u64,
        worker: &WorkerId,
        age: u64,
        gone: bool,
    ) {
        if gone {
            self.last_signs.remove(worker);
            return;
        }
        let at = to_signed(now).saturating_sub(to_signed(age));
        self.last_signs
            .entry(worker.clone())
            .and_modify(|before| *before = at.max(*before))
            .or_insert(at);
    }

    /// Records how long a worker continues without the queue.
    pub(super) fn record_offline_limit(&mut self, worker: &WorkerId, seconds: Option<u64>) {
        let limit = seconds.unwrap_or_default().saturating_mul(1000);
        if limit > self.timeouts.max_offline {
            self.offline_limits.insert(worker.clone(), limit);
        } else {
            self.offline_limits.remove(worker);
        }
    }

    /// How long a silent worker may continue to run what it has.
    pub(super) fn offline_limit(&self, worker: &WorkerId) -> u64 {
        self.offline_limits.get(worker).copied().unwrap_or(self.timeouts.max_offline)
    }

    /// Removes workers that no watch waits for any more.
    pub(super) fn forget_signs(&mut self, now: u64) {
        let long_ago =
            to_signed(now).saturating_sub(to_signed(self.timeouts.lease.saturating_mul(2)));
        self.last_signs.retain(|_, at| *at >= long_ago);
    }

    /// When it becomes meaningful that an execution is not shown: when every worker that could run
    /// one has sent a heartbeat since the watch began, or after one lease of watching, in which a
    /// worker that was cut off has come back.
    fn watched_at(&self, now: u64) -> u64 {
        self.watched_from(now, to_signed(self.watched_since) - to_signed(self.timeouts.lease))
    }

    /// When it becomes meaningful that no execution of an offered item is shown. A worker that takes
    /// work sends heartbeats all the time, so one that was silent when the item was first offered does
    /// not have it.
    pub(super) fn item_watched_at(&self, now: u64, item: &ItemId) -> u64 {
        let lease_before = to_signed(self.watched_since) - to_signed(self.timeouts.lease);
        let first_try = self.offered.get(item).filter(|flight| flight.try_id.n == 1);
        let from = first_try.and_then(OfferedItem::takers_from);
        self.watched_from(now, from.map_or(lease_before, |from| from.max(lease_before)))
    }

    /// The same for executions on workers that sent a heartbeat at this time or later.
    fn watched_from(&self, now: u64, from: i64) -> u64 {
        let settled = self.watched_since.saturating_add(HEARTBEAT_SETTLE_MS);
        let pauses = self.is_pause(now) || self.polled_since > self.watched_since;
        if !pauses && self.has_heard_every_worker(from, settled) {
            return settled;
        }
        let looks = if self.is_pause(now) { now } else { self.polled_since };
        let watch = self.watched_since.saturating_add(self.timeouts.lease);
        watch.max(looks.saturating_add(self.timeouts.silence))
    }

    /// Whether the delivery of an offer was lost on its way: no worker has shown it since then, or
    /// begun it, and each one that could have it has sent a heartbeat long after.
    pub(super) fn is_delivery_lost(&self, flight: &OfferedItem, unshown_since: u64) -> bool {
        let taken = unshown_since.saturating_add(HEARTBEAT_GAP_MS);
        let from = flight.takers_from().filter(|_| !flight.started);
        from.is_some_and(|from| self.has_heard_every_worker(from, taken))
    }

    /// Whether every worker that sent a heartbeat at `from` or later, and so may run something, has
    /// sent one at `since` or later. Only if all of those are known.
    fn has_heard_every_worker(&self, from: i64, since: u64) -> bool {
        let since = to_signed(since);
        self.kept_since.is_some_and(|kept| kept <= from)
            && self.last_signs.values().all(|at| *at < from || *at >= since)
    }

    /// Whether it is meaningful that an execution is not shown.
    pub(super) fn is_watched(&self, now: u64) -> bool {
        now >= self.watched_at(now)
    }

    /// Records an execution that was heard of other than by a heartbeat.
    pub(super) fn record_seen(&mut self, now: u64, exec: ExecId) {
        let poll = self.shown.get(&exec).map_or(0, |shown| shown.poll);
        self.shown.insert(exec, ExecutionLastSeen { at: now, poll });
    }

    /// Until when an execution counts as running by its last sign; `None` when it no longer does.
    pub(super) fn alive_until(&self, now: u64, exec: &ExecId) -> Option<u64> {
        let until = self.shown.get(exec)?.at.saturating_add(self.timeouts.silence);
        (until > now).then_some(until)
    }

    /// Whether the last heartbeat of a live worker shows an execution.
    pub(super) fn is_shown(&self, now: u64, exec: &ExecId) -> bool {
        let shown = self.shown.get(exec).filter(|shown| shown.poll == self.poll);
        shown.is_some_and(|shown| shown.at.saturating_add(self.timeouts.silence) > now)
    }

    /// Whether a worker runs or holds something of an item that could still settle it.
    pub(super) fn is_held(&self, now: u64, item: &ItemId, row: &ItemEntry) -> bool {
        let asks = self.awaiting_claim.get(item).is_some_and(|at| at + self.timeouts.silence > now);
        asks || row
            .executions
            .iter()
            .filter(|known| known.try_id >= row.floor && known.may_run())
            .any(|known| self.alive_until(now, &known.exec).is_some())
    }

    /// How long a worker was silent, as far as this session can know.
    pub(super) fn silent_for(&self, now: u64, worker: &WorkerId) -> u64 {
        now.saturating_sub(self.workers.get(worker).copied().unwrap_or(self.session_began))
    }

    /// An item takes a permit.
    pub(super) fn take_permit(
        &mut self,
        item: ItemId,
        try_id: TryId,
        class: SizeClass,
        started: bool,
    ) {
        self.release_permit(&item);
        if !started {
            *self.unstarted.entry(class).or_default() += 1;
        }
        self.offered.insert(item, OfferedItem::new(try_id, class, started));
    }

    /// An item is offered in this session.
    pub(super) fn mark_offered(&mut self, now: u64, item: &ItemId) {
        if let Some(flight) = self.offered.get_mut(item) {
            flight.offered_at = Some(now);
        }
    }

    /// The queue has accepted these offers.
    pub(super) fn mark_published(&mut self, now: u64, tries: &[(ItemId, TryId)]) {
        for (item, try_id) in tries {
            if let Some(flight) = self.offered.get_mut(item).filter(|it| it.try_id == *try_id) {
                flight.published_at.get_or_insert(now);
            }
        }
    }

    /// An execution of an offered item is known.
    pub(super) fn mark_started(&mut self, item: &ItemId, try_id: TryId) {
        let Some(flight) = self.offered.get_mut(item) else { return };
        if flight.try_id == try_id && !std::mem::replace(&mut flight.started, true) {
            let class = flight.class;
            self.decrement_unstarted(class);
            self.held_back.remove(&class);
        }
    }

    /// An item releases its permit.
    pub(super) fn release_permit(&mut self, item: &ItemId) {
        if let Some(flight) = self.offered.remove(item)
            && !flight.started
        {
            self.decrement_unstarted(flight.class);
        }
    }

    fn decrement_unstarted(&mut self, class: SizeClass) {
        if let Some(count) = self.unstarted.get_mut(&class) {
            *count -= 1;
            if *count == 0 {
                self.unstarted.remove(&class);
            }
        }
    }
}
