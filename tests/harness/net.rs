//! Free TCP ports.

use std::net::{Ipv4Addr, TcpListener};

/// A port of 127.0.0.1 that was free a moment ago.
///
/// # Panics
/// When no port is free.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}
