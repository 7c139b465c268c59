//! Connection options of a NATS server, shared by several commands.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use rollout_queue::nats::{Nats, NatsCredentials, NatsName, NatsOptions, NatsSecret, TlsFiles};

use super::POOL;
use crate::cli::error::CliError;
use crate::cli::value_parsers::{self, duration};
use crate::config::env_vars;
use crate::launch::nats::RemoteOptions;

/// Maximum size of a file with a secret, bytes.
const SECRET_BYTES: u64 = 64 * 1024;

/// An optional server.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "NATS")]
pub(in crate::cli) struct NatsArgs {
    /// NATS server, such as nats://host:4222 or tls://host; separate several with commas
    #[arg(long = "nats", value_name = "URL", env = "ROLLOUT_NATS_URL", hide_env_values = true)]
    pub(in crate::cli) url: Option<String>,

    #[command(flatten)]
    pub(in crate::cli) access: NatsAccessArgs,
}

/// A required server.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "NATS")]
pub(in crate::cli) struct RequiredNatsArgs {
    /// NATS server, such as nats://host:4222 or tls://host; separate several with commas
    #[arg(long = "nats", value_name = "URL", env = "ROLLOUT_NATS_URL", hide_env_values = true)]
    pub(in crate::cli) url: String,

    #[command(flatten)]
    pub(in crate::cli) access: NatsAccessArgs,
}

impl NatsArgs {
    /// The server and its pool, if the command line names a server.
    ///
    /// # Errors
    /// The options are invalid.
    pub(in crate::cli) fn remote(
        &self,
        pool: Option<&str>,
        unplaceable_timeout: Option<Duration>,
    ) -> Result<Option<RemoteOptions>, CliError> {
        let Some(url) = &self.url else { return Ok(None) };
        let pool = pool.unwrap_or(POOL);
        let pool: NatsName = pool
            .parse()
            .map_err(|error| CliError::config(format!("cannot use the pool `{pool}`"), &error))?;
        let options = self.access.options(url)?;
        Ok(Some(RemoteOptions { options, pool, unplaceable_timeout, hand_over: false }))
    }
}

/// Namespace, lease, credentials and TLS files.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "NATS")]
pub(in crate::cli) struct NatsAccessArgs {
    /// Prefix of all names on the server, so that deployments can share it
    #[arg(long, value_name = "NAME", env = "ROLLOUT_NAMESPACE", default_value = "rollout")]
    pub(in crate::cli) namespace: NatsName,

    /// Time without a heartbeat after which other workers get a worker's work; the same for all
    /// processes of a namespace
    #[arg(long, value_name = "TIME", env = "ROLLOUT_LEASE", default_value = value_parsers::LEASE, value_parser = duration)]
    pub(in crate::cli) lease: Duration,

    /// Copies of new streams on the servers of a cluster; `setup` also changes existing streams
    /// [default: 3 in a cluster, else 1]
    #[arg(long, value_name = "N", env = env_vars::NATS_REPLICAS.name, value_parser = clap::value_parser!(u8).range(1..=5))]
    nats_replicas: Option<u8>,

    /// User; the password comes from ROLLOUT_NATS_PASSWORD or `--nats-password-file`
    #[arg(long, value_name = "NAME", env = "ROLLOUT_NATS_USER")]
    nats_user: Option<String>,

    /// File with the user's password
    #[arg(
        long,
        value_name = "FILE",
        env = env_vars::NATS_PASSWORD_FILE.name,
        requires = "nats_user"
    )]
    nats_password_file: Option<PathBuf>,

    /// File with a token, instead of ROLLOUT_NATS_TOKEN
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nats_user", "nats_password_file"])]
    nats_token_file: Option<PathBuf>,

    /// Variable of this process with a token, of `--remote-token-env`.
    #[arg(skip)]
    pub(in crate::cli) token_variable: Option<String>,

    /// File with the seed of an nkey
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["nats_user", "nats_password_file", "nats_token_file"]
    )]
    nats_nkey: Option<PathBuf>,

    /// Credentials file, as created by `nsc`
    #[arg(
        long,
        value_name = "FILE",
        env = "ROLLOUT_NATS_CREDS",
        conflicts_with_all = ["nats_user", "nats_password_file", "nats_token_file", "nats_nkey"]
    )]
    nats_creds: Option<PathBuf>,

    /// CA certificates to trust instead of the system's, PEM
    #[arg(long, value_name = "FILE")]
    nats_ca: Option<PathBuf>,

    /// Client certificate, PEM
    #[arg(long, value_name = "FILE", requires = "nats_key")]
    nats_cert: Option<PathBuf>,

    /// Private key of the client certificate, PEM
    #[arg(long, value_name = "FILE", requires = "nats_cert")]
    nats_key: Option<PathBuf>,
}

impl RequiredNatsArgs {
    /// Connects.
    ///
    /// # Errors
    /// The options are invalid, or the server cannot be used.
    pub(in crate::cli) async fn connect(&self) -> Result<Nats, CliError> {
        self.access.connect(&self.url).await
    }

    /// The connection options.
    ///
    /// # Errors
    /// The options are invalid.
    pub(in crate::cli) fn options(&self) -> Result<NatsOptions, CliError> {
        self.access.options(&self.url)
    }
}

impl NatsAccessArgs {
    /// Connects.
    ///
    /// # Errors
    /// The options are invalid, or the server cannot be used.
    pub(in crate::cli) async fn connect(&self, url: &str) -> Result<Nats, CliError> {
        Ok(Nats::connect(self.options(url)?).await?)
    }

    /// The connection options.
    ///
    /// # Errors
    /// The options are invalid.
    pub(in crate::cli) fn options(&self, url: &str) -> Result<NatsOptions, CliError> {
        self.options_with(url, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn options_with(
        &self,
        url: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<NatsOptions, CliError> {
        let mut options = NatsOptions::parse(url)?;
        let from_environment = variable(env_vars::NATS_URL.name).as_deref() == Some(url);
        if options.credentials != NatsCredentials::None && !from_environment {
            return Err(CliError::usage(
                "cannot accept a secret in `--nats`: every process of this host can read command \
                 lines; put the address into $ROLLOUT_NATS_URL, or the secret into a file",
            ));
        }
        options.namespace = self.namespace.clone();
        options.lease = self.lease;
        options.replicas = self.nats_replicas;
        if let Some(credentials) = self.credentials(variable)? {
            options.credentials = credentials;
        }
        let client = self.nats_cert.clone().zip(self.nats_key.clone());
        options.tls = TlsFiles { ca: self.nats_ca.clone(), client };
        Ok(options)
    }

    /// Credentials of options and variables, which override those in the address.
    fn credentials(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<NatsCredentials>, CliError> {
        if let Some(name) = &self.token_variable {
            let token = variable(name).ok_or_else(|| {
                CliError::usage(format!("the variable `{name}` of `--remote-token-env` is not set"))
            })?;
            return Ok(Some(NatsCredentials::Token(NatsSecret::new(token))));
        }
        if let Some(user) = &self.nats_user {
            let password = match &self.nats_password_file {
                Some(path) => secret("password", path)?,
                None => variable(env_vars::NATS_PASSWORD.name).map(NatsSecret::new).ok_or_else(
                    || {
                        CliError::usage(
                            "a NATS user needs a password: set $ROLLOUT_NATS_PASSWORD or use \
                         `--nats-password-file`",
                        )
                    },
                )?,
            };
            return Ok(Some(NatsCredentials::Password { user: user.clone(), password }));
        }
        if let Some(path) = &self.nats_token_file {
            return Ok(Some(NatsCredentials::Token(secret("token", path)?)));
        }
        if let Some(path) = &self.nats_nkey {
            return Ok(Some(NatsCredentials::Nkey(secret("nkey", path)?)));
        }
        if let Some(path) = &self.nats_creds {
            return Ok(Some(NatsCredentials::File(path.clone())));
        }
        Ok(variable(env_vars::NATS_TOKEN.name)
            .map(|token| NatsCredentials::Token(NatsSecret::new(token))))
    }
}

/// The first line of a file that holds a secret; `kind` names it in errors.
fn secret(kind: &str, path: &Path) -> Result<NatsSecret, CliError> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(SECRET_BYTES).read_to_string(&mut text))
        .map_err(|error| {
            CliError::config(format!("cannot read the {kind} file {}", path.display()), &error)
        })?;
    Ok(NatsSecret::new(text.lines().next().unwrap_or_default().trim()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        nats: RequiredNatsArgs,
    }

    fn options(arguments: &[&str], variables: &[(&str, &str)]) -> Result<NatsOptions, CliError> {
        let arguments = ["program"].iter().chain(arguments);
        let nats = Program::try_parse_from(arguments).expect("good arguments").nats;
        nats.access.options_with(&nats.url, |name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nats_secret_on_command_line_is_refused() {
        let password = ("ROLLOUT_NATS_PASSWORD", "hush");
        let user = ["--nats", "tls://far:1", "--nats-user", "me"];
        let expected =
            NatsCredentials::Password { user: "me".into(), password: NatsSecret::new("hush") };
        assert_eq!(options(&user, &[password]).expect("valid").credentials, expected);
        let temp = tempfile::TempDir::new().expect("a directory");
        let file = temp.path().join("token");
        std::fs::write(&file, "hush\n").expect("written");
        let token = ["--nats", "far", "--nats-token-file", file.to_str().expect("UTF-8")];
        let good = options(&token, &[]).expect("valid");
        assert_eq!(good.credentials, NatsCredentials::Token(NatsSecret::new("hush")));
        let inside = "nats://me:hush@far";
        assert!(options(&["--nats", inside], &[("ROLLOUT_NATS_URL", inside)]).is_ok());
        for arguments in [&["--nats", inside][..], &user] {
            let error = options(arguments, &[]).expect_err("refused");
            assert!(!format!("{error:?}").contains("hush"), "{error:?}");
        }
    }

    #[test]
    fn nats_replicas_are_those_of_option() {
        assert_eq!(options(&["--nats", "localhost"], &[]).expect("valid").replicas, None);
        let three = ["--nats", "localhost", "--nats-replicas", "3"];
        assert_eq!(options(&three, &[]).expect("valid").replicas, Some(3));
        let six = ["program", "--nats", "localhost", "--nats-replicas", "6"];
        assert!(Program::try_parse_from(six).is_err());
    }

    #[test]
    fn nats_password_file_missing_is_named_as_such() {
        let user = ["--nats", "far", "--nats-user", "me", "--nats-password-file", "/no/such"];
        let error = options(&user, &[]).expect_err("no file");
        assert!(error.message.starts_with("cannot read the password file /no/such: "), "{error:?}");
    }
}
