//! Tests of the watch of pods.

use serde_json::json;

use super::*;

/// A pod that runs, with this state of readiness.
fn pod(ready: &str) -> PodState {
    let pod = json!({
        "metadata": {"name": "p", "uid": "u"},
        "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": ready},
            {"type": "ContainersReady", "status": "True"},
        ]},
    });
    PodState::of(&serde_json::from_value(pod).expect("a pod"))
}

#[tokio::test(start_paused = true)]
async fn node_that_reports_again_in_time_loses_no_pod() {
    let (sender, state) = watch::channel(Some(pod("True")));
    let watched = WatchedPod {
        name: "p".into(),
        uid: "u".into(),
        state,
        tracked: Arc::default(),
        ended: OnceLock::new(),
        unreported: Mutex::default(),
    };
    let within = |limit| tokio::time::timeout(limit, watched.until_lost());
    let short = REPORTED_WITHIN / 4 * 3;
    for ready in ["False", "True", "False"] {
        sender.send_replace(Some(pod(ready)));
        assert!(within(short).await.is_err(), "{ready}: it may be used again");
    }
    // Calls that begin later do not begin the time anew.
    let lost = within(REPORTED_WITHIN / 2).await.expect("it is lost");
    assert_eq!(lost.failure.kind, FailureKind::Gone, "{}", lost.failure.chain());
    sender.send_replace(Some(pod("Unknown")));
    within(Duration::from_secs(1)).await.expect("it is lost at once");
}

/// A pod named `p` that no node takes, for this reason.
fn refused(uid: &str, why: &str) -> Pod {
    let pod = json!({
        "metadata": {"name": "p", "uid": uid},
        "status": {"phase": "Pending", "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": why,
            },
        ]},
    });
    serde_json::from_value(pod).expect("a pod")
}

/// A pod named `p` as the answer to its creation has it.
fn created(uid: &str) -> Pod {
    let pod = json!({"metadata": {"name": "p", "uid": uid}, "status": {"phase": "Pending"}});
    serde_json::from_value(pod).expect("a pod")
}

fn reason(watched: &WatchedPod) -> Option<String> {
    watched.state()?.unschedulable.map(|(_, message)| message)
}

#[test]
fn state_observed_before_answer_to_creation_is_first_state_of_its_pod_only() {
    let tracked: Arc<TrackedPods> = Arc::default();
    let expected = ExpectedPod::new("p", &tracked);
    tracked.observe(&refused("u", "too large"), true);
    let watched = expected.track(&created("u"));
    assert_eq!(reason(&watched).as_deref(), Some("too large"));
    // An earlier pod of the name goes while the next one is created.
    let expected = ExpectedPod::new("p", &tracked);
    tracked.observe(&refused("u", "still too large"), true);
    assert_eq!(reason(&watched).as_deref(), Some("still too large"));
    tracked.observe(&refused("v", "of another"), true);
    let next = expected.track(&created("w"));
    assert_eq!(reason(&next), None);
    assert_eq!(next.state().map(|state| state.uid).as_deref(), Some("w"));
    let expected = ExpectedPod::new("p", &tracked);
    tracked.observe(&refused("x", "deleted meanwhile"), false);
    assert_eq!(expected.track(&created("x")).state(), None);
}

#[test]
fn creation_that_fails_leaves_no_state_to_the_next_one_of_its_name() {
    let tracked: Arc<TrackedPods> = Arc::default();
    let (failed, other) = (ExpectedPod::new("p", &tracked), ExpectedPod::new("p", &tracked));
    drop(failed);
    tracked.observe(&refused("u", "too large"), true);
    assert!(tracked.table().expected.contains_key("p"), "another creation has no answer yet");
    drop(other);
    assert!(tracked.table().expected.is_empty() && tracked.is_empty());
    tracked.observe(&refused("u", "too large"), true);
    assert!(tracked.table().expected.is_empty(), "a pod without a creation is not kept");
}
