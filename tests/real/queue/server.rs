//! Behaviour specific to servers: lost connections, differing settings, pools bound to stores,
//! invalid messages.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use rollout_protocol::wire::delivery::FreeCapacity;
use rollout_protocol::wire::offer::Offer;
use rollout_queue::contract::{CLASSES, samples};
use rollout_queue::nats::{
    BindError, ConnectError, Nats, NatsCredentials, NatsDispatch, NatsOptions, NatsSecret,
    NatsSetupError, NatsSource,
};
use rollout_queue::traits::{ConnectionStatus, Dispatch as _, QueueError, WorkSource as _};
use serde_json::json;

use crate::queue::fixture::{DEADLINE, LEASE, QueueFixture, pool, until, with_every_server};

/// A fake server that only sends its INFO.
fn start_fake_server(version: &str) -> (u16, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let info = json!({
        "server_id": "x", "server_name": "x", "version": version, "proto": 1, "host": "127.0.0.1",
        "port": port, "headers": true, "max_payload": 1_048_576, "jetstream": true, "go": "go1",
        "git_commit": "", "client_id": 1,
    });
    #[expect(clippy::disallowed_methods, reason = "joined by the test")]
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let greeting = format!("INFO {info}\r\nPONG\r\n");
        stream.write_all(greeting.as_bytes()).expect("a client that reads");
        let _until_it_goes = std::io::copy(&mut stream, &mut std::io::sink());
    });
    (port, thread)
}

#[tokio::test(flavor = "multi_thread")]
async fn server_too_old_or_without_credentials_is_refused() {
    let (port, thread) = start_fake_server("2.10.22");
    let options = NatsOptions::parse(&format!("nats://127.0.0.1:{port}")).expect("valid");
    let old = Nats::connect(options).await.expect_err("too old");
    assert!(matches!(&old, ConnectError::TooOld { found, .. } if found == "2.10.22"), "{old:?}");
    thread.join().expect("it ends with the client");
    let options = NatsOptions::parse("nats://nats.example.org").expect("valid");
    let open = Nats::connect(options).await.expect_err("no credentials");
    assert!(matches!(open, ConnectError::Options(_)), "{open:?}");
}

#[test]
fn connection_lost_reconnects() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let dispatch = nats.dispatch(&pool("default"), &CLASSES).await.expect("a dispatch");
        let source = nats.source(&pool("default"), "store").await.expect("a source");
        source.heartbeat(samples::heartbeat("worker")).await.expect("reachable");
        let status = nats.connection_status();
        assert_eq!(*status.borrow(), ConnectionStatus { up: true, connections: 1 });
        let incarnation = dispatch.incarnation().await.expect("reachable");
        dispatch.offer(&[samples::offer(1, 1)]).await.expect("reachable");
        let held = source.pull(FreeCapacity::with_slots(1), DEADLINE).await.expect("reachable");
        until("the heartbeat is known", async || !heartbeat_ages(&dispatch).await.is_empty()).await;
        lab.with_server(rollout_tests::nats::NatsServer::kill);
        until("disconnected", async || !status.borrow().up).await;
        let pulled = source.pull(FreeCapacity::with_slots(1), Duration::from_secs(1)).await;
        assert!(matches!(pulled, Err(QueueError::Unreachable { .. })), "{pulled:?}");
        // The acknowledgement is sent when the server is back.
        source.ack(&[held[0].token]).await.expect("kept");
        let age = heartbeat_ages(&dispatch).await[0];
        // Time must pass to show that the age does not grow.
        let since = Instant::now();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let later = heartbeat_ages(&dispatch).await[0];
        let passed = since.elapsed();
        assert!(later < age + passed * 4 / 5, "{age:?}, {later:?} after {passed:?}: the age grows");
        lab.with_server(rollout_tests::nats::NatsServer::ensure_started);
        until("reconnected", async || status.borrow().up).await;
        assert_eq!(status.borrow().connections, 2);
        until("same incarnation", async || dispatch.incarnation().await.ok() == Some(incarnation))
            .await;
        let heartbeat = async || source.heartbeat(samples::heartbeat("again")).await.is_ok();
        until("heartbeats are accepted", heartbeat).await;
        until("heartbeats seen", async || heartbeat_ages(&dispatch).await.len() == 2).await;
        wait_until_done(&source, &dispatch, samples::offer(1, 1).run).await;
    });
}

/// Waits until an acknowledged offer is removed, and checks that it is not delivered again. A
/// killed server may have lost the delivery, and then ignores the acknowledgement until it has
/// delivered the offer again.
async fn wait_until_done(source: &NatsSource, dispatch: &NatsDispatch, run: RunId) {
    until("the acknowledgement is received", async || {
        let again = source.pull(FreeCapacity::with_slots(1), Duration::from_millis(100)).await;
        assert!(again.as_ref().is_ok_and(Vec::is_empty), "it is delivered again: {again:?}");
        dispatch.list(run).await.is_ok_and(|listed| listed.is_empty())
    })
    .await;
}

#[test]
fn server_kill_with_lost_state_repeats_nothing() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let dispatch = nats.dispatch(&pool("default"), &CLASSES).await.expect("a dispatch");
        let source = nats.source(&pool("default"), "store").await.expect("a source");
        let incarnation = dispatch.incarnation().await.expect("reachable");
        dispatch.offer(&[samples::offer(1, 1)]).await.expect("reachable");
        let held = source.pull(FreeCapacity::with_slots(1), DEADLINE).await.expect("reachable");
        // Kill at once: the server stores deliveries a moment later.
        lab.with_server(rollout_tests::nats::NatsServer::kill);
        let status = nats.connection_status();
        until("disconnected", async || !status.borrow().up).await;
        source.ack(&[held[0].token]).await.expect("kept");
        lab.with_server(rollout_tests::nats::NatsServer::ensure_started);
        until("same incarnation", async || dispatch.incarnation().await.ok() == Some(incarnation))
            .await;
        wait_until_done(&source, &dispatch, samples::offer(1, 1).run).await;
    });
}

async fn heartbeat_ages(dispatch: &NatsDispatch) -> Vec<Duration> {
    dispatch.heartbeats().await.expect("known").into_iter().map(|seen| seen.age).collect()
}

#[test]
fn stream_settings_that_differ_are_named() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let mut options = lab.options();
        let nats = Nats::connect(options.clone()).await.expect("a server");
        assert!(!nats.is_set_up().await.expect("reachable"));
        nats.prepare(&pool("default"), &CLASSES).await.expect("made");
        assert!(nats.is_set_up().await.expect("reachable"));
        nats.prepare(&pool("default"), &CLASSES).await.expect("there already");
        let survey = nats.server_info().await.expect("reachable");
        assert!(survey.streams.iter().all(|s| s.present), "{survey:?}");
        assert!(!survey.has_differences(), "{survey:?}");
        assert_eq!((survey.streams.len(), survey.consumers.len()), (4, CLASSES.len()));
        options.reports_per_run += 1;
        let other = Nats::connect(options.clone()).await.expect("a server");
        let differs = other.prepare(&pool("default"), &CLASSES).await;
        let Err(NatsSetupError::Differs { name, setting, .. }) = differs else {
            panic!("{differs:?}")
        };
        assert!(
            name.ends_with("_REPORTS") && setting == "max_msgs_per_subject",
            "{name} {setting}"
        );
        options.reports_per_run -= 1;
        options.lease *= 2;
        let other = Nats::connect(options).await.expect("a server");
        let differs = other.prepare(&pool("default"), &CLASSES).await;
        let Err(NatsSetupError::Differs { setting, .. }) = differs else { panic!("{differs:?}") };
        assert_eq!(setting, "ack_wait");
        let survey = other.server_info().await.expect("reachable");
        assert!(survey.has_differences(), "{survey:?}");
        for consumer in survey.consumers {
            let difference = format!("ack_wait is {LEASE:?}, {:?} is required", LEASE * 2);
            assert_eq!(consumer.differences, [difference]);
        }
    });
}

#[test]
fn worker_with_other_lease_is_refused() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let name = pool("default");
        let mut options = nats.options().clone();
        options.lease *= 2;
        let other = Nats::connect(options).await.expect("a server");
        assert_eq!(other.other_lease(&name).await.expect("nothing is set up"), None);
        let source = other.source(&name, "store").await.expect("a source");
        source.check_pool().await.expect("nothing is set up");
        let dispatch = nats.dispatch(&name, &CLASSES).await.expect("a dispatch");
        dispatch.offer(&[samples::offer(1, 1)]).await.expect("reachable");
        assert_eq!(nats.other_lease(&name).await.expect("reachable"), None);
        assert_eq!(other.other_lease(&name).await.expect("reachable"), Some(LEASE));
        let checked = source.check_pool().await.expect_err("another lease").to_string();
        for lease in [LEASE, LEASE * 2] {
            assert!(checked.contains(&format!("{lease:?}")), "{checked}");
        }
        let pulled = source.pull(FreeCapacity::with_slots(1), DEADLINE).await;
        assert!(matches!(pulled, Err(QueueError::Denied { .. })), "{pulled:?}");
    });
}

#[test]
fn pool_with_other_store_is_refused() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let name = pool("default");
        assert_eq!(nats.pool_binding(&name).await.expect("nothing is set up"), None);
        let dispatch = nats.dispatch(&name, &CLASSES).await.expect("a dispatch");
        dispatch.offer(&[samples::offer(1, 1)]).await.expect("reachable");
        nats.bind_pool(&name, "here", false).await.expect("bound");
        nats.bind_pool(&name, "here", false).await.expect("bound already");
        let elsewhere = nats.bind_pool(&name, "there", false).await;
        assert!(matches!(&elsewhere, Err(BindError::OtherStore { found, .. }) if found == "here"));
        let source = nats.source(&name, "there").await.expect("a source");
        let checked = source.check_pool().await.expect_err("another store");
        let text = checked.to_string();
        assert!(text.contains("here") && text.contains("there"), "{text}");
        let pulled = source.pull(FreeCapacity::with_slots(1), Duration::from_millis(10)).await;
        assert!(matches!(pulled, Err(QueueError::Denied { .. })), "{pulled:?}");
        nats.bind_pool(&name, "there", true).await.expect("bound again");
        source.check_pool().await.expect("its store");
        let pulled = source.pull(FreeCapacity::with_slots(1), DEADLINE).await.expect("its store");
        assert_eq!(pulled.len(), 1);
    });
}

#[test]
fn garbage_messages_are_ignored() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "");
        let nats = lab.connect().await;
        let dispatch = nats.dispatch(&pool("default"), &CLASSES).await.expect("a dispatch");
        let source = nats.source(&pool("default"), "store").await.expect("a source");
        let client = async_nats::connect(&lab.url).await.expect("a server");
        let namespace = &nats.options().namespace;
        let offer = samples::offer(1, 1);
        let run = offer.run;
        let subjects = [
            format!("{namespace}.v1.work.default.c0.{run}.x.1-1"),
            format!("{namespace}.v1.report.{run}"),
            format!("{namespace}.v1.report.default.{run}"),
            format!("{namespace}.v1.claim.{run}"),
            format!("{namespace}.v1.claim.default.{run}"),
            format!("{namespace}.v1.control.{run}"),
            format!("$KV.{}_WORKERS.x", namespace.as_str().to_uppercase()),
        ];
        let mut claims = std::pin::pin!(dispatch.next_claim(run));
        assert!(futures_util::poll!(claims.as_mut()).is_pending());
        for garbage in [b"{".to_vec(), b"null".to_vec(), vec![0xff; 100], vec![b'['; 60_000]] {
            for subject in &subjects {
                client.publish(subject.clone(), garbage.clone().into()).await.expect("sent");
            }
        }
        client.flush().await.expect("sent");
        dispatch.offer(&[Offer { class: CLASSES[1], ..offer }]).await.expect("reachable");
        let pulled = source.pull(FreeCapacity::with_slots(9), DEADLINE).await.expect("reachable");
        assert_eq!(pulled.len(), 1);
        source.report(vec![samples::report(1, 1)]).await.expect("reachable");
        until("the report is read despite invalid messages", async || {
            let read = dispatch.reports(run, None, 9, DEADLINE).await.expect("reachable");
            read.reports.len() == 1
        })
        .await;
        assert_eq!(dispatch.list(run).await.expect("reachable").len(), 1);
        let asked = source.claim(samples::claim(1, 1));
        let (claim, asked) =
            tokio::join!(async { drop(claims.await.expect("a claim").reply) }, asked,);
        assert!(matches!(asked, Err(QueueError::NoAnswer { .. })), "{claim:?} {asked:?}");
        assert!(heartbeat_ages(&dispatch).await.is_empty());
    });
}

#[test]
fn server_for_small_messages_is_refused_and_parts_fit_its_limit() {
    with_every_server(async |program| {
        let small = QueueFixture::new(&program, "max_payload: 1KB\n");
        let refused = Nats::connect(small.options()).await.expect_err("refused");
        assert!(matches!(refused, ConnectError::SmallMessages { found: 1024, .. }), "{refused:?}");
        let enough = QueueFixture::new(&program, "max_payload: 64KB\n");
        let nats = enough.connect().await;
        let (part, output) = (nats.part_bytes(), nats.output_bytes());
        assert!((32 * 1024..64 * 1024 / 4 * 3).contains(&part), "{part}");
        assert!(output.is_some_and(|bytes| bytes * 6 < 64 * 1024), "{output:?}");
        let usual = QueueFixture::new(&program, "");
        assert_eq!(usual.connect().await.part_bytes(), limits::RUN_FILE_PART_BYTES);
    });
}

/// Options of the user `u`.
fn with_user(lab: &QueueFixture) -> NatsOptions {
    let mut options = lab.options();
    let (user, password) = ("u".to_owned(), NatsSecret::new("p"));
    options.credentials = NatsCredentials::Password { user, password };
    options
}

#[test]
fn account_with_too_little_disk_is_named_with_its_limit() {
    with_every_server(async |program| {
        let disk = "jetstream: { max_mem: 8MB, max_file: 1MB }";
        let users = "users: [{ user: u, password: p }]";
        let lab =
            QueueFixture::new(&program, &format!("accounts {{ A: {{ {disk}, {users} }} }}\n"));
        let nats = Nats::connect(with_user(&lab)).await.expect("a user");
        let refused = nats.prepare(&pool("one"), &CLASSES).await.expect_err("too little disk");
        let text = refused.to_string();
        let NatsSetupError::Resources { missing, .. } = refused else { panic!("{refused:?}") };
        assert_eq!(missing.reserved, 16 * 1024 * 1024, "{text}");
        let info = nats.server_info().await.expect("read");
        let mut found = info.streams.iter().filter_map(|stream| stream.missing_disk.clone());
        let found = (info.lacks_disk(), found.next(), found.next());
        assert_eq!(found, (true, Some(missing), None), "as before a run");
        let (_, taken) = text.split_once("may use 1048576 bytes, of which ").expect(&text);
        let taken: u64 = taken.split(' ').next().and_then(|bytes| bytes.parse().ok()).expect(&text);
        assert!(taken <= 1_048_576, "{text}");
    });
}

#[test]
fn coordinator_that_may_not_offer_is_refused_at_its_start() {
    with_every_server(async |program| {
        let denied = r#"permissions: { publish: { deny: ["*.v1.work.>"] } }"#;
        let users = format!("authorization: {{ users: [{{ user: u, password: p, {denied} }}] }}\n");
        let lab = QueueFixture::new(&program, &users);
        let nats = Nats::connect(with_user(&lab)).await.expect("a user");
        nats.prepare(&pool("one"), &CLASSES).await.expect("allowed");
        let refused = nats.dispatch(&pool("one"), &CLASSES).await.expect_err("it cannot offer");
        let is_denied = matches!(refused, NatsSetupError::Queue(QueueError::Denied { .. }));
        assert!(is_denied, "{refused:?}");
    });
}
