//! Shortages of this host, such as of open files, that keep the proxy from serving. They are
//! faults of the proxy, whatever program asked for the connection.

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};

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
    fn error_of_this_host_is_a_shortage_and_that_of_another_is_none() {
        for (errno, expected) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::NOMEM, true),
            (Errno::NOBUFS, true),
            (Errno::AGAIN, true),
            (Errno::ADDRNOTAVAIL, false),
            (Errno::CONNREFUSED, false),
            (Errno::HOSTUNREACH, false),
            (Errno::NETUNREACH, false),
            (Errno::TIMEDOUT, false),
            (Errno::CONNRESET, false),
        ] {
            assert_eq!(is_shortage(&io::Error::from(errno)), expected, "{errno}");
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
