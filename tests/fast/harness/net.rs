//! Free ports are different and free.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};

use rollout_tests::net::free_port;
use rollout_tests::process_lock::ProcessLock;

#[test]
fn free_ports_differ_and_can_be_listened_on() {
    let ports: Vec<u16> = (0..50).map(|_| free_port()).collect();
    assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), ports.len(), "{ports:?}");
    let listen = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).expect("free");
    let _listeners: Vec<_> = ports.iter().map(listen).collect();
    let lock = ProcessLock::try_acquire(&format!("port-{}", ports[0]));
    assert!(lock.is_none(), "another process could get the port");
}
