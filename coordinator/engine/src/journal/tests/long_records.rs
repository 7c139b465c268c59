//! Tests of records that no reader would take.

use super::super::frame::MAX_PAYLOAD_BYTES;
use super::*;

#[tokio::test]
async fn journal_writes_nothing_from_a_record_that_is_too_long() {
    let (_directory, layout) = layout();
    write(&layout, 1, None, 0).await;
    let at = Timestamp::UNIX_EPOCH;
    let head = read(&layout).expect("whole").1.expect("a journal").head;
    let mut writer = JournalWriter::create(&layout, at, opened(2, Some(head))).expect("a segment");
    writer.record(at, &record(1));
    assert!(writer.submit());
    writer.durable().await.expect("written");
    let offered = OfferedTry {
        item: ItemId::from_bytes([1; 16]),
        try_id: TryId::first(1),
        spec: Digest::sha256(b"spec"),
    };
    writer.record(at, &JournalRecord::Offered { tries: vec![offered; MAX_PAYLOAD_BYTES / 64] });
    assert!(writer.last() > writer.committed(), "its effects wait");
    writer.record(at, &record(3));
    assert!(!writer.submit(), "nothing is handed to the disk");
    assert!(writer.last() > writer.committed() && !writer.is_idle());
    for _ in 0..2 {
        let error = writer.durable().await.expect_err("too long");
        assert!(matches!(error, JournalError::TooLong(_)), "{error}");
    }
    drop(writer);
    assert_eq!(read(&layout).expect("whole").0.last(), Some(&record(1)));
}
