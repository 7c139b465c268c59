//! Journals that are cut, damaged, continued by a woken owner.

use std::fs;

use rollout_protocol::Timestamp;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::record::{Durations, Timestamps, Verdict};
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::version::RUN_FORMAT;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::report::{Body, Report, ResultBody};
use rollout_worker::port::{Incarnation, Position};

use super::*;
use crate::core::{Former, OfferedTry, Opened, Record};

fn layout() -> (tempfile::TempDir, Layout) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let layout = Layout::new(directory.path());
    (directory, layout)
}

fn opened(epoch: u32, former: Option<Former>) -> Opened {
    Opened {
        format: RUN_FORMAT,
        run: RunId::from_bytes([1; 16]),
        epoch,
        plan: Digest::of(b"plan"),
        retry: RetryPolicy::default(),
        version: "test".to_owned(),
        owner: "test".to_owned(),
        former,
        holder: None,
        takeover: None,
    }
}

fn record(n: u8) -> Record {
    if n % 2 == 1 {
        return reported(n);
    }
    let offered = OfferedTry {
        item: ItemId::from_bytes([n; 16]),
        try_id: TryId::first(1),
        spec: Digest::of(&[n]),
    };
    Record::Offered { tries: vec![offered; usize::from(n % 3) + 1] }
}

fn reported(n: u8) -> Record {
    let exec = ExecId::from_bytes([n; 16]);
    let sequence = u64::from(n);
    let verdict = Verdict { cost: 0.25, ..Verdict::completed(0.1 * f64::from(n)) };
    let report = Report {
        run: RunId::from_bytes([1; 16]),
        item: ItemId::from_bytes([n; 16]),
        try_id: TryId::first(1),
        exec,
        spec: Digest::of(&[n]),
        worker: "w".parse().expect("valid"),
        body: Body::Result(Box::new(ResultBody {
            verdict,
            durations: Durations::default(),
            timestamps: Timestamps::instant(Timestamp::UNIX_EPOCH),
            record: Some(BlobRef::of(&[n], MediaType::Json)),
        })),
    };
    let position = Position::of(Incarnation(u128::MAX - 1), sequence, &report);
    Record::Reported { position, report: Box::new(report) }
}

/// A segment with some records; the byte at which each record ends, the opening's first.
async fn write(layout: &Layout, epoch: u32, former: Option<Former>, records: u8) -> Vec<u64> {
    let at = Timestamp::UNIX_EPOCH;
    let mut writer = Writer::create(layout, at, opened(epoch, former)).expect("a new segment");
    let mut ends = vec![writer.head().bytes];
    for n in 0..records {
        writer.record(at, &record(n));
        assert!(writer.submit());
        ends.push(writer.durable().await.expect("written").head.bytes);
    }
    ends
}

fn read(layout: &Layout) -> Result<(Vec<Record>, Option<Replay>), JournalError> {
    let mut records = Vec::new();
    let replay = replay(layout, &[], |_, record| records.push(record))?;
    Ok((records, replay))
}

#[tokio::test]
async fn what_was_written_is_read_back_across_sittings() {
    let (_directory, layout) = layout();
    assert!(read(&layout).expect("no journal is fine").1.is_none());
    assert_eq!(Survey::of(&layout).expect("whole").next_epoch(), 1);
    write(&layout, 1, None, 3).await;
    let head = read(&layout).expect("whole").1.expect("a journal").head;
    write(&layout, 2, Some(head), 2).await;
    let (records, replay) = read(&layout).expect("whole");
    assert_eq!(records.len(), 1 + 3 + 1 + 2);
    assert_eq!(records[1..4], [record(0), record(1), record(2)]);
    let replay = replay.expect("a journal");
    assert_eq!((replay.last.epoch, replay.records, replay.torn_bytes), (2, 7, 0));
    assert_eq!(Survey::of(&layout).expect("whole").next_epoch(), 3);
}

#[tokio::test]
async fn cut_at_any_byte_it_holds_exactly_the_records_before_the_cut() {
    let (_directory, layout) = layout();
    let ends = write(&layout, 1, None, 4).await;
    let whole = fs::read(layout.segment(1)).expect("readable");
    for cut in 0..whole.len() {
        fs::write(layout.segment(1), &whole[..cut]).expect("writable");
        let (records, replay) = read(&layout).expect("a cut tail is repaired");
        let expected = ends.iter().filter(|end| **end <= cut as u64).count();
        assert_eq!(records.len(), expected, "cut at {cut}");
        if let Some(replay) = replay {
            assert_eq!(replay.head.bytes + replay.torn_bytes, cut as u64);
        }
    }
}

#[tokio::test]
async fn a_flipped_byte_ends_the_journal_there() {
    let (_directory, layout) = layout();
    let ends = write(&layout, 1, None, 4).await;
    let whole = fs::read(layout.segment(1)).expect("readable");
    let first = usize::try_from(ends[0]).expect("small");
    for at in first..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x20;
        fs::write(layout.segment(1), &damaged).expect("writable");
        let (records, _) = read(&layout).expect("read up to the damage");
        let before = ends.iter().filter(|end| **end <= at as u64).count();
        assert_eq!(records.len(), before, "flipped at {at}");
    }
}

#[tokio::test]
async fn damage_before_a_known_durable_length_is_an_error_with_its_place() {
    let (_directory, layout) = layout();
    let ends = write(&layout, 1, None, 4).await;
    let whole = fs::read(layout.segment(1)).expect("readable");
    let cut = usize::try_from(ends[3]).expect("small") + 5;
    fs::write(layout.segment(1), &whole[..cut]).expect("writable");
    let error = replay(&layout, &[(1, ends[4])], |_, _| {}).expect_err("records are missing");
    match error {
        JournalError::Damaged { offset, expected_bytes, .. } => {
            assert_eq!((offset, expected_bytes), (ends[3], ends[4]));
        }
        other => panic!("{other}"),
    }
    assert!(replay(&layout, &[(1, ends[3])], |_, _| {}).is_ok());
}

#[tokio::test]
async fn what_a_former_owner_still_writes_is_ignored_for_ever() {
    let (_directory, layout) = layout();
    let at = Timestamp::UNIX_EPOCH;
    let mut woken = Writer::create(&layout, at, opened(1, None)).expect("a new segment");
    woken.record(at, &record(1));
    woken.submit();
    woken.durable().await.expect("written");
    let head = read(&layout).expect("whole").1.expect("a journal").head;
    write(&layout, 2, Some(head), 1).await;

    woken.record(at, &Record::Stopping { level: StopLevel::Kill });
    woken.submit();
    woken.durable().await.expect("written, to no effect");
    let (records, _) = read(&layout).expect("whole");
    assert_eq!(records.len(), 2 + 2);
    assert!(!records.iter().any(|r| matches!(r, Record::Stopping { .. })));
}

#[tokio::test]
async fn a_successor_that_died_before_its_first_record_takes_nothing_over() {
    let (_directory, layout) = layout();
    write(&layout, 1, None, 2).await;
    let head = read(&layout).expect("whole").1.expect("a journal").head;
    fs::write(layout.segment(2), b"rollout-jou").expect("writable");
    assert_eq!(read(&layout).expect("whole").0.len(), 3);
    assert_eq!(Survey::of(&layout).expect("whole").next_epoch(), 3);
    write(&layout, 3, Some(head), 1).await;
    assert_eq!(read(&layout).expect("whole").0.len(), 5);
}

#[tokio::test]
async fn a_former_segment_that_was_changed_or_lost_is_refused() {
    let (_directory, layout) = layout();
    write(&layout, 1, None, 2).await;
    let head = read(&layout).expect("whole").1.expect("a journal").head;
    write(&layout, 2, Some(head), 1).await;
    let whole = fs::read(layout.segment(1)).expect("readable");
    fs::write(layout.segment(1), &whole[..whole.len() - 1]).expect("writable");
    assert!(matches!(read(&layout), Err(JournalError::Damaged { .. })));
    fs::remove_file(layout.segment(1)).expect("removable");
    assert!(matches!(read(&layout), Err(JournalError::Missing { .. })));
}

#[tokio::test]
async fn a_segment_that_a_woken_owner_begins_beside_its_successor_does_not_count() {
    let (_directory, layout) = layout();
    write(&layout, 1, None, 2).await;
    let former = read(&layout).expect("whole").1.expect("a journal").head;
    // The successor skipped a number; the woken owner's disk fails and it goes on in the next.
    write(&layout, 3, Some(former), 1).await;
    let woken = write(&layout, 2, Some(former), 5).await;
    let (records, replay) = read(&layout).expect("whole");
    assert_eq!((records.len(), replay.expect("a journal").head.epoch), (3 + 2, 3));
    let survey = Survey::of(&layout).expect("whole");
    assert_eq!(survey.next_epoch(), 4);
    let its = Head { epoch: 2, bytes: woken[5], ..survey.head().expect("whole").expect("one") };
    assert_eq!(survey.lacks(its).expect("readable"), Some(Lack { wanted: its, found: None }));
}

#[tokio::test]
async fn a_head_is_held_by_those_who_have_its_records_and_by_nobody_else() {
    let (_directory, original) = layout();
    let (_directory, copy) = layout();
    let at = Timestamp::UNIX_EPOCH;
    let mut writer = Writer::create(&original, at, opened(1, None)).expect("a new segment");
    let mut heads = vec![writer.head()];
    for n in 0..4 {
        writer.record(at, &record(n));
        writer.record(at, &record(n + 1));
        writer.submit();
        heads.push(writer.durable().await.expect("written").head);
    }
    let lacks = |layout: &Layout, head| {
        Survey::of(layout).and_then(|survey| survey.lacks(head)).expect("readable")
    };
    fs::create_dir_all(copy.journal()).expect("creatable");
    let whole = fs::read(original.segment(1)).expect("readable");
    for (n, own) in heads.iter().enumerate() {
        assert_eq!(own.records, 1 + 2 * n as u64);
        let cut = usize::try_from(own.bytes).expect("small");
        fs::write(copy.segment(1), &whole[..cut]).expect("writable");
        assert_eq!(Survey::of(&copy).expect("whole").head().expect("whole"), Some(*own));
        for wanted in &heads {
            let lack = lacks(&copy, *wanted);
            let expected = Lack { wanted: *wanted, found: Some(*own) };
            assert_eq!(lack, (wanted.records > own.records).then_some(expected));
            assert_eq!(lacks(&original, *wanted), None);
        }
    }
    let text = serde_json::to_string(&heads[4]).expect("serializable");
    assert_eq!(serde_json::from_str::<Head>(&text).expect("readable"), heads[4]);
    let other = Head { chain: heads[3].chain, ..heads[4] };
    assert!(lacks(&original, other).is_some_and(|lack| lack.to_string().contains("others")));
    let missing = lacks(&copy, Head { epoch: 2, ..heads[1] }).expect("there is no second");
    let what = format!("sitting 2 with 3 records ({} bytes) is missing", heads[1].bytes);
    assert_eq!(missing.to_string(), what);
}

#[tokio::test]
async fn what_a_successor_cut_off_is_lacking() {
    let (_directory, layout) = layout();
    let at = Timestamp::UNIX_EPOCH;
    let mut woken = Writer::create(&layout, at, opened(1, None)).expect("a new segment");
    let former = read(&layout).expect("whole").1.expect("a journal").head;
    let before = woken.head();
    write(&layout, 2, Some(former), 1).await;
    woken.record(at, &record(1));
    woken.submit();
    let after = woken.durable().await.expect("written, to no effect").head;
    let survey = Survey::of(&layout).expect("whole");
    assert_eq!(survey.lacks(before).expect("readable"), None);
    let lack = Lack { wanted: after, found: Some(before) };
    assert_eq!(survey.lacks(after).expect("readable"), Some(lack));
    // Its manifest may have replaced that of its successor.
    let manifest = [(1, after.bytes)];
    assert_eq!(replay(&layout, &manifest, |_, _| {}).expect("whole").expect("one").records, 3);
}

#[tokio::test]
async fn an_epoch_is_opened_by_one_owner_only() {
    let (_directory, layout) = layout();
    write(&layout, 1, None, 0).await;
    let again = Writer::create(&layout, Timestamp::UNIX_EPOCH, opened(1, None));
    assert!(matches!(again, Err(JournalError::Io { action: "create", .. })));
}

#[tokio::test]
async fn other_files_and_newer_formats_are_refused() {
    let (_directory, layout) = layout();
    fs::create_dir_all(layout.journal()).expect("creatable");
    fs::write(layout.segment(1), b"something else entirely\n").expect("writable");
    assert!(matches!(read(&layout), Err(JournalError::Header { .. })));
    fs::remove_file(layout.segment(1)).expect("removable");
    let newer = Opened { format: RUN_FORMAT + 1, ..opened(1, None) };
    drop(Writer::create(&layout, Timestamp::UNIX_EPOCH, newer).expect("a new segment"));
    assert!(matches!(read(&layout), Err(JournalError::Header { .. })));
}
