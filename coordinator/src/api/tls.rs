//! TLS of the API, by a certificate and a key in files. They are read again when they change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rollout_base::backoff::error_chain;
use rollout_base::tls_files::{TlsFileError, certificate_error, read_identity};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::server::TlsStream;

/// Time between two looks at the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Most bytes of a request without TLS that are read, and for how long.
const MAX_PLAIN_BYTES: u64 = 64 * 1024;
const PLAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A certificate with its key.
#[derive(Debug)]
pub struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    state: Mutex<TlsState>,
}

struct TlsState {
    acceptor: TlsAcceptor,
    versions: [Option<TlsFileVersion>; 2],
    checked_at: Instant,
}

/// The part that changes when a file changes.
type TlsFileVersion = (SystemTime, u64, u64);

impl std::fmt::Debug for TlsState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsState").field("versions", &self.versions).finish_non_exhaustive()
    }
}

impl TlsFiles {
    /// Reads a certificate that is valid now, with the chain after it, and its key, both in PEM. Blocks.
    ///
    /// # Errors
    /// [`TlsFileError`].
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsFileError> {
        let versions = [version(certificate), version(key)];
        let acceptor = read(certificate, key)?;
        let state = TlsState { acceptor, versions, checked_at: Instant::now() };
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        Ok(Self { certificate, key, state: Mutex::new(state) })
    }

    /// The acceptor of connections. Files that cannot be used change nothing.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.checked_at.elapsed() >= CHECK_INTERVAL {
            state.checked_at = Instant::now();
            let found = [version(&self.certificate), version(&self.key)];
            if found != state.versions {
                match read(&self.certificate, &self.key) {
                    Ok(acceptor) => {
                        tracing::info!("read the certificate again");
                        (state.acceptor, state.versions) = (acceptor, found);
                    }
                    // One of the files may not be written yet.
                    Err(error) => tracing::warn!(
                        "{}; the former certificate stays in use",
                        error_chain(&error)
                    ),
                }
            }
        }
        state.acceptor.clone()
    }
}

fn version(path: &Path) -> Option<TlsFileVersion> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}

fn read(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsFileError> {
    let (chain, private) = read_identity(certificate, key)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder =
        builder.with_safe_default_protocol_versions().map_err(certificate_error(certificate))?;
    let config = builder.with_no_client_auth().with_single_cert(chain, private);
    let mut config = config.map_err(certificate_error(certificate))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Makes a TLS connection. A client without TLS gets an answer: it would take a closed connection for a
/// server that is starting, and try again.
pub(super) async fn accept(
    acceptor: &TlsAcceptor,
    mut stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let mut first = [0];
    // A method begins with a letter, and a handshake does not.
    if stream.peek(&mut first).await? > 0 && first[0].is_ascii_uppercase() {
        let text = "this server uses TLS: give it as https://\n";
        let answer = format!(
            "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{text}",
            text.len()
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // A request that is not read would cut the answer off.
        let (mut rest, mut nowhere) = (stream.take(MAX_PLAIN_BYTES), tokio::io::sink());
        let _late = timeout(PLAIN_TIMEOUT, tokio::io::copy(&mut rest, &mut nowhere)).await;
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a request without TLS"));
    }
    acceptor.accept(stream).await
}

/// A handshake that did not end in time.
pub(super) fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long")
}
