//! Messages of newer programs of the same wire version: unknown fields are ignored; a message with
//! unknown values is left alone, and blocks no other.

use std::time::Duration;

use rollout_protocol::wire::delivery::FreeCapacity;
use rollout_protocol::wire::offer::SizeClass;
use rollout_queue::contract::{CLASSES, samples};
use rollout_queue::nats::Nats;
use rollout_queue::traits::{Dispatch as _, WorkSource as _};
use serde::Serialize;
use serde_json::{Value, json};

use crate::queue::fixture::{QueueFixture, pool, until, with_every_server};

/// A message with a field that only a newer version knows.
fn with_unknown_field(message: &impl Serialize) -> Value {
    let mut message = serde_json::to_value(message).expect("JSON");
    message["field_of_newer_version"] = json!({"any": ["value"]});
    message
}

/// The message with a value that only a newer version knows, at a place that has another one.
fn with_unknown_value(message: &impl Serialize, place: &str, value: Value) -> Value {
    let mut message = serde_json::to_value(message).expect("JSON");
    *message.pointer_mut(place).expect("the place exists") = value;
    message
}

/// Subject of the first offer of a sample item.
fn offer_subject(nats: &Nats, item: u8) -> String {
    let (offer, class) = (samples::offer(1, item), SizeClass(0));
    let namespace = &nats.options().namespace;
    format!("{namespace}.v1.work.one.{class}.{}.{}.{}", offer.run, offer.item, offer.try_id)
}

/// A client that publishes as a program of another version would.
struct NewerProgram(async_nats::Client);

impl NewerProgram {
    async fn connect(lab: &QueueFixture) -> Self {
        Self(async_nats::connect(&lab.url).await.expect("a server"))
    }

    async fn publish(&self, subject: String, message: &Value) {
        self.0.publish(subject, message.to_string().into()).await.expect("sent");
        self.0.flush().await.expect("sent");
    }
}

#[test]
fn offer_with_unknown_work_is_left_and_blocks_no_other() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let dispatch = nats.dispatch(&pool("one"), &CLASSES).await.expect("a dispatch");
        let source = nats.source(&pool("one"), "store").await.expect("a source");
        let newer = NewerProgram::connect(&lab).await;
        let unknown = json!("kind_of_newer_version");
        let unreadable = with_unknown_value(&samples::offer(1, 1), "/work/kind", unknown);
        newer.publish(offer_subject(&nats, 1), &unreadable).await;
        newer.publish(offer_subject(&nats, 2), &with_unknown_field(&samples::offer(1, 2))).await;
        let mut pulled = Vec::new();
        until("the readable offer", async || {
            let capacity = FreeCapacity::with_slots(2);
            pulled.extend(source.pull(capacity, Duration::from_millis(100)).await.expect("up"));
            !pulled.is_empty()
        })
        .await;
        let offers: Vec<_> = pulled.iter().map(|delivery| delivery.offer).collect();
        assert_eq!(offers, [samples::offer(1, 2)]);
        source.ack(&[pulled[0].token]).await.expect("reachable");
        // It still waits, for a worker that can read it.
        let run = samples::offer(1, 1).run;
        let left = async || dispatch.list(run).await.expect("reachable");
        until("the acknowledgement", async || left().await.len() == 1).await;
        assert_eq!(left().await[0].item, samples::offer(1, 1).item);
    });
}

#[test]
fn report_with_unknown_values_is_skipped_and_others_are_read() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let dispatch = nats.dispatch(&pool("one"), &CLASSES).await.expect("a dispatch");
        let newer = NewerProgram::connect(&lab).await;
        let run = samples::report(1, 1).run;
        let subject = format!("{}.v1.report.one.{run}", nats.options().namespace);
        let unknown = json!("kind_of_newer_version");
        let unreadable = with_unknown_value(&samples::report(1, 1), "/body/kind", unknown);
        newer.publish(subject.clone(), &unreadable).await;
        newer.publish(subject, &with_unknown_field(&samples::report(1, 2))).await;
        let mut read = Vec::new();
        until("the readable report", async || {
            let batch = dispatch.reports(run, None, 9, Duration::from_millis(100)).await;
            read.extend(batch.expect("a known place").reports.into_iter().map(|r| r.report));
            !read.is_empty()
        })
        .await;
        assert_eq!(read, [samples::report(1, 2)]);
    });
}

#[test]
fn heartbeat_with_unknown_values_keeps_last_readable_one() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let dispatch = nats.dispatch(&pool("one"), &CLASSES).await.expect("a dispatch");
        let source = nats.source(&pool("one"), "store").await.expect("a source");
        let sample = samples::heartbeat("w");
        source.heartbeat(sample.clone()).await.expect("reachable");
        let known = async |worker: &str| {
            let heartbeats = dispatch.heartbeats().await.expect("reachable");
            heartbeats
                .into_iter()
                .map(|received| received.heartbeat)
                .find(|h| h.worker.to_string() == worker)
        };
        until("the heartbeat", async || known("w").await.is_some()).await;
        let upper = nats.options().namespace.as_str().to_uppercase();
        let newer = NewerProgram::connect(&lab).await;
        let providers = json!({"provider_of_newer_version": {}});
        let unreadable = with_unknown_value(&sample, "/providers", providers);
        newer.publish(format!("$KV.{upper}_WORKERS.w"), &unreadable).await;
        let other = samples::heartbeat("other");
        newer.publish(format!("$KV.{upper}_WORKERS.other"), &with_unknown_field(&other)).await;
        until("the later heartbeat", async || known("other").await.is_some()).await;
        assert_eq!(known("other").await, Some(other));
        assert_eq!(known("w").await, Some(sample));
    });
}
