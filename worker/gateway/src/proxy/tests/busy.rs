//! Limits of model servers that are in use.

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use rollout_protocol::wire::model_calls::ModelCallState;
use rollout_protocol::wire::model_leases::LimitParts;

use super::given_up::{wait_for_failure, wait_for_records};
use super::*;

/// Lets two executions make so many calls that a server with this limit is answering, then another one
/// each, which is refused; returns why these say nothing about their agents.
async fn failures(limit: u32, slow_calls: [usize; 2]) -> [Option<CallFailure>; 2] {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _server) = server(Duration::from_secs(60)).await;
    let gateway = Gateway::new();
    let upstream = upstream(&url, 0.3, Some(limit));
    let one = open(&gateway, upstream.clone(), &directory.path().join("1")).await;
    let other = open(&gateway, upstream, &directory.path().join("2")).await;
    let variables =
        [one.serve(HOST).await.expect("served"), other.serve(HOST).await.expect("served")];
    let calls = gateway.run_calls();
    calls.of(RUN).set(ModelCallState { paused: false, policy_version: 1 });
    let mut slow = Vec::new();
    for (variables, count) in variables.iter().zip(slow_calls) {
        slow.extend((0..count).map(|_| supervise::spawn("slow", call(variables.clone()))));
    }
    let until = Instant::now() + Duration::from_secs(60);
    while calls.counts(RUN).is_none_or(|counts| counts.in_flight < limit) {
        assert!(Instant::now() < until, "the first calls have not been sent");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for variables in &variables {
        assert_eq!(say(variables, "task").await, 429);
    }
    [one.call_failure(), other.call_failure()]
}

#[tokio::test]
async fn limits_that_a_try_uses_itself_are_no_outage_of_the_server() {
    let others_fault = Some(CallFailure::Unanswered);
    assert_eq!(failures(1, [1, 0]).await, [None, others_fault], "its own call has the place");
    assert_eq!(failures(4, [0, 4]).await, [others_fault, None], "it has no place");
}

#[tokio::test]
async fn limits_that_tries_use_together_are_an_outage_for_one_with_less_than_its_share() {
    let others_fault = Some(CallFailure::Unanswered);
    for (limit, slow_calls, expected) in [
        (2, [1, 1], [None, None]),
        (4, [2, 2], [None, None]),
        (3, [2, 1], [None, others_fault]),
        (4, [1, 3], [others_fault, None]),
    ] {
        assert_eq!(failures(limit, slow_calls).await, expected, "{slow_calls:?}");
    }
}

/// A server that answers its first call with a status and the second one never, with the moment when it
/// has read that.
async fn server_of_one_answer(status: u16) -> (String, Arc<Notify>, Task<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let asked = Arc::new(Notify::new());
    let has_read = Arc::clone(&asked);
    let task = supervise::spawn("server", async move {
        let mut request = [0; 4096];
        let (mut first, _) = listener.accept().await.expect("a connection");
        let _read = first.read(&mut request).await;
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\nconnection: close\r\n");
        let _sent = first.write_all(format!("{head}\r\n{{}}").as_bytes()).await;
        drop(first);
        let (mut silent, _) = listener.accept().await.expect("a connection");
        let _read = silent.read(&mut request).await;
        has_read.notify_one();
        std::future::pending::<()>().await;
    });
    (url, asked, task)
}

#[tokio::test]
async fn call_that_agent_gives_up_while_it_waits_keeps_an_outage_before_it_and_is_none() {
    for (status, expected) in [(500, Some(CallFailure::Unanswered)), (200, None)] {
        let directory = tempfile::tempdir().expect("a directory");
        let (url, asked, _server) = server_of_one_answer(status).await;
        let gateway = Gateway::new();
        let opened = open(&gateway, upstream(&url, 60.0, Some(1)), directory.path()).await;
        let variables = opened.serve(HOST).await.expect("served");
        assert_eq!(say(&variables, "task").await, status);
        let slow = supervise::spawn("slow", try_call(variables.clone(), ""));
        asked.notified().await;
        let message = |text: &str| serde_json::json!({"role": "user", "content": text});
        let next = serde_json::json!({"messages": [message("task"), message("go on")]});
        // The begin and the end of the first call, and the begins of the others.
        tokio::select! {
            _ = send(variables, "", next.to_string().into()) => panic!("{status}: it was sent"),
            () = wait_for_records(directory.path(), 4) => {}
        }
        wait_for_records(directory.path(), 5).await;
        drop(slow);
        opened.wait_for_calls().await;
        wait_for_failure(opened.as_ref(), expected).await;
    }
}

/// An upstream with these limits.
fn limited(max_concurrent: Option<u32>, requests_per_minute: Option<u32>) -> Upstream {
    let mut limited = upstream("http://h/v1", 1.0, max_concurrent);
    limited.spec.requests_per_minute = requests_per_minute;
    limited
}

/// A server whose limits are those of this worker alone.
fn own_server(max_concurrent: Option<u32>, requests_per_minute: Option<u32>) -> ModelServer {
    let upstream = limited(max_concurrent, requests_per_minute);
    ModelServer::new(&upstream, None, &Clients::default()).expect("a server")
}

/// The end of a wait of so many seconds.
fn after(sec: u64) -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(sec)
}

/// Whether a call of an execution that waits for a second is refused because of the execution itself.
async fn is_own(server: &ModelServer, places: &HeldPlaces) -> bool {
    server.admit(after(1), places).await.expect_err("the limits are in use").is_own
}

#[tokio::test(start_paused = true)]
async fn rate_of_which_a_try_had_a_start_within_a_minute_is_no_outage() {
    let [one, other, third] = [(); 3].map(|()| HeldPlaces::default());
    let server = own_server(None, Some(3));
    for _ in 0..2 {
        drop(server.admit(after(60), &other).await.expect("sent, and answered at once"));
    }
    let _slow = server.admit(after(60), &one).await.expect("sent");
    assert!(is_own(&server, &one).await, "it had the last start");
    assert!(is_own(&server, &other).await, "it had most starts");
    assert!(!is_own(&server, &third).await, "it had no start");
}

#[tokio::test(start_paused = true)]
async fn rate_that_a_try_alone_uses_is_no_outage_however_short_its_calls_are() {
    for max_concurrent in [None, Some(64)] {
        let [one, other] = [HeldPlaces::default(), HeldPlaces::default()];
        let server = own_server(max_concurrent, Some(3));
        drop(server.admit(after(60), &one).await.expect("sent, and answered at once"));
        assert!(is_own(&server, &one).await, "{max_concurrent:?}");
        assert!(!is_own(&server, &other).await, "{max_concurrent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn places_for_which_calls_of_others_wait_are_an_outage_for_a_try_without_a_place() {
    let [one, other, third] = [(); 3].map(|()| HeldPlaces::default());
    let server = own_server(Some(3), None);
    let mut held = Vec::new();
    for places in [&one, &one, &other] {
        held.push(server.admit(after(60), places).await.expect("sent"));
    }
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut call = Box::pin(server.admit(after(60), &other));
        assert!(call.as_mut().now_or_never().is_none());
        waiting.push(call);
    }
    assert!(is_own(&server, &one).await, "it has two places");
    assert!(!is_own(&server, &other).await, "it has one of three");
    assert!(!is_own(&server, &third).await, "the others keep it out");
}

#[tokio::test(start_paused = true)]
async fn places_beyond_the_share_of_another_try_are_an_outage_for_the_other_one() {
    let [one, other] = [(); 2].map(|()| HeldPlaces::default());
    let server = own_server(Some(4), None);
    let mut held = Vec::new();
    for places in [&one, &other, &other, &other] {
        held.push(server.admit(after(60), places).await.expect("sent"));
    }
    let mut waiting = Vec::new();
    for _ in 0..12 {
        let mut call = Box::pin(server.admit(after(60), &other));
        assert!(call.as_mut().now_or_never().is_none());
        waiting.push(call);
    }
    assert!(!is_own(&server, &one).await, "its share are two of four places");
    assert!(is_own(&server, &other).await, "it has three");
}

#[tokio::test(start_paused = true)]
async fn place_that_a_try_left_to_another_one_is_an_outage_for_its_next_call() {
    let [one, other] = [(); 2].map(|()| HeldPlaces::default());
    let server = own_server(Some(2), None);
    let _held = server.admit(after(60), &other).await.expect("sent");
    let title = server.admit(after(60), &one).await.expect("sent");
    let mut calls =
        [(60, &other), (10, &one)].map(|(sec, places)| Box::pin(server.admit(after(sec), places)));
    for call in &mut calls {
        assert!(call.as_mut().now_or_never().is_none());
    }
    let [next, refused] = calls;
    drop(title);
    let _next = next.await.expect("sent");
    assert!(!refused.await.expect_err("the places are in use").is_own);
}

#[tokio::test(start_paused = true)]
async fn place_that_another_call_got_meanwhile_is_no_outage_after_its_answer() {
    let [one, other, third] = [(); 3].map(|()| HeldPlaces::default());
    let server = own_server(Some(1), None);
    let held = server.admit(after(60), &other).await.expect("sent");
    let mut calls = [(60, &one), (60, &other), (1, &one), (1, &third)]
        .map(|(sec, places)| Box::pin(server.admit(after(sec), places)));
    for call in &mut calls {
        assert!(call.as_mut().now_or_never().is_none());
    }
    let [answered, next, refused, kept_out] = calls;
    drop(held);
    drop(answered.await.expect("sent, and answered at once"));
    let _held = next.await.expect("sent");
    assert!(refused.await.expect_err("the place is in use").is_own, "it had the place");
    assert!(!kept_out.await.expect_err("the place is in use").is_own, "it had no place");
}

#[tokio::test(start_paused = true)]
async fn rate_of_which_another_call_got_a_start_meanwhile_is_no_outage() {
    let [one, other] = [HeldPlaces::default(), HeldPlaces::default()];
    let server = own_server(None, Some(3));
    for _ in 0..2 {
        drop(server.admit(after(60), &other).await.expect("sent, and answered at once"));
    }
    let mut first = Box::pin(server.admit(after(60), &one));
    assert!(first.as_mut().now_or_never().is_none());
    let refused = server.admit(after(30), &one);
    let (first, refused) = tokio::join!(first, refused);
    drop(first.expect("sent after 20 s"));
    assert!(refused.expect_err("the rate is in use").is_own);
}

#[tokio::test(start_paused = true)]
async fn try_alone_is_sent_again_after_calls_that_gave_up() {
    let one = HeldPlaces::default();
    let server = own_server(None, Some(2));
    let calls = join_all((0..6).map(|_| server.admit(after(3), &one))).await;
    let refused = calls.iter().filter_map(|call| call.as_ref().err()).collect::<Vec<_>>();
    assert_eq!(refused.len(), 5);
    assert!(refused.iter().all(|refused| refused.is_own), "one of them was sent");
    drop(calls);
    tokio::time::advance(Duration::from_secs(65)).await;
    drop(server.admit(after(3), &one).await.expect("sent"));
}

#[tokio::test(start_paused = true)]
async fn calls_that_gave_up_take_no_start_of_another_try() {
    let [one, other] = [(); 2].map(|()| HeldPlaces::default());
    let server = own_server(None, Some(30));
    let calls = join_all((0..150).map(|_| server.admit(after(10), &one))).await;
    assert!(calls.iter().filter(|call| call.is_ok()).count() <= 6, "one in 2 s is sent");
    drop(calls);
    let began = tokio::time::Instant::now();
    drop(server.admit(after(3), &other).await.expect("sent"));
    assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn try_with_the_only_start_has_a_verdict_beside_waiting_calls_of_another_one() {
    let [one, other] = [(); 2].map(|()| HeldPlaces::default());
    let server = own_server(None, Some(2));
    let _sent = server.admit(after(60), &one).await.expect("sent");
    let waiting = |places| {
        let mut call = Box::pin(server.admit(after(10), places));
        assert!(call.as_mut().now_or_never().is_none());
        call
    };
    let own = [(); 2].map(|()| waiting(&one));
    tokio::time::advance(Duration::from_secs(4)).await;
    let others = [(); 3].map(|()| waiting(&other));
    for call in own {
        assert!(call.await.expect_err("the rate is in use").is_own, "it had the only start");
    }
    for call in others {
        assert!(!call.await.expect_err("the rate is in use").is_own, "it had no start");
    }
}

#[tokio::test(start_paused = true)]
async fn leased_rate_that_a_try_alone_uses_is_no_outage_and_a_missing_lease_is_one() {
    let gateway = Gateway::new();
    let run = gateway.run_calls().of(RUN);
    let upstream = limited(Some(64), Some(3));
    let leased = LeasedLimits::new(Arc::clone(&run), 0, &upstream.spec).expect("limits");
    let server = ModelServer::new(&upstream, Some(leased), &Clients::default()).expect("a server");
    let one = HeldPlaces::default();
    assert!(!is_own(&server, &one).await, "other workers have all places");
    run.leases.set(1, vec![LimitParts { concurrent: 64, per_minute: 3 }]);
    drop(server.admit(after(60), &one).await.expect("sent, and answered at once"));
    assert!(is_own(&server, &one).await);
}
