//! What leads connections of an environment to this process.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

/// Sockets to which connections of an environment lead.
#[derive(Debug)]
pub struct LedSockets {
    /// For its connections. Their original destination is that of the kernel.
    pub connections: TcpListener,
    /// For its queries for names.
    pub names: UdpSocket,
}

/// A network to which connections of an environment lead to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedNetwork {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its bits.
    pub bits: u8,
    /// The only port; all of them when absent.
    pub port: Option<u16>,
}

impl LedNetwork {
    /// The network of the addresses that stand for names. It is set aside for benchmarks of networks: no
    /// host of the internet has one of them.
    pub const NAMES: Self = Self { address: Ipv4Addr::new(198, 18, 0, 0), bits: 15, port: None };
}
