//! Calls that agents give up while the calls wait: whether the server that they wait for is the cause.

use super::*;
use crate::proxy::call_log::CALLS_FILE;

/// Waits until the calls of an execution have so many records: begins and ends.
pub(super) async fn wait_for_records(directory: &Path, wanted: usize) {
    let records = directory.join("gateway").join(CALLS_FILE);
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let text = tokio::fs::read_to_string(&records).await.unwrap_or_default();
        let found = text.lines().count();
        if found >= wanted {
            return;
        }
        assert!(Instant::now() < until, "{found} records instead of {wanted}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the calls of an execution say this about its agent, which follows the last record.
pub(super) async fn wait_for_failure(opened: &dyn TryGateway, wanted: Option<CallFailure>) {
    let until = Instant::now() + Duration::from_secs(60);
    while opened.call_failure() != wanted {
        let found = opened.call_failure();
        assert!(Instant::now() < until, "{found:?} instead of {wanted:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// An address at which no server listens.
async fn unused_url() -> String {
    let unused = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    format!("http://{}/v1", unused.local_addr().expect("an address"))
}

async fn open_all(
    gateway: &Gateway,
    upstreams: Vec<Upstream>,
    directory: &Path,
) -> Arc<dyn TryGateway> {
    let request = TryRequest {
        run: RUN,
        upstreams,
        only: None,
        budget: None,
        is_leased: false,
        directory: directory.join("gateway"),
        redactor: Redactor::default(),
        agent: TrajectoryAgent::default(),
    };
    gateway.open(request).await.expect("opened")
}

/// Gives a call up that waits beside calls with so many records.
async fn give_up(variables: &BTreeMap<String, String>, directory: &Path, records: usize) {
    tokio::select! {
        status = say(variables, "task") => panic!("it was answered with {status}"),
        () = wait_for_records(directory, records + 1) => {}
    }
    wait_for_records(directory, records + 2).await;
}

#[tokio::test]
async fn call_given_up_while_its_server_asks_to_wait_is_unanswered() {
    let directory = tempfile::tempdir().expect("a directory");
    let gateway = Gateway::new();
    let upstream = upstream(&unused_url().await, 60.0, None);
    // A call of another execution got the refusal.
    let server = gateway.server(&upstream, None).expect("a server");
    let _until = server.back_off(Some(Duration::from_secs(30)));
    let opened = open(&gateway, upstream, directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    give_up(&variables, directory.path(), 0).await;
    wait_for_failure(opened.as_ref(), Some(CallFailure::Unanswered)).await;
    assert!(!opened.is_stopped(), "no server is down");
}

#[tokio::test]
async fn call_given_up_while_its_server_with_fallback_is_down_is_unanswered() {
    let directory = tempfile::tempdir().expect("a directory");
    let gateway = Gateway::new();
    let mut first = upstream(&unused_url().await, 60.0, None);
    first.spec.fallback = true;
    let mut second = upstream(&unused_url().await, 60.0, None);
    second.spec.name = "second".to_owned();
    // A call of another execution found that it is down.
    gateway.server(&first, None).expect("a server").mark_down("refused");
    let opened = open_all(&gateway, vec![first, second], directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    give_up(&variables, directory.path(), 0).await;
    wait_for_failure(opened.as_ref(), Some(CallFailure::Unanswered)).await;
}

#[tokio::test]
async fn call_given_up_while_it_waits_for_a_place_at_the_second_server_is_unanswered() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, asked, _server) = silent_server().await;
    let gateway = Gateway::new();
    // A call leaves it at once when it is known to be down.
    let mut first = upstream(&unused_url().await, 0.0, None);
    first.spec.fallback = true;
    let mut second = upstream(&url, 60.0, Some(1));
    second.spec.name = "second".to_owned();
    gateway.server(&first, None).expect("a server").mark_down("refused");
    let opened = open_all(&gateway, vec![first, second], directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    // Another conversation has the only place.
    let slow = supervise::spawn("slow", try_call(variables.clone(), ""));
    asked.notified().await;
    give_up(&variables, directory.path(), 1).await;
    wait_for_failure(opened.as_ref(), Some(CallFailure::Unanswered)).await;
    drop(slow);
}

#[tokio::test]
async fn call_given_up_while_another_server_is_down_is_no_outage() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, asked, _server) = silent_server().await;
    let gateway = Gateway::new();
    let policy = upstream(&url, 60.0, Some(1));
    let mut judge = upstream(&unused_url().await, 60.0, None);
    judge.spec.name = "judge".to_owned();
    judge.spec.dialect = ModelDialect::Anthropic;
    gateway.server(&judge, None).expect("a server").mark_down("refused");
    let opened = open_all(&gateway, vec![policy, judge], directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    assert!(opened.is_stopped(), "the other server is down");
    // Its own call has the only place.
    let slow = supervise::spawn("slow", try_call(variables.clone(), ""));
    asked.notified().await;
    give_up(&variables, directory.path(), 1).await;
    drop(slow);
    opened.wait_for_calls().await;
    assert_eq!(opened.call_failure(), None);
}
