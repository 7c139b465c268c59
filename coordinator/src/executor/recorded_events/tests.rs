use std::collections::HashMap;
use std::sync::Arc;

use futures_util::{FutureExt as _, TryStreamExt as _};
use proptest::prelude::*;
use rollout_protocol::blob::MediaType;
use serde_json::json;

use super::*;

fn event(seq: u64) -> String {
    let ids = json!({
        "run_id": "r", "trial_id": "t", "variant_id": "v", "task_id": "k", "repl_idx": 0,
    });
    let event = json!({
        "event_type": "error", "ts": "2026-01-02T03:04:05Z", "seq": seq, "ids": ids, "message": "m",
    });
    format!("{event}\n")
}

/// Logs with this many events and as many other lines, and their content.
fn logs(sizes: &[u64]) -> (Vec<EventLogRef>, Arc<HashMap<BlobRef, String>>) {
    let mut content = HashMap::new();
    let logs = sizes.iter().enumerate().map(|(step, size)| {
        let lines = (0..*size).map(|seq| event(seq * 10 + step as u64) + "{}\n");
        let text = lines.collect::<String>() + &format!("log {step}");
        let blob = BlobRef::for_bytes(text.as_bytes(), MediaType::Text);
        content.insert(blob.clone(), text);
        EventLogRef { blob, step: Some(step.to_string()), events: *size }
    });
    (logs.collect(), Arc::new(content))
}

async fn read(sizes: &[u64], from: u64) -> Vec<TrialEvent> {
    let (logs, content) = logs(sizes);
    let open = move |blob: BlobRef| {
        let text = content[&blob].clone();
        async move { Ok(Box::new(std::io::Cursor::new(text.into_bytes())) as BlobReader) }.boxed()
    };
    let exec = ExecId::from_bytes([1; 16]);
    let events = recorded_events(EventLogs { exec, logs }, from, open);
    events.try_collect().await.expect("read")
}

#[tokio::test]
async fn events_of_steps_are_numbered_through() {
    let events = read(&[2, 0, 3], 0).await;
    let found: Vec<_> = events
        .iter()
        .map(|e| (e.number, e.step.as_deref().expect("a step"), e.event.seq))
        .collect();
    assert_eq!(found, [(0, "0", 0), (1, "0", 10), (2, "2", 2), (3, "2", 12), (4, "2", 22)]);
}

#[tokio::test]
async fn log_before_wanted_events_is_not_opened() {
    let (logs, _) = logs(&[2, 1]);
    let skipped = logs[0].blob.clone();
    let open = move |blob: BlobRef| {
        assert_ne!(blob, skipped);
        async move { Ok(Box::new(std::io::Cursor::new(event(1).into_bytes())) as BlobReader) }
            .boxed()
    };
    let exec = ExecId::from_bytes([1; 16]);
    let events: Vec<_> =
        recorded_events(EventLogs { exec, logs }, 2, open).try_collect().await.expect("read");
    assert_eq!(events.iter().map(|event| event.number).collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn log_that_cannot_be_opened_ends_stream_with_error() {
    let (logs, _) = logs(&[1, 1]);
    let open = |_: BlobRef| async { Err(ExecutorError::Ended) }.boxed();
    let exec = ExecId::from_bytes([1; 16]);
    let events = recorded_events(EventLogs { exec, logs }, 0, open).collect::<Vec<_>>().await;
    assert!(matches!(events[..], [Err(ExecutorError::Ended)]), "{events:?}");
}

proptest! {
    #[test]
    fn events_from_a_number_are_the_rest_of_all(
        sizes in proptest::collection::vec(0u64..5, 0..5),
        from in 0u64..25,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let all = runtime.block_on(read(&sizes, 0));
        prop_assert_eq!(all.len() as u64, sizes.iter().sum::<u64>());
        let rest = runtime.block_on(read(&sizes, from));
        let start = usize::try_from(from).expect("small").min(all.len());
        prop_assert_eq!(&rest[..], &all[start..]);
    }
}
