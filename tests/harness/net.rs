//! Free TCP ports.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;

use crate::process_lock::ProcessLock;

/// First of the ports. They lie below those that Linux gives to listeners on port 0 and to outgoing
/// connections, which begin at 32,768.
const FIRST_PORT: u16 = 20_000;

/// Number of the ports.
const PORTS: u16 = 8_000;

/// Locks of the ports of this process.
static TAKEN: Mutex<Vec<ProcessLock>> = Mutex::new(Vec::new());

/// A port of 127.0.0.1 on which nothing listens, and that no other test of this user gets while this
/// process runs. A server of the test may be killed and started again on it.
///
/// # Panics
/// When no port is free.
pub fn free_port() -> u16 {
    let start = rand::random_range(0..PORTS);
    let ports = (0..PORTS).map(|number| FIRST_PORT + (start + number) % PORTS);
    let mut free = ports.filter_map(|port| {
        let lock = ProcessLock::try_acquire(&format!("port-{port}"))?;
        // A server that outlived its test may still listen.
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok().map(|_| (port, lock))
    });
    let (port, lock) = free.next().expect("a free port");
    TAKEN.lock().expect("not poisoned").push(lock);
    port
}
