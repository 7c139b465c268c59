use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response};
use rollout_protocol::id::RunId;
use rollout_protocol::spec::budget::{BudgetLimits, TryBudget};
use rollout_protocol::spec::gateway::{ModelDialect, UpstreamSpec};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Notify;

mod bodies;
mod busy;
mod connections;
mod cut_calls;
mod given_up;
mod pauses;

use rollout_base::secrets::Redactor;
use rollout_base::supervise;

use super::*;

const HOST: ListenerRoute =
    ListenerRoute::HostAddress(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));

const RUN: RunId = RunId::from_bytes([1; 16]);

/// A server that answers every call with `{}`, after a pause.
async fn server(pause: Duration) -> (String, Task<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let task = supervise::spawn("server", async move {
        let mut connections = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            connections.push(supervise::spawn("connection", async move {
                let mut request = Vec::new();
                while !request.ends_with(b"{}") {
                    let mut part = [0; 1024];
                    let length = stream.read(&mut part).await.unwrap_or_default();
                    if length == 0 {
                        return;
                    }
                    request.extend_from_slice(&part[..length]);
                }
                tokio::time::sleep(pause).await;
                let reply = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                let _sent = stream.write_all(reply.as_bytes()).await;
            }));
        }
    });
    (url, task)
}

fn upstream(url: &str, hold_sec: f64, max_concurrent: Option<u32>) -> Upstream {
    let spec = UpstreamSpec {
        max_concurrent,
        hold_sec,
        max_retries: 0,
        ..UpstreamSpec::new("main", ModelDialect::Openai, url)
    };
    Upstream { spec, key: Some("real-key".to_owned()) }
}

async fn open(gateway: &Gateway, upstream: Upstream, directory: &Path) -> Arc<dyn TryGateway> {
    open_with(gateway, upstream, None, directory).await
}

/// Opens an execution with a budget.
async fn open_with(
    gateway: &Gateway,
    upstream: Upstream,
    budget: Option<TryBudget>,
    directory: &Path,
) -> Arc<dyn TryGateway> {
    let request = TryRequest {
        run: RUN,
        upstreams: vec![upstream],
        only: None,
        budget,
        is_leased: false,
        directory: directory.join("gateway"),
        redactor: Redactor::default(),
        agent: TrajectoryAgent::default(),
    };
    gateway.open(request).await.expect("opened")
}

/// A server that reads a call and does not answer it, with the moment when it has read the call.
async fn silent_server() -> (String, Arc<Notify>, Task<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let asked = Arc::new(Notify::new());
    let has_read = Arc::clone(&asked);
    let task = supervise::spawn("server", async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut request = Vec::new();
        while !request.ends_with(b"{}") {
            let read = stream.read_buf(&mut request).await.expect("a request");
            assert!(read > 0, "the request is cut off");
        }
        has_read.notify_one();
        std::future::pending::<()>().await;
    });
    (url, asked, task)
}

/// A server that answers every call with an error of this many bytes.
async fn server_of_large_errors(bytes: usize) -> (String, Task<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let task = supervise::spawn("server", async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let head = format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {bytes}\r\n\r\n");
            let reply = [head.into_bytes(), vec![b'x'; bytes]].concat();
            let mut request = [0; 1024];
            let _read = stream.read(&mut request).await;
            let _sent = stream.write_all(&reply).await;
        }
    });
    (url, task)
}

/// A server that answers its calls with these statuses, one after the other.
async fn server_of_statuses(statuses: &'static [u16]) -> (String, Task<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let task = supervise::spawn("server", async move {
        for status in statuses {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\nconnection: close\r\n");
            let mut request = [0; 4096];
            let _read = stream.read(&mut request).await;
            let _sent = stream.write_all(format!("{head}\r\n{{}}").as_bytes()).await;
        }
    });
    (url, task)
}

/// Calls the gateway with the variables of an execution.
async fn call(variables: BTreeMap<String, String>) -> Response<Bytes> {
    let response = try_call(variables, "").await.expect("a reply");
    let (head, body) = response.into_parts();
    Response::from_parts(head, body.expect("a body"))
}

/// Calls the gateway with one message; returns the status of the reply.
async fn say(variables: &BTreeMap<String, String>, text: &str) -> u16 {
    let body = serde_json::json!({"messages": [{"role": "user", "content": text}]}).to_string();
    let sent = send(variables.clone(), "", body.into()).await;
    sent.expect("a reply").status().as_u16()
}

/// Calls the gateway; the body of the reply may break off.
async fn try_call(
    variables: BTreeMap<String, String>,
    query: &str,
) -> Option<Response<Option<Bytes>>> {
    send(variables, query, Bytes::from_static(b"{}")).await
}

async fn send(
    variables: BTreeMap<String, String>,
    query: &str,
    body: Bytes,
) -> Option<Response<Option<Bytes>>> {
    let request =
        Request::post(format!("{}/chat/completions{query}", variables["OPENAI_BASE_URL"]))
            .header("authorization", format!("Bearer {}", variables["OPENAI_API_KEY"]))
            .body(Full::new(body))
            .expect("a request");
    let client = Clients::default().get(false).expect("a client");
    let (head, body) = client.request(request).await.ok()?.into_parts();
    Some(Response::from_parts(head, body.collect().await.ok().map(|body| body.to_bytes())))
}

#[tokio::test]
async fn unreachable_server_holds_call_then_refuses_it_and_stops_clock() {
    let directory = tempfile::tempdir().expect("a directory");
    let unused = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = unused.local_addr().expect("an address");
    drop(unused);
    let gateway = Gateway::new();
    let url = format!("http://{address}/v1");
    let opened = open(&gateway, upstream(&url, 0.3, None), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    let began = Instant::now();
    let refused = call(variables.clone()).await;
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(
        (refused.status(), &refused.headers()["retry-after"]),
        (503.try_into().expect("a status"), &"5".parse().expect("a value"))
    );
    assert!(opened.is_stopped() && opened.stopped_time() > Duration::ZERO);
    assert_eq!(opened.call_failure(), Some(CallFailure::Unanswered));

    // The call of another try is held because of this one, and is never sent.
    let directory = tempfile::tempdir().expect("a directory");
    let later = open(&gateway, upstream(&url, 0.3, None), directory.path()).await;
    let held = later.serve(HOST).await.expect("served");
    assert_eq!(call(held).await.status(), 503);
    assert_eq!(later.call_failure(), Some(CallFailure::Unanswered));
    let _calls = later.close(None).await;

    let calls = opened.close(None).await;
    assert_eq!((calls.summary.calls, calls.summary.failed_calls), (1, 1));
    assert_eq!(call(variables).await.status(), 401, "the key ends with the execution");
}

#[tokio::test]
async fn refusal_is_a_failure_of_the_server_until_a_call_is_answered() {
    use CallFailure::{Refused, Unanswered};
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _server) = server_of_statuses(&[401, 400, 404, 500, 200, 401, 503]).await;
    let gateway = Gateway::new();
    let mut upstream = upstream(&url, 1.0, None);
    upstream.spec.max_retries = 0;
    let opened = open(&gateway, upstream, directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    for (status, expected) in [
        (401, Some(Refused)),
        (400, None),
        (404, Some(Refused)),
        (500, Some(Unanswered)),
        (200, None),
        (401, None),
        (503, Some(Unanswered)),
    ] {
        assert_eq!(call(variables.clone()).await.status(), status);
        assert_eq!(opened.call_failure(), expected, "{status}");
    }
}

#[tokio::test]
async fn answer_to_another_conversation_leaves_unanswered_one_unanswered() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _server) = server_of_statuses(&[500, 200, 200]).await;
    let gateway = Gateway::new();
    let opened = open(&gateway, upstream(&url, 1.0, None), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    for (text, status, expected) in [
        ("task", 500, Some(CallFailure::Unanswered)),
        ("title", 200, Some(CallFailure::Unanswered)),
        ("task", 200, None),
    ] {
        assert_eq!(say(&variables, text).await, status);
        assert_eq!(opened.call_failure(), expected, "{text}");
    }
}

#[tokio::test]
async fn refusal_by_budget_is_no_answer_of_the_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let limits = BudgetLimits { calls: Some(2), ..BudgetLimits::default() };
    let budget = TryBudget { limits, output_reserve: 10 };
    let cases: [(&str, &'static [u16], Option<CallFailure>); 4] = [
        ("outage", &[500, 500], Some(CallFailure::Unanswered)),
        ("end of an outage", &[500, 200], None),
        ("refused key", &[401, 401], Some(CallFailure::Refused)),
        ("answered", &[200, 200], None),
    ];
    for (name, statuses, expected) in cases {
        let (url, _server) = server_of_statuses(statuses).await;
        let gateway = Gateway::new();
        let (upstream, directory) = (upstream(&url, 1.0, None), directory.path().join(name));
        let opened = open_with(&gateway, upstream, Some(budget), &directory).await;
        let variables = opened.serve(HOST).await.expect("served");
        for status in statuses {
            assert_eq!(say(&variables, "task").await, *status, "{name}");
        }
        for text in ["task", "task", "another"] {
            assert_eq!(say(&variables, text).await, 403, "{name}");
        }
        assert!(opened.exceeded_budget().is_some(), "{name}");
        assert_eq!(opened.call_failure(), expected, "{name}");
    }
}

#[tokio::test]
async fn reply_whose_end_is_missing_is_no_answer() {
    let directory = tempfile::tempdir().expect("a directory");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let _server = supervise::spawn("server", async move {
        // The end of the connection ends the first reply; the second one has a length.
        for reply in ["\r\n{\"choices\":[", "content-length: 90\r\n\r\n{\"choices\":["] {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = [0; 4096];
            let _read = stream.read(&mut request).await;
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
            let _sent = stream.write_all(format!("{head}{reply}").as_bytes()).await;
        }
    });
    let gateway = Gateway::new();
    for number in 0..2 {
        let directory = directory.path().join(number.to_string());
        let opened = open(&gateway, upstream(&url, 1.0, None), &directory).await;
        let variables = opened.serve(HOST).await.expect("served");
        let _reply = try_call(variables, "").await;
        opened.wait_for_calls().await;
        assert_eq!(opened.call_failure(), Some(CallFailure::Unanswered), "{number}");
    }
}

#[tokio::test]
async fn stream_of_known_length_is_read_as_any_stream() {
    const EVENTS: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n\
                          data: {\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":1}}\n\n\
                          data: [DONE]\n\n";
    let directory = tempfile::tempdir().expect("a directory");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let _server = supervise::spawn("server", async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut request = [0; 4096];
        let _read = stream.read(&mut request).await;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n";
        let reply = format!("{head}content-length: {}\r\n\r\n{EVENTS}", EVENTS.len());
        let _sent = stream.write_all(reply.as_bytes()).await;
    });
    let budget = TryBudget { limits: BudgetLimits::default(), output_reserve: 10 };
    let gateway = Gateway::new();
    let upstream = upstream(&url, 1.0, None);
    let opened = open_with(&gateway, upstream, Some(budget), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    assert_eq!(call(variables).await.body(), EVENTS);
    let used = opened.close(None).await.used;
    assert_eq!((used.calls, used.tokens, used.unpriced_calls), (1, 3, 1));
}

#[tokio::test]
async fn call_that_agent_gives_up_is_unanswered_and_free_only_if_server_does_not_answer() {
    let directory = tempfile::tempdir().expect("a directory");
    let unused = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let down = format!("http://{}/v1", unused.local_addr().expect("an address"));
    drop(unused);
    let (slow, asked, _server) = silent_server().await;
    let budget = TryBudget { limits: BudgetLimits::default(), output_reserve: 10 };
    for (name, url, expected, tokens) in
        [("down", down, Some(CallFailure::Unanswered), 0), ("slow", slow, None, 10)]
    {
        let gateway = Gateway::new();
        let directory = directory.path().join(name);
        let upstream = upstream(&url, 60.0, None);
        let opened = open_with(&gateway, upstream, Some(budget), &directory).await;
        let variables = opened.serve(HOST).await.expect("served");
        // The agent gives up when the server is known to be down; if it only is slow, once it has the call.
        let patience = async {
            if expected.is_none() {
                return asked.notified().await;
            }
            while !opened.is_stopped() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        };
        tokio::select! {
            _ = call(variables) => panic!("{name}: the call has ended"),
            patience = tokio::time::timeout(Duration::from_secs(60), patience) => {
                patience.expect("the server is tried");
            }
        }
        opened.wait_for_calls().await;
        assert_eq!(opened.call_failure(), expected, "{name}");
        let used = opened.close(None).await.used;
        assert_eq!((used.calls, used.tokens), (1, tokens), "{name}");
    }
}

#[tokio::test]
async fn calls_beyond_concurrency_wait_for_each_other() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _server) = server(Duration::from_millis(200)).await;
    let gateway = Gateway::new();
    let opened = open(&gateway, upstream(&url, 30.0, Some(1)), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    let began = Instant::now();
    let (a, b) = tokio::join!(call(variables.clone()), call(variables));
    assert_eq!(
        (a.status(), b.status()),
        (200.try_into().expect("a status"), 200.try_into().expect("a status"))
    );
    assert!(began.elapsed() >= Duration::from_millis(400));
}

#[tokio::test]
async fn keys_of_two_executions_differ_and_servers_are_shared() {
    let directory = tempfile::tempdir().expect("a directory");
    let gateway = Gateway::new();
    let one = open(&gateway, upstream("http://h/v1", 1.0, None), &directory.path().join("1")).await;
    let two = open(&gateway, upstream("http://h/v1", 1.0, None), &directory.path().join("2")).await;
    assert_eq!(gateway.servers().used.len(), 1);
    let (one, two) = (one.serve(HOST).await.expect("1"), two.serve(HOST).await.expect("2"));
    assert_eq!(one["OPENAI_BASE_URL"], two["OPENAI_BASE_URL"]);
    assert_ne!(one["OPENAI_API_KEY"], two["OPENAI_API_KEY"]);
    assert!(!format!("{gateway:?}").contains("real-key"), "keys are not shown");
}

#[tokio::test]
async fn request_that_announces_too_many_bytes_is_refused_unread() {
    let directory = tempfile::tempdir().expect("a directory");
    let gateway = Gateway::new();
    let opened = open(&gateway, upstream("http://h/v1", 1.0, None), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    let host = variables["OPENAI_BASE_URL"].trim_start_matches("http://");
    let host = host.split('/').next().expect("a host").to_owned();
    let mut connection = tokio::net::TcpStream::connect(&host).await.expect("connected");
    let request = format!(
        "POST /openai/v1/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {}\r\n\
         content-length: 99999999999\r\n\r\n",
        variables["OPENAI_API_KEY"]
    );
    connection.write_all(request.as_bytes()).await.expect("sent");
    let mut reply = [0; 12];
    connection.read_exact(&mut reply).await.expect("a reply");
    assert_eq!(&reply, b"HTTP/1.1 413");
    assert_eq!(opened.close(None).await.summary.calls, 0);
}

#[tokio::test]
async fn invalid_address_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    for url in ["ftp://h", "h", "http://h?x=1", "http://"] {
        let request = TryRequest {
            run: RUN,
            only: None,
            budget: None,
            is_leased: false,
            upstreams: vec![upstream(url, 1.0, None)],
            directory: directory.path().join("gateway"),
            redactor: Redactor::default(),
            agent: TrajectoryAgent::default(),
        };
        let refused = Gateway::new().open(request).await.expect_err(url);
        assert!(matches!(refused, GatewayError::Address { .. }), "{url}: {refused}");
    }
}

#[tokio::test]
async fn query_that_is_too_long_is_refused_and_is_no_outage() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _server) = server(Duration::ZERO).await;
    let gateway = Gateway::new();
    // The address of the server is longer than the path of the gateway.
    let url = format!("{url}/{}", "x".repeat(1000));
    let opened = open(&gateway, upstream(&url, 1.0, None), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    let query = format!("?{}", "x".repeat(65_000));
    let refused = try_call(variables, &query).await.expect("a reply");
    assert_eq!(refused.status(), 414);
    assert!(opened.call_failure().is_none() && !opened.is_stopped());
    let calls = opened.close(None).await;
    assert_eq!((calls.summary.calls, calls.summary.failed_calls), (1, 1));
}

#[tokio::test]
async fn reply_that_is_too_large_breaks_off_and_is_no_outage() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _server) = server_of_large_errors(limits::GATEWAY_REPLY_BYTES + 1).await;
    let gateway = Gateway::new();
    // Without a key there is nothing to mask, which takes long for so many bytes.
    let upstream = Upstream { key: None, ..upstream(&url, 1.0, None) };
    let opened = open(&gateway, upstream, directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    let reply = try_call(variables, "").await;
    assert!(reply.is_none_or(|reply| reply.body().is_none()), "it broke off");
    assert_eq!(opened.call_failure(), None);
    assert_eq!(opened.close(None).await.summary.cut_calls, 1);
}

#[tokio::test]
async fn connection_with_key_stays_open_while_it_is_idle() {
    let directory = tempfile::tempdir().expect("a directory");
    let gateway = Gateway::new();
    let opened = open(&gateway, upstream("http://h/v1", 1.0, None), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    let host = variables["OPENAI_BASE_URL"].trim_start_matches("http://");
    let host = host.split('/').next().expect("a host").to_owned();
    let mut connection = tokio::net::TcpStream::connect(&host).await.expect("connected");
    // The job has no server of this dialect: the gateway answers at once.
    let request = format!(
        "POST /anthropic/v1/messages HTTP/1.1\r\nhost: {host}\r\nx-api-key: {}\r\n\
         content-length: 0\r\n\r\n",
        variables["OPENAI_API_KEY"]
    );
    for _ in 0..3 {
        connection.write_all(request.as_bytes()).await.expect("sent");
        let (mut reply, mut end) = (String::new(), None);
        while end.is_none() {
            let mut part = [0; 1024];
            let length = connection.read(&mut part).await.expect("a part");
            assert_ne!(length, 0, "it is open");
            reply.push_str(std::str::from_utf8(&part[..length]).expect("text"));
            end = reply.find("\r\n\r\n").filter(|_| reply.ends_with('}'));
        }
        assert!(reply.starts_with("HTTP/1.1 404"), "{reply}");
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(20)).await;
        tokio::time::resume();
    }
}
