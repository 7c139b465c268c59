//! Hostile clients: no answer of status 500, and others are served meanwhile.

use std::io::{Read as _, Write as _};

use rollout_tests::processes;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::serve::{DaemonProcess, project, submission, submitted};

/// The header of a body without a stated size.
const CHUNKED: (&str, &str) = ("transfer-encoding", "chunked");

#[test]
fn malformed_requests_get_errors_of_the_client() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &["--max-running", "0"]);
    let deep_json = "[".repeat(200_000);
    let deep_yaml = format!("agents: {}", "[".repeat(200_000));
    let bombs = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n\
                 c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n";
    let bodies: [(&str, &[u8]); 12] = [
        ("application/json", b""),
        ("application/json", b"{"),
        ("application/json", b"null"),
        ("application/json", b"\xff\xfe"),
        ("application/json", b"{\"document\": 7}"),
        ("application/json", b"{\"document\": {}, \"extra\": 1}"),
        ("application/json", b"{\"document\": {}, \"priority\": 99999}"),
        ("application/json", deep_json.as_bytes()),
        ("application/yaml", deep_yaml.as_bytes()),
        ("application/yaml", bombs.as_bytes()),
        ("application/yaml", b"\xff\xff"),
        ("image/png", b"x"),
    ];
    for (media, body) in bodies {
        let headers = [("content-type", media)];
        let answer = daemon.client.send("POST", "/v1/runs", &headers, body).expect("an answer");
        assert!((400..500).contains(&answer.status), "{media}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(answer.json()["request_id"].as_str(), answer.header("x-request-id"));
    }
    for path in [
        "/v1/runs/..%2f..%2fetc%2fpasswd",
        "/v1/runs/%00",
        "/v1/runs/r000000000000000000000000",
        "/v1/runs/../../etc/passwd",
        "/v1/runs/%ff",
        "/v1/runs/r000000000000000000000000/items/%ff%fe",
        "/v1/runs?limit=x",
        "/v1/runs?cursor=..",
        "/v1/runs?unknown=1",
        "/v1/../v1/runs%ff",
        "/",
        &format!("/v1/runs/{}", "a".repeat(10_000)),
        &format!("/v1/runs{}", "/a".repeat(5_000)),
        &format!("/v1/runs?cursor={}", "a".repeat(10_000)),
    ] {
        let answer = daemon.client.get(path);
        assert!((400..500).contains(&answer.status), "{path}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
    }
    // The server's parser refuses a longer head before a handler sees it.
    let path = format!("/v1/runs/{}", "a".repeat(1_000_000));
    let answer = daemon.client.send("GET", &path, &[], b"");
    assert!(answer.is_none_or(|answer| (400..500).contains(&answer.status)));
    let answer = daemon.client.send("PATCH", "/v1/runs", &[], b"").expect("an answer");
    assert_eq!(answer.expect(405).header("content-type"), Some("application/problem+json"));
    let id = submitted(&daemon.client, &submission(&project, 1));
    assert_eq!(daemon.client.get("/v1/runs").json()["runs"][0]["id"], json!(id));
}

#[test]
fn large_body_is_refused_before_it_is_read() {
    let project = project();
    let daemon = DaemonProcess::start(&project, &["--max-body", "1"]);
    let mut stream = daemon.client.begin("POST", "/v1/runs", &[("content-length", "1073741824")]);
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 413");

    let mut stream = daemon.client.begin("POST", "/v1/runs", &[CHUNKED]);
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    while stream.write_all(chunk.as_bytes()).is_ok() {}
    let _open = daemon.client.get("/healthz").expect(200);
}

#[test]
fn body_of_a_user_without_the_role_is_refused_before_it_is_read() {
    let (_project, daemon) = crate::serve::tokens::with_users();
    let reader = daemon.client.with_token("ada-reads");
    let farm = format!("/v1/farms/f{:024x}/groups", 1);
    for path in ["/v1/runs", "/v1/farms", &farm] {
        let mut stream = reader.begin("POST", path, &[("content-length", "4000000")]);
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 403", "{path}");
    }
}

#[test]
fn body_without_a_stated_size_is_cut_and_takes_little_memory() {
    const BODY_BYTES: usize = 1024 * 1024 * 1024;
    let project = project();
    let daemon = DaemonProcess::start(&project, &["--max-body", "1", "--max-dataset", "16"]);
    let before = processes::memory_kib(daemon.process.pid(), "VmRSS");
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let dataset = format!("/v1/datasets/{}", "0".repeat(64));
    for (method, target) in [("POST", "/v1/runs"), ("POST", "/v1/farms"), ("PUT", &dataset)] {
        let mut stream = daemon.client.begin(method, target, &[CHUNKED]);
        let mut sent = 0;
        while sent < BODY_BYTES && stream.write_all(chunk.as_bytes()).is_ok() {
            sent += chunk.len();
        }
        assert!(sent < BODY_BYTES, "{target}: everything was taken");
    }
    let peak = processes::memory_kib(daemon.process.pid(), "VmHWM");
    assert!(peak < before + 128 * 1024, "{before} KiB before, {peak} KiB at most");
    let _open = daemon.client.get("/healthz").expect(200);
}

#[test]
fn idle_connections_keep_no_client_out_and_take_little_memory() {
    const CONNECTIONS: u32 = 10_000;
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).expect("raised");
    let project = project();
    let daemon = DaemonProcess::start(&project, &["--max-connections", "64"]);
    let before = processes::memory_kib(daemon.process.pid(), "VmRSS");
    let mut idle = Vec::new();
    for number in 0..CONNECTIONS {
        let mut stream = daemon.client.connect();
        if number % 2 == 0 {
            // The head of a request that never ends. The server may have closed the connection.
            let _closed = stream.write_all(b"GET /v1/runs HTTP/1.1\r\nhost: local");
        }
        idle.push(stream);
        if number % 500 == 0 {
            let list = daemon.client.get("/v1/runs").expect(200).json();
            assert_eq!(list["runs"], Value::Array(Vec::new()));
        }
    }
    let _served = daemon.client.get("/healthz").expect(200);
    let peak = processes::memory_kib(daemon.process.pid(), "VmHWM");
    assert!(peak < before + 64 * 1024, "{before} KiB before, {peak} KiB at most");
}
