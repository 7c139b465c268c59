//! Tests of journals that are cut, damaged, or continued by a woken owner.

mod compactions;
mod long_records;
mod short_records;

use std::fs;

use rollout_protocol::Timestamp;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::record::{Durations, Timestamps, Verdict};
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::position::{Incarnation, ReportPosition};
use rollout_protocol::wire::report::{Report, ReportBody, ResultBody};

use super::frame::SEGMENT_HEADER;
use super::*;
use crate::core::{JournalRecord, OfferedTry, PredecessorSegment, SessionStart};
use crate::testing::session_start as opened;

fn layout() -> (tempfile::TempDir, RunLayout) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let layout = RunLayout::new(directory.path());
    (directory, layout)
}

fn record(n: u8) -> JournalRecord {
    if n % 2 == 1 {
        return reported(n);
    }
    let offered = OfferedTry {
        item: ItemId::from_bytes([n; 16]),
        try_id: TryId::first(1),
        spec: Digest::sha256(&[n]),
    };
    JournalRecord::Offered { tries: vec![offered; usize::from(n % 3) + 1] }
}

fn reported(n: u8) -> JournalRecord {
    let exec = ExecId::from_bytes([n; 16]);
    let sequence = u64::from(n);
    let verdict = Verdict { cost: 0.25, ..Verdict::completed(0.1 * f64::from(n)) };
    let report = Report {
        run: RunId::from_bytes([1; 16]),
        item: ItemId::from_bytes([n; 16]),
        try_id: TryId::first(1),
        exec,
        spec: Digest::sha256(&[n]),
        worker: "w".parse().expect("valid"),
        body: ReportBody::Result(Box::new(ResultBody {
            verdict,
            durations: Durations::default(),
            timestamps: Timestamps::instant(Timestamp::UNIX_EPOCH),
            record: Some(BlobRef::for_bytes(&[n], MediaType::Json)),
        })),
    };
    let position = ReportPosition::for_report(Incarnation(u128::MAX - 1), sequence, &report);
    JournalRecord::Reported { position, report: Box::new(report) }
}

/// A segment with some records, and the offset at which each record ends, the opening's first.
async fn write(
    layout: &RunLayout,
    epoch: u32,
    former: Option<PredecessorSegment>,
    records: u8,
) -> Vec<u64> {
    let at = Timestamp::UNIX_EPOCH;
    let mut writer =
        JournalWriter::create(layout, at, opened(epoch, former)).expect("a new segment");
    let mut ends = vec![writer.durable_prefix().bytes];
    for n in 0..records {
        writer.record(at, &record(n));
        assert!(writer.submit());
        ends.push(writer.durable().await.expect("written").prefix.bytes);
    }
    ends
}

fn read(layout: &RunLayout) -> Result<(Vec<JournalRecord>, Option<ReplaySummary>), JournalError> {
    let mut records = Vec::new();
    let replay = replay(layout, &[], |_, record| records.push(record))?;
    Ok((records, replay))
}

#[tokio::test]
async fn journal_written_in_two_run_sessions_is_read_back() {
    let (_directory, layout) = layout();
    assert!(read(&layout).expect("no journal is fine").1.is_none());
    assert_eq!(SegmentIndex::read(&layout).expect("whole").next_epoch(), 1);
    write(&layout, 1, None, 3).await;
    let head = read(&layout).expect("whole").1.expect("a journal").head;
    write(&layout, 2, Some(head), 2).await;
    let (records, replay) = read(&layout).expect("whole");
    assert_eq!(records.len(), 1 + 3 + 1 + 2);
    assert_eq!(records[1..4], [record(0), record(1), record(2)]);
    let replay = replay.expect("a journal");
    assert_eq!((replay.last.epoch, replay.records, replay.torn_bytes), (2, 7, 0));
    assert_eq!(SegmentIndex::read(&layout).expect("whole").next_epoch(), 3);
}

/// Cuts a segment as a power failure does: to the durable length that was last written back.
fn cut_to_durable_length(layout: &RunLayout, epoch: u32, durable_bytes: Option<u64>) {
    let _none_left = fs::remove_file(layout.durable_length(epoch));
    if let Some(bytes) = durable_bytes {
        let mut length = durable_length::DurableLength::create(layout, epoch).expect("creatable");
        length.write(bytes);
    }
}

fn small(bytes: u64) -> usize {
    usize::try_from(bytes).expect("small")
}

#[tokio::test]
async fn journal_cut_past_durable_length_keeps_records_before_cut() {
    let (_directory, layout) = layout();
    let ends = write(&layout, 1, None, 4).await;
    let whole = fs::read(layout.segment(1)).expect("readable");
    for durable in [None, Some(0), Some(ends[0]), Some(ends[2])] {
        cut_to_durable_length(&layout, 1, durable);
        for cut in 0..whole.len() {
            fs::write(layout.segment(1), &whole[..cut]).expect("writable");
            let result = read(&layout);
            if Some(cut as u64) < durable {
                assert!(matches!(result, Err(JournalError::Damaged { .. })), "cut at {cut}");
                continue;
            }
            let (records, replay) = result.expect("a torn tail is no damage");
            let expected = ends.iter().filter(|end| **end <= cut as u64).count();
            assert_eq!(records.len(), expected, "cut at {cut}");
            if let Some(replay) = replay {
                assert_eq!(replay.head.bytes + replay.torn_bytes, cut as u64);
            }
        }
    }
}

#[tokio::test]
async fn journal_with_flipped_bit_after_kill_is_refused_with_offset() {
    let (_directory, layout) = layout();
    let ends = write(&layout, 1, None, 4).await;
    let whole = fs::read(layout.segment(1)).expect("readable");
    let starts: Vec<u64> = [0].into_iter().chain(ends.iter().copied()).collect();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(layout.segment(1), &damaged).expect("writable");
        let error = read(&layout).expect_err("a durable record is damaged");
        let JournalError::Damaged { offset, durable_bytes, records_behind, .. } = error else {
            panic!("changed at {at}: {error}")
        };
        let frame = ends.iter().filter(|end| **end <= at as u64).count();
        // Reading stops at a damaged opening behind its header, and at a damaged header at offset
        // 0.
        let (start, behind) = match (at as u64) < SEGMENT_HEADER.len() as u64 {
            true => (0, 5),
            false if frame == 0 => (SEGMENT_HEADER.len() as u64, 4),
            false => (starts[frame], ends.len() - 1 - frame),
        };
        assert_eq!((offset, records_behind), (start, behind as u64), "changed at {at}");
        assert_eq!(durable_bytes, whole.len() as u64);
    }
}

#[tokio::test]
async fn journal_with_flipped_bit_in_durable_batch_is_refused() {
    let (_directory, layout) = layout();
    let ends = write(&layout, 1, None, 4).await;
    let whole = fs::read(layout.segment(1)).expect("readable");
    for durable in [None, Some(ends[1]), Some(ends[3])] {
        cut_to_durable_length(&layout, 1, durable);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(layout.segment(1), &damaged).expect("writable");
            match read(&layout) {
                Err(JournalError::Damaged { .. }) => {}
                Err(other) => panic!("changed at {at}: {other}"),
                Ok((records, _)) => {
                    // The last batch is not known to be durable.
                    assert!(at as u64 >= ends[3] && durable == Some(ends[3]), "changed at {at}");
                    assert_eq!(records.len(), 4);
                }
            }
        }
    }
}

#[tokio::test]
async fn journal_tail_with_gap_in_last_batch_is_torn() {
    let (_directory, layout) = layout();
    let at = Timestamp::UNIX_EPOCH;
    let mut writer = JournalWriter::create(&layout, at, opened(1, None)).expect("a new segment");
    writer.record(at, &record(1));
    assert!(writer.submit());
    let durable = writer.durable().await.expect("written").prefix.bytes;
    for n in 2..9 {
        writer.record(at, &record(n));
    }
    assert!(writer.submit());
    writer.durable().await.expect("written");
    drop(writer);
    let whole = fs::read(layout.segment(1)).expect("readable");
    for known in [None, Some(SEGMENT_HEADER.len() as u64), Some(durable)] {
        cut_to_durable_length(&layout, 1, known);
        let start = small(durable) + 40;
        for (from, to) in [(start, whole.len()), (start, start + 512), (small(durable), start)] {
            let mut torn = whole.clone();
            torn[from..to].fill(0);
            fs::write(layout.segment(1), &torn).expect("writable");
            let (records, replay) = read(&layout).expect("it was never durable");
            assert_eq!((records.len(), replay.expect("one").head.bytes), (2, durable));
        }
        // In an earlier batch the same gap is damage.
        let mut damaged = whole.clone();
        damaged[small(durable) - 60..small(durable) - 20].fill(0);
        fs::write(layout.segment(1), &damaged).expect("writable");
        assert!(matches!(read(&layout), Err(JournalError::Damaged { .. })));
    }
}

#[tokio::test]
async fn journal_without_batch_marks_with_flipped_bit_is_refused() {
    let (_directory, layout) = layout();
    let mut bytes = SEGMENT_HEADER.to_vec();
    let mut ends = Vec::new();
    let at = Timestamp::UNIX_EPOCH;
    frame::encode(&mut bytes, at, false, &JournalRecord::Opened(Box::new(opened(1, None))))
        .expect("a short record");
    for n in 0..4 {
        ends.push(bytes.len());
        frame::encode(&mut bytes, at, false, &record(n)).expect("a short record");
    }
    fs::create_dir_all(layout.journal()).expect("creatable");
    fs::write(layout.segment(1), &bytes).expect("writable");
    assert_eq!(read(&layout).expect("a former version's journal").0.len(), 5);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(layout.segment(1), &damaged).expect("writable");
        assert!(matches!(read(&layout), Err(JournalError::Damaged { .. })), "changed at {at}");
    }
    for cut in ends[3]..bytes.len() {
        fs::write(layout.segment(1), &bytes[..cut]).expect("writable");
        assert_eq!(read(&layout).expect("torn").0.len(), 4);
    }
}

#[tokio::test]
async fn journal_newest_segment_with_damaged_opening_is_refused() {
    let (_directory, layout) = layout();
    write(&layout, 1, None, 2).await;
    let head = read(&layout).expect("whole").1.expect("a journal").head;
    write(&layout, 2, Some(head), 3).await;
    let whole = fs::read(layout.segment(2)).expect("readable");
    for at in [3, SEGMENT_HEADER.len() + 2, SEGMENT_HEADER.len() + 6, SEGMENT_HEADER.len() + 30] {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        fs::write(layout.segment(2), &damaged).expect("writable");
        assert!(matches!(read(&layout), Err(JournalError::Damaged { .. })), "changed at {at}");
        cut_to_durable_length(&layout, 2, None);
        assert!(matches!(read(&layout), Err(JournalError::Damaged { .. })), "changed at {at}");
        fs::write(layout.durable_length(2), "").expect("writable");
    }
}

#[tokio::test]
async fn journal_cut_before_durable_length_is_refused_with_offset() {
    let (_directory, layout) = layout();
    let ends = write(&layout, 1, None, 4).await;
    cut_to_durable_length(&layout, 1, None);
    let whole = fs::read(layout.segment(1)).expect("readable");
    fs::write(layout.segment(1), &whole[..small(ends[3]) + 5]).expect("writable");
    let error = replay(&layout, &[(1, ends[4])], |_, _| {}).expect_err("records are missing");
    match error {
        JournalError::Damaged { offset, durable_bytes, records_behind, .. } => {
            assert_eq!((offset, durable_bytes, records_behind), (ends[3], ends[4], 0));
        }
        other => panic!("{other}"),
    }
    assert!(replay(&layout, &[(1, ends[3])], |_, _| {}).is_ok());
}

#[tokio::test]
async fn journal_record_of_previous_owner_after_takeover_is_ignored() {
    let (_directory, layout) = layout();
    let at = Timestamp::UNIX_EPOCH;
    let mut woken = JournalWriter::create(&layout, at, opened(1, None)).expect("a new segment");
    woken.record(at, &record(1));
    woken.submit();
    woken.durable().await.expect("written");
    let head = read(&layout).expect("whole").1.expect("a journal").head;
    write(&layout, 2, Some(head), 1).await;

    woken.record(at, &JournalRecord::Stopping { level: StopLevel::Kill });
    woken.submit();
    woken.durable().await.expect("written, to no effect");
    let (records, _) = read(&layout).expect("whole");
    assert_eq!(records.len(), 2 + 2);
    assert!(!records.iter().any(|r| matches!(r, JournalRecord::Stopping { .. })));
}

#[tokio::test]
async fn journal_segment_without_first_record_is_skipped() {
    let (_directory, layout) = layout();
    write(&layout, 1, None, 2).await;
    let head = read(&layout).expect("whole").1.expect("a journal").head;
    fs::write(layout.segment(2), b"rollout-jou").expect("writable");
    assert_eq!(read(&layout).expect("whole").0.len(), 3);
    assert_eq!(SegmentIndex::read(&layout).expect("whole").next_epoch(), 3);
    write(&layout, 3, Some(head), 1).await;
    assert_eq!(read(&layout).expect("whole").0.len(), 5);
}

#[tokio::test]
async fn journal_earlier_segment_cut_or_missing_is_refused() {
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
async fn journal_segment_of_previous_owner_after_takeover_is_ignored() {
    let (_directory, layout) = layout();
    write(&layout, 1, None, 2).await;
    let former = read(&layout).expect("whole").1.expect("a journal").head;
    // The successor skipped a number. The woken owner's disk fails, and it continues in the next
    // segment.
    write(&layout, 3, Some(former), 1).await;
    let woken = write(&layout, 2, Some(former), 5).await;
    let (records, replay) = read(&layout).expect("whole");
    assert_eq!((records.len(), replay.expect("a journal").head.epoch), (3 + 2, 3));
    let survey = SegmentIndex::read(&layout).expect("whole");
    assert_eq!(survey.next_epoch(), 4);
    let its = JournalPrefix {
        epoch: 2,
        bytes: woken[5],
        ..survey.durable_prefix().expect("whole").expect("one")
    };
    assert_eq!(
        survey.find_missing_records(its).expect("readable"),
        Some(MissingRecords { wanted: its, found: None })
    );
}

#[tokio::test]
async fn journal_copy_without_records_of_head_lacks_it() {
    let (_directory, original) = layout();
    let (_directory, copy) = layout();
    let at = Timestamp::UNIX_EPOCH;
    let mut writer = JournalWriter::create(&original, at, opened(1, None)).expect("a new segment");
    let mut heads = vec![writer.durable_prefix()];
    for n in 0..4 {
        writer.record(at, &record(n));
        writer.record(at, &record(n + 1));
        writer.submit();
        heads.push(writer.durable().await.expect("written").prefix);
    }
    let lacks = |layout: &RunLayout, head| {
        SegmentIndex::read(layout)
            .and_then(|survey| survey.find_missing_records(head))
            .expect("readable")
    };
    fs::create_dir_all(copy.journal()).expect("creatable");
    let whole = fs::read(original.segment(1)).expect("readable");
    for (n, own) in heads.iter().enumerate() {
        assert_eq!(own.records, 1 + 2 * n as u64);
        let cut = usize::try_from(own.bytes).expect("small");
        fs::write(copy.segment(1), &whole[..cut]).expect("writable");
        assert_eq!(
            SegmentIndex::read(&copy).expect("whole").durable_prefix().expect("whole"),
            Some(*own)
        );
        for wanted in &heads {
            let lack = lacks(&copy, *wanted);
            let expected = MissingRecords { wanted: *wanted, found: Some(*own) };
            assert_eq!(lack, (wanted.records > own.records).then_some(expected));
            assert_eq!(lacks(&original, *wanted), None);
        }
    }
    let text = serde_json::to_string(&heads[4]).expect("serializable");
    assert_eq!(serde_json::from_str::<JournalPrefix>(&text).expect("readable"), heads[4]);
    let other = JournalPrefix { chain: heads[3].chain, ..heads[4] };
    assert!(lacks(&original, other).is_some_and(|lack| lack.to_string().contains("different")));
    let missing = lacks(&copy, JournalPrefix { epoch: 2, ..heads[1] }).expect("there is no second");
    let what = format!("session 2 with 3 records ({} bytes) is missing", heads[1].bytes);
    assert_eq!(missing.to_string(), what);
}

#[tokio::test]
async fn journal_head_cut_off_by_takeover_is_lacking() {
    let (_directory, layout) = layout();
    let at = Timestamp::UNIX_EPOCH;
    let mut woken = JournalWriter::create(&layout, at, opened(1, None)).expect("a new segment");
    let former = read(&layout).expect("whole").1.expect("a journal").head;
    let before = woken.durable_prefix();
    write(&layout, 2, Some(former), 1).await;
    woken.record(at, &record(1));
    woken.submit();
    let after = woken.durable().await.expect("written, to no effect").prefix;
    let survey = SegmentIndex::read(&layout).expect("whole");
    assert_eq!(survey.find_missing_records(before).expect("readable"), None);
    let lack = MissingRecords { wanted: after, found: Some(before) };
    assert_eq!(survey.find_missing_records(after).expect("readable"), Some(lack));
    // Its manifest may have replaced that of its successor.
    let manifest = [(1, after.bytes)];
    assert_eq!(replay(&layout, &manifest, |_, _| {}).expect("whole").expect("one").records, 3);
}

#[tokio::test]
async fn journal_epoch_opened_twice_is_refused() {
    let (_directory, layout) = layout();
    write(&layout, 1, None, 0).await;
    let again = JournalWriter::create(&layout, Timestamp::UNIX_EPOCH, opened(1, None));
    assert!(matches!(again, Err(JournalError::Io { action: "create", .. })));
}

#[tokio::test]
async fn journal_with_other_header_or_newer_format_is_refused() {
    let (_directory, layout) = layout();
    fs::create_dir_all(layout.journal()).expect("creatable");
    fs::write(layout.segment(1), b"something else entirely\n").expect("writable");
    assert!(matches!(read(&layout), Err(JournalError::Header { .. })));
    fs::remove_file(layout.segment(1)).expect("removable");
    let newer = SessionStart { format: JOURNAL_FORMAT + 1, ..opened(1, None) };
    drop(JournalWriter::create(&layout, Timestamp::UNIX_EPOCH, newer).expect("a new segment"));
    assert!(matches!(read(&layout), Err(JournalError::Header { .. })));
}

#[tokio::test]
async fn journal_salvage_repairs_any_single_flipped_bit() {
    let (_directory, layout) = layout();
    write(&layout, 1, None, 3).await;
    let head = read(&layout).expect("whole").1.expect("a journal").head;
    write(&layout, 2, Some(head), 3).await;
    let expected = read(&layout).expect("whole").0;
    for epoch in [1, 2] {
        let whole = fs::read(layout.segment(epoch)).expect("readable");
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(layout.segment(epoch), &damaged).expect("writable");
            let salvage = JournalSalvage::read(&layout, &[]).expect("readable");
            assert!(salvage.is_repairable(), "changed at {at} of {epoch}");
            assert!(salvage.damages().next().is_some(), "changed at {at} of {epoch}");
            let mended = salvage.repaired_files().expect("readable");
            assert_eq!(mended, vec![(layout.segment(epoch), whole.clone())], "changed at {at}");
            let mut records = Vec::new();
            salvage.records(|_, record| records.push(record)).expect("readable");
            assert_eq!(records, expected, "changed at {at} of {epoch}");
        }
        fs::write(layout.segment(epoch), &whole).expect("writable");
    }
    let salvage = JournalSalvage::read(&layout, &[]).expect("readable");
    assert!(salvage.is_repairable() && salvage.damages().next().is_none());
}

#[tokio::test]
async fn journal_salvage_keeps_only_records_outside_damage() {
    let (_directory, layout) = layout();
    let ends = write(&layout, 1, None, 4).await;
    let head = read(&layout).expect("whole").1.expect("a journal").head;
    write(&layout, 2, Some(head), 2).await;
    let expected = read(&layout).expect("whole").0;
    let whole = fs::read(layout.segment(1)).expect("readable");
    let starts: Vec<u64> =
        [SEGMENT_HEADER.len() as u64].into_iter().chain(ends.iter().copied()).collect();
    for at in (SEGMENT_HEADER.len()..whole.len() - 24).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at..at + 24].iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::write(layout.segment(1), &damaged).expect("writable");
        let salvage = JournalSalvage::read(&layout, &[]).expect("readable");
        assert!(!salvage.is_repairable(), "changed at {at}");
        let mut records = Vec::new();
        salvage.records(|_, record| records.push(record)).expect("readable");
        let hit = |n: usize| starts[n] < at as u64 + 24 && (at as u64) < ends[n];
        let kept = expected.iter().enumerate();
        let kept = kept.filter(|(n, _)| *n >= ends.len() || !hit(*n)).map(|(_, r)| r.clone());
        assert_eq!(records, kept.collect::<Vec<_>>(), "changed at {at}");
    }
    // The end of a segment whose length is known from other sources.
    fs::write(layout.segment(1), &whole[..small(ends[2])]).expect("writable");
    let salvage = JournalSalvage::read(&layout, &[]).expect("readable");
    assert_eq!(
        salvage.damages().map(|d| (d.offset, d.end)).collect::<Vec<_>>(),
        [(ends[2], ends[4])]
    );
    fs::remove_file(layout.segment(1)).expect("removable");
    let salvage = JournalSalvage::read(&layout, &[(3, 100)]).expect("readable");
    assert_eq!(salvage.missing(), [layout.segment(3), layout.segment(1)]);
}

#[tokio::test]
async fn journal_rebuilt_after_damage_satisfies_head_in_kv_store() {
    let (_directory, layout) = layout();
    write(&layout, 1, None, 3).await;
    let wanted =
        SegmentIndex::read(&layout).expect("whole").durable_prefix().expect("whole").expect("one");
    let mut damaged = fs::read(layout.segment(1)).expect("readable");
    let middle = damaged.len() / 2;
    damaged[middle..middle + 30].fill(b'x');
    fs::write(layout.segment(1), &damaged).expect("writable");
    assert!(matches!(
        SegmentIndex::read(&layout).and_then(|survey| survey.find_missing_records(wanted)),
        Err(JournalError::Damaged { .. })
    ));
    let salvage = JournalSalvage::read(&layout, &[]).expect("readable");
    let opened = SessionStart { replaces: salvage.replaces(), ..opened(2, None) };
    let mut rebuild =
        SegmentRebuilder::create(&layout, Timestamp::UNIX_EPOCH, opened).expect("creatable");
    let mut count = 1;
    salvage
        .records(|at, record| {
            rebuild.record(at, &record).expect("writable");
            count += 1;
        })
        .expect("readable");
    let head = rebuild.finish().expect("written");
    assert_eq!((head.epoch, head.records), (2, count));
    let survey = SegmentIndex::read(&layout).expect("whole");
    assert_eq!(survey.durable_prefix().expect("whole"), Some(head));
    assert_eq!(survey.find_missing_records(wanted).expect("readable"), None);
    let more = JournalPrefix { bytes: wanted.bytes + 1, ..wanted };
    assert!(
        survey.find_missing_records(more).expect("readable").is_some(),
        "a stale copy that was repaired"
    );
    assert_eq!(read(&layout).expect("whole").0.len() as u64, count);
}

#[tokio::test]
async fn reopenings_are_counted_from_openings_and_records() {
    let (_directory, layout) = layout();
    let item = |n: u8| ItemId::from_bytes([n; 16]);
    let reopened = |n: u8| JournalRecord::Reopened { epoch: 1, items: vec![item(n), item(9)] };
    let at = Timestamp::UNIX_EPOCH;
    let write = async |opened: SessionStart, records: Vec<JournalRecord>| {
        let mut writer = JournalWriter::create(&layout, at, opened).expect("a segment");
        records.iter().for_each(|record| writer.record(at, record));
        assert!(writer.submit());
        writer.durable().await.expect("written");
        drop(writer);
        read(&layout).expect("whole").1.expect("a journal").head
    };
    let head = write(opened(1, None), vec![record(1), reopened(1), record(2), reopened(2)]).await;
    let second = SessionStart { reopened: vec![item(1)], ..opened(2, Some(head)) };
    let head = write(second, vec![record(3)]).await;
    // A repair lists the reopenings of all of its records.
    let within = vec![item(3), item(9)];
    let rebuilt = SessionStart { reopened_within: within, ..opened(3, Some(head)) };
    write(rebuilt, vec![reopened(3)]).await;
    let found = SegmentIndex::read(&layout).expect("whole").reopenings().expect("whole");
    let times = [(item(1), 2), (item(2), 1), (item(3), 1), (item(9), 3)];
    assert_eq!((found.times, found.epochs), (times.into(), [1, 2, 3].into()));
}

#[tokio::test]
async fn records_that_a_former_owner_appends_after_a_look_do_not_count() {
    let (_directory, layout) = layout();
    let at = Timestamp::UNIX_EPOCH;
    let mut writer = JournalWriter::create(&layout, at, opened(1, None)).expect("a segment");
    let mut append = async |n: u8| {
        writer.record(at, &record(n));
        assert!(writer.submit());
        writer.durable().await.expect("written");
    };
    append(1).await;
    let index = SegmentIndex::read(&layout).expect("whole");
    let until = index.reopenings().expect("whole").newest_bytes.expect("read");
    append(2).await;
    let mut records = Vec::new();
    let replayed = index.replay(&[], ReplayExtent::Until(until), |_, record| records.push(record));
    let head = replayed.expect("whole").expect("a journal").head;
    assert_eq!((records.len(), head.bytes), (2, until), "the opening and one record");
    // The next owner goes on from there.
    drop(JournalWriter::create(&layout, at, opened(2, Some(head))).expect("a segment"));
    assert_eq!(read(&layout).expect("whole").0.len(), 3);
}
