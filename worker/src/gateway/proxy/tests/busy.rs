//! Limits of model servers that are in use.

use futures_util::FutureExt as _;
use rollout_protocol::wire::model_calls::ModelCallState;
use rollout_protocol::wire::model_leases::LimitParts;

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
    assert_eq!(failures(3, [2, 1]).await, [None, others_fault], "its own calls have most places");
}

#[tokio::test]
async fn limits_that_other_tries_use_are_an_outage_also_for_one_with_a_few_calls() {
    let unanswered = Some(CallFailure::Unanswered);
    assert_eq!(failures(2, [1, 1]).await, [unanswered; 2]);
    assert_eq!(failures(4, [1, 3]).await, [unanswered, None]);
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
async fn rate_that_other_tries_use_is_an_outage_for_one_with_a_slow_call() {
    let [one, other] = [HeldPlaces::default(), HeldPlaces::default()];
    let server = own_server(None, Some(3));
    for _ in 0..2 {
        drop(server.admit(after(60), &other).await.expect("sent, and answered at once"));
    }
    let _slow = server.admit(after(60), &one).await.expect("sent");
    assert!(!is_own(&server, &one).await, "the other one sent most calls");
    assert!(!is_own(&server, &other).await, "it has no other call");
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
async fn places_for_which_most_calls_of_others_wait_are_an_outage() {
    let [one, other] = [HeldPlaces::default(), HeldPlaces::default()];
    let server = own_server(Some(3), None);
    let mut held = Vec::new();
    for places in [&one, &one, &other] {
        held.push(server.admit(after(60), places).await.expect("sent"));
    }
    assert!(is_own(&server, &one).await, "it has most places");
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut call = Box::pin(server.admit(after(60), &other));
        assert!(call.as_mut().now_or_never().is_none());
        waiting.push(call);
    }
    assert!(!is_own(&server, &one).await, "others need most of them");
    assert!(!is_own(&server, &other).await, "and have fewer");
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
