//! Tests of records in their short form, which journals of farms have.

use std::sync::Arc;

use rollout_protocol::farm::{
    CancelReason, Completion, FarmRecord, PolicyVersions, SampleEnd, SampleExecution, SampleKey,
    SampleResult,
};
use rollout_protocol::record::LostReason;
use rollout_protocol::spec::budget::ModelUse;

use super::super::frame::{self, DecodedRecord, FRAME_HEADER_BYTES};
use super::super::short_form::RecordForm;
use super::*;

const AT: Timestamp = Timestamp::UNIX_EPOCH;

/// A time with nanoseconds, as clocks have them.
fn time(sec: i128) -> Timestamp {
    Timestamp::from_nanosecond(1_790_000_000_123_456_789 + sec * 1_000_000_007).expect("in range")
}

fn times() -> Timestamps {
    Timestamps {
        environment_setup_started_at: Some(time(0)),
        environment_setup_ended_at: Some(time(1)),
        agent_setup_started_at: Some(time(1)),
        agent_setup_ended_at: Some(time(2)),
        agent_execution_started_at: Some(time(2)),
        agent_execution_ended_at: Some(time(9)),
        verifier_started_at: Some(time(9)),
        // A wall clock was set back.
        verifier_ended_at: Some(time(-3600)),
        ended_at: time(12),
        ..Timestamps::instant(time(0))
    }
}

fn body() -> ReportBody {
    let durations = Durations {
        total_sec: 12.345_678_901,
        environment_setup_sec: Some(1.234_567_891),
        agent_setup_sec: None,
        agent_execution_sec: Some(8.123_456_789),
        verifier_sec: Some(1.234_567_891),
    };
    let record = Some(BlobRef::for_bytes(b"record", MediaType::Json));
    let verdict = Verdict::completed(0.5);
    ReportBody::Result(Box::new(ResultBody { verdict, durations, timestamps: times(), record }))
}

fn reported(body: ReportBody) -> JournalRecord {
    let report = Report {
        run: RunId::from_bytes([1; 16]),
        item: ItemId::from_bytes([2; 16]),
        try_id: TryId::first(1),
        exec: ExecId::from_bytes([3; 16]),
        spec: Digest::sha256(b"spec"),
        worker: "host-1234-0123456789ab".parse().expect("a token"),
        body,
    };
    let position = ReportPosition::for_report(Incarnation(7), 12_345, &report);
    JournalRecord::Reported { position, report: Box::new(report) }
}

fn lost() -> ReportBody {
    let (reason, phase, record) = (LostReason::ProcessDied, None, None);
    ReportBody::Lost { reason, phase, record, cost: 0.5, model_use: ModelUse::NONE }
}

fn completion(record: Option<BlobRef>) -> Completion {
    let group = "group-000123".parse().expect("an id");
    let execution = SampleExecution {
        try_id: TryId::first(1),
        exec: ExecId::from_bytes([3; 16]),
        worker: "host-1234-0123456789ab".parse().expect("a token"),
        record,
        total_sec: Some(12.345_678_901),
    };
    Completion {
        cursor: 12_345,
        sample: SampleKey { farm: "farm".to_owned(), group, index: 3, generation: 1 },
        consumer: "train".to_owned(),
        result: SampleResult {
            end: SampleEnd::Completed,
            reward: Some(0.5),
            execution: Some(execution),
            ..SampleResult::cancelled(CancelReason::Requested)
        },
        usable: true,
        policy: PolicyVersions { requested: 3, admitted: 3, ended: 4 },
        at: time(13),
        group_end: None,
        metadata: Arc::default(),
    }
}

fn completed() -> JournalRecord {
    let with_record = completion(Some(BlobRef::for_bytes(b"record", MediaType::Json)));
    let mut without_execution = completion(None);
    without_execution.result = SampleResult::cancelled(CancelReason::Stale);
    let completions = vec![with_record, completion(None), without_execution];
    JournalRecord::Farm(Box::new(FarmRecord::Completed { completions }))
}

fn encoded(form: RecordForm, record: &JournalRecord) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode_as(form, &mut bytes, AT, true, record).expect("a short record");
    bytes
}

fn decoded(frame: &[u8]) -> DecodedRecord {
    serde_json::from_slice(&frame[FRAME_HEADER_BYTES..]).expect("a record")
}

/// Records that only the full form can say.
fn irregular() -> Vec<JournalRecord> {
    let mut of_another_execution = reported(body());
    if let JournalRecord::Reported { position, .. } = &mut of_another_execution {
        position.anchor = ExecId::from_bytes([9; 16]);
    }
    let far = Timestamps { ended_at: Timestamp::MAX, ..Timestamps::instant(Timestamp::MIN) };
    let mut with_far_times = body();
    if let ReportBody::Result(body) = &mut with_far_times {
        body.timestamps = far;
    }
    vec![of_another_execution, reported(with_far_times), reported(lost()), record(0)]
}

#[test]
fn record_reads_back_the_same_in_both_forms() {
    let regular = [reported(body()), reported(ReportBody::Started), completed()];
    for record in regular.iter().chain(&irregular()) {
        for form in [RecordForm::Full, RecordForm::Short] {
            let frame = encoded(form, record);
            assert_eq!(decoded(&frame).record, *record, "{form:?}");
            assert!(decoded(&frame).synced && frame::is_synced(&frame), "{form:?}");
        }
    }
    for record in &irregular() {
        assert_eq!(encoded(RecordForm::Short, record), encoded(RecordForm::Full, record));
    }
}

#[test]
fn short_record_without_one_meaning_is_refused() {
    let value = |record: &JournalRecord| -> serde_json::Value {
        let frame = encoded(RecordForm::Short, record);
        serde_json::from_slice(&frame[FRAME_HEADER_BYTES..]).expect("a document")
    };
    let whole = value(&completed());
    let [mut fewer, mut moved, mut several, mut none] = [(); 4].map(|()| whole.clone());
    let records = whole["completed"]["k"].as_array().expect("a list");
    fewer["completed"]["k"] = records[1..].to_vec().into();
    moved["completed"]["k"] = records.iter().rev().cloned().collect();
    several["report"] = value(&reported(ReportBody::Started))["report"].clone();
    none.as_object_mut().expect("an object").remove("completed");
    assert!(serde_json::from_value::<DecodedRecord>(whole).is_ok());
    for (changed, reason) in [
        (fewer, "differ in number"),
        (moved, "the record of no execution"),
        (several, "or several"),
        (none, "no record"),
    ] {
        let refused = serde_json::from_value::<DecodedRecord>(changed).expect_err(reason);
        assert!(refused.to_string().contains(reason), "{refused}");
    }
}

#[test]
fn short_records_of_a_sample_take_two_thirds() {
    let completions = vec![completion(Some(BlobRef::for_bytes(b"record", MediaType::Json)))];
    let completed = JournalRecord::Farm(Box::new(FarmRecord::Completed { completions }));
    let sizes = |record: &JournalRecord| {
        [RecordForm::Full, RecordForm::Short].map(|form| encoded(form, record).len())
    };
    let [full, short] = sizes(&reported(body()));
    assert!(full > 1400 && short < 800, "a result: {short} for {full} bytes");
    let [full_start, short_start] = sizes(&reported(ReportBody::Started));
    assert!(short_start < 400, "a start: {short_start} for {full_start} bytes");
    let [full_end, short_end] = sizes(&completed);
    assert!(short_end < 600, "a completion: {short_end} for {full_end} bytes");
    let (full, short) = (full + full_end, short + short_end);
    assert!(short * 3 < full * 2, "{short} for {full} bytes");
}

#[test]
fn address_of_a_blob_is_in_the_text_of_short_records() {
    let address = format!("\"uri\":\"{}\"", BlobRef::for_bytes(b"record", MediaType::Json).uri());
    for record in [reported(body()), completed()] {
        for form in [RecordForm::Full, RecordForm::Short] {
            let frame = encoded(form, &record);
            assert!(String::from_utf8_lossy(&frame).contains(&address), "{form:?}");
        }
    }
}

#[tokio::test]
async fn journal_of_short_records_is_read_back_and_compacted() {
    let (_directory, layout) = layout();
    let records = [reported(body()), completed(), reported(ReportBody::Started)];
    let start = SessionStart { format: JOURNAL_FORMAT, ..opened(1, None) };
    let mut writer = JournalWriter::create(&layout, AT, start).expect("a new segment");
    for record in &records {
        writer.record(AT, record);
        assert!(writer.submit());
        writer.durable().await.expect("written");
    }
    assert_eq!(read(&layout).expect("whole").0[1..], records);
    let segment = fs::read(layout.segment(1)).expect("readable");
    let mut damaged = segment.clone();
    let last = damaged.len() - 20;
    damaged[last] ^= 1;
    fs::write(layout.segment(1), &damaged).expect("writable");
    let mended = JournalSalvage::read(&layout, &[]).expect("readable").repaired_files();
    assert_eq!(mended.expect("readable"), [(layout.segment(1), segment.clone())]);
    fs::write(layout.segment(1), &segment).expect("writable");

    let items = [ItemId::from_bytes([2; 16])].into();
    let snapshot = vec![FarmRecord::Closed];
    assert!(writer.submit_with(JournalCompaction { snapshot, items }));
    assert_eq!(writer.durable().await.expect("compacted").prefix.epoch, 2);
    let (kept, replay) = read(&layout).expect("whole");
    assert_eq!(replay.expect("a journal").last.format, JOURNAL_FORMAT);
    let [first, _, last] = records;
    assert!(kept.contains(&first) && kept.contains(&last));
}

#[tokio::test]
async fn journal_continued_in_short_form_keeps_the_records_of_the_full_one() {
    let (_directory, layout) = layout();
    write(&layout, 1, None, 2).await;
    let first = fs::read(layout.segment(1)).expect("readable");
    assert!(String::from_utf8_lossy(&first).contains(r#""record":{"reported":"#));
    let head = read(&layout).expect("whole").1.expect("a journal").head;
    let start = SessionStart { format: JOURNAL_FORMAT, ..opened(2, Some(head)) };
    let mut writer = JournalWriter::create(&layout, AT, start).expect("a new segment");
    writer.record(AT, &record(1));
    assert!(writer.submit());
    writer.durable().await.expect("written");
    let records = read(&layout).expect("whole").0;
    assert_eq!((&records[2], &records[4]), (&record(1), &record(1)));
}
