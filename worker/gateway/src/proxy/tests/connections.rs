//! The connections of an execution.

use super::*;

#[tokio::test]
async fn connections_beyond_those_of_an_execution_are_refused_until_one_ends() {
    // Both ends of every connection are open here, more than the usual limit of 1,024.
    rollout_base::open_files::raise_limit();
    let directory = tempfile::tempdir().expect("a directory");
    let gateway = Gateway::new();
    let opened =
        open(&gateway, upstream("http://h/v1", 1.0, None), &directory.path().join("1")).await;
    let other =
        open(&gateway, upstream("http://h/v1", 1.0, None), &directory.path().join("2")).await;
    let (variables, other) =
        (opened.serve(HOST).await.expect("1"), other.serve(HOST).await.expect("2"));
    let mut held = Vec::new();
    for _ in 0..limits::GATEWAY_TRY_CONNECTIONS {
        let (status, connection) = ask(&variables).await;
        assert_eq!(status, "404");
        held.push(connection);
    }
    let (status, mut refused) = ask(&variables).await;
    assert_eq!(status, "429");
    assert_eq!(refused.read(&mut [0]).await.expect("it ends"), 0);
    assert_eq!(ask(&other).await.0, "404", "other executions have their own");
    drop(held.pop());
    let until = Instant::now() + Duration::from_secs(60);
    while ask(&variables).await.0 != "404" {
        assert!(Instant::now() < until, "the place is free again");
    }
}

/// Asks for an endpoint of a server that the job has not, on a connection that stays open; returns
/// the status.
async fn ask(variables: &BTreeMap<String, String>) -> (String, tokio::net::TcpStream) {
    let host = variables["OPENAI_BASE_URL"].trim_start_matches("http://");
    let host = host.split('/').next().expect("a host").to_owned();
    let mut connection = tokio::net::TcpStream::connect(&host).await.expect("connected");
    let request = format!(
        "POST /anthropic/v1/messages HTTP/1.1\r\nhost: {host}\r\nx-api-key: {}\r\n\
         content-length: 0\r\n\r\n",
        variables["OPENAI_API_KEY"]
    );
    connection.write_all(request.as_bytes()).await.expect("sent");
    let mut reply = String::new();
    while !(reply.contains("\r\n\r\n") && reply.ends_with('}')) {
        let mut part = [0; 1024];
        let length = connection.read(&mut part).await.expect("a part");
        assert_ne!(length, 0, "it is open: {reply}");
        reply.push_str(std::str::from_utf8(&part[..length]).expect("text"));
    }
    let status = reply.split(' ').nth(1).expect("a status").to_owned();
    (status, connection)
}
