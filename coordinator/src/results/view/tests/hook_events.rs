//! Announced hook events in the state of a run.

use rollout_protocol::blob::MediaType;
use rollout_protocol::wire::event_chunk::EventChunk;

use super::*;

fn events(number: u32, log: u32, violations: u64) -> ReportBody {
    let blob = BlobRef::for_bytes(b"{}\n", MediaType::Text);
    let offset = u64::from(number) * blob.size_bytes;
    let (step, last_seq) = (0, Some(1));
    let chunk = EventChunk { number, log, step, offset, blob, last_seq, total: 1, violations };
    ReportBody::Events(Box::new(chunk))
}

#[tokio::test]
async fn events_of_dead_execution_stay_beside_those_of_its_successor() {
    let mut journal = JournalFixture::new(&["a"], 1);
    let item = journal.item("a");
    journal.report(item, ReportBody::Started);
    journal.report_again(item, events(1, 1, 0));
    journal.report_again(item, events(2, 1, 3));
    let lost = ReportBody::Lost {
        reason: LostReason::WorkerDied,
        phase: None,
        record: None,
        cost: 0.0,
        model_use: Default::default(),
    };
    journal.report_again(item, lost);
    journal.now_ms += 10_000_000;
    journal.handle(CoreInput::Tick);
    journal.report(item, events(1, 1, 0));
    journal.report_again(item, ReportBody::Started);
    let view = journal.view(true, Some(item));
    let logs = view.hook_event_logs();
    let [dead, open] = &logs[..] else { panic!("{logs:?}") };
    assert_eq!((dead.exec, dead.has_ended), (ExecId::from_bytes([1; 16]), true));
    assert_eq!((open.exec, open.has_ended), (ExecId::from_bytes([2; 16]), false));
    assert_eq!((dead.announced_violations(), open.announced_violations()), (3, 0));
    assert!(dead.has_source() && open.has_source() && !open.is_settling);

    let store = rollout_store::MemoryStore::default();
    let logs = resolve_hook_logs(&store, dead).await.expect("no record is needed");
    let [HookLog { step: 0, content: HookLogContent::Chunks(1, chunks), .. }] = &logs[..] else {
        panic!("{logs:?}")
    };
    assert_eq!(chunks.iter().map(|chunk| chunk.offset).collect::<Vec<_>>(), [3, 6]);
}

#[tokio::test]
async fn later_attempt_of_execution_replaces_its_log() {
    let mut journal = JournalFixture::new(&["a"], 1);
    let item = journal.item("a");
    journal.report(item, ReportBody::Started);
    for (number, log) in [(1, 1), (2, 1), (3, 2)] {
        journal.report_again(item, events(number, log, 0));
    }
    let view = journal.view(true, Some(item));
    let logs = view.hook_event_logs();
    let store = rollout_store::MemoryStore::default();
    let logs = resolve_hook_logs(&store, &logs[0]).await.expect("no record is needed");
    let [HookLog { content: HookLogContent::Chunks(2, chunks), .. }] = &logs[..] else {
        panic!("{logs:?}")
    };
    assert_eq!(chunks.len(), 1);
}

#[test]
fn announcements_have_no_number_among_the_events_of_the_run() {
    let mut journal = JournalFixture::new(&["a"], 1);
    let item = journal.item("a");
    journal.report(item, ReportBody::Started);
    journal.report_again(item, passed());
    let (_, without) = journal.fold(journal.records.len(), None);
    let at = journal.records.len() - 1;
    let mut announced = JournalFixture::new(&["a"], 1);
    announced.report(item, ReportBody::Started);
    announced.report_again(item, events(1, 1, 0));
    announced.report_again(item, passed());
    assert!(matches!(announced.records[at].1, JournalRecord::EventChunk { .. }));
    let (_, with) = announced.fold(announced.records.len(), None);
    let numbers =
        |events: &[NumberedEvent]| events.iter().map(|event| event.seq).collect::<Vec<_>>();
    assert_eq!((numbers(&with), names(&with)), (numbers(&without), names(&without)));
}
