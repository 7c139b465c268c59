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
    assert_eq!(failures(4, [0, 4]).await, [others_fault, None], "it has no place");
}

#[tokio::test]
async fn limits_that_tries_use_together_are_an_outage_for_none_that_has_a_place() {
    for (limit, slow_calls) in [(2, [1, 1]), (3, [2, 1]), (4, [1, 3])] {
        assert_eq!(failures(limit, slow_calls).await, [None; 2], "{slow_calls:?}");
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
    assert!(is_own(&server, &other).await, "it has one, and asks for more");
    assert!(!is_own(&server, &third).await, "the others keep it out");
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
