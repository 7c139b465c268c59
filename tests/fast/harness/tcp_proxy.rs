//! The TCP proxy forwards, stalls and cuts connections.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use rollout_tests::tcp_proxy::TcpProxy;

#[test]
fn tcp_proxy_forwards_stalls_and_cuts() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let proxy = TcpProxy::for_port(listener.local_addr().expect("an address").port());
    let join = || TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).expect("the proxy");
    let mut client = join();
    let (mut server, _) = listener.accept().expect("through the proxy");
    server.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let mut bytes = [0; 3];
    client.write_all(b"one").expect("sent");
    server.read_exact(&mut bytes).expect("passes");

    proxy.stall();
    client.write_all(b"two").expect("sent");
    assert!(server.read(&mut bytes).is_err(), "bytes are held back");
    proxy.restore();
    server.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    server.read_exact(&mut bytes).expect("passes");
    assert_eq!(&bytes, b"two");

    proxy.cut();
    assert_eq!(server.read(&mut bytes).expect("an end"), 0);
    let mut refused = join();
    assert!(matches!(refused.read(&mut bytes), Ok(0) | Err(_)));
    proxy.restore();
    let mut client = join();
    let (mut server, _) = listener.accept().expect("through the proxy");
    client.write_all(b"end").expect("sent");
    server.read_exact(&mut bytes).expect("passes");
}
