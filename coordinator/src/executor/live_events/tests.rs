use std::ops::Range;

use bytes::Bytes;
use proptest::prelude::*;
use rollout_engine::core::HexDigest;
use rollout_protocol::blob::MediaType;
use rollout_protocol::id::TryId;
use rollout_store::MemoryStore;
use serde_json::json;

use super::*;

fn line(seq: u64) -> String {
    let ids = json!({
        "run_id": "r", "trial_id": "t", "variant_id": "v", "task_id": "k", "repl_idx": 0,
    });
    let event = json!({
        "event_type": "error", "ts": "2026-01-02T03:04:05Z", "seq": seq, "ids": ids, "message": "m",
    });
    format!("{event}\n")
}

/// A chunk of this text. `total` counts the events whose lines end in it or before.
async fn chunk(
    store: &MemoryStore,
    (log, step): (u32, u32),
    text: &str,
    range: Range<usize>,
) -> AnnouncedChunk {
    let bytes = Bytes::copy_from_slice(&text.as_bytes()[range.clone()]);
    let size_bytes = bytes.len() as u64;
    let blob = store.put_bytes(bytes, MediaType::Text).await.expect("stored");
    AnnouncedChunk {
        item: ItemId::from_bytes([1; 16]),
        try_id: TryId::first(1),
        exec: ExecId::from_bytes([2; 16]),
        worker: "w".parse().expect("a token"),
        log,
        step,
        offset: range.start as u64,
        size_bytes,
        chunk_hex: HexDigest(blob.digest),
        last_seq: None,
        total: text[..range.end].matches('\n').count() as u64,
        violations: 0,
    }
}

fn live(chunks: &[AnnouncedChunk]) -> LiveExecution {
    let mut live = LiveExecution::new(ExecId::from_bytes([2; 16]));
    live.announced = announced_logs(chunks);
    live
}

/// Step, number and `seq` of all events that can be read now.
async fn read(live: &mut LiveExecution, store: &MemoryStore, from: u64) -> Vec<(u32, u64, u64)> {
    let mut found = Vec::new();
    while let Some(next) = live.next_chunk(from) {
        let step = next.log.step;
        let events = live.read(store, &next).await.expect("stored");
        found.extend(events.into_iter().map(|(number, event)| (step, number, event.seq)));
    }
    found
}

#[tokio::test]
async fn announced_events_of_steps_are_numbered_without_gaps() {
    let store = MemoryStore::default();
    let text: String = (10..13).map(line).collect();
    let [first, all] = [line(10).len(), text.len()];
    let mut chunks = vec![chunk(&store, (1, 0), &text, 0..first).await];
    let mut execution = live(&chunks);
    assert_eq!(read(&mut execution, &store, 0).await, [(0, 0, 10)]);
    assert!(execution.next_chunk(0).is_none(), "everything was read");
    chunks.push(chunk(&store, (1, 0), &text, first..all).await);
    chunks.push(chunk(&store, (2, 1), &text, 0..first).await);
    execution.announced = announced_logs(&chunks);
    assert_eq!(read(&mut execution, &store, 0).await, [(0, 1, 11), (0, 2, 12), (1, 3, 10)]);
    assert_eq!(read(&mut live(&chunks), &store, 3).await, [(1, 3, 10)], "one step is not read");
    assert!(live(&chunks).next_chunk(u64::MAX).is_none(), "no event is wanted");
}

#[tokio::test]
async fn announced_events_end_at_a_gap_or_another_log() {
    let store = MemoryStore::default();
    let text: String = (0..4).map(line).collect();
    let length = line(0).len();
    let first = chunk(&store, (1, 0), &text, 0..length).await;
    let third = chunk(&store, (1, 0), &text, 2 * length..3 * length).await;
    let again = chunk(&store, (2, 0), &text, 0..length).await;
    for next in [third, again] {
        let mut execution = live(std::slice::from_ref(&first));
        assert_eq!(read(&mut execution, &store, 0).await, [(0, 0, 0)]);
        execution.announced = announced_logs(&[first.clone(), next]);
        assert!(read(&mut execution, &store, 0).await.is_empty());
        assert!(execution.is_broken && execution.next_chunk(0).is_none());
    }
}

#[tokio::test]
async fn chunk_that_cannot_be_read_is_read_again() {
    let (store, other) = (MemoryStore::default(), MemoryStore::default());
    let text: String = (0..2).map(line).collect();
    let only = chunk(&other, (1, 0), &text, 0..text.len()).await;
    let mut execution = live(&[only]);
    let next = execution.next_chunk(0).expect("a chunk");
    assert!(execution.read(&store, &next).await.is_err(), "its blob is missing");
    assert_eq!(read(&mut execution, &other, 0).await, [(0, 0, 0), (0, 1, 1)]);
}

proptest! {
    #[test]
    fn announced_events_from_any_number_are_those_of_the_log(
        count in 1u64..20,
        from in 0u64..22,
        cuts in proptest::collection::vec(0usize..4000, 0..8),
        polls in 1usize..4,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let text: String = (0..count).map(line).collect();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        let found: Vec<u64> = runtime.block_on(async {
            let store = MemoryStore::default();
            let mut chunks = Vec::new();
            for pair in cuts.windows(2) {
                chunks.push(chunk(&store, (1, 0), &text, pair[0]..pair[1]).await);
            }
            let (mut execution, mut found) = (live(&[]), Vec::new());
            for poll in 1..=polls {
                execution.announced = announced_logs(&chunks[..chunks.len() * poll / polls]);
                found.extend(read(&mut execution, &store, from).await);
            }
            let wanted = found.into_iter().filter(|(_, number, _)| *number >= from);
            wanted.map(|(_, number, seq)| { assert_eq!(number, seq); seq }).collect()
        });
        prop_assert_eq!(found, (from.min(count)..count).collect::<Vec<_>>());
    }
}
