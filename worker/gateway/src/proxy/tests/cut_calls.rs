//! Use of a budget by calls that are cut before an answer.

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rollout_protocol::wire::model_calls::ModelCallState;
use tokio::net::{TcpSocket, TcpStream};

use super::*;

/// A server that reads every call and breaks its connection off without an answer.
async fn cutting_server() -> (String, Task<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let task = supervise::spawn("server", async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = Vec::new();
            while !request.ends_with(b"{}")
                && stream.read_buf(&mut request).await.is_ok_and(|read| read > 0)
            {}
        }
    });
    (url, task)
}

/// A server whose connections do not come about, as its queue is full of others.
async fn full_server() -> (String, TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
    let listener = socket.listen(1).expect("it listens");
    let address = listener.local_addr().expect("an address");
    let mut connected = Vec::new();
    for _ in 0..64 {
        let limit = Duration::from_millis(500);
        match tokio::time::timeout(limit, TcpStream::connect(address)).await {
            Ok(stream) => connected.push(stream.expect("connected")),
            Err(_) => return (format!("http://{address}/v1"), listener, connected),
        }
    }
    panic!("the queue takes every connection");
}

fn budget(tokens: u64) -> TryBudget {
    let limits = BudgetLimits { tokens: Some(tokens), ..BudgetLimits::default() };
    TryBudget { limits, output_reserve: 10 }
}

#[tokio::test]
async fn call_that_server_cuts_before_its_reply_uses_what_it_reserved() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _server) = cutting_server().await;
    let gateway = Gateway::new();
    let upstream = upstream(&url, 1.0, None);
    let opened = open_with(&gateway, upstream, Some(budget(25)), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    for status in [502_u16, 502, 403] {
        assert_eq!(call(variables.clone()).await.status(), status);
    }
    let used = opened.close(None).await.used;
    assert_eq!((used.calls, used.tokens), (2, 20));
}

#[tokio::test]
async fn call_that_its_client_hands_back_has_not_arrived() {
    for is_written in [false, true] {
        let (near, mut far) = tokio::io::duplex(1024);
        let (mut sender, connection) =
            http1::handshake::<_, Full<Bytes>>(TokioIo::new(near)).await.expect("connected");
        let request = Request::post("/v1").header("host", "h").body(Full::default());
        let request = request.expect("a request");
        let error = if is_written {
            let server = async move {
                let _read = far.read(&mut [0; 8]).await;
            };
            let (sent, _, ()) = tokio::join!(sender.send_request(request), connection, server);
            sent.expect_err("no answer")
        } else {
            drop(connection);
            sender.send_request(request).await.expect_err("no connection")
        };
        assert_eq!(server::may_have_arrived(&error), is_written, "{error}");
    }
}

#[tokio::test]
async fn call_that_was_cut_goes_to_next_server_only_if_budget_covers_both() {
    for (tokens, status, used_tokens) in [(25, 200_u16, 20), (15, 502, 10)] {
        let directory = tempfile::tempdir().expect("a directory");
        let (cutting, _cutting) = cutting_server().await;
        let (answering, _answering) = server(Duration::ZERO).await;
        let mut first = upstream(&cutting, 1.0, None);
        first.spec.fallback = true;
        let mut second = upstream(&answering, 1.0, None);
        second.spec.name = "second".to_owned();
        let gateway = Gateway::new();
        let request = TryRequest {
            run: RUN,
            upstreams: vec![first, second],
            only: None,
            budget: Some(budget(tokens)),
            is_leased: false,
            directory: directory.path().join("gateway"),
            redactor: Redactor::default(),
            agent: TrajectoryAgent::default(),
        };
        let opened = gateway.open(request).await.expect("opened");
        let variables = opened.serve(HOST).await.expect("served");
        assert_eq!(call(variables).await.status(), status, "{tokens}");
        let used = opened.close(None).await.used;
        assert_eq!((used.calls, used.tokens), (1, used_tokens), "{tokens}");
    }
}

#[tokio::test]
async fn call_that_agent_gives_up_before_a_connection_uses_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _listener, _connected) = full_server().await;
    let gateway = Gateway::new();
    let upstream = upstream(&url, 60.0, None);
    let opened = open_with(&gateway, upstream, Some(budget(25)), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    let calls = gateway.run_calls();
    calls.of(RUN).set(ModelCallState { paused: false, policy_version: 1 });
    let connects = async {
        while calls.counts(RUN).is_none_or(|counts| counts.in_flight == 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = call(variables) => panic!("the call has ended"),
        connects = tokio::time::timeout(Duration::from_secs(60), connects) => {
            connects.expect("the server is tried");
        }
    }
    opened.wait_for_calls().await;
    assert_eq!(opened.call_failure(), None);
    let used = opened.close(None).await.used;
    assert_eq!((used.calls, used.tokens), (0, 0));
}
