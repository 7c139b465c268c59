//! Messages and lock entries that runs have left on a server: what is still needed, and removal of the
//! rest. A removal first takes the ends of the streams and then reads the lock entry of the run: the
//! messages of a session that begins meanwhile come after these ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rollout_engine::{RunEntry, RunState};
use rollout_protocol::id::RunId;
use rollout_protocol::limits::LOCK_STALE;
use rollout_queue::nats::Nats;
use rollout_queue::traits::{KvEntry, KvStore, ListedKvEntry, QueueError};

/// The result of a sweep: the things that it removed, or in a dry run would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueSweep {
    /// Runs whose messages were removed.
    pub runs: BTreeSet<RunId>,
    /// Number of these messages.
    pub messages: u64,
    /// Runs whose lock entries were removed.
    pub entries: BTreeSet<RunId>,
}

impl QueueSweep {
    /// Counts the messages of a run. One of which another process has removed everything is not counted.
    fn add_messages(&mut self, run: RunId, messages: u64) {
        self.messages += messages;
        if messages > 0 {
            self.runs.insert(run);
        }
    }
}

/// The things of a run that are not needed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unneeded {
    messages: bool,
    entry: bool,
}

impl Unneeded {
    const NOTHING: Self = Self { messages: false, entry: false };

    /// For a run with this entry. `unwritten`: how long it was not written, if that is longer than entries
    /// are kept. An owner writes its entry every second, so a run whose entry is old has none.
    fn of(found: Option<&KvEntry>, unwritten: Option<Duration>) -> Self {
        // The entry of a run that was removed was removed, too.
        let Some(found) = found else { return Self { messages: true, entry: false } };
        // A newer version needs its entry for a purpose that is not known here.
        let Some(entry) = RunEntry::parse(&found.value) else { return Self::NOTHING };
        // An owner that runs is alive until it is silent, however short the wanted age.
        let is_old = unwritten
            .is_some_and(|unwritten| entry.state != RunState::Running || unwritten >= LOCK_STALE);
        Self { messages: is_old || entry.state == RunState::Completed, entry: is_old }
    }
}

/// Most offers in a queue that the start of a run looks through. Runs withdraw their offers when they end,
/// so those of ended runs are few; [`sweep_old`] looks through all.
const OFFERS_LOOKED_AT: u64 = 10_000;

/// Age at which what a removed entry has left is purged. NATS servers write what they removed to their disks
/// every two minutes; those of a user may do it less often.
const MARKER_AGE: Duration = Duration::from_hours(1);

/// Removes the messages of runs that have completed or were removed. Lock entries stay, and so do offers
/// while the queue is long.
///
/// # Errors
/// [`QueueError`].
pub(super) async fn sweep_ended(
    nats: &Nats,
    kv_store: &dyn KvStore,
) -> Result<QueueSweep, QueueError> {
    let ends = nats.queue_ends().await?;
    let mut sweep = QueueSweep::default();
    for run in nats.runs_in_queue(OFFERS_LOOKED_AT).await?.into_keys() {
        let entry = kv_store.read(&run.to_string()).await?;
        if Unneeded::of(entry.as_ref(), None).messages {
            sweep.add_messages(run, nats.remove_messages(run, ends).await?);
        }
    }
    Ok(sweep)
}

/// Does the same, and removes the lock entries and messages of runs whose entries were not written for
/// `age`, whatever their state.
///
/// # Errors
/// [`QueueError`]; some may have been removed.
pub async fn sweep_old(
    nats: &Nats,
    kv_store: &dyn KvStore,
    age: Duration,
    dry_run: bool,
) -> Result<QueueSweep, QueueError> {
    let ends = nats.queue_ends().await?;
    let counted = nats.runs_in_queue(u64::MAX).await?;
    let entries = kv_store.entries().await?.into_iter();
    let entries: BTreeMap<RunId, ListedKvEntry> =
        entries.filter_map(|listed| Some((listed.key.parse().ok()?, listed))).collect();
    let mut sweep = QueueSweep::default();
    for (run, ListedKvEntry { entry, age: unwritten, .. }) in &entries {
        let is_old =
            Unneeded::of(Some(entry), Some(*unwritten).filter(|unwritten| *unwritten >= age)).entry;
        // Not that of a run which another process has just taken.
        if is_old && (dry_run || kv_store.remove(&run.to_string(), entry.revision).await?) {
            sweep.entries.insert(*run);
        }
    }
    if !dry_run {
        nats.purge_removed_entries(MARKER_AGE).await?;
    }
    for (run, messages) in counted {
        let is_removed = sweep.entries.contains(&run);
        let entry = entries.get(&run).map(|listed| &listed.entry);
        if is_removed || Unneeded::of(entry, None).messages {
            let messages = match dry_run {
                true => messages,
                false => nats.remove_messages(run, ends).await?,
            };
            sweep.add_messages(run, messages);
        }
    }
    Ok(sweep)
}

/// Removes what the server has of runs that were removed: messages and lock entries.
///
/// # Errors
/// [`QueueError`]; some may have been removed.
pub async fn forget_runs(
    nats: &Nats,
    kv_store: &dyn KvStore,
    runs: &BTreeSet<RunId>,
) -> Result<(), QueueError> {
    if runs.is_empty() || !nats.is_set_up().await? {
        return Ok(());
    }
    let ends = nats.queue_ends().await?;
    for run in runs {
        let key = run.to_string();
        if let Some(entry) = kv_store.read(&key).await? {
            // Written meanwhile: another process owns a copy of the run.
            if !kv_store.remove(&key, entry.revision).await? {
                continue;
            }
        }
        nats.remove_messages(*run, ends).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rollout_engine::LockOwner;
    use rollout_environment::Owner;
    use rollout_protocol::Timestamp;
    use rollout_protocol::id::OwnerId;

    use super::*;

    fn entry(state: RunState) -> KvEntry {
        let owner = LockOwner {
            id: OwnerId::from_bytes([1; 16]),
            process: Owner::current("/jobs/run".into()),
            file: None,
        };
        let entry = RunEntry {
            format: 1,
            owner,
            epoch: 1,
            state,
            head: None,
            position: None,
            job: "job".to_owned(),
            pool: "default".to_owned(),
            store: "store".to_owned(),
            hands_over: false,
            total: 1,
            settled: 1,
            started_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        };
        let text = serde_json::to_vec(&entry).expect("text keys only");
        KvEntry { revision: 1, value: text.into() }
    }

    #[test]
    fn run_of_which_nothing_was_removed_is_not_counted() {
        let mut sweep = QueueSweep::default();
        let [emptied, swept] = [1, 2].map(|number| RunId::from_bytes([number; 16]));
        sweep.add_messages(emptied, 0);
        sweep.add_messages(swept, 3);
        assert_eq!((sweep.messages, sweep.runs), (3, BTreeSet::from([swept])));
    }

    #[test]
    fn messages_of_run_are_needed_until_it_is_completed_or_old() {
        let nothing = Unneeded::NOTHING;
        for state in [RunState::Running, RunState::Stopped] {
            assert_eq!(Unneeded::of(Some(&entry(state)), None), nothing, "{state:?}");
            let old = Unneeded::of(Some(&entry(state)), Some(LOCK_STALE));
            assert_eq!(old, Unneeded { messages: true, entry: true }, "{state:?}");
        }
        let messages = Unneeded { messages: true, entry: false };
        assert_eq!(Unneeded::of(Some(&entry(RunState::Completed)), None), messages);
        assert_eq!(Unneeded::of(None, None), messages);
        let live = Some(Duration::from_secs(1));
        assert_eq!(Unneeded::of(Some(&entry(RunState::Running)), live), nothing, "it has an owner");
        let newer = KvEntry { revision: 1, value: Bytes::from_static(b"{\"format\":99}") };
        assert_eq!(Unneeded::of(Some(&newer), Some(LOCK_STALE)), nothing);
    }
}
