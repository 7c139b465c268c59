//! A proxy in front of the Docker engine that counts or refuses requests.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollout_base::supervise;

/// First bytes of requests.
const METHODS: [&[u8]; 5] = [b"GET /", b"POST /", b"PUT /", b"HEAD /", b"DELETE /"];

/// Text in a refused request, and the status of the response.
type RefusedRequest = (&'static str, &'static str);

/// A socket in front of the engine's socket.
#[derive(Debug)]
pub struct EngineProxy {
    socket: PathBuf,
    requests: Arc<AtomicU64>,
}

impl EngineProxy {
    /// Listens at `socket` and answers every request whose first line contains `refused` (such as
    /// `/top`) with a server error. Forwards all others to the engine at `DOCKER_HOST`. Lives as
    /// long as the test process.
    ///
    /// # Panics
    /// When `DOCKER_HOST` is not a socket.
    pub fn refusing(refused: &'static str, socket: &Path) -> Self {
        Self::listen(Some((refused, "500 Internal Server Error")), socket)
    }

    /// Like [`Self::refusing`], but answers as an engine that does not know the request.
    ///
    /// # Panics
    /// When `DOCKER_HOST` is not a socket.
    pub fn lacking(refused: &'static str, socket: &Path) -> Self {
        Self::listen(Some((refused, "404 Not Found")), socket)
    }

    /// Listens at `socket`, counts requests and refuses none.
    ///
    /// # Panics
    /// When `DOCKER_HOST` is not a socket.
    pub fn counting(socket: &Path) -> Self {
        Self::listen(None, socket)
    }

    /// Number of requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn listen(refused: Option<RefusedRequest>, socket: &Path) -> Self {
        let host = std::env::var("DOCKER_HOST").ok();
        let host = host.unwrap_or_else(|| "unix:///var/run/docker.sock".to_owned());
        let engine = PathBuf::from(host.strip_prefix("unix://").expect("a socket"));
        let listener = UnixListener::bind(socket).expect("a socket");
        let requests = Arc::<AtomicU64>::default();
        let count = Arc::clone(&requests);
        let serve = move || {
            for client in listener.incoming() {
                let (client, engine) = (client?, UnixStream::connect(&engine)?);
                connect(client, engine, refused, Arc::clone(&count))?;
            }
            Ok::<(), io::Error>(())
        };
        supervise::thread("proxy", serve).expect("a thread");
        Self { socket: socket.to_owned(), requests }
    }

    /// Value for `DOCKER_HOST`.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket.display())
    }
}

fn connect(
    client: UnixStream,
    engine: UnixStream,
    refused: Option<RefusedRequest>,
    count: Arc<AtomicU64>,
) -> io::Result<()> {
    let answers = (engine.try_clone()?, client.try_clone()?);
    supervise::thread("proxy-answers", move || copy(answers.0, answers.1, None, None))?;
    supervise::thread("proxy-requests", move || copy(client, engine, refused, Some(&count)))?;
    Ok(())
}

/// Copies until the end of the stream. A client sends a request only after the last response, so a
/// request starts where a read starts.
fn copy(
    mut from: UnixStream,
    mut to: UnixStream,
    refused: Option<RefusedRequest>,
    count: Option<&AtomicU64>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return to.shutdown(std::net::Shutdown::Write);
        }
        let request = request_line(&buffer[..length]);
        if let (Some(_), Some(count)) = (&request, count) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        match (refused, request) {
            (Some((refused, status)), Some(request)) if request.contains(refused) => {
                let body = r#"{"message":"refused by the test"}"#;
                let length = body.len();
                write!(
                    from,
                    "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}",
                )?;
            }
            _ => to.write_all(&buffer[..length])?,
        }
    }
}

/// First line of a request; `None` when the bytes do not start one.
fn request_line(bytes: &[u8]) -> Option<String> {
    let begins = METHODS.iter().any(|method| bytes.starts_with(method));
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    begins.then(|| String::from_utf8_lossy(line).into_owned())
}
