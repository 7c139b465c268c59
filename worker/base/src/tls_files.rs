//! Certificates and keys in PEM files, checked before they are used: each fault names its file.

use std::path::{Path, PathBuf};

use rollout_protocol::{Timestamp, limits};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, RootCertStore};

use crate::regular_file;
use crate::shown_path::shown;

/// The purpose of most files, in messages.
const CERTIFICATE: &str = "certificate";

/// The end of the first and of the last line of every private key.
const KEY_END: &[u8] = b"PRIVATE KEY-----";

/// Why a file with certificates or a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// The file cannot be read, or is not PEM.
    #[error("cannot read {}", shown(path))]
    Pem {
        /// The file.
        path: PathBuf,
        /// The fault.
        #[source]
        source: pem::Error,
    },
    /// The file has nothing of what is needed.
    #[error("cannot use {}: it has no {what} in PEM", shown(path))]
    Empty {
        /// The file.
        path: PathBuf,
        /// What is needed.
        what: &'static str,
    },
    /// The file has a key, and everyone in an environment may read it.
    #[error("cannot use {}: it has a private key, which every environment would have", shown(path))]
    HasKey {
        /// The file.
        path: PathBuf,
    },
    /// The certificate cannot be used.
    #[error("cannot use the certificate in {}", shown(path))]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The fault.
        #[source]
        source: Box<rustls::Error>,
    },
    /// The certificate has expired.
    #[error("cannot use the certificate in {}: it expired at {at}", shown(path))]
    Expired {
        /// The file.
        path: PathBuf,
        /// The end of its validity.
        at: Timestamp,
    },
    /// The certificate has never been valid, and never is.
    #[error("cannot use the certificate in {}: its validity ends before it begins", shown(path))]
    NeverValid {
        /// The file.
        path: PathBuf,
    },
    /// The certificate is for a later time than that of this host.
    #[error("cannot use the certificate in {}: it is not valid before {at}", shown(path))]
    NotValidYet {
        /// The file.
        path: PathBuf,
        /// The beginning of its validity.
        at: Timestamp,
    },
    /// The key cannot be used.
    #[error("cannot use the key in {}", shown(path))]
    Key {
        /// The file.
        path: PathBuf,
        /// The fault.
        #[source]
        source: Box<rustls::Error>,
    },
    /// The key belongs to another certificate.
    #[error(
        "cannot use the key in {}: it is not that of the certificate in {}",
        shown(key),
        shown(certificate)
    )]
    OtherKey {
        /// File of the key.
        key: PathBuf,
        /// File of the certificate.
        certificate: PathBuf,
    },
}

/// Checks that a file has certificates of authorities. Blocks.
///
/// # Errors
/// [`TlsFileError`].
pub fn check_authorities(path: &Path) -> Result<(), TlsFileError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        let added = roots.add(certificate);
        added.map_err(certificate_error(path))?;
    }
    Ok(())
}

/// Reads a CA bundle of environments: certificates of authorities, of which at least one can be used.
/// Blocks.
///
/// # Errors
/// [`TlsFileError`].
pub fn read_bundle(path: &Path) -> Result<Vec<u8>, TlsFileError> {
    let owned = || path.to_owned();
    let text = read_file(path)?;
    if text.windows(KEY_END.len()).any(|part| part == KEY_END) {
        return Err(TlsFileError::HasKey { path: owned() });
    }
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(pem_error(path, CERTIFICATE))?;
    // Systems have old ones, too, that some programs cannot read.
    let (usable, _) = RootCertStore::empty().add_parsable_certificates(found);
    if usable == 0 {
        return Err(TlsFileError::Empty { path: owned(), what: CERTIFICATE });
    }
    Ok(text)
}

/// Reads a certificate that is valid now, with the chain after it, and its key. Blocks.
///
/// # Errors
/// [`TlsFileError`].
pub fn read_identity(
    certificate: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsFileError> {
    let chain = read_certificates(certificate)?;
    let private = PrivateKeyDer::from_pem_slice(&read_file(key)?);
    let private = private.map_err(pem_error(key, "private key"))?;
    let provider = ring::default_provider();
    match CertifiedKey::from_der(chain.clone(), private.clone_key(), &provider) {
        Ok(_) => {}
        Err(rustls::Error::InconsistentKeys(_)) => {
            let (key, certificate) = (key.to_owned(), certificate.to_owned());
            return Err(TlsFileError::OtherKey { key, certificate });
        }
        Err(source @ rustls::Error::InvalidCertificate(_)) => {
            return Err(certificate_error(certificate)(source));
        }
        Err(source) => {
            return Err(TlsFileError::Key { path: key.to_owned(), source: Box::new(source) });
        }
    }
    if let Some(own) = chain.first() {
        check_dates(certificate, own)?;
    }
    Ok((chain, private))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let text = read_file(path)?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(pem_error(path, CERTIFICATE))?;
    if found.is_empty() {
        return Err(TlsFileError::Empty { path: path.to_owned(), what: CERTIFICATE });
    }
    Ok(found)
}

/// Reads a file. A device has no end, and a pipe may have no writer.
fn read_file(path: &Path) -> Result<Vec<u8>, TlsFileError> {
    regular_file::read(path, limits::CA_BUNDLE_BYTES).map_err(|source| TlsFileError::Pem {
        path: path.to_owned(),
        source: pem::Error::Io(source),
    })
}

fn pem_error(path: &Path, what: &'static str) -> impl FnOnce(pem::Error) -> TlsFileError {
    let path = path.to_owned();
    move |source| match source {
        pem::Error::NoItemsFound => TlsFileError::Empty { path, what },
        source => TlsFileError::Pem { path, source },
    }
}

/// The error of a certificate that cannot be used.
pub fn certificate_error(path: &Path) -> impl FnOnce(rustls::Error) -> TlsFileError {
    let path = path.to_owned();
    move |source| TlsFileError::Certificate { path, source: Box::new(source) }
}

/// Compares the dates of a certificate with the clock of this host.
fn check_dates(path: &Path, certificate: &CertificateDer<'_>) -> Result<(), TlsFileError> {
    let owned = || path.to_owned();
    let parsed = ParsedCertificate::try_from(certificate).map_err(certificate_error(path))?;
    let algorithms = ring::default_provider().signature_verification_algorithms.all;
    // Without roots none is trusted. Its dates are compared before that is noticed.
    let refused = verify_server_cert_signed_by_trust_anchor(
        &parsed,
        &RootCertStore::empty(),
        &[],
        UnixTime::now(),
        algorithms,
    );
    match refused {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after,
            ..
        })) => Err(TlsFileError::Expired { path: owned(), at: timestamp(not_after) }),
        Err(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before,
            ..
        })) => Err(TlsFileError::NotValidYet { path: owned(), at: timestamp(not_before) }),
        // Without a time: none is within such a validity.
        Err(rustls::Error::InvalidCertificate(CertificateError::Expired)) => {
            Err(TlsFileError::NeverValid { path: owned() })
        }
        _ => Ok(()),
    }
}

fn timestamp(time: UnixTime) -> Timestamp {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}
