//! Allowed hosts without a proxy: connections of a container lead to this process, which connects to a
//! host in a network of the test.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rollout_environment::egress::{AllowedHosts, EgressProxy, RefusedHosts};
use rollout_environment::{Environment, ListenerRoute, Provider as _};
use rollout_protocol::spec::task::NetworkPolicy;
use rollout_tests::ignored::{is_root_or_ignored, report_ignored};

use crate::docker_provider::fixture::{DockerFixture, destroy, output, run, wait_for_script};
use crate::docker_provider::network::bridge;

/// The address of the host, and its port.
const HOST: (&str, u16) = ("203.0.113.7", 443);

/// A host in a network of its own, which only this host reaches. Dropped, both are removed.
struct RemoteHost {
    network: String,
    server: Child,
}

impl RemoteHost {
    fn start() -> Self {
        let network = format!("rollout-test-{}", std::process::id());
        let end = format!("rt{}", std::process::id() % 1_000_000);
        ip(&["netns", "add", &network]);
        ip(&["link", "add", &end, "type", "veth", "peer", "name", "eth0", "netns", &network]);
        ip(&["addr", "add", "203.0.113.1/24", "dev", &end]);
        ip(&["link", "set", &end, "up"]);
        ip(&["-n", &network, "addr", "add", &format!("{}/24", HOST.0), "dev", "eth0"]);
        ip(&["-n", &network, "link", "set", "eth0", "up"]);
        let serve = format!(
            "$s = IO::Socket::INET->new(Listen => 5, LocalPort => {}, ReuseAddr => 1) or die; while \
             ($c = $s->accept) {{ print $c \"hello\"; close $c }}",
            HOST.1
        );
        let server = Command::new("ip")
            .args(["netns", "exec", &network, "perl", "-MIO::Socket::INET", "-e", &serve])
            .stdin(Stdio::null())
            .spawn()
            .expect("it starts");
        Self { network, server }
    }
}

impl Drop for RemoteHost {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
        // The end on this host goes with the other one.
        Command::new("ip").args(["netns", "del", &self.network]).status().ok();
    }
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().expect("ip runs");
    assert!(status.success(), "ip {arguments:?}");
}

/// Whether the programs are here that the rules need; without them, the test is ignored.
fn has_programs() -> bool {
    let has = |program: &str| {
        let found = Command::new(program).arg("-V").stdout(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    };
    let has_both = has("nft") && has("ip");
    if !has_both {
        report_ignored("needs the programs `nft` and `ip`");
    }
    has_both
}

/// A script that prints what the host says.
fn asking(host: &str, port: u16) -> String {
    format!("timeout 10 bash -c 'exec 3<>/dev/tcp/{host}/{port} && head -c 5 <&3' 2>/dev/null")
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_hosts_are_reached_without_proxy_and_others_are_not() {
    let Some(lab) = DockerFixture::open().await else { return };
    if !is_root_or_ignored("which may change networks") || !has_programs() {
        return;
    }
    let host = RemoteHost::start();
    let rules = ["203.0.113.0/24".to_owned()];
    let mut request = lab.request(lab.base(), Vec::new());
    request.network = NetworkPolicy::Allowlist(rules.to_vec());
    let environment = lab.provider.create(request).await.expect("created");
    let container: &dyn Environment = environment.as_ref();
    assert_ne!(run(container, &asking(HOST.0, HOST.1)).await.0, 0, "nothing leads to it yet");

    let refused = Arc::new(RefusedHosts::default());
    let allowed = AllowedHosts::parse(&rules).expect("rules");
    let mut proxy = EgressProxy::new(allowed, Arc::clone(&refused));
    let ListenerRoute::OwnLoopback(socket) = environment.listener_route().await.expect("a way")
    else {
        panic!("a container without network has only its loopback");
    };
    proxy.listen(socket).expect("served");
    let sockets = environment.lead_connections(&proxy.networks()).await.expect("asked");
    proxy.lead(sockets.expect("root on the engine's host may")).expect("served");

    wait_for_script(container, &asking(HOST.0, HOST.1)).await;
    assert_eq!(output(container, &asking(HOST.0, HOST.1)).await, "hello");
    // Another network, a name without a rule, another protocol, IPv6.
    for script in [
        asking("192.0.2.1", 443),
        "getent hosts other.example".to_owned(),
        "bash -c 'echo x > /dev/udp/203.0.113.7/99' 2>/dev/null".to_owned(),
        asking("2001:db8::1", 443),
    ] {
        assert_ne!(run(container, &script).await.0, 0, "{script}");
    }
    assert_eq!(output(container, "ls /sys/class/net").await, "lo\n");

    // A phase with a network has nothing of it.
    environment.set_network(&NetworkPolicy::Public).await.unwrap_or_else(|f| panic!("{f}"));
    let listener = std::net::TcpListener::bind((bridge(&lab).await, 0)).expect("a port");
    let to = listener.local_addr().expect("bound");
    let connecting = format!("timeout 5 bash -c '</dev/tcp/{}/{}'", to.ip(), to.port());
    wait_for_script(container, &connecting).await;
    destroy(environment).await;
    drop(host);
}
