//! Network policies, including changes for open connections.

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rollout_environment::{Environment, Provider as _};
use rollout_protocol::spec::environment::DockerNetwork;
use rollout_protocol::spec::task::NetworkPolicy::{NoNetwork, Public};

use crate::docker_provider::fixture::{
    DockerFixture, WAIT_DEADLINE, destroy, output, run, wait_for_script,
};

/// A server on the host's side of the bridge.
async fn server(lab: &DockerFixture) -> (TcpListener, SocketAddr) {
    let address = bridge(lab).await;
    let listener = TcpListener::bind((address, 0)).expect("the engine runs on this host");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// The host's address on the engine's default bridge, from a container's routes: a newly installed
/// engine does not report the gateway.
pub(super) async fn bridge(lab: &DockerFixture) -> Ipv4Addr {
    let environment = lab.plain().await;
    let routes = output(environment.as_ref(), "cat /proc/net/route").await;
    destroy(environment).await;
    default_gateway(&routes).unwrap_or_else(|| panic!("no gateway in {routes}"))
}

/// The gateway of the default route in `/proc/net/route`.
fn default_gateway(routes: &str) -> Option<Ipv4Addr> {
    let fields = routes.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut default = fields.filter(|fields| fields.get(1) == Some(&"00000000"));
    let gateway = u32::from_str_radix(default.next()?.get(2)?, 16).ok()?;
    // In host byte order.
    Some(Ipv4Addr::from(gateway.to_ne_bytes()))
}

/// A script that succeeds when it can connect.
fn connecting(to: SocketAddr) -> String {
    format!("timeout 5 bash -c '</dev/tcp/{}/{}' 2>/tmp/why", to.ip(), to.port())
}

/// Script that connects to its own server inside the container.
const LOOPBACK: &str = "perl -MIO::Socket::INET -e '\
    $s = IO::Socket::INET->new(Listen => 1, LocalAddr => \"127.0.0.1\") or die; \
    $c = IO::Socket::INET->new(PeerAddr => \"127.0.0.1\", PeerPort => $s->sockport) or die'";

/// Reads from the container's connection until nothing arrives for a second.
fn drain(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(1))).expect("set");
    let began = std::time::Instant::now();
    let mut buffer = [0; 4096];
    while let Ok(1..) = stream.read(&mut buffer) {
        assert!(began.elapsed() < WAIT_DEADLINE, "it does not end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn network_of_running_container_is_cut_and_restored() {
    let Some(lab) = DockerFixture::open().await else { return };
    let (listener, address) = server(&lab).await;
    let environment = lab.plain().await;
    let container = environment.as_ref();
    let talker = format!(
        "setsid bash -c 'exec 3<>/dev/tcp/{}/{}; while echo tick >&3; do sleep 0.05; done' \
         >/dev/null 2>&1 </dev/null &",
        address.ip(),
        address.port()
    );
    output(container, &talker).await;
    let (mut stream, _) = listener.accept().expect("it connects");
    let mut tick = [0; 5];
    stream.read_exact(&mut tick).expect("it talks");

    environment.set_network(&NoNetwork).await.unwrap_or_else(|f| panic!("{}", f.chain()));
    drain(&mut stream);
    assert_ne!(run(container, &connecting(address)).await.0, 0);
    assert_eq!(output(container, "ls /sys/class/net").await, "lo\n");
    output(container, LOOPBACK).await;
    // A container that was restarted to kill its processes keeps its network settings.
    environment.kill_processes().await.expect("killed");
    assert_eq!(output(container, "ls /sys/class/net").await, "lo\n");

    environment.set_network(&Public).await.unwrap_or_else(|f| panic!("{}", f.chain()));
    wait_for_script(container, &connecting(address)).await;
    destroy(environment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn network_is_attached_after_start_without() {
    let Some(lab) = DockerFixture::open().await else { return };
    let (_listener, address) = server(&lab).await;
    let image = lab
        .build(
            "RUN printf '#!/bin/sh\\nls /sys/class/net > /tmp/first; exec \"$@\"' > /entry && \
             chmod +x /entry\nENTRYPOINT [\"/entry\"]",
        )
        .await;
    let mut request = lab.request(image.clone(), Vec::new());
    request.network = NoNetwork;
    let environment = lab.provider.create(request).await.expect("created");
    let container = environment.as_ref();
    assert_eq!(output(container, "cat /tmp/first; ls /sys/class/net").await, "lo\nlo\n");
    let calls = lab.provider.calls();
    environment.set_network(&NoNetwork).await.expect("it has none");
    assert_eq!(lab.provider.calls(), calls, "there was nothing to ask");
    environment.set_network(&Public).await.unwrap_or_else(|f| panic!("{}", f.chain()));
    wait_for_script(container, &connecting(address)).await;
    destroy(environment).await;
    lab.remove_image(&image).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn network_of_job_limits_container() {
    let Some(mut lab) = DockerFixture::open().await else { return };
    lab.settings.network = DockerNetwork::None;
    let environment = lab.plain().await;
    let container: &dyn Environment = environment.as_ref();
    for policy in [Public, NoNetwork, Public] {
        environment.set_network(&policy).await.expect("within what the job allows");
        assert_eq!(output(container, "ls /sys/class/net").await, "lo\n");
    }
    destroy(environment).await;
}
