//! `rollout up`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use rand::RngExt as _;
use rollout_protocol::digest::Digest;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::spec::environment::ProviderKind;

use super::error::CliError;
use super::logging;
use super::logging::LogArgs;
use super::output::Printer;
use super::serve::{CANNOT_START, ServerSetup, default_directory, explain, processors};
use crate::config::LogLevel;
use crate::daemon::{DaemonOptions, DocumentPolicy};
use crate::engine::atomic_file;

/// File with the token of the user.
const TOKEN: &str = "token";

/// File of users that the server reads.
const TOKENS: &str = "tokens.toml";

/// File that a shell reads to reach the server.
const CLIENT: &str = "client.env";

/// How long the deletion of a farm waits for its samples.
const REMOVAL_WAIT: Duration = Duration::from_secs(60);

/// Hexadecimal digits of a token.
const TOKEN_DIGITS: usize = 64;

/// Starts a server of this user on this host, with nothing else installed
///
/// It is `rollout serve` with one user, for farms and jobs of the own host: documents may name
/// directories below the current one, sandboxes of this host, settings of providers and every model
/// server. `client.env` in its directory has the address and the token: `. DIR/client.env` exports
/// them for clients. The token stays the same when the server is started again.
#[derive(Debug, Args)]
pub(super) struct UpArgs {
    /// Directory of records and runs [default: $XDG_STATE_HOME/rollout/up or
    /// ~/.local/state/rollout/up]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Address to listen on; port 0 chooses a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4280")]
    listen: SocketAddr,

    /// Trials at a time [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    slots: Option<u16>,

    /// Variable of this shell that documents may use, such as the key of a model server
    #[arg(long, value_name = "NAME")]
    variable: Vec<String>,

    /// Directory below which datasets of documents may be [default: the current directory]
    #[arg(long, value_name = "DIR")]
    allow_path: Vec<PathBuf>,

    #[command(flatten)]
    log: LogArgs,

    /// Log level
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LogLevel,
}

/// Runs the command.
pub(super) async fn run(args: UpArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    logging::start(args.log_level, args.log, printer.screen(), printer.err);
    let directory = match args.dir {
        Some(directory) => directory,
        None => default_directory("up")?,
    };
    let user = User::new(&directory);
    let paths = if args.allow_path.is_empty() { vec![PathBuf::from(".")] } else { args.allow_path };
    let daemon = DaemonOptions {
        directory,
        store: None,
        store_cache_mb: 0,
        max_running: 8,
        max_queued: 1000,
        max_farms: 1000,
        slots: args.slots.map_or_else(processors, usize::from),
        removal_wait: REMOVAL_WAIT,
        policy: DocumentPolicy {
            paths,
            registries: any_url(),
            model_servers: any_url(),
            providers: [ProviderKind::Process].into_iter().collect(),
            provider_settings: true,
            uploads: None,
        },
        host: None,
        kubernetes_config: None,
        #[cfg(feature = "nats")]
        nats: None,
        explain,
    };
    let setup = ServerSetup {
        daemon,
        tls: None,
        listen: args.listen,
        max_body: 64,
        max_dataset: 1024,
        max_connections: 1024,
    };
    let (users, variables) = (user.clone(), args.variable);
    // The server has locked its directory by then.
    let tokens = move || users.prepare(&variables).map(Some);
    let announce = |url: &str| {
        let client = user.write_client(url)?;
        printer.data(&format!("listening on {url}\nread its address and token with: . {client}\n"))
    };
    setup.run(tokens, announce).await
}

/// Prefixes of every URL.
fn any_url() -> Vec<String> {
    vec!["http://".to_owned(), "https://".to_owned()]
}

/// The files of the one user.
#[derive(Debug, Clone)]
struct User {
    token: PathBuf,
    tokens: PathBuf,
    client: PathBuf,
}

impl User {
    /// The files in a directory.
    fn new(directory: &Path) -> Self {
        let [token, tokens, client] = [TOKEN, TOKENS, CLIENT].map(|name| directory.join(name));
        Self { token, tokens, client }
    }

    /// Finds or makes the token, and writes the file of users; returns its path. Blocks.
    fn prepare(&self, variables: &[String]) -> Result<PathBuf, CliError> {
        let token = match self.read_token()? {
            Some(token) => token,
            None => {
                let token = Digest::from_bytes(rand::rng().random()).hex();
                write(&self.token, &format!("{token}\n"))?;
                token
            }
        };
        let sha256 = Digest::sha256(token.as_bytes()).hex();
        let variables = toml::Value::from(variables.to_vec());
        let text = format!(
            "[[tokens]]\nname = \"user\"\nrole = \"admin\"\nsha256 = \"{sha256}\"\nvariables = \
             {variables}\n"
        );
        write(&self.tokens, &text)?;
        Ok(self.tokens.clone())
    }

    /// The token, if there is one.
    fn read_token(&self) -> Result<Option<String>, CliError> {
        let path = &self.token;
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot("read", path, &error)),
        };
        let token = text.trim_end();
        if token.len() == TOKEN_DIGITS && token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(Some(token.to_owned()));
        }
        let message = format!("{CANNOT_START}: the token in {} is damaged", path.display());
        Err(CliError::new(ExitCode::Config, message).hint("remove the file: a new one is made"))
    }

    /// Writes the file for shells; returns its path as a shell reads it.
    fn write_client(&self, url: &str) -> Result<String, CliError> {
        let token = self.read_token()?.unwrap_or_default();
        let text = format!("export ROLLOUT_API_URL={url}\nexport ROLLOUT_API_TOKEN={token}\n");
        write(&self.client, &text)?;
        Ok(format!("'{}'", self.client.display().to_string().replace('\'', r"'\''")))
    }
}

/// Replaces a file that only this user can read.
fn write(path: &Path, text: &str) -> Result<(), CliError> {
    let written = atomic_file::replace_private(path, text.as_bytes());
    written.map_err(|error| cannot("write", path, &error))
}

fn cannot(verb: &str, path: &Path, error: &std::io::Error) -> CliError {
    let message = format!("{CANNOT_START}: cannot {verb} {}", path.display());
    CliError::from_cause(ExitCode::Config, &message, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::TokenFile;

    #[test]
    fn token_stays_the_same_and_is_in_the_file_of_users() {
        let directory = tempfile::tempdir().expect("a directory");
        let user = User::new(directory.path());
        user.prepare(&["KEY".to_owned()]).expect("prepared");
        let token = user.read_token().expect("read").expect("a token");
        let tokens = user.prepare(&[]).expect("prepared");
        assert_eq!(user.read_token().expect("read").as_ref(), Some(&token));
        TokenFile::open(&tokens).expect("a file of users");
        assert!(!std::fs::read_to_string(&tokens).expect("read").contains(&token));
        std::fs::write(&user.token, "short").expect("written");
        let error = user.prepare(&[]).expect_err("damaged");
        assert!(error.message.contains("is damaged"), "{}", error.message);
    }
}
