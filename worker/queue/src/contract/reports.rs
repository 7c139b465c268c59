//! Contract checks: reports and their positions.

use rollout_protocol::id::ExecId;
use rollout_protocol::wire::delivery::PublishError;
use rollout_protocol::wire::position::ReportPosition;

use super::{ANSWER_TIMEOUT, Broker, read_reports, report, run, send_reports, wait_until};
use crate::traits::QueueError;

/// Every reader from a position sees the same reports in the same order.
pub(super) async fn reports_have_one_order_and_can_be_read_again(broker: &dyn Broker) {
    send_reports(broker, vec![report(1, 1), report(2, 9), report(1, 2)]).await;
    send_reports(broker, vec![report(1, 3), report(1, 1)]).await;
    let all = read_reports(broker, 1, None).await;
    let said: Vec<_> = all.iter().map(|(_, r)| r.clone()).collect();
    assert_eq!(said, [report(1, 1), report(1, 2), report(1, 3), report(1, 1)]);
    assert!(all.is_sorted_by(|(a, _), (b, _)| a.sequence < b.sequence));
    assert!(all.iter().all(|(at, said)| at.anchor == said.exec));
    for (index, (at, _)) in all.iter().enumerate() {
        assert_eq!(read_reports(broker, 1, Some(*at)).await, all[index + 1..]);
    }
    let two = broker
        .dispatch()
        .reports(run(1), None, 2, broker.quiet_period())
        .await
        .expect("no position");
    assert!((1..=2).contains(&two.reports.len()), "{two:?}");
    assert_eq!(two.read_to, two.reports.last().map(|last| last.position.cursor()));
}

/// A reader waits for the next report of its run.
pub(super) async fn report_reader_waiting_gets_new_report(broker: &dyn Broker) {
    send_reports(broker, vec![report(1, 1)]).await;
    let from = read_reports(broker, 1, None).await[0].0;
    let later = async {
        tokio::time::sleep(broker.quiet_period()).await;
        send_reports(broker, vec![report(2, 2)]).await;
        tokio::time::sleep(broker.quiet_period()).await;
        send_reports(broker, vec![report(1, 3)]).await;
    };
    let dispatch = broker.dispatch();
    let (read, ()) = tokio::join!(dispatch.reports(run(1), Some(from), 10, ANSWER_TIMEOUT), later);
    let read: Vec<_> =
        read.expect("a known position").reports.into_iter().map(|r| r.report).collect();
    assert_eq!(read, [report(1, 3)]);
}

/// A position of a former stream is refused; its reports are never skipped silently.
pub(super) async fn position_of_other_stream_is_refused(broker: &dyn Broker) {
    send_reports(broker, vec![report(1, 1), report(1, 2)]).await;
    let at = read_reports(broker, 1, None).await[1].0;
    let mut incarnation = at.incarnation;
    incarnation.0 ^= 1;
    let wrong = [
        ReportPosition { anchor: ExecId::from_bytes([7; 16]), ..at },
        ReportPosition { sequence: at.sequence + 1, ..at },
        ReportPosition { incarnation, ..at },
    ];
    for position in wrong {
        let read =
            broker.dispatch().reports(run(1), Some(position), 10, broker.quiet_period()).await;
        assert!(matches!(read, Err(QueueError::Position)), "{position:?}: {read:?}");
    }
}

/// Reports strictly below the journalled position are removed; the report at it stays as an anchor.
pub(super) async fn journaled_reports_are_purged_and_position_stays_valid(broker: &dyn Broker) {
    send_reports(broker, vec![report(1, 1), report(2, 5), report(1, 2), report(1, 3)]).await;
    let all = read_reports(broker, 1, None).await;
    broker.dispatch().mark_journaled(run(1), all[1].0).await.expect("reachable");
    wait_until("purged", async || read_reports(broker, 1, None).await == all[1..]).await;
    assert_eq!(read_reports(broker, 1, Some(all[1].0)).await, all[2..]);
    assert_eq!(read_reports(broker, 2, None).await.len(), 1, "another run's are untouched");
    let gone = broker.dispatch().reports(run(1), Some(all[0].0), 10, broker.quiet_period()).await;
    assert!(matches!(gone, Err(QueueError::Position)), "{gone:?}");
}

/// A removal has no effect on later reports of the run, and none on those of other runs.
pub(super) async fn reports_of_ended_run_are_removed_with_anchor(broker: &dyn Broker) {
    let dispatch = broker.dispatch();
    send_reports(broker, vec![report(1, 1), report(2, 5), report(1, 2)]).await;
    let all = read_reports(broker, 1, None).await;
    let last = dispatch.last_report_sequence(run(1)).await.expect("reachable");
    send_reports(broker, vec![report(1, 3)]).await;
    dispatch.remove_reports(run(1), last).await.expect("reachable");
    let left = read_reports(broker, 1, None).await;
    let [(_, later)] = &*left else { panic!("{left:?}") };
    assert_eq!(*later, report(1, 3));
    assert_eq!(read_reports(broker, 2, None).await.len(), 1, "another run's are untouched");
    let gone = dispatch.reports(run(1), Some(all[1].0), 10, broker.quiet_period()).await;
    assert!(matches!(gone, Err(QueueError::Position)), "{gone:?}");
    let last = dispatch.last_report_sequence(run(1)).await.expect("reachable");
    dispatch.remove_reports(run(1), last).await.expect("reachable");
    assert_eq!(dispatch.last_report_sequence(run(1)).await.expect("reachable"), 0);
    send_reports(broker, vec![report(1, 4)]).await;
    let again = read_reports(broker, 1, None).await;
    assert!(again.len() == 1 && again[0].0.sequence > last, "sequences keep growing: {again:?}");
}

/// Back-pressure is per run.
pub(super) async fn report_to_full_run_is_refused_and_other_runs_accept(broker: &dyn Broker) {
    let most = u8::try_from(broker.reports_per_run()).expect("small");
    send_reports(broker, (0..most).map(|n| report(1, n)).collect()).await;
    let more = vec![report(1, 200), report(2, 201), report(1, 202)];
    let answers = broker.source().report(more).await.expect("reachable");
    assert_eq!(answers, [Err(PublishError::Full), Ok(()), Err(PublishError::Full)]);
    let all = read_reports(broker, 1, None).await;
    assert_eq!(all.len(), usize::from(most));
    broker.dispatch().mark_journaled(run(1), all[1].0).await.expect("reachable");
    wait_until("purged", async || {
        let again = broker.source().report(vec![report(1, 200)]).await.expect("reachable");
        again == [Ok(())]
    })
    .await;
}

/// A reader that has read up to the head knows everything that was reported before the head was
/// requested.
pub(super) async fn head_is_sequence_of_last_report(broker: &dyn Broker) {
    let head = async |r| broker.dispatch().last_report_sequence(run(r)).await.expect("reachable");
    assert_eq!(head(1).await, 0);
    send_reports(broker, vec![report(1, 1), report(2, 2), report(1, 3), report(2, 4)]).await;
    let all = read_reports(broker, 1, None).await;
    assert_eq!(head(1).await, all[1].0.sequence);
    assert!(head(2).await > head(1).await);
    broker.dispatch().mark_journaled(run(1), all[1].0).await.expect("reachable");
    wait_until("purged", async || read_reports(broker, 1, None).await.len() == 1).await;
    assert_eq!(head(1).await, all[1].0.sequence, "it stays as an anchor");
}
