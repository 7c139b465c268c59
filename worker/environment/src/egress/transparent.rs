//! Connections that lead to this process without the environment's doing: each goes on to the host that
//! it was made to, if that is allowed. Names are those of [`NameAddresses`](super::names::NameAddresses).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_base::supervise::{self, Task};
use rollout_protocol::spec::task::normal_name;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::connect::{ConnectError, connect};
use super::dns::{Question, Reply, TYPE_A};
use super::hosts::HostRefusal;
use super::{LedSockets, ProxyContext, server};

/// Port of connections that are encrypted, as far as proxies of this host are concerned.
const HTTPS_PORT: u16 = 443;

/// Queries that are answered at a time; more wait in the kernel.
const MAX_QUERIES: usize = 64;

/// Largest query.
const MAX_QUERY_BYTES: usize = 4096;

/// Pause after a query that could not be received.
const RECEIVE_PAUSE: Duration = Duration::from_millis(100);

/// Serves the sockets. The tasks never end by themselves.
pub(super) fn start(
    sockets: LedSockets,
    context: &Arc<ProxyContext>,
) -> io::Result<[Task<Infallible>; 2]> {
    sockets.connections.set_nonblocking(true)?;
    sockets.names.set_nonblocking(true)?;
    let connections = TcpListener::from_std(sockets.connections)?;
    let shared = Arc::clone(context);
    let serve = move |stream| serve(stream, Arc::clone(&shared));
    let accepting = supervise::spawn(
        "egress-connections",
        server::accept(connections, Arc::clone(context), serve),
    );
    let names = UdpSocket::from_std(sockets.names)?;
    let answering = answer_queries(names, Arc::clone(context));
    Ok([accepting, supervise::spawn("egress-names", answering)])
}

async fn serve(mut stream: TcpStream, context: Arc<ProxyContext>) {
    let asked = match rustix::net::sockopt::ip_original_dst(&stream) {
        Ok(asked) => asked,
        Err(error) => return tracing::debug!("a connection has no host: {error}"),
    };
    let (address, port) = (*asked.ip(), asked.port());
    let host = context.names.addresses.name_of(address).unwrap_or_else(|| address.to_string());
    match connect(&context, &host, port, port == HTTPS_PORT).await {
        Ok(mut reached) => {
            if let Err(error) = tokio::io::copy_bidirectional(&mut stream, &mut reached).await {
                tracing::debug!("a connection to an allowed host broke off: {error}");
            }
        }
        Err(ConnectError::Refused(refusal)) => {
            context.refused.add(&format!("{host}:{port}"), refusal);
        }
        Err(error) => tracing::debug!("cannot reach {host}:{port}: {error}"),
    }
}

async fn answer_queries(socket: UdpSocket, context: Arc<ProxyContext>) -> Infallible {
    let mut queries = FuturesUnordered::new();
    let mut buffer = vec![0; MAX_QUERY_BYTES];
    loop {
        tokio::select! {
            received = socket.recv_from(&mut buffer), if queries.len() < MAX_QUERIES => match received {
                Ok((length, from)) => {
                    queries.push(answer(buffer[..length].to_vec(), from, Arc::clone(&context)));
                }
                Err(error) => {
                    tracing::warn!("cannot receive a query for a name: {error}");
                    context.note_shortage("receive a query for a name", &error);
                    tokio::time::sleep(RECEIVE_PAUSE).await;
                }
            },
            Some(answered) = queries.next() => {
                let Some((answer, to)): Option<(Vec<u8>, SocketAddr)> = answered else { continue };
                if let Err(error) = socket.send_to(&answer, to).await {
                    tracing::debug!("cannot answer a query for a name: {error}");
                    context.note_shortage("answer a query for a name", &error);
                }
            }
        }
    }
}

/// The answer to a query; `None` if it is none.
async fn answer(
    query: Vec<u8>,
    from: SocketAddr,
    context: Arc<ProxyContext>,
) -> Option<(Vec<u8>, SocketAddr)> {
    let question = Question::parse(&query)?;
    let reply = reply(&question, &context).await;
    Some((question.answer(&query, reply), from))
}

/// Names that no rule has are not looked up: a look-up itself can carry data out.
async fn reply(question: &Question, context: &ProxyContext) -> Reply {
    let Some(name) = normal_name(&question.name) else { return Reply::NoName };
    let Some(port) = context.allowed.port_of_name(&name) else {
        context.refused.add(&name, HostRefusal::NotListed);
        return Reply::NoName;
    };
    if question.kind != TYPE_A {
        return Reply::NoRecord;
    }
    let found = match context.names.lookups.find(&name).await {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!("cannot look {name} up: {error}");
            context.note_shortage(&format!("look {name} up"), &error);
            return Reply::Failed;
        }
    };
    match context.allowed.check_addresses(&name, found, port) {
        Ok(addresses) if addresses.is_empty() => Reply::NoName,
        Ok(_) => context.names.addresses.address_of(&name).map_or(Reply::Failed, Reply::Address),
        Err(refusal) => {
            context.refused.add(&name, refusal);
            Reply::NoName
        }
    }
}

#[cfg(test)]
mod tests;
