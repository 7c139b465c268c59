//! A proxy in this process through which repositories and registries are fetched for others. It
//! connects to public addresses and to listed hosts only, and looks names up itself.

use std::future;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use rollout_base::supervise::{self, Task};
use rollout_environment::egress::{
    AllowedHosts, EgressProxy, HostRefusal, RefusedHost, RefusedHosts,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::config::describe_refusal;

/// A running proxy, for blocking threads. Dropping it ends all of its connections.
#[derive(Debug)]
pub(super) struct Guard {
    url: String,
    refused: Arc<RefusedHosts>,
    _proxy: Task<()>,
    runtime: Option<Runtime>,
}

impl Guard {
    /// Starts a proxy. It ends when the sender of `cancelled` is dropped.
    pub(super) fn start(
        hosts: AllowedHosts,
        cancelled: Option<watch::Receiver<()>>,
    ) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("fetch-proxy")
            .enable_all()
            .build()?;
        let refused = Arc::new(RefusedHosts::default());
        let entered = runtime.enter();
        let mut proxy = EgressProxy::of_host(hosts, Arc::clone(&refused));
        proxy.listen(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?)?;
        let url = proxy.url().unwrap_or_default();
        let held = supervise::spawn("fetch-proxy", async move {
            match cancelled {
                Some(mut cancelled) => while cancelled.changed().await.is_ok() {},
                None => future::pending().await,
            }
            drop(proxy);
        });
        drop(entered);
        Ok(Self { url, refused, _proxy: held, runtime: Some(runtime) })
    }

    /// The URL of the proxy.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Why a host was refused, if one was.
    pub(super) fn refusal(&self) -> Option<&'static str> {
        self.refused.summary().map(|_| describe_refusal(HostRefusal::InternalAddress))
    }

    /// Whether only names without an address were refused: the look-up may have failed.
    pub(super) fn lacks_addresses(&self) -> bool {
        let is_unknown = |host: &RefusedHost| host.reason == HostRefusal::NoAddress.as_str();
        let refused = self.refused.summary();
        refused.is_some_and(|all| all.others == 0 && all.hosts.iter().all(is_unknown))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Does not wait for a look-up that takes long.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    /// The first line of the reply to a request for a tunnel.
    fn ask(guard: &Guard, target: &str) -> io::Result<String> {
        let address = guard.url().trim_start_matches("http://");
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream
            .write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes())?;
        let mut reply = [0; 12];
        stream.read_exact(&mut reply)?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    #[test]
    fn unknown_name_is_refused_as_an_internal_one() {
        let guard = Guard::start(AllowedHosts::public(Vec::new()), None).expect("a proxy");
        assert_eq!(ask(&guard, "a.invalid:80").expect("a reply"), "HTTP/1.1 403");
        let unknown = guard.refusal();
        assert!(unknown.is_some() && guard.lacks_addresses());
        assert_eq!(ask(&guard, "localhost:80").expect("a reply"), "HTTP/1.1 403");
        assert_eq!(guard.refusal(), unknown);
        assert!(!guard.lacks_addresses());
    }

    #[test]
    fn own_address_is_refused_unless_listed_and_proxy_ends_with_the_fetch() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let target = server.local_addr().expect("an address").to_string();
        let hosts = AllowedHosts::public(Vec::new());
        let guard = Guard::start(hosts.clone(), None).expect("a proxy");
        for target in [target.as_str(), "localhost:80"] {
            assert_eq!(ask(&guard, target).expect("a reply"), "HTTP/1.1 403", "{target}");
        }
        assert!(guard.refusal().is_some());

        let (fetch, cancelled) = watch::channel(());
        let hosts = hosts.with(target.parse().expect("a rule"));
        let guard = Guard::start(hosts, Some(cancelled)).expect("a proxy");
        assert_eq!(ask(&guard, &target).expect("a reply"), "HTTP/1.1 200");
        assert_eq!(guard.refusal(), None);
        drop(fetch);
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while ask(&guard, &target).is_ok() {
            assert!(std::time::Instant::now() < deadline, "the proxy goes on");
        }
    }
}
