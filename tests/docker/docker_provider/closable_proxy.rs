//! A TCP proxy that can be closed.

use rollout_base::supervise::{self, Task};
use tokio::net::{TcpListener, TcpStream};

/// Forwards connections until dropped.
pub(crate) struct ClosableProxy {
    address: String,
    _task: Task<()>,
}

impl ClosableProxy {
    /// A proxy on a free port for the server at `to`.
    pub(crate) async fn open(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let to = to.to_owned();
        let task = supervise::spawn("closable proxy", async move {
            let mut open = Vec::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let Ok(mut far) = TcpStream::connect(&to).await else { return };
                open.push(supervise::spawn("proxy connection", async move {
                    // Either side may close the connection at any time.
                    tokio::io::copy_bidirectional(&mut near, &mut far).await.ok();
                }));
            }
        });
        Self { address, _task: task }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}
