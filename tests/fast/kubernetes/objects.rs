//! Objects, lists and watches.

use futures_util::TryStreamExt as _;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, Preconditions, WatchEvent, WatchParams,
};
use rollout_tests::kube::{ExpiredForm, RequestFault};
use serde_json::json;

use crate::kubernetes::client::{
    create, double, pod, pods, run, status_of, wait_for, wait_until_gone,
};

#[tokio::test(flavor = "multi_thread")]
async fn pod_is_created_listed_patched_and_deleted() {
    let (double, client) = double().await;
    let pods = pods(&client);
    run(&pods, pod("one", "lazy:1")).await;
    run(&pods, pod("two", "lazy:1")).await;
    assert_eq!(status_of(create(&pods, pod("one", "lazy:1")).await).1, "AlreadyExists");

    let patch = Patch::Merge(json!({"metadata": {"labels": {"app": "other"}}}));
    pods.patch("two", &PatchParams::default(), &patch).await.expect("patched");
    let count = async |labels: &str, fields: &str| {
        let params = ListParams::default().labels(labels).fields(fields);
        pods.list(&params).await.expect("listed").items.len()
    };
    assert_eq!(count("app=test", "").await, 1);
    assert_eq!(count("app in (test, other)", "").await, 2);
    assert_eq!(count("!app", "").await, 0);
    assert_eq!(count("", "metadata.name=two,status.phase=Running").await, 1);
    let first = pods.list(&ListParams::default().limit(1)).await.expect("listed");
    let token = first.metadata.continue_.expect("a token");
    let rest = pods.list(&ListParams::default().limit(1).continue_token(&token)).await;
    assert_eq!(rest.expect("listed").items[0].metadata.name.as_deref(), Some("two"));

    let wrong = DeleteParams {
        preconditions: Some(Preconditions { uid: Some("other".into()), ..Default::default() }),
        ..DeleteParams::default()
    };
    assert_eq!(status_of(pods.delete("one", &wrong).await).1, "Conflict");
    pods.delete("one", &DeleteParams::default()).await.expect("deleted");
    wait_until_gone(&pods, "one").await;
    assert_eq!(status_of(pods.delete("one", &DeleteParams::default()).await).0, 404);
    assert_eq!(double.peak_pods(), 2);
    let all = ListParams::default().labels("app=other");
    pods.delete_collection(&DeleteParams::default().grace_period(0), &all).await.expect("deleted");
    assert!(double.pods().is_empty());
    assert!(double.requests().iter().any(|request| request.verb == "deletecollection"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_invalid_is_refused_with_causes() {
    let (_double, client) = double().await;
    let pods = pods(&client);
    let mut wrong = pod("Wrong_Name", "task:1");
    let (code, reason, message) = status_of(create(&pods, wrong.clone()).await);
    assert_eq!((code, reason.as_str()), (422, "Invalid"));
    assert!(message.contains("RFC 1123 subdomain"), "{message}");
    wrong["metadata"]["name"] = "right".into();
    wrong["metadata"]["labels"]["app"] = "with space".into();
    assert!(status_of(create(&pods, wrong).await).2.contains("a valid label"));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_shows_changes_since_version() {
    let (_double, client) = double().await;
    let pods = pods(&client);
    let version =
        pods.list(&ListParams::default()).await.expect("listed").metadata.resource_version;
    run(&pods, pod("one", "lazy:1")).await;
    pods.delete("one", &DeleteParams::default().grace_period(0)).await.expect("deleted");
    let params = WatchParams::default().labels("app=test").timeout(6);
    let events = pods.watch(&params, &version.expect("a version")).await.expect("watched");
    let events: Vec<_> = events.try_collect().await.expect("events");
    assert!(matches!(events.first(), Some(WatchEvent::Added(_))));
    assert!(matches!(events.get(1), Some(WatchEvent::Modified(_))));
    assert!(events.iter().any(|event| matches!(event, WatchEvent::Deleted(_))));
    assert!(matches!(events.last(), Some(WatchEvent::Bookmark(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_of_forgotten_version_is_expired() {
    let (double, client) = double().await;
    let pods = pods(&client);
    double.faults().expire_watches(ExpiredForm::Event);
    let events = pods.watch(&WatchParams::default(), "1").await.expect("watched");
    let events: Vec<_> = events.try_collect().await.expect("events");
    let Some(WatchEvent::Error(status)) = events.first() else { panic!("no error: {events:?}") };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    double.faults().expire_watches(ExpiredForm::HttpStatus);
    let refused = pods.watch(&WatchParams::default(), "1").await;
    assert_eq!(status_of(refused.map(|_| ())).0, 410);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_stopped_and_resumed_keeps_objects() {
    let (double, client) = double().await;
    let pods = pods(&client);
    run(&pods, pod("one", "lazy:1")).await;
    double.faults().stop_listening();
    assert!(pods.get("one").await.is_err(), "it is down");
    double.faults().resume_listening();
    assert!(pods.get("one").await.is_ok(), "it is up");
    double.faults().requests("get", "pods", 1, RequestFault::Drop);
    assert!(pods.get("one").await.is_err());
    wait_for(&pods, "one", "/status/phase", "Running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_deleted_owner_are_deleted_or_orphaned() {
    let (_double, client) = double().await;
    let pods = pods(&client);
    run(&pods, pod("owner", "lazy:1")).await;
    let uid = pods.get("owner").await.expect("there").metadata.uid;
    let mut owned = pod("owned", "lazy:1");
    owned["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": uid}]);
    let mut orphan = owned.clone();
    run(&pods, owned).await;
    pods.delete("owner", &DeleteParams::default().grace_period(0)).await.expect("deleted");
    wait_until_gone(&pods, "owned").await;

    run(&pods, pod("owner", "lazy:1")).await;
    orphan["metadata"]["name"] = "orphan".into();
    orphan["metadata"]["ownerReferences"][0]["uid"] =
        json!(pods.get("owner").await.expect("there").metadata.uid);
    run(&pods, orphan).await;
    pods.delete("owner", &DeleteParams::orphan().grace_period(0)).await.expect("deleted");
    wait_until_gone(&pods, "owner").await;
    let orphan = pods.get("orphan").await.expect("there");
    assert_eq!(orphan.metadata.owner_references.unwrap_or_default(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_with_initial_events_marks_their_end() {
    let (_double, client) = double().await;
    let pods = pods(&client);
    run(&pods, pod("one", "lazy:1")).await;
    let params = WatchParams::default().initial_events().timeout(1);
    let events = pods.watch(&params, "0").await.expect("watched");
    let events: Vec<_> = events.try_collect().await.expect("events");
    assert!(matches!(events.first(), Some(WatchEvent::Added(_))));
    let Some(WatchEvent::Bookmark(end)) = events.get(1) else { panic!("no end: {events:?}") };
    assert_eq!(end.metadata.annotations["k8s.io/initial-events-end"], "true");
}

#[tokio::test(flavor = "multi_thread")]
async fn object_is_created_and_changed_by_apply() {
    let (double, client) = double().await;
    let leases: kube::Api<k8s_openapi::api::coordination::v1::Lease> =
        kube::Api::default_namespaced(client.clone());
    for holder in ["one", "two"] {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "lease"}, "spec": {"holderIdentity": holder},
        });
        let params = PatchParams::apply("test");
        leases.patch("lease", &params, &Patch::Apply(&lease)).await.expect("applied");
    }
    assert_eq!(double.objects("leases")[0]["spec"]["holderIdentity"], "two");
}
