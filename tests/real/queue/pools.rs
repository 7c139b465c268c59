//! Reports count only from the pool that their try was offered to; workers of an earlier version
//! are still read.

use std::time::Duration;

use async_nats::jetstream;
use rollout_protocol::id::TryId;
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::delivery::PreviousPools;
use rollout_protocol::wire::position::{PositionedReport, ReportPosition};
use rollout_protocol::wire::report::Report;
use rollout_queue::contract::{CLASSES, samples};
use rollout_queue::nats::NatsDispatch;
use rollout_queue::traits::{Dispatch as _, QueueError, WorkSource as _};

use crate::queue::fixture::{QueueFixture, pool, until, with_every_server};

fn report(exec: u8, epoch: u32) -> Report {
    Report { try_id: TryId { epoch, n: 1 }, ..samples::report(1, exec) }
}

/// Reads every report in the queue.
async fn read_all(dispatch: &NatsDispatch, after: Option<ReportPosition>) -> Vec<PositionedReport> {
    let run = samples::report(1, 1).run;
    let head = dispatch.last_report_sequence(run).await.expect("reachable");
    let mut found: Vec<PositionedReport> = Vec::new();
    until("the head is read", async || {
        let from = found.last().map(|last: &PositionedReport| last.position).or(after);
        let batch = dispatch.reports(run, from, 9, Duration::from_millis(100)).await;
        let batch = batch.expect("a known place");
        found.extend(batch.reports);
        batch.read_to.is_some_and(|read_to| read_to.sequence >= head)
    })
    .await;
    found
}

fn execs(read: &[PositionedReport]) -> Vec<u8> {
    read.iter().map(|reported| reported.report.exec.as_bytes()[0]).collect()
}

#[test]
fn report_from_other_pool_does_not_count() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let dispatch = nats.dispatch(&pool("one"), &CLASSES).await.expect("a dispatch");
        let one = nats.source(&pool("one"), "store").await.expect("a source");
        let two = nats.source(&pool("two"), "store").await.expect("a source");
        one.report(vec![report(1, 1)]).await.expect("reachable");
        two.report(vec![report(2, 1), report(3, 1)]).await.expect("reachable");
        one.report(vec![report(4, 1)]).await.expect("reachable");
        assert_eq!(execs(&read_all(&dispatch, None).await), [1, 4]);
    });
}

#[test]
fn report_after_pool_change_counts_by_pool_of_try() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let dispatch = nats.dispatch(&pool("two"), &CLASSES).await.expect("a dispatch");
        let run = report(1, 1).run;
        dispatch
            .set_previous_pools(run, PreviousPools::from([(1, None), (2, Some("one".to_owned()))]));
        let one = nats.source(&pool("one"), "store").await.expect("a source");
        let two = nats.source(&pool("two"), "store").await.expect("a source");
        one.report(vec![report(1, 1), report(2, 2), report(3, 3)]).await.expect("reachable");
        two.report(vec![report(4, 1), report(5, 2), report(6, 3)]).await.expect("reachable");
        // The last report does not count, but waiting for the head still ends.
        one.report(vec![report(7, 3)]).await.expect("reachable");
        let read = read_all(&dispatch, None).await;
        assert_eq!(execs(&read), [1, 2, 4, 6]);
        // Journaled reports are removed from every pool's subject; the report at the position
        // stays.
        let at = read[2].position;
        dispatch.mark_journaled(run, at).await.expect("reachable");
        let before = async |position: ReportPosition| {
            let read = dispatch.reports(run, Some(position), 9, Duration::from_millis(100)).await;
            matches!(read, Err(QueueError::Position))
        };
        until("removed", async || before(read[0].position).await && before(read[1].position).await)
            .await;
        assert_eq!(execs(&read_all(&dispatch, Some(at)).await), [6]);
    });
}

#[test]
fn report_from_earlier_version_is_read() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let namespace = nats.options().namespace.clone();
        let context = jetstream::new(async_nats::connect(&lab.url).await.expect("a server"));
        let upper = namespace.as_str().to_uppercase();
        // As created by an earlier version.
        let stream = jetstream::stream::Config {
            name: format!("{upper}_REPORTS"),
            subjects: vec![format!("{namespace}.v1.report.*")],
            discard: jetstream::stream::DiscardPolicy::New,
            discard_new_per_subject: true,
            max_messages_per_subject: i64::try_from(nats.options().reports_per_run).expect("few"),
            max_age: Duration::from_secs(30 * 24 * 3600),
            max_bytes: 16 * 1024 * 1024,
            ..jetstream::stream::Config::default()
        };
        context.create_stream(stream).await.expect("made");
        let say = async |exec| {
            let subject = format!("{namespace}.v1.report.{}", report(exec, 1).run);
            let payload = report(exec, 1).encode().expect("small");
            let sent = context.publish(subject, payload.into()).await.expect("sent");
            sent.await.expect("stored");
        };
        say(1).await;
        let dispatch = nats.dispatch(&pool("one"), &CLASSES).await.expect("it takes more subjects");
        let source = nats.source(&pool("one"), "store").await.expect("a source");
        source.report(vec![report(2, 1)]).await.expect("reachable");
        say(3).await;
        assert_eq!(execs(&read_all(&dispatch, None).await), [1, 2, 3]);
        let survey = nats.server_info().await.expect("reachable");
        assert!(survey.streams.iter().all(|s| s.present && s.differences.is_empty()), "{survey:?}");
    });
}

#[test]
fn claim_from_other_pool_is_not_answered() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let dispatch = nats.dispatch(&pool("one"), &CLASSES).await.expect("a dispatch");
        let one = nats.source(&pool("one"), "store").await.expect("a source");
        let two = nats.source(&pool("two"), "store").await.expect("a source");
        let run = samples::claim(1, 1).run;
        let answered = async {
            loop {
                let pending = dispatch.next_claim(run).await.expect("reachable");
                pending.reply.send(ClaimAnswer::Run).expect("asked");
            }
        };
        let asked = async {
            until("the worker of the pool is answered", async || {
                matches!(one.claim(samples::claim(1, 1)).await, Ok(ClaimAnswer::Run))
            })
            .await;
            two.claim(samples::claim(1, 2)).await
        };
        let refused = tokio::select! { () = answered => unreachable!(), asked = asked => asked };
        assert!(
            matches!(refused, Err(QueueError::NoAnswer { .. } | QueueError::NoAnswerInTime { .. })),
            "{refused:?}"
        );
    });
}

#[test]
fn report_stream_ending_in_garbage_does_not_block() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let dispatch = nats.dispatch(&pool("one"), &CLASSES).await.expect("a dispatch");
        let source = nats.source(&pool("one"), "store").await.expect("a source");
        source.report(vec![report(1, 1)]).await.expect("reachable");
        let client = async_nats::connect(&lab.url).await.expect("a server");
        let subject = format!("{}.v1.report.one.{}", nats.options().namespace, report(1, 1).run);
        for garbage in ["{", "null", "[]"] {
            client.publish(subject.clone(), garbage.into()).await.expect("sent");
        }
        client.flush().await.expect("sent");
        assert_eq!(execs(&read_all(&dispatch, None).await), [1]);
    });
}
