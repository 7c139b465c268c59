//! Limits of model servers that are in use.

use rollout_protocol::wire::model_calls::ModelCallState;

use super::*;

#[tokio::test]
async fn limits_that_a_try_uses_itself_are_no_outage_of_the_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _server) = server(Duration::from_secs(60)).await;
    let gateway = Gateway::new();
    let of_one = upstream(&url, 0.3, Some(1));
    let one = open(&gateway, of_one.clone(), &directory.path().join("1")).await;
    let other = open(&gateway, of_one, &directory.path().join("2")).await;
    let (variables, others) =
        (one.serve(HOST).await.expect("served"), other.serve(HOST).await.expect("served"));
    let calls = gateway.run_calls();
    calls.of(RUN).set(ModelCallState { paused: false, policy_version: 1 });
    let _slow = supervise::spawn("slow", call(variables.clone()));
    let until = Instant::now() + Duration::from_secs(60);
    while calls.counts(RUN).is_none_or(|counts| counts.in_flight == 0) {
        assert!(Instant::now() < until, "the first call has not been sent");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((say(&variables, "task").await, say(&others, "task").await), (429, 429));
    assert_eq!(one.call_failure(), None, "its own call has the place");
    assert_eq!(other.call_failure(), Some(CallFailure::Unanswered));
}
