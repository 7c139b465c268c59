//! Shortages of this host, such as of open files or ports, that keep the proxy from serving. They are
//! faults of the proxy, whatever program asked for the connection.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rollout_base::shortage::Shortage;

use super::ProxyContext;

/// Files that a look-up of a name may have open at a time: lists of names and of servers, and sockets.
const LOOKUP_FILES: usize = 4;

impl ProxyContext {
    /// Keeps an error as the fault of the proxy if this host ran out of something.
    pub(super) fn note_shortage(&self, doing: &str, error: &(dyn Error + 'static)) {
        if Shortage::from_error(error).is_some() {
            self.note_fault(format!("cannot {doing}: {error}"));
        }
    }

    /// Keeps a fault of the proxy; the first one is enough.
    pub(super) fn note_fault(&self, fault: String) {
        let _known = self.fault.set(fault);
    }
}

/// Whether a look-up failed because this host ran out of something.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    Shortage::from_io_error(error).is_some()
}

/// Whether a connection to an address failed because this host ran out of something, also of local ports.
pub(super) fn is_shortage_for(address: SocketAddr, error: &io::Error) -> bool {
    // The system reports a missing address of this host, for instance where IPv6 is off, in the same way.
    let lacks_port = || error.kind() == io::ErrorKind::AddrNotAvailable && has_source(address);
    is_shortage(error) || lacks_port()
}

/// Whether this host has an address from which it may reach another. UDP needs no port of TCP.
fn has_source(address: SocketAddr) -> bool {
    let any = match address {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(address)).is_ok()
}

/// The error of a look-up: the shortage of this host if there is one. The resolver of the system does not
/// tell it from a name without an answer.
pub(super) fn lookup_error(reported: io::Error) -> io::Error {
    let socket = |_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let opened: io::Result<Vec<_>> = (0..LOOKUP_FILES).map(socket).collect();
    opened.err().filter(is_shortage).unwrap_or(reported)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::io::Errno;

    use super::super::{AllowedHosts, EgressProxy};
    use super::*;

    #[test]
    fn error_for_lack_of_local_ports_is_a_shortage_and_that_of_a_host_is_none() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        for (errno, expected) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::NOMEM, true),
            (Errno::NOBUFS, true),
            (Errno::AGAIN, true),
            (Errno::ADDRNOTAVAIL, true),
            (Errno::CONNREFUSED, false),
            (Errno::HOSTUNREACH, false),
            (Errno::NETUNREACH, false),
            (Errno::TIMEDOUT, false),
            (Errno::CONNRESET, false),
        ] {
            assert_eq!(is_shortage_for(address, &io::Error::from(errno)), expected, "{errno}");
        }
    }

    #[test]
    fn error_of_a_look_up_on_a_host_with_free_files_stays() {
        let unknown = io::Error::new(io::ErrorKind::NotFound, "no such name");
        assert_eq!(lookup_error(unknown).kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn first_shortage_is_the_fault_of_the_proxy() {
        let allowed = AllowedHosts::parse(&[]).expect("no rules");
        let proxy = EgressProxy::new(allowed, Arc::default());
        proxy.context.note_shortage("accept", &io::Error::from(Errno::CONNABORTED));
        assert_eq!(proxy.fault(), None);
        proxy.context.note_shortage("accept", &io::Error::other(io::Error::from(Errno::MFILE)));
        proxy.context.note_shortage("connect", &io::Error::from(Errno::NOMEM));
        assert!(proxy.fault().is_some_and(|fault| fault.starts_with("cannot accept: Too many")));
    }
}
