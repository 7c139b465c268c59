//! Views of run directories whose writer is alive, died in the middle of a write, or is gone.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rollout_engine::journal::{JournalWriter, RunLayout};
use serde_json::json;

use super::*;
use crate::plan::PlanDocument;

/// Writes a journal of one session, and returns the length after each record.
async fn write(root: &Path, journal: &JournalFixture) -> Vec<u64> {
    let layout = RunLayout::new(root);
    let plan = json!(PlanDocument::from(&journal.plan));
    fs::write(layout.plan(), plan.to_string()).expect("writable");
    let mut records = journal.records.iter();
    let Some((at, JournalRecord::Opened(opened))) = records.next() else { panic!("an opening") };
    let mut writer =
        JournalWriter::create(&layout, *at, (**opened).clone()).expect("a new segment");
    let mut ends = vec![writer.durable_prefix().bytes];
    for (at, record) in records {
        writer.record(*at, record);
        assert!(writer.submit());
        ends.push(writer.durable().await.expect("written").prefix.bytes);
    }
    ends
}

/// A lock file of this process, or of one that has ended.
fn lock(root: &Path, is_alive: bool) {
    lock_at(root, is_alive, Timestamp::now());
}

/// The same, by a clock that shows `now`.
fn lock_at(root: &Path, is_alive: bool, now: Timestamp) {
    let owner = rollout_environment::Owner::current(root.to_owned());
    let start_ticks = owner.start_ticks + u64::from(!is_alive);
    let owner = rollout_environment::Owner { start_ticks, ..owner };
    let file = json!({
        "owner": { "id": "0".repeat(32), "process": owner, "file": null },
        "hostname": "host", "pid": std::process::id(), "epoch": 1,
        "created_at": now, "last_heartbeat_at": now,
    });
    fs::write(RunLayout::new(root).lock_info(), file.to_string()).expect("writable");
}

fn journal() -> JournalFixture {
    let mut journal = JournalFixture::new(&["a", "b", "c"], 2);
    journal.report(journal.item("a"), passed());
    journal.report(journal.item("b"), passed());
    journal
}

fn view(root: &Path) -> Result<RunView, RunViewError> {
    RunDirectory::open(root)?.view(None, None)
}

/// Every file below a directory, with its content.
fn snapshot(root: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(snapshot(&path));
        } else {
            found.push((path.clone(), fs::read(&path).expect("readable")));
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn reader_writes_nothing_and_takes_no_lock() {
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), &journal()).await;
    lock(directory.path(), true);
    let before = snapshot(directory.path());
    let seen = view(directory.path()).expect("a run");
    assert_eq!((seen.header.state, seen.counts.settled), (RunViewState::Running, 2));
    assert_eq!(snapshot(directory.path()), before);
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn journal_of_dead_owner_is_read_up_to_its_torn_tail() {
    let directory = tempfile::tempdir().expect("a directory");
    let ends = write(directory.path(), &journal()).await;
    let layout = RunLayout::new(directory.path());
    let segment = fs::read(layout.segment(1)).expect("a segment");
    fs::remove_file(layout.durable_length(1)).expect("removable");
    lock(directory.path(), false);
    let mut before = 0;
    for end in ends[0]..=*ends.last().expect("records") {
        fs::write(layout.segment(1), &segment[..end as usize]).expect("writable");
        let seen = view(directory.path()).unwrap_or_else(|error| panic!("cut at {end}: {error}"));
        assert_eq!(seen.header.state, RunViewState::Interrupted);
        assert_adds_up(&seen.counts);
        assert!(seen.counts.settled >= before, "cut at {end}");
        before = seen.counts.settled;
    }
    assert_eq!(before, 2);
}

#[tokio::test]
async fn journal_of_live_owner_is_read_up_to_its_durable_length() {
    let directory = tempfile::tempdir().expect("a directory");
    let ends = write(directory.path(), &journal()).await;
    let layout = RunLayout::new(directory.path());
    let whole = view(directory.path()).expect("a run").counts.settled;
    assert_eq!(whole, 2);
    lock(directory.path(), true);
    // A batch of which only a part was written, behind the last one that was synced.
    let mut segment = fs::read(layout.segment(1)).expect("a segment");
    segment.extend_from_slice(&segment.clone()[ends[0] as usize..][..20]);
    segment.extend_from_slice(&[7; 40]);
    fs::write(layout.segment(1), &segment).expect("writable");
    assert_eq!(view(directory.path()).expect("a run").counts.settled, whole);
    // Damage to what was synced is no torn tail.
    segment[ends[1] as usize + 9] ^= 1;
    fs::write(layout.segment(1), &segment).expect("writable");
    let damaged = view(directory.path()).expect_err("damaged");
    assert!(matches!(damaged, RunViewError::Journal(_)), "{damaged}");
}

#[tokio::test]
async fn owner_that_has_answered_is_not_silent_whatever_its_clock_shows() {
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), &journal()).await;
    for seconds in [-600, 600] {
        let shown = Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
        lock_at(directory.path(), true, shown);
        let opened = RunDirectory::open(directory.path()).expect("a run").without_owner();
        let seen = opened.with_heartbeat_age(Duration::ZERO).view(None, None).expect("a run");
        assert_eq!(seen.header.state, RunViewState::Running, "{seconds} s");
        let owner = seen.header.owner.expect("an owner");
        assert_eq!((owner.last_heartbeat_at, owner.heartbeat_age_sec), (shown, 0.0));
    }
}

#[tokio::test]
async fn owner_is_silent_by_the_clock_of_the_file_system_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), &journal()).await;
    let info = RunLayout::new(directory.path()).lock_info();
    let (quiet, shift) = (Duration::from_secs(90), jiff::SignedDuration::from_hours(2));
    for now in [Timestamp::now() - shift, Timestamp::now() + shift] {
        lock_at(directory.path(), true, now);
        let before = snapshot(directory.path());
        let seen = view(directory.path()).expect("a run");
        assert_eq!(seen.header.state, RunViewState::Running, "{now}");
        assert_eq!(snapshot(directory.path()), before);
        let file = fs::File::options().write(true).open(&info).expect("the lock");
        let renewed = file.metadata().and_then(|found| found.modified()).expect("a time");
        file.set_modified(renewed - quiet).expect("changeable");
        let seen = view(directory.path()).expect("a run");
        assert_eq!(seen.header.state, RunViewState::Silent, "{now}");
        let age = seen.header.owner.expect("an owner").heartbeat_age_sec;
        assert!((90.0..3600.0).contains(&age), "{age}");
    }
}

#[tokio::test]
async fn run_before_its_first_session_is_new() {
    let directory = tempfile::tempdir().expect("a directory");
    let layout = RunLayout::new(directory.path());
    let missing = RunDirectory::open(directory.path()).expect_err("it is empty");
    assert!(matches!(missing, RunViewError::NotRunDirectory { .. }), "{missing}");
    let plan = json!(PlanDocument::from(&plan(&["a", "b"])));
    fs::write(layout.plan(), plan.to_string()).expect("writable");
    let seen = view(directory.path()).expect("a run");
    assert_eq!((seen.header.state, seen.header.run), (RunViewState::New, None));
    assert_eq!((seen.counts.total, seen.counts.queued), (2, 2));
}

#[tokio::test]
async fn run_whose_plan_is_not_written_yet_is_new() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut begun = journal();
    begun.records.truncate(1);
    write(directory.path(), &begun).await;
    lock(directory.path(), true);
    fs::remove_file(RunLayout::new(directory.path()).plan()).expect("removable");
    let seen = view(directory.path()).expect("a run");
    assert_eq!((seen.header.state, seen.header.run), (RunViewState::New, Some(RUN)));
    let missing = RunDirectory::open(directory.path()).expect("a run");
    let missing = missing.plan().expect_err("no plan").to_string();
    assert!(missing.ends_with("plan.json is missing"), "{missing}");
}

#[tokio::test]
async fn list_names_damaged_run_beside_others() {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["good", "bad", ".rollout", "other"] {
        fs::create_dir(directory.path().join(name)).expect("a directory");
    }
    let mut mixed = JournalFixture::new(&["a", "b", "c"], 2);
    mixed.report(mixed.item("a"), passed());
    mixed.report(mixed.item("b"), failed());
    write(&directory.path().join("good"), &mixed).await;
    write(&directory.path().join("bad"), &journal()).await;
    fs::write(directory.path().join("bad/plan.json"), "{}").expect("writable");
    let mut found = Vec::new();
    list_runs(directory.path(), |run| found.push(run)).expect("listed");
    let names: Vec<_> = found.iter().map(|run| run.name.as_str()).collect();
    assert_eq!(names, ["bad", "good"]);
    assert!(found[0].run.is_err());
    let good = found[1].run.as_ref().expect("a run");
    assert_eq!((good.settled, good.total, good.pass_rate), (2, 3, Some(1.0)));
    let scored = good.scored.expect("a job");
    assert_eq!((scored.trials, scored.pass_rate), (2, Some(0.5)), "a failure of the agent counts");
    assert!(list_runs(&directory.path().join("none"), |_| ()).is_err());
}
