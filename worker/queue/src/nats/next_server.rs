//! Choice of the server to connect to again.
//!
//! A server that its cluster has lost accepts connections and answers nothing. The client's own
//! choice prefers the server that failed least often: it could choose the lost one for ever, because
//! the others failed while they were restarted.

use std::sync::{Arc, Mutex, PoisonError};

use async_nats::{ConnectOptions, ReconnectToServer, Server, ServerAddr};

use super::tls_fault::ReconnectFailure;

/// Makes the client try its servers in turn, so that it comes back to one only after all others.
/// The first connection is to any of them. `failure` gets the reason why the last one failed.
pub(super) fn reconnect_in_turn(
    options: ConnectOptions,
    failure: Arc<ReconnectFailure>,
) -> ConnectOptions {
    let last_tried: Arc<Mutex<Option<ServerAddr>>> = Arc::default();
    options.reconnect_to_server_callback(move |servers, _info| {
        let mut last_tried = last_tried.lock().unwrap_or_else(PoisonError::into_inner);
        let tried = servers.iter().find(|server| Some(&server.addr) == last_tried.as_ref());
        failure.set(tried.and_then(|server| server.last_error.as_deref()));
        let next = next_server(&servers, last_tried.as_ref());
        last_tried.clone_from(&next);
        // The client's own pause before the attempt.
        std::future::ready(next.map(|addr| ReconnectToServer { addr, delay: None }))
    })
}

/// The server after the last one that was tried, which is the connected one at first; none before
/// the first connection.
fn next_server(servers: &[Server], last_tried: Option<&ServerAddr>) -> Option<ServerAddr> {
    let last = match last_tried {
        Some(last) => servers.iter().position(|server| server.addr == *last),
        None => Some(servers.iter().position(|server| server.did_connect)?),
    };
    let next = last.map_or(0, |last| (last + 1) % servers.len());
    servers.get(next).map(|server| server.addr.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, did_connect: bool) -> Server {
        let addr = name.parse().expect("an address");
        Server { addr, failed_attempts: 0, did_connect, is_discovered: false, last_error: None }
    }

    #[test]
    fn first_connection_is_left_to_the_client() {
        assert_eq!(next_server(&[server("a", false), server("b", false)], None), None);
        assert_eq!(next_server(&[], None), None);
    }

    #[test]
    fn servers_follow_in_turn_whatever_their_failures() {
        let mut servers = [server("a", false), server("b", true), server("c", false)];
        for server in [0, 2] {
            servers[server].failed_attempts = 7;
        }
        let mut last = None;
        let mut tried = Vec::new();
        for _ in 0..4 {
            last = next_server(&servers, last.as_ref());
            tried.push(last.as_ref().expect("a server").host().to_owned());
        }
        assert_eq!(tried, ["c", "a", "b", "c"]);
        let alone = [server("a", true)];
        assert_eq!(next_server(&alone, None), Some(alone[0].addr.clone()));
        let gone = "gone".parse().expect("an address");
        assert_eq!(next_server(&servers, Some(&gone)), Some(servers[0].addr.clone()));
        assert_eq!(next_server(&[], Some(&gone)), None);
    }
}
