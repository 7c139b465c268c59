//! A gate at which agents wait until a test opens it.

use std::net::{Ipv4Addr, TcpListener};

/// A closed gate. Dropping it opens it, for those who wait and for those who come later.
#[derive(Debug)]
pub struct Gate {
    /// Connections wait here, and are reset when the listener goes.
    listener: TcpListener,
}

impl Gate {
    /// A gate for processes in the host's network.
    ///
    /// # Panics
    /// When no port is free.
    pub fn closed() -> Self {
        Self { listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port") }
    }

    /// The shell command that waits until the gate is open, and succeeds.
    pub fn wait_command(&self) -> String {
        let port = self.listener.local_addr().expect("an address").port();
        // Another process may get the port later, and say nothing.
        let wait = "read -r -t 120 _ <&3";
        format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port} && {wait}' 2>/dev/null || :")
    }
}
