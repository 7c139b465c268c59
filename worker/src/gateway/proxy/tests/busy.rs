//! Limits of model servers that are in use.

use rollout_protocol::wire::model_calls::ModelCallState;

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
