//! Connection options of a server: address, namespace, credentials, TLS. Secrets are never printed.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};
use rollout_base::tls_files::{self, TlsFileError};
use rollout_base::{regular_file, supervise};
use rollout_protocol::limits;

use super::names::{InvalidNatsName, NatsName};

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of pings on an idle connection; the third unanswered ping closes it.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Largest `.creds` file.
const CREDENTIALS_BYTES: u64 = 64 * 1024;

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsSecret(String);

impl NatsSecret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for NatsSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Credentials for the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NatsCredentials {
    /// No credentials: only for a server on this host's loopback.
    #[default]
    None,
    /// A user with a password.
    Password {
        /// User.
        user: String,
        /// Password.
        password: NatsSecret,
    },
    /// A token.
    Token(NatsSecret),
    /// The private part of an nkey.
    Nkey(NatsSecret),
    /// A `.creds` file.
    File(PathBuf),
}

/// TLS files. Without a CA the system's are trusted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of authorities that are trusted, PEM.
    pub ca: Option<PathBuf>,
    /// Own certificate and its private key, PEM.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// Checks that the files can be used. Blocks.
    ///
    /// # Errors
    /// [`TlsFileError`].
    pub(super) fn check(&self) -> Result<(), TlsFileError> {
        if let Some(ca) = &self.ca {
            tls_files::check_authorities(ca)?;
        }
        if let Some((certificate, key)) = &self.client {
            tls_files::read_identity(certificate, key)?;
        }
        Ok(())
    }
}

/// Options of a connection and of the streams on the server.
#[derive(Debug, Clone)]
pub struct NatsOptions {
    servers: Vec<ServerAddr>,
    /// Prefix of every subject and stream, so that deployments can share a server.
    pub namespace: NatsName,
    /// Credentials for the server.
    pub credentials: NatsCredentials,
    /// TLS files.
    pub tls: TlsFiles,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// How long a delivery may stay unacknowledged and unextended. The same for all clients.
    pub lease: Duration,
    /// Unpurged reports that one run may have.
    pub reports_per_run: usize,
    /// Bytes of unpurged reports of all runs. Absent: 1 GiB, and any existing value is accepted.
    pub report_stream_bytes: Option<u64>,
    /// Copies of new streams. Absent: three in a cluster, else one. Existing streams may have any
    /// number.
    pub replicas: Option<u8>,
}

/// Options that are not valid for a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NatsOptionsError {
    /// The address is not valid. It may contain a password and is not repeated.
    #[error("its address is not valid: {reason}")]
    Address {
        /// The defect of the address.
        reason: String,
    },
    /// The namespace is not valid.
    #[error(transparent)]
    Name(#[from] InvalidNatsName),
    /// No credentials for a server beyond the loopback: anyone on the network could publish and
    /// pull work.
    #[error(
        "{host} is not on this host's loopback, and no credentials are given: without \
         authentication anyone who reaches the server could run commands on the workers"
    )]
    Unauthenticated {
        /// The server.
        host: String,
    },
}

impl NatsOptions {
    /// Options with an address such as `nats://host:4222`, `tls://user:password@host` or several of
    /// them, separated by commas. Credentials in one address apply to all.
    ///
    /// # Errors
    /// [`NatsOptionsError`]; it never repeats a password.
    pub fn parse(address: &str) -> Result<Self, NatsOptionsError> {
        let mut servers = Vec::new();
        let mut credentials = NatsCredentials::None;
        for part in address.split(',').map(str::trim) {
            let (server, found) = split_credentials(part)?;
            servers.push(server);
            if found != NatsCredentials::None {
                credentials = found;
            }
        }
        Ok(Self {
            servers,
            namespace: "rollout".parse()?,
            credentials,
            tls: TlsFiles::default(),
            connect_timeout: CONNECT_TIMEOUT,
            lease: limits::LEASE,
            reports_per_run: limits::REPORTS_PER_RUN,
            report_stream_bytes: None,
            replicas: None,
        })
    }

    /// The servers, without credentials, for display.
    pub fn address(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(without_credentials).collect();
        servers.join(",")
    }

    /// Refuses options that would let anyone on the network publish and pull work.
    ///
    /// # Errors
    /// [`NatsOptionsError::Unauthenticated`].
    pub fn check(&self) -> Result<(), NatsOptionsError> {
        if !self.is_anonymous() {
            return Ok(());
        }
        match self.servers.iter().find(|server| !is_loopback(server.host())) {
            Some(server) => {
                Err(NatsOptionsError::Unauthenticated { host: server.host().to_owned() })
            }
            None => Ok(()),
        }
    }

    /// Whether the server cannot tell this client from any other.
    pub(super) fn is_anonymous(&self) -> bool {
        self.credentials == NatsCredentials::None && self.tls.client.is_none()
    }

    pub(super) fn servers(&self) -> &[ServerAddr] {
        &self.servers
    }

    /// The prefix of the reply subjects. Permissions can name that of a user with a password.
    fn inbox_prefix(&self) -> String {
        match &self.credentials {
            NatsCredentials::Password { user, .. } if is_token(user) => format!("_INBOX.{user}"),
            _ => "_INBOX".to_owned(),
        }
    }

    /// The options of the NATS client.
    pub(super) async fn connect_options(&self) -> std::io::Result<ConnectOptions> {
        let options = ConnectOptions::new();
        let mut options = match &self.credentials {
            NatsCredentials::None => options.ignore_discovered_servers(),
            NatsCredentials::Password { user, password } => {
                options.user_and_password(user.clone(), password.0.clone())
            }
            NatsCredentials::Token(token) => options.token(token.0.clone()),
            NatsCredentials::Nkey(key) => options.nkey(key.0.clone()),
            NatsCredentials::File(path) => options.credentials(&read_credentials(path).await?)?,
        };
        if let Some(ca) = &self.tls.ca {
            options = options.add_root_certificates(ca.clone()).require_tls(true);
        }
        if let Some((certificate, key)) = &self.tls.client {
            options =
                options.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        Ok(options
            .connection_timeout(self.connect_timeout)
            .custom_inbox_prefix(self.inbox_prefix())
            .ping_interval(PING_INTERVAL)
            .request_timeout(None)
            .name("rollout"))
    }
}

/// Reads a `.creds` file, which may be the pipe of a shell.
async fn read_credentials(path: &Path) -> std::io::Result<String> {
    let path = path.to_owned();
    supervise::blocking(move || regular_file::read_any_text(&path, CREDENTIALS_BYTES)).await
}

/// Splits an address into the server and its credentials.
fn split_credentials(part: &str) -> Result<(ServerAddr, NatsCredentials), NatsOptionsError> {
    let invalid = |reason: &str| NatsOptionsError::Address { reason: reason.to_owned() };
    if let Some((scheme, _)) = part.split_once("://")
        && !["nats", "tls"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
    {
        return Err(invalid("it does not begin with nats:// or tls://"));
    }
    let whole: ServerAddr = part.parse().map_err(|error: std::io::Error| {
        let text = error.to_string();
        invalid(text.strip_prefix("NATS server URL is invalid: ").unwrap_or(&text))
    })?;
    if whole.host().is_empty() {
        return Err(invalid("it has no host"));
    }
    let decoded =
        |text: &str| decode_percent(text).ok_or_else(|| invalid("invalid percent sequence"));
    let credentials = match (whole.username(), whole.password()) {
        (None, _) => NatsCredentials::None,
        (Some(token), None) => NatsCredentials::Token(NatsSecret::new(decoded(token)?)),
        (Some(user), Some(password)) => NatsCredentials::Password {
            user: decoded(user)?,
            password: NatsSecret::new(decoded(password)?),
        },
    };
    let server = without_credentials(&whole).parse().map_err(|_| invalid("it has no host"))?;
    Ok((server, credentials))
}

fn without_credentials(server: &ServerAddr) -> String {
    let (scheme, host, port) = (server.scheme(), server.host(), server.port());
    if host.contains(':') {
        format!("{scheme}://[{host}]:{port}")
    } else {
        format!("{scheme}://{host}:{port}")
    }
}

fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether a text can be one token of a subject.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nats_credentials_are_not_in_address_debug_or_errors() {
        let options =
            NatsOptions::parse("tls://me:s%40crt@example.org,nats://other:1").expect("valid");
        assert_eq!(options.address(), "tls://example.org:4222,nats://other:1");
        let password = NatsSecret::new("s@crt");
        let user = "me".to_owned();
        assert_eq!(options.credentials, NatsCredentials::Password { user, password });
        assert!(!format!("{options:?}").contains("crt"), "{options:?}");
        assert_eq!(options.inbox_prefix(), "_INBOX.me");
        let token = NatsOptions::parse("nats://hush@[::1]").expect("valid");
        assert_eq!(token.credentials, NatsCredentials::Token(NatsSecret::new("hush")));
        assert_eq!(token.address(), "nats://[::1]:4222");
        for bad in ["http://u:hush@x", "nats://", "nats://u:%zz@hush", "nats://hush:x:y"] {
            let error = NatsOptions::parse(bad).expect_err(bad);
            assert!(!error.to_string().contains("hush"), "{error}");
        }
        let error = NatsOptions::parse("hush://x").expect_err("another scheme");
        assert_eq!(
            error.to_string(),
            "its address is not valid: it does not begin with nats:// or tls://"
        );
    }

    #[test]
    fn nats_without_credentials_is_refused_beyond_loopback() {
        let check = |address| NatsOptions::parse(address).expect("valid").check();
        for good in ["localhost", "127.0.0.1:9", "nats://[::1]:4", "nats://a:b@10.0.0.1"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["10.0.0.1", "localhost,nats", "nats://localhost.example.org"] {
            assert!(matches!(check(bad), Err(NatsOptionsError::Unauthenticated { .. })), "{bad}");
        }
    }

    #[tokio::test]
    async fn credentials_file_without_an_end_is_refused() {
        let mut options = NatsOptions::parse("nats://localhost").expect("valid");
        options.credentials = NatsCredentials::File(PathBuf::from("/dev/zero"));
        let error = options.connect_options().await.map(drop).expect_err("refused");
        assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge);
    }
}
