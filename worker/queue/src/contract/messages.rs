//! Contract checks: claims, commands, controls and heartbeats.

use std::collections::{BTreeMap, BTreeSet};

use rollout_protocol::digest::Digest;
use rollout_protocol::harness::ControlAction;
use rollout_protocol::id::{ExecId, RunId};
use rollout_protocol::phase::Phase;
use rollout_protocol::wire::claim::{Claim, ClaimAnswer};
use rollout_protocol::wire::command::{CommandReceipt, RunCommand, TrialSelection};
use rollout_protocol::wire::control::{ControlMessage, StopLevel};
use rollout_protocol::wire::heartbeat::{ActiveExecution, Heartbeat, ResourceBudget};
use rollout_protocol::wire::output::{TrialAnswer, TrialRequest};
use rollout_protocol::wire::trial_control::{
    TrialControlReceipt, TrialControlRequest, TrialControlResult,
};

use super::{ANSWER_TIMEOUT, Broker, FIRST, item, run, wait_until, worker};
use crate::traits::QueueError;

pub(super) fn claim(r: u8, exec: u8) -> Claim {
    Claim {
        run: run(r),
        item: item(exec),
        try_id: FIRST,
        exec: ExecId::from_bytes([exec; 16]),
        spec: Digest::from_bytes([9; 32]),
        worker: worker("w"),
        stage: None,
    }
}

/// Every answer reaches the claim's sender; a dropped claim gets no answer.
pub(super) async fn claim_is_answered_or_times_out(broker: &dyn Broker) {
    let (source, dispatch) = (broker.source(), broker.dispatch());
    let coordinator = async {
        loop {
            let pending = dispatch.next_claim(run(1)).await.expect("reachable");
            let _asked_no_more = match pending.claim.exec.as_bytes()[0] {
                1 => pending.reply.send(ClaimAnswer::Run),
                2 => pending.reply.send(ClaimAnswer::Hold),
                3 => pending.reply.send(ClaimAnswer::Drop),
                _ => continue,
            };
        }
    };
    let asked = async {
        // The coordinator may not listen yet.
        wait_until("the coordinator listens", async || source.claim(claim(1, 1)).await.is_ok())
            .await;
        tokio::join!(
            source.claim(claim(1, 1)),
            source.claim(claim(1, 2)),
            source.claim(claim(1, 3)),
            source.claim(claim(1, 4)),
            source.claim(claim(2, 5)),
        )
    };
    let (one, two, three, four, other) = tokio::select! {
        answers = asked => answers,
        () = coordinator => unreachable!("the coordinator never ends"),
    };
    assert!(matches!(one, Ok(ClaimAnswer::Run)), "{one:?}");
    assert!(matches!(two, Ok(ClaimAnswer::Hold)), "{two:?}");
    assert!(matches!(three, Ok(ClaimAnswer::Drop)), "{three:?}");
    for (answer, asked) in [(four, run(1)), (other, run(2))] {
        assert_eq!(unanswered_run(answer.as_ref()), Some(asked), "{answer:?}");
    }
}

/// The run whose coordinator gave no answer. A broker may not know whether there is one.
fn unanswered_run<A>(answer: Result<&A, &QueueError>) -> Option<RunId> {
    match answer {
        Err(QueueError::NoAnswer { run } | QueueError::NoAnswerInTime { run }) => Some(*run),
        _ => None,
    }
}

/// Every command gets its own receipt, or an error.
pub(super) async fn command_is_answered_or_refused(broker: &dyn Broker) {
    let command = RunCommand::Cancel { selection: TrialSelection::default() };
    let control = broker.control();
    let unanswered = control.command(run(1), command.clone()).await;
    assert_eq!(unanswered_run(unanswered.as_ref()), Some(run(1)), "{unanswered:?}");
    let dispatch = broker.dispatch();
    let coordinator = async {
        let pending = dispatch.next_command(run(1)).await.expect("reachable");
        assert_eq!(pending.command, command);
        let receipt =
            CommandReceipt { named: 3, settled: 1, ended: 2, ..CommandReceipt::default() };
        pending.reply.send(receipt).expect("the user still waits");
        drop(dispatch.next_command(run(1)).await.expect("reachable").reply);
    };
    let user = async {
        let mut answer = None;
        wait_until("the coordinator listens", async || {
            answer = control.command(run(1), command.clone()).await.ok();
            answer.is_some()
        })
        .await;
        let receipt = answer.expect("an answer");
        assert_eq!((receipt.named, receipt.settled, receipt.ended), (3, 1, 2));
        let dropped = control.command(run(1), command.clone()).await;
        assert_eq!(unanswered_run(dropped.as_ref()), Some(run(1)), "{dropped:?}");
    };
    tokio::join!(coordinator, user);
}

/// A request for a control reaches a worker, and its receipt the user. A request that no worker
/// answers has no receipt.
pub(super) async fn trial_control_is_answered_or_ignored(broker: &dyn Broker) {
    let (source, control) = (broker.source(), broker.control());
    let request = |n| TrialControlRequest {
        run: run(1),
        item: item(n),
        action: ControlAction::Checkpoint,
        label: Some("first".to_owned()),
        requested_by: "user".to_owned(),
        timeout_ms: 1,
        grace_ms: 1,
    };
    let receipt = TrialControlReceipt {
        item: item(1),
        exec: ExecId::from_bytes([2; 16]),
        worker: worker("w"),
        action: ControlAction::Checkpoint,
        result: TrialControlResult::NotInCommand { phase: Phase::Verification },
    };
    let answering = async {
        loop {
            let pending = source.next_trial_request().await;
            if pending.request == TrialRequest::Control(request(1)) {
                let answer = TrialAnswer::Control(receipt.clone());
                let answer = source.answer_trial_request(pending.reply_to, answer);
                return answer.await.expect("reachable");
            }
        }
    };
    let (ignored, answered) = (request(2), request(1));
    let user = async {
        let ignored = control.trial_control(&ignored, broker.quiet_period()).await;
        let answered = control.trial_control(&answered, ANSWER_TIMEOUT).await;
        (ignored.expect("reachable"), answered.expect("reachable"))
    };
    let (answers, ()) = tokio::join!(user, answering);
    assert_eq!(answers, (None, Some(receipt.clone())));
}

/// Every worker gets the controls that are sent after it subscribed.
pub(super) async fn control_reaches_every_worker(broker: &dyn Broker) {
    let stop = |n| ControlMessage::StopRun { run: run(n), level: StopLevel::Drain };
    broker.dispatch().control(stop(1)).await.expect("no listener is needed");
    let (mut a, mut b) = (broker.source().controls(), broker.source().controls());
    broker.dispatch().control(stop(2)).await.expect("reachable");
    for receiver in [&mut a, &mut b] {
        // The first one may still have been on its way.
        let heard = async { while receiver.recv().await.expect("not lagging") != stop(2) {} };
        tokio::time::timeout(ANSWER_TIMEOUT, heard).await.expect("soon");
    }
}

pub(super) fn heartbeat(name: &str, slots: u32) -> Heartbeat {
    Heartbeat {
        worker: worker(name),
        host: "host".into(),
        version: "0".into(),
        store: "store".into(),
        pool: "default".into(),
        slots,
        free: slots,
        budget: ResourceBudget::default(),
        providers: BTreeMap::new(),
        variables: BTreeSet::new(),
        max_offline_sec: None,
        draining: false,
        low_disk: false,
        disk_fault: None,
        gone: false,
        executions: Vec::new(),
        model_calls: Vec::new(),
        model_leases: Vec::new(),
    }
}

/// The last heartbeat of each worker is shown with its age.
pub(super) async fn heartbeat_shown_is_last_one_with_age(broker: &dyn Broker) {
    for said in [heartbeat("a", 1), heartbeat("b", 2)] {
        broker.source().heartbeat(said).await.expect("reachable");
    }
    broker.advance_lease(1).await;
    broker.source().heartbeat(heartbeat("a", 3)).await.expect("reachable");
    let mut seen = Vec::new();
    wait_until("the last heartbeat is seen", async || {
        seen = broker.dispatch().heartbeats().await.expect("reachable");
        seen.sort_by(|a, b| a.heartbeat.worker.cmp(&b.heartbeat.worker));
        seen.iter().any(|s| s.heartbeat == heartbeat("a", 3))
    })
    .await;
    let said: Vec<_> = seen.iter().map(|s| s.heartbeat.clone()).collect();
    assert_eq!(said, [heartbeat("a", 3), heartbeat("b", 2)]);
    assert!(seen[0].age < seen[1].age, "{seen:?}");
}

/// Workers see each other's heartbeats, so that a claim can be decided without a coordinator.
pub(super) async fn claim_contested_by_other_worker_is_seen(broker: &dyn Broker) {
    let (r, exec) = (run(1), |n| ExecId::from_bytes([n; 16]));
    let line = |n, claiming| ActiveExecution {
        run: r,
        item: item(n),
        try_id: FIRST,
        exec: exec(5),
        phase: Phase::Queued,
        claiming,
        stage: None,
        parked: None,
    };
    let mut other = heartbeat("other", 2);
    other.executions = vec![line(1, false), line(2, true)];
    broker.source().heartbeat(other).await.expect("reachable");
    let mut own = heartbeat("asker", 2);
    own.executions = vec![line(3, false)];
    broker.source().heartbeat(own).await.expect("reachable");
    let source = broker.source();
    let shown = async |n, e| {
        let (asker, digest) = (worker("asker"), Digest::from_bytes([9; 32]));
        let asked = Claim {
            run: r,
            item: item(n),
            try_id: FIRST,
            exec: exec(e),
            spec: digest,
            worker: asker,
            stage: None,
        };
        source.is_contested(&asked).await.expect("reachable")
    };
    wait_until("heartbeats are distributed", async || shown(1, 9).await).await;
    assert!(shown(1, 1).await, "it runs there, whichever execution id is lower");
    assert!(shown(2, 9).await && !shown(2, 1).await, "of two claims the lower execution id wins");
    assert!(!shown(3, 9).await, "the sender's own heartbeat does not contest");
    assert!(!shown(4, 9).await, "no worker has it");
}
