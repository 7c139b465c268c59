//! Bodies: their memory and their time.

use tokio::net::TcpStream;

use super::*;

/// A body that comes in chunks.
const CHUNKED: &str = "transfer-encoding: chunked";

/// Begins a call with these headers of its body.
async fn begin(variables: &BTreeMap<String, String>, headers: &str) -> TcpStream {
    let host = variables["OPENAI_BASE_URL"].trim_start_matches("http://");
    let host = host.split('/').next().expect("a host");
    let mut connection = TcpStream::connect(host).await.expect("connected");
    let request = format!(
        "POST /openai/v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {}\r\n\
         {headers}\r\n\r\n",
        variables["OPENAI_API_KEY"]
    );
    connection.write_all(request.as_bytes()).await.expect("sent");
    connection
}

async fn status_line(connection: &mut TcpStream) -> String {
    let mut reply = [0; 12];
    connection.read_exact(&mut reply).await.expect("a reply");
    String::from_utf8_lossy(&reply).into_owned()
}

#[tokio::test]
async fn body_that_does_not_come_holds_little_memory_and_ends() {
    let directory = tempfile::tempdir().expect("a directory");
    let gateway = Gateway::new();
    let opened = open(&gateway, upstream("http://h/v1", 1.0, None), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    let known = format!("content-length: {}", limits::GATEWAY_REQUEST_BYTES);
    let compressed = format!("content-encoding: gzip\r\n{known}");
    for headers in [CHUNKED, &known, &compressed] {
        let mut connection = begin(&variables, headers).await;
        let until = Instant::now() + Duration::from_secs(60);
        while gateway.memory.held() == 0 {
            assert!(Instant::now() < until, "the call has not begun");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(gateway.memory.held(), 1 << 20, "{headers}");
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(11)).await;
        tokio::time::resume();
        assert_eq!(status_line(&mut connection).await, "HTTP/1.1 408");
        assert_eq!(gateway.memory.held(), 0, "{headers}");
    }
    assert_eq!(opened.close(None).await.summary.calls, 0);
}

#[tokio::test]
async fn body_in_chunks_that_outgrows_its_first_memory_reaches_the_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _server) = server(Duration::ZERO).await;
    let gateway = Gateway::new();
    let opened = open(&gateway, upstream(&url, 30.0, None), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    let mut connection = begin(&variables, CHUNKED).await;
    let body = [" ".repeat(3 << 20), "{}".to_owned()].concat();
    let chunks = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    connection.write_all(chunks.as_bytes()).await.expect("sent");
    assert_eq!(status_line(&mut connection).await, "HTTP/1.1 200");
    drop(connection);
    assert_eq!(opened.close(None).await.summary.calls, 1);
    assert_eq!(gateway.memory.held(), 0);
}

#[tokio::test]
async fn body_that_had_no_memory_is_an_outage_until_a_later_call_is_answered() {
    const MIB: usize = 1 << 20;
    let directory = tempfile::tempdir().expect("a directory");
    let (url, _server) = server(Duration::ZERO).await;
    let gateway = Gateway::new();
    let opened = open(&gateway, upstream(&url, 30.0, None), directory.path()).await;
    let variables = opened.serve(HOST).await.expect("served");
    // Two MiB are left besides the reserve.
    let mut held = Vec::new();
    for (run, bytes) in [(2, 256 * MIB), (2, 192 * MIB), (3, 222 * MIB)] {
        let others = gateway.memory.of_try(RunId::from_bytes([run; 16]));
        held.push(others.take(bytes).await.expect("in time"));
    }
    let mut connection = begin(&variables, &format!("content-length: {}", 3 * MIB)).await;
    connection.write_all(&vec![b' '; MIB + 1]).await.expect("sent");
    let until = Instant::now() + Duration::from_secs(60);
    while !opened.is_stopped() {
        assert!(Instant::now() < until, "the body does not wait for memory");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(301)).await;
    tokio::time::resume();
    assert_eq!(status_line(&mut connection).await, "HTTP/1.1 503");
    assert_eq!(opened.call_failure(), Some(CallFailure::Unanswered));
    // Its body is shorter than the one that was refused.
    assert_eq!(call(variables).await.status(), 200);
    assert_eq!(opened.call_failure(), None);
}

/// A server that answers with this status, and with a body that does not end.
async fn server_of_endless_body(status: u16) -> (String, Task<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let task = supervise::spawn("server", async move {
        let mut held = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = [0; 4096];
            let _read = stream.read(&mut request).await;
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 100\r\n\r\n{{");
            let _sent = stream.write_all(head.as_bytes()).await;
            held.push(stream);
        }
    });
    (url, task)
}

#[tokio::test]
async fn failure_of_server_whose_body_the_agent_does_not_read_is_one_of_the_server() {
    for (status, expected) in
        [(503, Some(CallFailure::Unanswered)), (429, Some(CallFailure::Unanswered)), (200, None)]
    {
        let directory = tempfile::tempdir().expect("a directory");
        let (url, _server) = server_of_endless_body(status).await;
        let gateway = Gateway::new();
        let opened = open(&gateway, upstream(&url, 0.1, None), directory.path()).await;
        let variables = opened.serve(HOST).await.expect("served");
        let mut connection = begin(&variables, "content-length: 2").await;
        connection.write_all(b"{}").await.expect("sent");
        assert_eq!(status_line(&mut connection).await, format!("HTTP/1.1 {status}"));
        drop(connection);
        opened.wait_for_calls().await;
        assert_eq!(opened.call_failure(), expected, "{status}");
    }
}
