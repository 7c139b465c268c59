//! TLS of the API, by a certificate and a key in files. They are read again when they change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rollout_worker::shown_path::shown;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Time between two looks at the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Why certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file has no certificate or key in PEM.
    #[error("cannot read {}", shown(path))]
    Pem {
        /// The file.
        path: PathBuf,
        /// The fault.
        #[source]
        source: pem::Error,
    },
    /// Certificate and key do not fit together, or cannot be used.
    #[error("cannot use the certificate in {}", shown(path))]
    Certificate {
        /// File of the certificate.
        path: PathBuf,
        /// The fault.
        #[source]
        source: rustls::Error,
    },
}

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
    /// Reads a certificate, with the chain after it, and its key, both in PEM. Blocks.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
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
                    Err(error) => tracing::warn!("{error}; the former certificate stays in use"),
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

fn read(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::Pem { path, source }
    };
    let chain = CertificateDer::pem_file_iter(certificate).map_err(failed(certificate))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(failed(certificate))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(failed(key))?;
    let unusable = |source| TlsError::Certificate { path: certificate.to_owned(), source };
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
    let mut config =
        builder.with_no_client_auth().with_single_cert(chain, private).map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// A handshake that did not end in time.
pub(super) fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long")
}
