//! The durable events of a run for many readers. The newest ones are kept in memory, read from the
//! journal once for all readers; a reader that is further behind reads the journal itself. Events have
//! the numbers of `rollout events`, so a reader that continues after a number misses none.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_base::shared_limit::{LimitUser, SharedLimit, SharedPlace};
use rollout_base::supervise;
use tokio::sync::watch;
use tokio::time::Instant;

use super::failure::RunFault;
use super::search_log;
use crate::results::known_cost::NullUnknownCosts;
use crate::results::view::{NumberedEvent, RunDirectory, RunViewError};

/// Events in memory for each run that has readers, or that has had some and goes on.
const RING_EVENTS: usize = 1024;

/// Most events that a reader gets at once.
const BATCH_EVENTS: usize = 256;

/// Bytes of events after which a batch ends.
const BATCH_BYTES: usize = 1024 * 1024;

/// Shortest time between two looks at the journal.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How much longer than a look the pause after it is: a look reads the whole journal.
const PAUSE_PER_LOOK: u32 = 4;

/// Time after which the journal is looked at without news: a part of it may have become durable.
const RELOOK_INTERVAL: Duration = Duration::from_secs(2);

/// An event as readers get it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedEvent {
    /// Its number.
    pub seq: u64,
    /// Its kind, such as `trial_settled`.
    pub kind: Arc<str>,
    /// Its document: a line of `rollout events --json`.
    pub json: Arc<str>,
}

/// The turns of a user to read journals.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadTurns<'a> {
    pub(super) limit: &'a Arc<SharedLimit>,
    pub(super) user: &'a LimitUser,
}

impl ReadTurns<'_> {
    pub(super) async fn next(self) -> SharedPlace {
        self.limit.acquire(self.user, 0, 1).await
    }

    /// Reads with a turn. It is of the reading: one whose reader has gone goes on, and keeps it.
    pub(super) async fn read<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let turn = self.next().await;
        supervise::blocking(move || {
            let _turn = turn;
            work()
        })
        .await
    }
}

/// Where the durable events of a run are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EventSource {
    /// In the journal of this run directory.
    Journal(PathBuf),
    /// In this file, a line of JSON each.
    Log(PathBuf),
}

/// The newest events of a run.
#[derive(Debug)]
pub(super) struct EventFeed {
    source: EventSource,
    ring: Mutex<EventRing>,
    usage: Mutex<FeedUsage>,
    /// Held by the look at the journal, also when its reader has gone.
    looking: Arc<tokio::sync::Mutex<()>>,
    /// Counts changes of the run.
    changes: watch::Sender<u64>,
}

/// Whether events have to stay in memory.
#[derive(Debug, Default)]
struct FeedUsage {
    followers: usize,
    /// Whether the run has ended.
    is_over: bool,
}

/// A reader that follows a run. The newest events of a run that has ended leave the memory with its
/// last one.
#[derive(Debug)]
pub struct EventFollower {
    feed: Arc<EventFeed>,
    changes: watch::Receiver<u64>,
}

impl EventFollower {
    /// Notes that the changes so far are seen.
    pub fn mark_seen(&mut self) {
        self.changes.mark_unchanged();
    }

    /// Waits until the run may have new events, or another state.
    pub async fn changed(&mut self) {
        // The sender lives as long as the feed.
        let _never_closed = self.changes.changed().await;
    }
}

impl Drop for EventFollower {
    fn drop(&mut self) {
        self.feed.update_usage(|usage| usage.followers -= 1);
    }
}

/// Every event with a number above `start`, up to `end`.
#[derive(Debug, Default)]
struct EventRing {
    start: u64,
    end: u64,
    events: VecDeque<HostedEvent>,
    last_look: Option<LastLook>,
}

#[derive(Debug, Clone, Copy)]
struct LastLook {
    at: Instant,
    took: Duration,
    /// The changes that it saw.
    change: u64,
}

impl EventFeed {
    pub(super) fn new(source: EventSource) -> Self {
        Self {
            source,
            ring: Mutex::default(),
            usage: Mutex::default(),
            looking: Arc::default(),
            changes: watch::Sender::new(0),
        }
    }

    /// Where the events are.
    pub(super) fn source(&self) -> &EventSource {
        &self.source
    }

    /// Notes that the run may have new events.
    pub(super) fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Changes when the run may have new events.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A reader that follows the run.
    pub(super) fn follow(self: &Arc<Self>) -> EventFollower {
        self.update_usage(|usage| usage.followers += 1);
        EventFollower { feed: Arc::clone(self), changes: self.changes() }
    }

    /// Notes whether the run has ended.
    pub(super) fn set_over(&self, is_over: bool) {
        self.update_usage(|usage| usage.is_over = is_over);
    }

    fn update_usage(&self, update: impl FnOnce(&mut FeedUsage)) {
        let mut usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        update(&mut usage);
        if usage.is_over && usage.followers == 0 {
            self.ring().release();
        }
    }

    /// The next events after a number, as far as they are durable. Empty without any. Each reading of
    /// the journal takes one of `reads`.
    pub(super) async fn next(
        &self,
        after: u64,
        reads: ReadTurns<'_>,
    ) -> Result<Vec<HostedEvent>, RunFault> {
        if self.ring().end <= after {
            self.look(after, reads).await?;
        }
        {
            let ring = self.ring();
            if ring.start <= after {
                return Ok(ring.after(after));
            }
        }
        let source = self.source.clone();
        reads.read(move || read_batch(&source, after)).await
    }

    /// Reads new events from the journal, unless that was just done.
    async fn look(&self, after: u64, reads: ReadTurns<'_>) -> Result<(), RunFault> {
        // The turn comes before the lock: a reader who waits for one keeps no other user waiting.
        let (turn, looking, end) = loop {
            let seen = self.ring().last_look;
            if let Some(last) = seen {
                if !self.has_news(&last) {
                    return Ok(());
                }
                let pause = LOOK_INTERVAL.max(last.took * PAUSE_PER_LOOK);
                tokio::time::sleep_until(last.at + pause).await;
            }
            let turn = reads.next().await;
            let looking = Arc::clone(&self.looking).lock_owned().await;
            let (end, last) = {
                let ring = self.ring();
                (ring.end, ring.last_look)
            };
            if end > after {
                return Ok(());
            }
            // Otherwise another reader has looked meanwhile: the next look is after its pause.
            if last.map(|last| last.at) == seen.map(|last| last.at) {
                break (turn, looking, end);
            }
        };
        let (began, change) = (Instant::now(), *self.changes.borrow());
        let source = self.source.clone();
        let look = move || ((turn, looking), read_newest(&source, end));
        let (_held, found) = supervise::blocking(look).await;
        let found = found?;
        let mut ring = self.ring();
        ring.last_look = Some(LastLook { at: Instant::now(), took: began.elapsed(), change });
        ring.append(found);
        Ok(())
    }

    /// Whether there may be events that a look did not see.
    fn has_news(&self, last: &LastLook) -> bool {
        *self.changes.borrow() != last.change || last.at.elapsed() > RELOOK_INTERVAL
    }

    fn ring(&self) -> MutexGuard<'_, EventRing> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventRing {
    /// Adds the newest events after the end.
    fn append(&mut self, found: NewestEvents) {
        let Some(last) = found.events.back() else { return };
        self.end = last.seq;
        if let Some(dropped) = found.dropped {
            self.events.clear();
            self.start = dropped;
        }
        self.events.extend(found.events);
        while self.events.len() > RING_EVENTS {
            if let Some(dropped) = self.events.pop_front() {
                self.start = dropped.seq;
            }
        }
    }

    /// Drops all events. Those up to the end are read from the journal again.
    fn release(&mut self) {
        self.start = self.end;
        self.events = VecDeque::new();
    }

    fn after(&self, after: u64) -> Vec<HostedEvent> {
        let first = self.events.partition_point(|event| event.seq <= after);
        let mut bytes = 0;
        let fits = |event: &&HostedEvent| {
            let fits = bytes < BATCH_BYTES;
            bytes += event.json.len();
            fits
        };
        self.events.iter().skip(first).take(BATCH_EVENTS).take_while(fits).cloned().collect()
    }
}

/// The newest events after a number.
#[derive(Debug, Default)]
struct NewestEvents {
    events: VecDeque<HostedEvent>,
    /// Number of the newest event that was dropped.
    dropped: Option<u64>,
}

/// Reads the newest events after a number; older ones are dropped. Blocks.
fn read_newest(source: &EventSource, after: u64) -> Result<NewestEvents, RunFault> {
    let mut newest = NewestEvents::default();
    read(source, |seq, event| {
        if seq > after {
            if newest.events.len() == RING_EVENTS {
                newest.dropped = newest.events.pop_front().map(|dropped| dropped.seq);
            }
            newest.events.push_back(event());
        }
    })?;
    Ok(newest)
}

/// Reads the first events after a number. Blocks.
fn read_batch(source: &EventSource, after: u64) -> Result<Vec<HostedEvent>, RunFault> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    read(source, |seq, event| {
        if seq > after && batch.len() < BATCH_EVENTS && bytes < BATCH_BYTES {
            let event = event();
            bytes += event.json.len();
            batch.push(event);
        }
    })?;
    Ok(batch)
}

/// Passes the durable events of a run to `see`, with their numbers.
fn read(
    source: &EventSource,
    mut see: impl FnMut(u64, &dyn Fn() -> HostedEvent),
) -> Result<(), RunFault> {
    match source {
        EventSource::Journal(run_dir) => read_journal(run_dir, see),
        EventSource::Log(path) => {
            search_log::read(path, |event| see(event.seq, &|| event.clone()));
            Ok(())
        }
    }
}

/// Reads a journal; a run without one has no events.
fn read_journal(
    run_dir: &Path,
    mut see: impl FnMut(u64, &dyn Fn() -> HostedEvent),
) -> Result<(), RunFault> {
    let directory = match RunDirectory::open(run_dir) {
        Err(RunViewError::NotRunDirectory { .. }) => return Ok(()),
        opened => opened.map_err(RunFault::View)?,
    };
    // The first session writes its journal before its plan, which events need.
    if directory.plan().is_err() {
        return Ok(());
    }
    let mut see_event = |event: NumberedEvent| see(event.seq, &|| encoded(&event));
    directory.view(None, Some(&mut see_event)).map(drop).map_err(RunFault::View)
}

/// The event as readers get it.
pub(super) fn encoded(event: &NumberedEvent) -> HostedEvent {
    let document = serde_json::to_value(NullUnknownCosts(event)).unwrap_or_default();
    let kind = document["event"].as_str().unwrap_or("event").into();
    HostedEvent { seq: event.seq, kind, json: document.to_string().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: u64) -> HostedEvent {
        HostedEvent { seq, kind: "e".into(), json: "{}".into() }
    }

    fn numbers(events: &[HostedEvent]) -> Vec<u64> {
        events.iter().map(|event| event.seq).collect()
    }

    #[test]
    fn ring_keeps_the_newest_events_and_knows_which_it_dropped() {
        let mut ring = EventRing::default();
        let found = |from: u64, to: u64| NewestEvents {
            events: (from..=to).map(event).collect(),
            dropped: None,
        };
        ring.append(found(1, 3));
        assert_eq!((ring.start, ring.end), (0, 3));
        assert_eq!(numbers(&ring.after(1)), [2, 3]);
        let most = RING_EVENTS as u64;
        ring.append(found(4, most + 2));
        assert_eq!((ring.start, ring.end, ring.events.len()), (2, most + 2, RING_EVENTS));
        assert_eq!(numbers(&ring.after(most)), [most + 1, most + 2]);
        assert_eq!(ring.after(2).len(), BATCH_EVENTS);
        let events: VecDeque<_> = (most + 10..=most + 11).map(event).collect();
        ring.append(NewestEvents { events, dropped: Some(most + 9) });
        assert_eq!((ring.start, ring.end, ring.events.len()), (most + 9, most + 11, 2));
        assert_eq!(numbers(&ring.after(most + 11)), [0; 0]);
    }

    #[test]
    fn events_of_ended_run_leave_the_memory_with_its_last_follower() {
        let feed = Arc::new(EventFeed::new(EventSource::Log("none".into())));
        let append = |from: u64, to: u64| {
            let events = (from..=to).map(event).collect();
            feed.ring().append(NewestEvents { events, dropped: None });
        };
        let kept = || {
            let ring = feed.ring();
            (ring.start, ring.end, ring.events.len())
        };
        append(1, 3);
        let [first, second] = [feed.follow(), feed.follow()];
        drop(first);
        feed.set_over(true);
        assert_eq!(kept(), (0, 3, 3), "one still follows");
        drop(second);
        assert_eq!(kept(), (3, 3, 0));
        let _third = feed.follow();
        append(4, 5);
        assert_eq!(kept(), (3, 5, 2), "earlier ones are in the journal");
        assert_eq!(numbers(&feed.ring().after(3)), [4, 5]);
    }
}
