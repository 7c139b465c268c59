//! A faulty way to the Docker engine.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rollout_worker::supervise;

/// A socket in front of the engine's that refuses requests.
#[derive(Debug)]
pub struct Proxy {
    socket: PathBuf,
}

impl Proxy {
    /// Listens at `socket` and answers every request that begins with `refused`
    /// (`DELETE /containers/`) with a server error; all others go to the engine at `DOCKER_HOST`.
    /// Lives as long as the test's process.
    ///
    /// # Panics
    /// When `DOCKER_HOST` is no socket.
    pub fn refusing(refused: &'static str, socket: &Path) -> Self {
        let host = std::env::var("DOCKER_HOST").ok();
        let host = host.unwrap_or_else(|| "unix:///var/run/docker.sock".to_owned());
        let engine = PathBuf::from(host.strip_prefix("unix://").expect("a socket"));
        let listener = UnixListener::bind(socket).expect("a socket");
        let serve = move || {
            for client in listener.incoming() {
                let (client, engine) = (client?, UnixStream::connect(&engine)?);
                connect(client, engine, refused)?;
            }
            Ok::<(), io::Error>(())
        };
        supervise::thread("proxy", serve).expect("a thread");
        Self { socket: socket.to_owned() }
    }

    /// What to set `DOCKER_HOST` to.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket.display())
    }
}

fn connect(client: UnixStream, engine: UnixStream, refused: &'static str) -> io::Result<()> {
    let answers = (engine.try_clone()?, client.try_clone()?);
    supervise::thread("proxy-answers", move || copy(answers.0, answers.1, None))?;
    supervise::thread("proxy-requests", move || copy(client, engine, Some(refused)))?;
    Ok(())
}

/// Copies until the end. A client sends a request only after the answer to its last, so a request
/// begins where a read begins.
fn copy(mut from: UnixStream, mut to: UnixStream, refused: Option<&str>) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return to.shutdown(std::net::Shutdown::Write);
        }
        match refused {
            Some(refused) if buffer.starts_with(refused.as_bytes()) => {
                let body = r#"{"message":"refused by the test"}"#;
                let length = body.len();
                write!(
                    from,
                    "HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}",
                )?;
            }
            _ => to.write_all(&buffer[..length])?,
        }
    }
}
