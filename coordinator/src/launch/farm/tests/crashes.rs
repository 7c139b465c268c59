//! A farm whose process died after any record of its journal: the next session has every completion
//! that was durable under its cursor, shows none that was acknowledged, and ends every sample once.

use std::collections::{BTreeSet, HashSet};
use std::fs;

use futures_util::stream::{self, StreamExt as _};
use rollout_engine::core::{JournalRecord, SessionStart};
use rollout_engine::journal::{self, JournalCompaction, JournalWriter};
use rollout_protocol::farm::FarmRecord;
use tokio::time::timeout;

use super::*;
use crate::workloads::farm::core::FarmCore;

/// Sessions that are checked at a time.
const SESSIONS: usize = 8;

const HEADER_BYTES: usize = b"rollout-journal 1\n".len();

/// Lengths of the journal after each of its records, from the second on.
fn record_ends(segment: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = HEADER_BYTES;
    while let Some(length) = segment.get(at..at + 4) {
        let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
        at += 8 + length as usize;
        ends.push(at);
    }
    ends
}

/// The farm that a journal describes, and the completions that it ever had.
fn replay(run_dir: &Path) -> (FarmCore, Vec<Completion>) {
    let (mut core, mut log) = (FarmCore::new(), Vec::new());
    let apply = |at, record| {
        if let JournalRecord::Farm(record) = record {
            core.apply(at, &record, &mut Vec::new());
            if let FarmRecord::Completed { completions } = *record {
                log.extend(completions);
            }
        }
    };
    journal::replay(&RunLayout::new(run_dir), &[], apply).expect("a journal");
    (core, log)
}

/// The requests of the trainer, which it repeats in every session.
fn requests() -> Vec<GroupRequest> {
    let enough = GroupRequest { min_usable: Some(1), ..request("enough", 2) };
    vec![request("whole", 3), enough, request("cancelled", 2)]
}

/// A first session that does some of everything.
async fn first_session(fixture: &FarmFixture) {
    let farm = fixture.open();
    for request in requests() {
        farm.submit(request).await.expect("admitted");
    }
    farm.handle.cancel(group_id("cancelled")).await.expect("open").expect("cancelled");
    farm.handle.cancel(group_id("unseen")).await.expect("open").expect("cancelled");
    farm.handle.pause().await.expect("paused");
    farm.handle.resume(Some(2)).await.expect("resumed");
    farm.read(0, 7).await;
    farm.handle.acknowledge("train", vec![1, 4]).await.expect("acknowledged");
    farm.handle.acknowledge("train", vec![2]).await.expect("acknowledged");
    farm.stop(StopLevel::Drain).await;
}

/// Compacts the journal of a session that died.
async fn compact(run_dir: &Path) {
    let layout = RunLayout::new(run_dir);
    let mut items = HashSet::new();
    let read = journal::replay(&layout, &[], |_, record| {
        if let JournalRecord::Offered { tries } = record {
            items.extend(tries.iter().map(|one| one.item));
        }
    });
    let read = read.expect("readable").expect("a journal");
    let opened = SessionStart { epoch: 2, former: Some(read.head), ..read.last };
    let snapshot = replay(run_dir).0.snapshot();
    let mut writer = JournalWriter::create(&layout, read.first.0, opened).expect("a segment");
    assert!(writer.submit_with(JournalCompaction { snapshot, items }));
    writer.durable().await.expect("written");
    drop(writer);
    assert_eq!(journal::segment_epochs(&layout).expect("a journal"), [3]);
}

/// Continues a farm with these durable completions until every group has ended and every completion
/// is acknowledged. Returns all completions.
async fn finish(fixture: &FarmFixture, run_dir: &Path, log: Vec<Completion>) -> Vec<Completion> {
    let (former, known) = replay(run_dir);
    let farm = fixture.open_in(run_dir, FarmSettings::new("f"));
    // The first answer comes after the replay. The former session may have died in its pause.
    farm.handle.resume(Some(3)).await.expect("it runs");
    let shown = farm.read_all().await;
    for known in former.completions() {
        assert!(shown.contains(known), "{known:?} is not shown again");
    }
    let acknowledged = log.iter().map(|one| one.cursor).collect::<BTreeSet<_>>();
    let unread = former.completions().map(|one| one.cursor).collect::<BTreeSet<_>>();
    for cursor in acknowledged.difference(&unread) {
        assert!(shown.iter().all(|one| one.cursor != *cursor), "{cursor} is shown again");
    }
    for request in requests() {
        match farm.submit(request.clone()).await {
            Ok(_) => {}
            Err(SubmitError::Refused(refusal)) => {
                assert_eq!(request.group, group_id("cancelled"), "{refusal}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(farm.close().await.pending, 0);
    let (core, whole) = replay(run_dir);
    assert!(core.is_over(), "nothing is left");
    assert_eq!(whole[..known.len()], known, "what was durable stays as it was");
    // A compacted journal has only the completions that follow.
    log.into_iter().chain(whole.into_iter().skip(known.len())).collect()
}

/// Whether the journal of a session that died is compacted before the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compaction {
    No,
    /// As if the session had died after the flush with the last record and a compaction, before the
    /// farm had decided what follows from that record.
    Last,
}

#[tokio::test(flavor = "multi_thread")]
async fn farm_that_died_after_any_record_loses_and_doubles_nothing() {
    check_cuts(Compaction::No).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn farm_that_died_after_compaction_at_any_record_loses_and_doubles_nothing() {
    check_cuts(Compaction::Last).await;
}

async fn check_cuts(compaction: Compaction) {
    // One execution is lost, so that a sample is replaced.
    let fixture = FarmFixture::new(|n| if n == 2 { lost() } else { Verdict::completed(1.0) }).await;
    let first = timeout(LONG, first_session(&fixture)).await;
    first.expect("the first session ends");
    let segment = fs::read(RunLayout::new(fixture.run_dir()).segment(1)).expect("a journal");
    let ends = record_ends(&segment);
    assert!(ends.len() > 20, "{} records", ends.len());
    let cuts = stream::iter(ends.iter().enumerate());
    let checked = cuts.for_each_concurrent(SESSIONS, |(n, end)| {
        // Some bytes of the next record were written, too.
        let torn = segment.len().min(end + 5);
        check_cut(&fixture, format!("after-{n}"), &segment[..torn], compaction)
    });
    checked.await;
}

/// Continues a farm with this journal.
async fn check_cut(fixture: &FarmFixture, name: String, segment: &[u8], compaction: Compaction) {
    let run_dir = fixture.dir.path().join(&name);
    let layout = RunLayout::new(&run_dir);
    fs::create_dir_all(layout.journal()).expect("a directory");
    fs::write(layout.segment(1), segment).expect("written");
    let (_, durable) = replay(&run_dir);
    if compaction == Compaction::Last {
        compact(&run_dir).await;
    }
    let finished = timeout(LONG, finish(fixture, &run_dir, durable)).await;
    let whole = finished.unwrap_or_else(|_| panic!("the farm of {name} does not end"));
    let cursors: Vec<u64> = whole.iter().map(|one| one.cursor).collect();
    assert_eq!(cursors, (1..=whole.len() as u64).collect::<Vec<_>>());
    let samples: BTreeSet<_> =
        whole.iter().map(|one| (&one.sample.group, one.sample.index)).collect();
    assert_eq!(samples.len(), whole.len(), "a sample ends once");
    for (group, n) in [("whole", 3), ("enough", 2)] {
        let group = group_id(group);
        assert_eq!(samples.iter().filter(|(of, _)| **of == group).count(), n, "{group}");
    }
}
