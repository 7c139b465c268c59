//! Coordinators that race for one run in one KV store, step by step in any order: with lost
//! requests and answers, copies of directories, processes that die or sleep at any step.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use rollout_protocol::id::{ExecId, OwnerId, RunId};
use rollout_protocol::wire::position::{Incarnation, ReportPosition};
use rollout_protocol::wire::report::ReportKind;

use super::super::kv_lock::{
    KvLock, KvLockTarget, RenewError, RunDirectoryCache, RunDirectoryReader, RunDirectoryState,
};
use super::super::takeover_policy::ChangeWatch;
use super::super::{LockError, LockWaitPolicy, RunEntryInfo};
use super::kv_lock::{KvStoreFault, MemoryKvStore, yield_once};
use super::remote_owner;
use crate::DurableState;
use crate::journal::{JournalPrefix, MissingRecords, RecordChain};
use crate::manifest::RunState;

const RUN: RunId = RunId::from_bytes([1; 16]);
const STALE: Duration = Duration::from_secs(30);

/// Records of one session.
const RECORDS: usize = 6;

/// Number of coordinators.
const ACTORS: usize = 4;

/// A run directory, reduced to its journal.
#[derive(Debug, Clone, Default)]
struct RaceDirectory {
    segments: Vec<RaceSegment>,
}

#[derive(Debug, Clone)]
struct RaceSegment {
    epoch: u32,
    holder: OwnerId,
    /// Previous epoch, and how many of its records count.
    former: Option<(u32, usize)>,
    records: Vec<u64>,
    durable: usize,
}

impl RaceSegment {
    fn prefix(&self, records: usize) -> JournalPrefix {
        let fold = |chain: u64, record: &u64| (chain ^ record).wrapping_mul(0x0100_0000_01b3);
        let chain = self.records[..records].iter().fold(0xcbf2_9ce4_8422_2325, fold);
        let chain: RecordChain = format!("{chain:016x}").parse().expect("hexadecimal");
        JournalPrefix {
            epoch: self.epoch,
            records: records as u64,
            bytes: 10 * records as u64,
            chain,
        }
    }
}

impl RaceDirectory {
    /// The segments that count, the newest first, and how much of each counts.
    fn active_segments(&self) -> Vec<(&RaceSegment, usize)> {
        let newest = self.segments.iter().max_by_key(|segment| segment.epoch);
        let mut links: Vec<_> = newest.map(|s| (s, s.records.len())).into_iter().collect();
        while let Some((epoch, records)) = links.last().and_then(|(segment, _)| segment.former) {
            let former = self.segments.iter().find(|segment| segment.epoch == epoch);
            links.push((former.expect("it was there"), records));
        }
        links
    }

    fn find_missing_records(&self, wanted: JournalPrefix) -> Option<MissingRecords> {
        let links = self.active_segments();
        let Some((segment, counts)) = links.iter().find(|(s, _)| s.epoch == wanted.epoch) else {
            return Some(MissingRecords { wanted, found: None });
        };
        let found = segment.prefix((*counts).min(usize::try_from(wanted.records).expect("few")));
        (found != wanted).then_some(MissingRecords { wanted, found: Some(found) })
    }

    fn view(&self, wanted: Option<JournalPrefix>) -> RunDirectoryState {
        let links = self.active_segments();
        let newest = links.first();
        RunDirectoryState {
            is_local: false,
            newest: self.segments.iter().map(|s| s.epoch).max().unwrap_or_default(),
            durable_prefix: newest
                .filter(|_| wanted.is_none())
                .map(|(s, counts)| s.prefix(*counts)),
            has_kv_lock: newest.is_some(),
            holder: newest.map(|(segment, _)| segment.holder),
            missing: wanted.and_then(|wanted| self.find_missing_records(wanted)),
        }
    }

    fn segment(&mut self, epoch: u32) -> &mut RaceSegment {
        let found = self.segments.iter_mut().find(|segment| segment.epoch == epoch);
        found.expect("it was created")
    }
}

#[derive(Debug, Default)]
struct RaceState {
    now: Duration,
    directories: Vec<RaceDirectory>,
    /// Prefixes that a renewal confirmed: everything purged is in one of them.
    confirmed: Vec<JournalPrefix>,
    /// Epochs that were opened, in any directory.
    opened: Vec<u32>,
    next_record: u64,
}

type SharedRaceState = Arc<Mutex<RaceState>>;

fn lock_state(shared: &SharedRaceState) -> MutexGuard<'_, RaceState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a session ended.
#[derive(Debug, PartialEq, Eq)]
enum RaceSessionEnd {
    Released,
    Lost,
    Held,
    Copy,
    /// The segment of its epoch existed already.
    Late,
}

fn lock_target(
    shared: &SharedRaceState,
    kv_store: &Arc<MemoryKvStore>,
    directory: usize,
) -> KvLockTarget {
    let of = Arc::clone(shared);
    let read_directory: RunDirectoryReader = Arc::new(move |head| {
        let view = lock_state(&of).directories[directory].view(head);
        Box::pin(std::future::ready(Ok(view)))
    });
    KvLockTarget {
        kv_store: kv_store.clone(),
        run: RUN,
        read_directory,
        info: RunEntryInfo::default(),
    }
}

/// One session of a coordinator in a directory that every other one can write, too.
async fn run_session(
    shared: SharedRaceState,
    kv_store: Arc<MemoryKvStore>,
    directory: usize,
    n: u8,
    hasty: bool,
) -> RaceSessionEnd {
    let me = remote_owner(n);
    let wait_policy = LockWaitPolicy { stale: STALE, force: hasty, wait: true, hung: true };
    let place = lock_target(&shared, &kv_store, directory);
    let mut watch = ChangeWatch::new();
    let mut looked = RunDirectoryCache::default();
    let mut lock = loop {
        let found = place.read().await;
        let now = lock_state(&shared).now;
        let Ok(found) = found else {
            watch.record_failure();
            continue;
        };
        let watched = watch.record_value(now, found.as_ref().map(|entry| entry.revision));
        match place.attempt(found, &me, watched, &wait_policy, &mut looked).await {
            Ok(Some((lock, _))) => break lock,
            Ok(None) => {}
            Err(LockError::Copy { .. }) => return RaceSessionEnd::Copy,
            Err(LockError::RunHeld { .. }) => return RaceSessionEnd::Held,
            Err(other) => panic!("{other}"),
        }
    };
    {
        let world = lock_state(&shared);
        for head in &world.confirmed {
            let lack = world.directories[directory].find_missing_records(*head);
            assert_eq!(lack, None, "a directory won that lacks what may have been purged");
        }
    }
    yield_once().await;
    if !open_segment(&shared, directory, &lock, me.id) {
        return RaceSessionEnd::Late;
    }
    write_records(&shared, &kv_store, directory, &mut lock, me.id).await
}

fn open_segment(shared: &SharedRaceState, directory: usize, lock: &KvLock, me: OwnerId) -> bool {
    let mut world = lock_state(shared);
    world.next_record += 1;
    let record = world.next_record;
    let directory = &mut world.directories[directory];
    let epoch = lock.epoch();
    if directory.segments.iter().any(|segment| segment.epoch == epoch) {
        return false;
    }
    if let Some(head) = lock.durable_prefix() {
        assert_eq!(
            directory.find_missing_records(head),
            None,
            "the predecessor holds everything that was durable"
        );
    }
    let former =
        directory.active_segments().first().map(|(segment, counts)| (segment.epoch, *counts));
    let opened = RaceSegment { epoch, holder: me, former, records: vec![record], durable: 1 };
    directory.segments.push(opened);
    assert!(!world.opened.contains(&epoch), "tries are numbered by epoch");
    world.opened.push(epoch);
    true
}

async fn write_records(
    shared: &SharedRaceState,
    kv_store: &MemoryKvStore,
    directory: usize,
    lock: &mut KvLock,
    me: OwnerId,
) -> RaceSessionEnd {
    let epoch = lock.epoch();
    for n in 0..=RECORDS {
        yield_once().await;
        let standing = append(shared, directory, epoch);
        let renewed = if n < RECORDS {
            lock.renew(Some(&standing)).await
        } else {
            lock.release(Some(&standing), Some(RunState::Stopped)).await
        };
        match renewed {
            Ok(position) => {
                assert_eq!(position, standing.position);
                let owner = kv_store.entry(&RUN.to_string()).expect("just written").owner;
                assert_eq!(owner.id, me, "only the owner's renewals succeed");
                lock_state(shared).confirmed.push(standing.prefix);
            }
            Err(RenewError::Lost(_)) => return RaceSessionEnd::Lost,
            Err(RenewError::Unreachable(_)) => {}
        }
    }
    RaceSessionEnd::Released
}

/// Writes a record and makes it durable.
fn append(shared: &SharedRaceState, directory: usize, epoch: u32) -> DurableState {
    let mut world = lock_state(shared);
    world.next_record += 1;
    let record = world.next_record;
    let segment = world.directories[directory].segment(epoch);
    segment.records.push(record);
    segment.durable = segment.records.len();
    let prefix = segment.prefix(segment.durable);
    let anchor = ExecId::from_bytes([0; 16]);
    let position = ReportPosition {
        incarnation: Incarnation(1),
        sequence: record,
        anchor,
        said: ReportKind::Result,
        number: 0,
    };
    DurableState { prefix, position: Some(position), total: 10, settled: 1, closed: false }
}

/// The next steps, from a list that shrinks well.
struct Choices(std::vec::IntoIter<u8>);

impl Choices {
    fn below(&mut self, n: usize) -> Option<usize> {
        self.0.next().map(|choice| usize::from(choice) % n)
    }
}

struct Actor {
    directory: usize,
    future: Pin<Box<dyn Future<Output = RaceSessionEnd>>>,
}

struct LockRace {
    shared: SharedRaceState,
    kv_store: Arc<MemoryKvStore>,
    actors: Vec<Actor>,
    started: u8,
}

impl LockRace {
    fn new() -> Self {
        let directories = vec![RaceDirectory::default()];
        let shared = Arc::new(Mutex::new(RaceState { directories, ..RaceState::default() }));
        Self { shared, kv_store: Arc::default(), actors: Vec::new(), started: 0 }
    }

    fn start(&mut self, directory: usize, hasty: bool) {
        self.started = self.started.wrapping_add(1);
        let (shared, kv_store) = (Arc::clone(&self.shared), Arc::clone(&self.kv_store));
        let future = Box::pin(run_session(shared, kv_store, directory, self.started, hasty));
        self.actors.push(Actor { directory, future });
    }

    fn step(&mut self, n: usize) -> Option<RaceSessionEnd> {
        let mut context = Context::from_waker(Waker::noop());
        match self.actors[n].future.as_mut().poll(&mut context) {
            Poll::Ready(end) => {
                drop(self.actors.remove(n));
                Some(end)
            }
            Poll::Pending => None,
        }
    }

    fn pass_time(&self, seconds: u64) {
        lock_state(&self.shared).now += Duration::from_secs(seconds);
    }

    /// One possible step; `None` when the choices are used up.
    fn step_any(&mut self, choices: &mut Choices) -> Option<()> {
        let directories = lock_state(&self.shared).directories.len();
        match choices.below(32)? {
            0 | 1 if self.actors.len() < ACTORS => {
                let hasty = choices.below(4)? == 0;
                self.start(choices.below(directories)?, hasty);
            }
            2 if !self.actors.is_empty() => {
                let dead = choices.below(self.actors.len())?;
                let dead = self.actors.remove(dead);
                self.cut(dead.directory, choices)?;
            }
            3 if directories < 4 => {
                let mut world = lock_state(&self.shared);
                let copied = world.directories[choices.below(directories)?].clone();
                world.directories.push(copied);
            }
            4 => self.kv_store.fail(Some(KvStoreFault::Lost)),
            5 => self.kv_store.fail(Some(KvStoreFault::Unanswered)),
            6 => self.pass_time(40),
            _ if self.actors.is_empty() => self.start(choices.below(directories)?, false),
            _ => {
                self.pass_time(choices.below(4)? as u64);
                let next = choices.below(self.actors.len())?;
                self.step(next);
            }
        }
        Some(())
    }

    /// A power failure: unsynced records may be lost.
    fn cut(&self, directory: usize, choices: &mut Choices) -> Option<()> {
        let mut world = lock_state(&self.shared);
        let links = world.directories[directory].active_segments();
        let newest = links.first().map(|(segment, _)| segment.epoch);
        if let Some(epoch) = newest {
            let segment = world.directories[directory].segment(epoch);
            let kept =
                segment.durable + choices.below(segment.records.len() - segment.durable + 1)?;
            segment.records.truncate(kept);
        }
        Some(())
    }

    /// All remaining coordinators die. Then each directory is either whole or refused, and one is
    /// whole.
    fn settle(mut self) {
        self.actors.clear();
        self.kv_store.fail(None);
        let count = lock_state(&self.shared).directories.len();
        let mut whole = 0;
        for directory in 0..count {
            let confirmed = lock_state(&self.shared).confirmed.clone();
            self.start(directory, false);
            let end = (0..1000).find_map(|_| {
                self.pass_time(2);
                self.step(0)
            });
            match end.expect("no other process is there, so it does not wait forever") {
                RaceSessionEnd::Released => {
                    whole += 1;
                    let world = lock_state(&self.shared);
                    for head in confirmed {
                        assert_eq!(world.directories[directory].find_missing_records(head), None);
                    }
                }
                RaceSessionEnd::Copy => {}
                other => panic!("{other:?} although no other process is there"),
            }
        }
        assert!(whole > 0, "what was confirmed is in no directory any more");
    }
}

fn in_context<T>(test: impl FnOnce() -> T) -> T {
    // Requests have a deadline, which needs a clock.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let _entered = runtime.enter();
    test()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn lock_race_winner_has_every_confirmed_record(
        choices in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        in_context(|| {
            let mut race = LockRace::new();
            let mut choices = Choices(choices.into_iter());
            while race.step_any(&mut choices).is_some() {}
            race.settle();
        });
    }
}

/// Runs an actor alone until it has the lock, and comes to its end.
fn run_alone(race: &mut LockRace) -> Option<RaceSessionEnd> {
    (0..1000).find_map(|_| {
        race.pass_time(2);
        race.step(0)
    })
}

#[test]
fn lock_write_without_answer_is_adopted_by_owner() {
    in_context(|| {
        for fault in [KvStoreFault::Lost, KvStoreFault::Unanswered] {
            let mut race = LockRace::new();
            race.start(0, false);
            let end = (0..1000).find_map(|n| {
                // Sometimes a write, sometimes the read that follows one.
                if n % 5 == 0 {
                    race.kv_store.fail(Some(fault));
                }
                race.pass_time(1);
                race.step(0)
            });
            race.kv_store.fail(None);
            assert_eq!(end, Some(RaceSessionEnd::Released), "{fault:?}");
            let confirmed = lock_state(&race.shared).confirmed.len();
            assert!(confirmed > 1, "it continues after {fault:?}");
            race.settle();
        }
    });
}

#[test]
fn lock_entry_lost_by_kv_store_is_rewritten_by_live_owner() {
    in_context(|| {
        let mut race = LockRace::new();
        race.start(0, false);
        assert_eq!(run_alone(&mut race), Some(RaceSessionEnd::Released));
        race.start(0, false);
        while lock_state(&race.shared).confirmed.len() < 9 {
            assert_eq!(race.step(0), None);
        }
        let copied = lock_state(&race.shared).directories[0].clone();
        lock_state(&race.shared).directories.push(copied);
        race.kv_store.wipe();
        race.start(1, false);
        for _ in 0..20 {
            race.pass_time(1);
            assert_eq!(race.step(1), None, "it watches for longer than that");
        }
        // The owner comes back and writes its entry again, because its directory names it.
        let owner = lock_state(&race.shared).directories[0].active_segments()[0].0.holder;
        while race.kv_store.entry(&RUN.to_string()).is_none() {
            assert_eq!(race.step(0), None);
        }
        assert_eq!(race.kv_store.entry(&RUN.to_string()).expect("written").owner.id, owner);
        let refused = (0..20).find_map(|_| race.step(1));
        assert!(
            matches!(refused, Some(RaceSessionEnd::Held | RaceSessionEnd::Copy)),
            "{refused:?}"
        );
        assert_eq!(run_alone(&mut race), Some(RaceSessionEnd::Released));
    });
}

#[test]
fn lock_entry_lost_with_dead_owner_delays_takeover() {
    in_context(|| {
        let mut race = LockRace::new();
        race.start(0, false);
        assert_eq!(run_alone(&mut race), Some(RaceSessionEnd::Released));
        race.kv_store.wipe();
        race.start(0, false);
        let since = lock_state(&race.shared).now;
        while race.kv_store.entry(&RUN.to_string()).is_none() {
            race.pass_time(1);
            assert_eq!(race.step(0), None);
        }
        assert!(lock_state(&race.shared).now - since >= STALE);
        assert_eq!(run_alone(&mut race), Some(RaceSessionEnd::Released));
    });
}

#[test]
fn lock_owner_suspended_during_takeover_detects_loss() {
    in_context(|| {
        let mut race = LockRace::new();
        race.start(0, false);
        while lock_state(&race.shared).confirmed.is_empty() {
            assert_eq!(race.step(0), None);
        }
        race.start(0, false);
        let taken = (0..1000).find_map(|_| {
            race.pass_time(1);
            race.step(1)
        });
        assert_eq!(taken, Some(RaceSessionEnd::Released));
        let end = (0..20).find_map(|_| race.step(0));
        assert_eq!(end, Some(RaceSessionEnd::Lost));
        race.settle();
    });
}

#[test]
fn lock_entry_lost_and_rewritten_goes_back_to_higher_epoch() {
    in_context(|| {
        let mut race = LockRace::new();
        race.start(0, false);
        while lock_state(&race.shared).confirmed.is_empty() {
            assert_eq!(race.step(0), None);
        }
        let copied = lock_state(&race.shared).directories[0].clone();
        lock_state(&race.shared).directories.push(copied);
        race.start(1, true);
        let owner_of =
            |race: &LockRace| race.kv_store.entry(&RUN.to_string()).map(|entry| entry.owner.id);
        let first = owner_of(&race);
        let confirmed = lock_state(&race.shared).confirmed.len();
        while lock_state(&race.shared).confirmed.len() < confirmed + 3 {
            race.pass_time(1);
            assert_eq!(race.step(1), None);
        }
        let second = owner_of(&race);
        assert_ne!(first, second);
        race.kv_store.wipe();
        while owner_of(&race).is_none() {
            assert_eq!(race.step(0), None);
        }
        assert_eq!(owner_of(&race), first, "its directory names it");
        while owner_of(&race) != second {
            assert_eq!(race.step(1), None, "it has the higher epoch");
        }
        let end = (0..20).find_map(|_| race.step(0));
        assert_eq!(end, Some(RaceSessionEnd::Lost));
    });
}
