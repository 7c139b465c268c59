//! The proxy over real sockets of this host.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::egress::upstream::UpstreamProxies;
use crate::egress::{AllowedHosts, EgressNames, EgressProxy, RefusedHosts};

/// A proxy, and a host beside it that answers every connection once.
struct Scene {
    proxy: EgressProxy,
    refused: Arc<RefusedHosts>,
    host: SocketAddr,
    _host: Task<()>,
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";

async fn scene(rules: &[&str]) -> Scene {
    let rules: Vec<_> = rules.iter().map(|rule| (*rule).to_owned()).collect();
    let allowed = AllowedHosts::parse(&rules).expect("rules");
    scene_with(allowed, UpstreamProxies::default()).await
}

async fn scene_with(allowed: AllowedHosts, upstream: UpstreamProxies) -> Scene {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let host = listener.local_addr().expect("an address");
    let serving = supervise::spawn("host", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let Ok(byte) = stream.read_u8().await else { break };
                request.push(byte);
            }
            let shown = String::from_utf8_lossy(&request).to_ascii_lowercase();
            assert!(!shown.contains("proxy-"), "{shown}");
            stream.write_all(ANSWER).await.expect("sent");
        }
    });
    let refused = Arc::new(RefusedHosts::default());
    let mut proxy =
        EgressProxy::through(upstream, allowed, Arc::clone(&refused), EgressNames::default());
    proxy.listen(StdListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")).expect("it listens");
    Scene { proxy, refused, host, _host: serving }
}

/// Serves a connection with a bug.
async fn broken(mut stream: TcpStream) {
    let _read = stream.read_u8().await;
    panic!("a bug of the test");
}

#[tokio::test]
async fn fault_is_a_bug_of_the_proxy_and_no_host_that_is_refused_or_out_of_reach() {
    let scene = scene(&["127.0.0.1"]).await;
    let unused = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let down = unused.local_addr().expect("an address");
    drop(unused);
    for (host, status) in [("refused.example", "403"), (down.to_string().as_str(), "502")] {
        let reply = scene.get(host).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
    }
    assert_eq!(scene.proxy.fault(), None);

    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = socket.local_addr().expect("an address");
    let context = Arc::clone(&scene.proxy.context);
    let _accepting = supervise::spawn("accepting", accept(socket, context, broken));
    drop(TcpStream::connect(address).await.expect("connected"));
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    while scene.proxy.fault().is_none() {
        assert!(tokio::time::Instant::now() < until, "no fault");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(scene.proxy.fault().is_some_and(|fault| fault.contains("a bug of the test")));
}

impl Scene {
    fn address(&self) -> String {
        self.proxy.env()["http_proxy"].strip_prefix("http://").expect("a URL").to_owned()
    }

    /// Sends text to the proxy; returns all that comes back.
    async fn exchange(&self, text: &str) -> String {
        let mut stream = TcpStream::connect(self.address()).await.expect("connected");
        stream.write_all(text.as_bytes()).await.expect("sent");
        let mut reply = String::new();
        let reading = stream.read_to_string(&mut reply);
        tokio::time::timeout(Duration::from_secs(20), reading).await.expect("it ends").ok();
        reply
    }

    async fn get(&self, host: &str) -> String {
        let head = "Proxy-Connection: x\r\nConnection: close\r\n";
        self.exchange(&format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n{head}\r\n")).await
    }
}

#[tokio::test]
async fn variables_name_the_proxy_in_both_cases() {
    let scene = scene(&[]).await;
    let (env, address) = (scene.proxy.env(), scene.address());
    let url = format!("http://{address}");
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"] {
        assert_eq!(env[name], url, "{name}");
    }
    assert_eq!((env["NO_PROXY"].as_str(), env.len()), ("localhost,127.0.0.1,::1", 6));
}

#[tokio::test]
async fn listed_host_answers_plain_requests_and_tunnels() {
    let scene = scene(&["127.0.0.1"]).await;
    let reply = scene.get(&scene.host.to_string()).await;
    assert!(reply.starts_with("HTTP/1.1 200") && reply.ends_with("hello"), "{reply}");
    let host = scene.host;
    let tunnel = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let reply = scene.exchange(&format!("{tunnel}GET / HTTP/1.1\r\n\r\n")).await;
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with("hello"), "{reply}");
    assert_eq!(scene.refused.summary(), None);
}

#[tokio::test]
async fn other_hosts_are_refused_by_name_and_counted() {
    let scene = scene(&["localhost", "*.example.org"]).await;
    for host in ["example.com", "example.org:8080"] {
        let reply = scene.get(host).await;
        assert!(reply.starts_with("HTTP/1.1 403 "), "{reply}");
        let port = if host.contains(':') { "" } else { ":80" };
        let text =
            format!("rollout: the host {host}{port} is refused: it is not in `allowed_hosts`");
        assert!(reply.contains(&text), "{reply}");
    }
    // A listed name does not lead to this host.
    let port = scene.host.port();
    let tunnel = format!("CONNECT localhost:{port} HTTP/1.1\r\nConnection: close\r\n\r\n");
    let reply = scene.exchange(&tunnel).await;
    assert!(reply.starts_with("HTTP/1.1 403 ") && reply.contains("private network"), "{reply}");
    let summary = scene.refused.summary().expect("some");
    let hosts: Vec<_> =
        summary.hosts.iter().map(|host| (host.host.as_str(), host.reason)).collect();
    let internal = format!("localhost:{port}");
    assert_eq!(
        hosts,
        [
            ("example.com:80", "not_listed"),
            ("example.org:8080", "not_listed"),
            (internal.as_str(), "internal_address")
        ]
    );
}

#[tokio::test]
async fn unknown_name_is_refused_as_an_internal_one_unless_listed() {
    let listed = vec!["listed.invalid".parse().expect("a rule")];
    let scene = scene_with(AllowedHosts::public(listed), UpstreamProxies::default()).await;
    let mut texts = Vec::new();
    for host in ["unknown.invalid", "localhost"] {
        let reply = scene.get(host).await;
        assert!(reply.starts_with("HTTP/1.1 403 "), "{reply}");
        texts.push(reply.lines().last().expect("a text").replace(host, "HOST"));
    }
    assert_eq!(texts[0], texts[1]);
    let summary = scene.refused.summary().expect("some");
    let reasons: Vec<_> = summary.hosts.iter().map(|host| host.reason).collect();
    assert_eq!(reasons, ["internal_address", "no_address"]);
    let reply = scene.get("listed.invalid").await;
    assert!(reply.starts_with("HTTP/1.1 502 "), "{reply}");
}

/// Answers one request for a tunnel, and returns its first line.
async fn open_tunnel(proxy: TcpListener) -> String {
    let (mut stream, _) = proxy.accept().await.expect("a client");
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await.expect("a request"));
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").await.expect("sent");
    String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn proxy_of_host_is_asked_for_checked_address_unless_name_is_listed() {
    for (rule, asked) in [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost")] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let upstream =
            UpstreamProxies::from_variables(|name| (name == "all_proxy").then(|| url.clone()));
        let allowed = AllowedHosts::public(vec![rule.parse().expect("a rule")]);
        let scene = scene_with(allowed, upstream).await;
        let opening = supervise::spawn("upstream", open_tunnel(listener));
        let tunnel = "CONNECT localhost:7 HTTP/1.1\r\nHost: localhost:7\r\n\r\n";
        let reply = scene.exchange(tunnel).await;
        assert!(reply.ends_with("hello"), "{reply}");
        let first = opening.await.expect("no panic");
        assert_eq!(first, format!("CONNECT {asked}:7 HTTP/1.1"));
    }
}

#[tokio::test]
async fn requests_that_are_none_for_a_proxy_are_refused() {
    let scene = scene(&["127.0.0.1"]).await;
    for request in
        ["GET / HTTP/1.1", "GET https://127.0.0.1/ HTTP/1.1", "CONNECT 127.0.0.1 HTTP/1.1"]
    {
        let reply = scene.exchange(&format!("{request}\r\nConnection: close\r\n\r\n")).await;
        assert!(reply.starts_with("HTTP/1.1 400 "), "{request}: {reply}");
    }
}

#[tokio::test]
async fn dropped_proxy_ends_its_tunnels() {
    let scene = scene(&["127.0.0.1"]).await;
    let mut stream = TcpStream::connect(scene.address()).await.expect("connected");
    let host = scene.host;
    let tunnel = format!("CONNECT {host} HTTP/1.1\r\n\r\n");
    stream.write_all(tunnel.as_bytes()).await.expect("sent");
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.expect("a reply");
    assert_eq!(&head, b"HTTP/1.1 200");
    drop(scene.proxy);
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    // The connection may be reset.
    let _closed = tokio::time::timeout(Duration::from_secs(20), ended).await.expect("it ends");
}
