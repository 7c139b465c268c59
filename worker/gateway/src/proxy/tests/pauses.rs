//! Pauses of a run's model calls, and its policy versions.

use hyper::StatusCode;
use rollout_protocol::wire::model_calls::ModelCallState;

use super::*;

/// Waits until the run has so many calls in flight and held.
async fn until(gateway: &Gateway, wanted: (u32, u32)) {
    let counts = || {
        let counts = gateway.run_calls().counts(RUN).expect("known");
        (counts.in_flight, counts.held)
    };
    let until = Instant::now() + Duration::from_secs(60);
    while counts() != wanted {
        assert!(Instant::now() < until, "{:?} instead of {wanted:?}", counts());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn paused_run_holds_new_call_lets_running_one_end_and_records_both_versions() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _server) = server(Duration::from_millis(500)).await;
    let gateway = Gateway::new();
    let opened = open(&gateway, upstream(&url, 30.0, None), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    let run = gateway.run_calls().of(RUN);
    let set = |paused, policy_version| run.set(ModelCallState { paused, policy_version });
    set(false, 7);
    let pause = async {
        until(&gateway, (1, 0)).await;
        set(true, 7);
        let second = supervise::spawn("second", call(variables.clone()));
        until(&gateway, (1, 1)).await;
        assert!(opened.is_stopped(), "the agent's clock stands still");
        until(&gateway, (0, 1)).await;
        set(false, 8);
        second.await.expect("no panic")
    };
    let (first, second) = tokio::join!(call(variables.clone()), pause);
    assert_eq!((first.status(), second.status()), (StatusCode::OK, StatusCode::OK));
    assert!(!opened.is_stopped() && opened.stopped_time() > Duration::ZERO);
    let calls = opened.close(None).await;
    let text = std::fs::read_to_string(&calls.files[0]).expect("calls");
    let ended: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let policy = |call: u64| {
        let of_call = |line: &&serde_json::Value| line["type"] == "ended" && line["call"] == call;
        ended.iter().find(of_call).expect("a line")["policy"].clone()
    };
    assert_eq!(policy(1), serde_json::json!({"dispatched": 7, "ended": 7}));
    assert_eq!(policy(2), serde_json::json!({"dispatched": 8, "ended": 8}));
    assert_eq!(calls.summary.crossed_calls, 0);
}

#[tokio::test]
async fn pause_that_is_longer_than_hold_refuses_call_which_is_an_outage() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _server) = server(Duration::ZERO).await;
    let gateway = Gateway::new();
    let opened = open(&gateway, upstream(&url, 0.3, None), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    gateway.run_calls().of(RUN).set(ModelCallState { paused: true, policy_version: 1 });
    let refused = call(variables).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()["retry-after"], "5");
    assert!(opened.call_failure().is_some() && opened.is_stopped());
    assert!(opened.stopped_time() >= Duration::from_millis(300));
    let calls = opened.close(None).await;
    assert_eq!((calls.summary.calls, calls.summary.failed_calls), (1, 1));
}

#[tokio::test]
async fn call_in_flight_while_policy_changes_says_both_versions() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _server) = server(Duration::from_millis(300)).await;
    let gateway = Gateway::new();
    let opened = open(&gateway, upstream(&url, 30.0, None), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    let run = gateway.run_calls().of(RUN);
    run.set(ModelCallState { paused: false, policy_version: 1 });
    let change = async {
        until(&gateway, (1, 0)).await;
        run.set(ModelCallState { paused: false, policy_version: 2 });
    };
    let (answered, ()) = tokio::join!(call(variables), change);
    assert_eq!(answered.status(), StatusCode::OK);
    let calls = opened.close(None).await;
    assert_eq!(calls.summary.crossed_calls, 1);
    let text = std::fs::read_to_string(&calls.files[0]).expect("calls");
    assert!(text.contains(r#""policy":{"dispatched":1,"ended":2}"#), "{text}");
}
