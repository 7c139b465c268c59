//! A listener on the loopback interface of a container, whose connections this process accepts. It
//! needs no program in the image and no network of the container, but the right to enter the
//! container's network: this process is root on the engine's host.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd as _;
use std::time::Duration;

use rollout_base::supervise;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::container::Container;

/// Why this process cannot listen in the network of a container.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoopbackError {
    /// Its first process is not one of this host.
    #[error("its processes are not those of this host")]
    NotHere,
    /// The kernel refused.
    #[error("cannot {action}: {source}")]
    System {
        /// The refused operation.
        action: &'static str,
        /// Its error.
        #[source]
        source: io::Error,
    },
    /// A system program was ended at its time limit.
    #[error("`{program}` did not end within {limit:?}")]
    TooSlow {
        /// The program.
        program: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// Rules of its network stay that are of no use.
    #[error("cannot undo changes of its network: {0}")]
    NotUndone(#[source] Box<LoopbackError>),
}

pub(super) fn system(action: &'static str) -> impl Fn(io::Error) -> LoopbackError {
    move |source| LoopbackError::System { action, source }
}

/// Works in the network of the container `id`, whose first process is `pid` on the engine's host.
/// Programs that are started by the work are in this network, too.
pub(super) async fn in_network<T: Send + 'static>(
    pid: i64,
    id: String,
    work: impl FnOnce() -> Result<T, LoopbackError> + Send + 'static,
) -> Result<T, LoopbackError> {
    supervise::blocking(move || {
        let network = open_network(pid, &id)?;
        // A thread of its own: it stays in the container's network until it ends.
        let thread = supervise::thread("container network", move || {
            let to = Some(LinkNameSpaceType::Network);
            let entered = move_into_link_name_space(network.as_fd(), to);
            entered.map_err(|error| system("enter its network")(error.into()))?;
            work()
        });
        let joined = thread.map_err(system("start a thread"))?.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
    .await
}

/// Opens the network of a container.
fn open_network(pid: i64, id: &str) -> Result<File, LoopbackError> {
    let network = match File::open(format!("/proc/{pid}/ns/net")) {
        Ok(network) => network,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(LoopbackError::NotHere);
        }
        Err(source) => return Err(system("open its network")(source)),
    };
    // On another host, or in another namespace of processes, this is the number of any process.
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"));
    let groups = groups.map_err(|_| LoopbackError::NotHere)?;
    if groups.contains(id) { Ok(network) } else { Err(LoopbackError::NotHere) }
}

/// Listens at any free port in the network of this thread.
pub(super) fn listen() -> Result<TcpListener, LoopbackError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(system("listen on its loopback interface"))
}

impl Container {
    /// A listener on its loopback interface.
    pub(super) async fn listen_inside(&self) -> Result<TcpListener, LoopbackError> {
        self.in_own_network(listen).await
    }

    /// Works in its network.
    pub(super) async fn in_own_network<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, LoopbackError> + Send + 'static,
    ) -> Result<T, LoopbackError> {
        let found = self.inspect().await.map_err(|failure| LoopbackError::System {
            action: "inspect it",
            source: io::Error::other(failure),
        })?;
        let pid = found.state.and_then(|state| state.pid).filter(|pid| *pid > 0);
        in_network(pid.ok_or(LoopbackError::NotHere)?, self.engine_id.clone(), work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn process_that_is_not_of_the_container_is_refused() {
        let own = i64::from(std::process::id());
        let id = || "0f".repeat(32);
        let refused = in_network(own, id(), listen).await.expect_err("another process");
        assert!(matches!(refused, LoopbackError::NotHere), "{refused}");
        let none = i64::from(i32::MAX);
        let refused = in_network(none, id(), listen).await.expect_err("no process");
        assert!(matches!(refused, LoopbackError::NotHere), "{refused}");
    }
}
