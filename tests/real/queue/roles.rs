//! Permissions of the two roles in `examples/nats/roles`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use rollout_protocol::harness::ControlAction;
use rollout_protocol::id::ExecId;
use rollout_protocol::phase::Phase;
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::delivery::{FreeCapacity, OfferOutcome};
use rollout_protocol::wire::output::{TrialAnswer, TrialRequest};
use rollout_protocol::wire::trial_control::{
    TrialControlReceipt, TrialControlRequest, TrialControlResult,
};
use rollout_queue::contract::{CLASSES, samples};
use rollout_queue::nats::{
    ConnectError, Nats, NatsCredentials, NatsOptions, NatsSecret, NatsSetupError,
};
use rollout_queue::traits::{
    Dispatch as _, KvStore as _, QueueError, RunControl as _, WorkSource as _,
};

use crate::queue::fixture::{DEADLINE, QueueFixture, pool, until, with_every_server};

const NAMESPACE: &str = "lab";

struct RolesFixture {
    fixture: QueueFixture,
    passwords: tempfile::TempDir,
}

impl RolesFixture {
    fn new(program: &Path) -> Self {
        let passwords = tempfile::tempdir().expect("a directory");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/nats/roles");
        let made = Command::new(script)
            .arg(passwords.path())
            .args([NAMESPACE, "one", "two"])
            .output()
            .expect("the script");
        assert!(made.status.success(), "{made:?}");
        let settings = format!("include {:?}\n", relative(&passwords.path().join("roles.conf")));
        Self { fixture: QueueFixture::new(program, &settings), passwords }
    }

    fn options(&self, user: &str) -> NatsOptions {
        let user = format!("{NAMESPACE}-{user}");
        let path = self.passwords.path().join(format!("{user}.password"));
        let password = fs::read_to_string(path).expect("a password");
        let mut options = self.fixture.options();
        options.namespace = NAMESPACE.parse().expect("valid");
        options.credentials =
            NatsCredentials::Password { user, password: NatsSecret::new(password.trim()) };
        options
    }

    /// A plain client of the library, limited only by the server's permissions.
    async fn bare_client(&self, user: &str) -> async_nats::Client {
        let options = self.options(user);
        let NatsCredentials::Password { user, password } = options.credentials else {
            unreachable!()
        };
        let connected = async_nats::ConnectOptions::new()
            .user_and_password(user.clone(), password.expose().to_owned())
            .custom_inbox_prefix(format!("_INBOX.{user}"))
            .request_timeout(Some(Duration::from_millis(500)))
            .connect(&self.fixture.url)
            .await;
        connected.expect("a user of the server")
    }

    async fn connect(&self, user: &str) -> Nats {
        Nats::connect(self.options(user)).await.expect("a user of the server")
    }
}

/// Includes are resolved against the directory of the including file, even absolute paths.
fn relative(path: &Path) -> PathBuf {
    let up = "../".repeat(16);
    Path::new(&up).join(path.strip_prefix("/").expect("absolute"))
}

#[test]
fn worker_role_is_denied_everything_else() {
    with_every_server(async |program| {
        let roles = RolesFixture::new(&program);
        let coordinator = roles.connect("coordinator").await;
        let (one, two) = (pool("one"), pool("two"));
        let dispatch = coordinator.dispatch(&one, &CLASSES).await.expect("a dispatch");
        coordinator.prepare(&two, &CLASSES).await.expect("another pool");
        coordinator.bind_pool(&one, "store", false).await.expect("a binding");
        let worker = roles.connect("worker-one").await;
        run_item(&dispatch, &coordinator, &worker).await;
        assert_denied(&dispatch, &worker).await;
    });
}

/// Runs an item from offer to acknowledgement.
async fn run_item(dispatch: &rollout_queue::nats::NatsDispatch, coordinator: &Nats, worker: &Nats) {
    let source = worker.source(&pool("one"), "store").await.expect("a source");
    let offer = samples::offer(1, 1);
    let answers = dispatch.offer(&[offer]).await.expect("reachable");
    assert_eq!(answers, [Ok(OfferOutcome::Published)]);
    let delivered = source.pull(FreeCapacity::with_slots(1), DEADLINE).await.expect("allowed");
    assert_eq!(delivered[0].offer, offer);
    let tokens = [delivered[0].token];
    source.progress(&tokens).await.expect("allowed");
    let reports = source.report(vec![samples::report(1, 1)]).await.expect("allowed");
    assert_eq!(reports, [Ok(())]);
    let read = dispatch.reports(offer.run, None, 9, DEADLINE).await.expect("allowed").reports;
    assert_eq!(read.len(), 1);
    source.heartbeat(samples::heartbeat("worker")).await.expect("allowed");
    // A coordinator recovers dead workers of its host.
    let recovery = coordinator.source(&pool("one"), "store").await.expect("a source");
    let reports = recovery.report(vec![samples::report(1, 2)]).await.expect("allowed");
    assert_eq!(reports, [Ok(())]);
    recovery.heartbeat(samples::heartbeat("dead")).await.expect("allowed");
    assert!(!source.is_contested(&samples::claim(1, 1)).await.expect("allowed"));
    let answered = async {
        let pending = dispatch.next_claim(offer.run).await.expect("allowed");
        pending.reply.send(ClaimAnswer::Run).expect("asked");
        std::future::pending::<()>().await;
    };
    let asked = until("the claim is answered", async || {
        matches!(source.claim(samples::claim(1, 1)).await, Ok(ClaimAnswer::Run))
    });
    tokio::select! { () = answered => {}, () = asked => {} }
    source.ack(&tokens).await.expect("allowed");
    let gone = async || dispatch.list(offer.run).await.expect("allowed").is_empty();
    until("it is acknowledged", gone).await;
    let seen = async || !dispatch.heartbeats().await.expect("allowed").is_empty();
    until("the heartbeat is seen", seen).await;
    let kv_store = coordinator.kv_store();
    kv_store.write("run", Bytes::from_static(b"state"), None).await.expect("allowed");
    let state = worker.kv_store().read("run").await.expect("allowed").expect("it is there");
    assert_eq!(state.value, "state");
    dispatch.mark_journaled(offer.run, read[0].position).await.expect("allowed");
    dispatch.withdraw(offer.run, &[(offer.item, offer.try_id)]).await.expect("allowed");
}

fn is_denied<T>(answer: &Result<T, QueueError>) -> bool {
    matches!(answer, Err(QueueError::Denied { reason }) if reason.to_lowercase().contains("permissions"))
}

async fn assert_denied(dispatch: &rollout_queue::nats::NatsDispatch, worker: &Nats) {
    let prepared = worker.prepare(&pool("new"), &CLASSES).await;
    let Err(NatsSetupError::Queue(error)) = prepared else { panic!("{prepared:?}") };
    assert!(is_denied::<()>(&Err(error)));
    let kv_store = worker.kv_store();
    let revision = kv_store.read("run").await.expect("allowed").map(|entry| entry.revision);
    let written = kv_store.write("run", Bytes::new(), revision).await;
    assert!(is_denied(&written), "{written:?}");
    let removed = kv_store.remove("run", revision.expect("written")).await;
    assert!(is_denied(&removed), "{removed:?}");
    let bound = worker.bind_pool(&pool("two"), "elsewhere", true).await;
    assert!(bound.is_err(), "{bound:?}");
    dispatch.offer(&[samples::offer(2, 2)]).await.expect("reachable");
    let stranger = worker.source(&pool("two"), "store").await.expect("a source");
    let mut denied = false;
    until("another pool's work is refused", async || {
        let pulled = stranger.pull(FreeCapacity::with_slots(1), Duration::from_millis(100)).await;
        denied = is_denied(&pulled);
        assert!(denied || pulled.is_ok_and(|pulled| pulled.is_empty()));
        denied
    })
    .await;
}

#[test]
fn worker_role_may_answer_control_of_trial() {
    with_every_server(async |program| {
        let roles = RolesFixture::new(&program);
        let coordinator = roles.connect("coordinator").await;
        let dispatch = coordinator.dispatch(&pool("one"), &CLASSES).await.expect("a dispatch");
        let worker = roles.connect("worker-one").await;
        let source = worker.source(&pool("one"), "store").await.expect("a source");
        let offer = samples::offer(1, 1);
        let request = TrialControlRequest {
            run: offer.run,
            item: offer.item,
            action: ControlAction::Stop,
            label: None,
            requested_by: "user".to_owned(),
            timeout_ms: 1,
            grace_ms: 1,
        };
        let receipt = TrialControlReceipt {
            item: offer.item,
            exec: ExecId::from_bytes([2; 16]),
            worker: "worker".parse().expect("a token"),
            action: ControlAction::Stop,
            result: TrialControlResult::NotInCommand { phase: Phase::Verification },
        };
        let answering = async {
            let pending = source.next_trial_request().await;
            assert_eq!(pending.request, TrialRequest::Control(request.clone()));
            source
                .answer_trial_request(pending.reply_to, TrialAnswer::Control(receipt.clone()))
                .await
                .expect("sent");
        };
        let (received, ()) = tokio::join!(coordinator.trial_control(&request, DEADLINE), answering);
        assert_eq!(received.expect("allowed"), Some(receipt));
        drop(dispatch);
    });
}

/// Uses the plain client for requests that the adapter never sends.
#[test]
fn worker_role_cannot_change_streams() {
    with_every_server(async |program| {
        let roles = RolesFixture::new(&program);
        let coordinator = roles.connect("coordinator").await;
        let dispatch = coordinator.dispatch(&pool("one"), &CLASSES).await.expect("a dispatch");
        dispatch.offer(&[samples::offer(1, 1)]).await.expect("reachable");
        let client = roles.bare_client("worker-one").await;
        let info = client.request("$JS.API.STREAM.INFO.LAB_WORK", "{}".into()).await;
        assert!(info.is_ok(), "the client works: {info:?}");
        for subject in [
            "$JS.API.STREAM.DELETE.LAB_WORK",
            "$JS.API.STREAM.PURGE.LAB_WORK",
            "$JS.API.STREAM.PURGE.LAB_REPORTS",
            "$JS.API.STREAM.PURGE.KV_LAB_RUNS",
            "$JS.API.STREAM.UPDATE.LAB_WORK",
            "$JS.API.STREAM.CREATE.MINE",
            "$JS.API.STREAM.MSG.DELETE.LAB_REPORTS",
            "$JS.API.STREAM.MSG.GET.LAB_WORK",
            "$JS.API.CONSUMER.DELETE.LAB_WORK.one-c0",
            "$JS.API.CONSUMER.CREATE.LAB_WORK.mine",
            "$JS.API.CONSUMER.CREATE.KV_LAB_WORKERS.mine",
            "$JS.API.CONSUMER.MSG.NEXT.LAB_WORK.two-c0",
            "lab.v1.work.one.c0.x",
            "lab.v1.report.x",
            "lab.v1.report.two.x",
            "lab.v1.claim.x",
            "lab.v1.claim.two.x",
            "$KV.LAB_RUNS.x",
        ] {
            let answer = client.request(subject, "{\"seq\":1}".into()).await;
            assert!(answer.is_err(), "{subject}: {answer:?}");
        }
        let listed = dispatch.list(samples::offer(1, 1).run).await.expect("reachable");
        assert_eq!(listed.len(), 1, "the queue is unchanged");
    });
}

/// Uses the plain client for requests that the adapter never sends.
#[test]
fn coordinator_role_cannot_delete_streams_or_purge_heartbeats() {
    with_every_server(async |program| {
        let roles = RolesFixture::new(&program);
        let coordinator = roles.connect("coordinator").await;
        coordinator.prepare(&pool("one"), &CLASSES).await.expect("streams");
        let client = roles.bare_client("coordinator").await;
        let info = client.request("$JS.API.STREAM.INFO.LAB_WORK", "{}".into()).await;
        assert!(info.is_ok(), "the client works: {info:?}");
        let filter = "{\"filter\":\"$KV.LAB_RUNS.removed\"}";
        let purged = client.request("$JS.API.STREAM.PURGE.KV_LAB_RUNS", filter.into()).await;
        assert!(purged.is_ok(), "removed entries are purged: {purged:?}");
        for subject in [
            "$JS.API.STREAM.DELETE.LAB_WORK",
            "$JS.API.STREAM.DELETE.KV_LAB_RUNS",
            "$JS.API.STREAM.PURGE.KV_LAB_WORKERS",
            "$JS.API.STREAM.CREATE.MINE",
            "$JS.API.STREAM.MSG.DELETE.LAB_REPORTS",
            "$JS.API.CONSUMER.DELETE.LAB_WORK.one-c0",
            "$JS.API.CONSUMER.MSG.NEXT.LAB_WORK.one-c0",
        ] {
            let answer = client.request(subject, "{\"seq\":1}".into()).await;
            assert!(answer.is_err(), "{subject}: {answer:?}");
        }
    });
}

#[test]
fn reader_of_reports_that_ends_leaves_no_consumer() {
    with_every_server(async |program| {
        let roles = RolesFixture::new(&program);
        let coordinator = roles.connect("coordinator").await;
        let dispatch = coordinator.dispatch(&pool("one"), &CLASSES).await.expect("a dispatch");
        let client = roles.bare_client("coordinator").await;
        let consumers = async || {
            let answer = client.request("$JS.API.STREAM.INFO.LAB_REPORTS", "{}".into()).await;
            let info: serde_json::Value =
                serde_json::from_slice(&answer.expect("allowed").payload).expect("JSON");
            info["state"]["consumer_count"].as_u64().expect("a number")
        };
        let run = samples::offer(1, 1).run;
        let batch = dispatch.reports(run, None, 10, Duration::ZERO).await.expect("reachable");
        assert_eq!((batch.reports.len(), consumers().await), (0, 1));
        drop(dispatch);
        let ended = std::time::Instant::now();
        until("its consumer is removed", async || consumers().await == 0).await;
        assert!(ended.elapsed() < Duration::from_secs(10), "the server removed it when unused");
    });
}

/// A coordinator replies with its own permissions: the sender of a claim must not choose a subject
/// that only the coordinator may write.
#[test]
fn claim_reply_outside_inbox_is_denied() {
    with_every_server(async |program| {
        let roles = RolesFixture::new(&program);
        let coordinator = roles.connect("coordinator").await;
        let dispatch = coordinator.dispatch(&pool("one"), &CLASSES).await.expect("a dispatch");
        let offer = samples::offer(1, 1);
        dispatch.offer(&[offer]).await.expect("reachable");
        let kv_store = coordinator.kv_store();
        kv_store.write("run", Bytes::from_static(b"state"), None).await.expect("allowed");
        let claim = serde_json::to_vec(&samples::claim(1, 1)).expect("serializable");
        let subject = format!("lab.v1.claim.one.{}", offer.run);
        let client = roles.bare_client("worker-one").await;
        let answering = async {
            loop {
                let pending = dispatch.next_claim(offer.run).await.expect("allowed");
                pending.reply.send(ClaimAnswer::Run).expect("asked");
            }
        };
        let asking = async {
            until("claims are received", async || {
                client.request(subject.clone(), claim.clone().into()).await.is_ok()
            })
            .await;
            for reply in
                ["$JS.API.STREAM.PURGE.LAB_WORK", "$KV.LAB_RUNS.run", "lab.v1.work.one.c0.x"]
            {
                let asked = client.publish_with_reply(subject.clone(), reply, claim.clone().into());
                asked.await.expect("allowed");
            }
            // Claims are answered in order, so the earlier ones have been handled.
            let last = client.request(subject.clone(), claim.clone().into()).await;
            assert_eq!(last.expect("answered").payload, "\"run\"");
        };
        tokio::select! { () = answering => {}, () = asking => {} }
        assert_eq!(dispatch.list(offer.run).await.expect("reachable").len(), 1, "offer is kept");
        let state = kv_store.read("run").await.expect("allowed").expect("it is there");
        assert_eq!(state.value, "state");
    });
}

#[test]
fn password_wrong_is_refused_and_not_printed() {
    with_every_server(async |program| {
        let roles = RolesFixture::new(&program);
        let mut wrong = roles.options("worker-one");
        let user = "lab-worker-one".to_owned();
        wrong.credentials =
            NatsCredentials::Password { user, password: NatsSecret::new("opensesame") };
        let refused = Nats::connect(wrong).await.expect_err("a wrong password");
        assert!(matches!(refused, ConnectError::Denied { .. }), "{refused:?}");
        assert!(!format!("{refused:?} {refused}").contains("opensesame"));
        let refused = Nats::connect(roles.fixture.options()).await.expect_err("no user");
        assert!(matches!(refused, ConnectError::NoCredentials { .. }), "{refused:?}");
        let connected = roles.connect("coordinator").await;
        let NatsCredentials::Password { password, .. } = &connected.options().credentials else {
            unreachable!()
        };
        assert!(!format!("{connected:?}").contains(password.expose()), "{connected:?}");
    });
}
