//! Three nats-servers that form a cluster, one of which can be cut off from the others.

use std::path::Path;

use rustix::process::Signal;

use crate::ignored::or_ignored;
use crate::nats::{self, NatsServer};
use crate::net::free_port;
use crate::print_notice;
use crate::tcp_proxy::TcpProxy;

/// Number of servers: the fewest of which one may fail.
const SERVERS: usize = 3;

/// The servers, on ports of 127.0.0.1. Dropping them kills them.
#[derive(Debug)]
pub struct NatsCluster {
    servers: Vec<NatsServer>,
    routes: Vec<Route>,
}

impl Drop for NatsCluster {
    fn drop(&mut self) {
        // Their files go with the directory of the test.
        if std::thread::panicking() {
            print_notice(&self.logs());
        }
    }
}

/// The connection between two servers: only the first one opens it.
#[derive(Debug)]
struct Route {
    between: (usize, usize),
    proxy: TcpProxy,
}

impl NatsCluster {
    /// Starts the servers with their files in `directory`; without a nats-server whose routes can be
    /// relied on, the test is ignored.
    ///
    /// # Panics
    /// When a server does not start.
    pub fn start(directory: &Path) -> Option<Self> {
        let program = or_ignored(nats::find_cluster_program())?;
        let ports: [u16; SERVERS] = std::array::from_fn(|_| free_port());
        // A ring: every pair is connected, and every server has the route without which it does not
        // start.
        let pairs = (0..SERVERS).map(|from| (from, (from + 1) % SERVERS));
        let routes: Vec<Route> = pairs
            .map(|between| Route { between, proxy: TcpProxy::for_port(ports[between.1]) })
            .collect();
        let servers = (0..SERVERS).map(|number| {
            let own = routes.iter().filter(|route| route.between.0 == number);
            let own = own.map(|route| route.proxy.port());
            // Servers take the number of routes for the number of servers, a majority of which they
            // wait for. Without those that lead nowhere, two of them would go on without the third.
            let urls: Vec<_> =
                own.chain([1, 2]).map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
            let urls = urls.join(", ");
            // No server can follow what another says about a third one: each pair of servers has
            // the connection that can be cut and no other.
            let settings = format!(
                "cluster {{ name: \"tests\", listen: \"127.0.0.1:{}\", advertise: \"127.0.0.1:1\", \
                 routes: [{urls}] }}\n",
                ports[number],
            );
            NatsServer::start_with(&program, &directory.join(format!("{number}")), &settings)
        });
        Some(Self { servers: servers.collect(), routes })
    }

    /// Addresses of all servers, as `--nats` takes them.
    pub fn urls(&self) -> String {
        let urls: Vec<String> = self.servers.iter().map(NatsServer::url).collect();
        urls.join(",")
    }

    /// Numbers of the servers.
    pub fn numbers(&self) -> std::ops::Range<usize> {
        0..self.servers.len()
    }

    /// Number of the server with this name.
    pub fn number_of(&self, name: &str) -> Option<usize> {
        self.servers.iter().position(|server| server.name() == name)
    }

    /// kill -9 of a server; its store stays.
    pub fn kill(&mut self, number: usize) {
        self.servers[number].kill();
    }

    /// Stops a server as a service manager does, and waits for its end.
    pub fn stop(&mut self, number: usize) {
        self.servers[number].signal(Signal::TERM);
        self.servers[number].wait_for_end();
    }

    /// Starts a server that does not run.
    pub fn restart(&mut self, number: usize) {
        self.servers[number].ensure_started();
    }

    /// Cuts the connections of a server to the others. Clients still reach all of them.
    pub fn cut_off(&self, number: usize) {
        self.routes_of(number).for_each(|route| route.proxy.cut());
    }

    /// Ends [`NatsCluster::cut_off`].
    pub fn reconnect(&self, number: usize) {
        self.routes_of(number).for_each(|route| route.proxy.restore());
    }

    /// Ends of the logs of all servers, to explain a failure.
    pub fn logs(&self) -> String {
        let log = |server: &NatsServer| format!("{}:\n{}\n", server.name(), server.log_end());
        self.servers.iter().map(log).collect()
    }

    fn routes_of(&self, number: usize) -> impl Iterator<Item = &Route> {
        let of = move |route: &&Route| route.between.0 == number || route.between.1 == number;
        self.routes.iter().filter(of)
    }
}
