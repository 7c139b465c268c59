//! Tests of compactions that a successor or an older entry in the KV store stands against.

use std::collections::HashSet;

use super::*;

fn nothing_kept() -> JournalCompaction {
    JournalCompaction { snapshot: Vec::new(), items: HashSet::new() }
}

#[tokio::test]
async fn compaction_of_former_owner_leaves_successor_as_it_is() {
    let (_directory, layout) = layout();
    let at = Timestamp::UNIX_EPOCH;
    let mut former = JournalWriter::create(&layout, at, opened(1, None)).expect("a segment");
    former.record(at, &record(1));
    assert!(former.submit());
    let durable = former.durable().await.expect("written").prefix;
    let head = read(&layout).expect("whole").1.expect("a journal").head;
    write(&layout, 2, Some(head), 2).await;
    let files = [layout.segment(1), layout.segment(2), layout.durable_length(2)];
    let before: Vec<_> = files.iter().map(|path| fs::read(path).expect("readable")).collect();

    assert!(former.submit_with(nothing_kept()));
    assert_eq!(former.durable().await.expect("it runs on").prefix, durable);
    let after: Vec<_> = files.iter().map(|path| fs::read(path).expect("readable")).collect();
    assert!(before == after, "nothing is replaced or removed");
    // Nor does a segment that appears after the look at the journal become another one.
    let rebuilder = SegmentRebuilder::create(&layout, at, opened(2, None)).expect("creatable");
    assert!(matches!(rebuilder.finish(), Err(JournalError::Io { .. })));
    let after: Vec<_> = files.iter().map(|path| fs::read(path).expect("readable")).collect();
    assert!(before == after, "nothing is replaced");
}

#[tokio::test]
async fn compacted_journal_satisfies_head_from_before_earlier_compactions() {
    let (_directory, layout) = layout();
    let at = Timestamp::UNIX_EPOCH;
    let mut writer = JournalWriter::create(&layout, at, opened(1, None)).expect("a segment");
    writer.record(at, &record(1));
    assert!(writer.submit());
    let mut wanted = vec![writer.durable().await.expect("written").prefix];
    for n in 2..=4 {
        assert!(writer.submit_with(nothing_kept()));
        assert_eq!(writer.durable().await.expect("compacted").prefix.epoch, n);
        writer.record(at, &record(2));
        assert!(writer.submit());
        wanted.push(writer.durable().await.expect("written").prefix);
    }
    assert_eq!(segment_epochs(&layout).expect("a journal"), [4]);
    let index = SegmentIndex::read(&layout).expect("whole");
    for head in &wanted {
        assert_eq!(index.find_missing_records(*head).expect("readable"), None);
    }
    for head in wanted.into_iter().take(3) {
        let more = JournalPrefix { bytes: head.bytes + 1, ..head };
        assert!(index.find_missing_records(more).expect("readable").is_some(), "{more:?}");
    }
}
