//! Connections that fail for a cause of this host, and for one of another.

use std::net::Ipv4Addr;
use std::sync::Arc;

use rustix::io::Errno;

use super::super::EgressProxy;
use super::*;

/// The error of a connection that fails so, and the fault of its proxy.
async fn failure(errno: Errno) -> (ConnectError, Option<String>) {
    let allowed = AllowedHosts::parse(&["127.0.0.1".to_owned()]).expect("rules");
    let proxy = EgressProxy::new(allowed, Arc::default());
    let dial = |_: SocketAddr| std::future::ready(Err(io::Error::from(errno)));
    let connected = connect_by(dial, &proxy.context, "127.0.0.1", 9, false).await;
    (connected.expect_err("no connection"), proxy.fault())
}

#[tokio::test]
async fn shortage_of_this_host_is_a_fault_and_a_host_that_does_not_answer_is_none() {
    for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS] {
        let (error, fault) = failure(errno).await;
        assert!(matches!(error, ConnectError::Shortage(_)), "{errno}: {error}");
        let fault = fault.expect("a fault of the proxy");
        assert!(fault.starts_with("cannot connect to 127.0.0.1:9: "), "{fault}");
    }
    for errno in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::TIMEDOUT, Errno::ADDRNOTAVAIL] {
        let (error, fault) = failure(errno).await;
        assert!(matches!(error, ConnectError::Connect(_)), "{errno}: {error}");
        assert_eq!(fault, None, "{errno}");
    }
}

#[test]
fn look_up_that_failed_by_a_shortage_is_no_refused_host() {
    let allowed = AllowedHosts::public(Vec::new());
    let checked = |found| checked_addresses(&allowed, "a.example", 80, found);
    let full = checked(Err(Errno::MFILE.into())).expect_err("no files");
    assert!(matches!(full, ConnectError::Shortage(_)), "{full}");
    let unknown = io::Error::new(io::ErrorKind::NotFound, "no such name");
    for found in [Err(unknown), Ok(Vec::new())] {
        let hidden = checked(found).expect_err("no address");
        assert!(matches!(hidden, ConnectError::Refused(HostRefusal::NoAddress)), "{hidden}");
    }
    let address = IpAddr::from(Ipv4Addr::new(8, 8, 8, 8));
    assert_eq!(checked(Ok(vec![address])).expect("an address"), [address]);
}
