//! The users of a server: those of a file, or one whose token the server makes.

use std::path::{Path, PathBuf};

use rand::RngExt as _;
use rollout_engine::atomic_file;
use rollout_protocol::digest::Digest;
use rollout_protocol::exit::ExitCode;

use super::client_file::{self, CLIENT_FILE};
use super::error::CliError;
use super::serve::CANNOT_START;
use crate::config::env_vars;

/// File with the token of the user.
const TOKEN: &str = "token";

/// File of users that the server reads.
const USERS: &str = "user.toml";

/// Hexadecimal digits of a token.
const TOKEN_DIGITS: usize = 64;

/// Who may use a server.
#[derive(Debug, Clone)]
pub(super) enum ServerUsers {
    /// The users of this file.
    File(PathBuf),
    /// An administrator with a token that the server makes.
    One(ServerUser),
}

/// The one user of a server without a file of users. The files are in the server's directory.
#[derive(Debug, Clone)]
pub(super) struct ServerUser {
    name: &'static str,
    /// Variables of the server that documents may use.
    variables: Vec<String>,
    token: PathBuf,
    users: PathBuf,
    client: PathBuf,
}

impl ServerUsers {
    /// The file of users; that of a single user is written. Blocks.
    pub(super) fn prepare(&self) -> Result<PathBuf, CliError> {
        match self {
            Self::File(path) => Ok(path.clone()),
            Self::One(user) => user.prepare(),
        }
    }

    /// The lines that tell how to reach the server at a URL; a single user gets a file for shells.
    /// Blocks.
    pub(super) fn announcement(&self, url: &str) -> Result<String, CliError> {
        let listening = format!("listening on {url}\n");
        match self {
            Self::File(_) => Ok(listening),
            Self::One(user) => {
                let client = user.write_client(url)?;
                Ok(format!("{listening}read its address and token with: . {client}\n"))
            }
        }
    }
}

impl ServerUser {
    /// A user of the server of a directory.
    pub(super) fn new(directory: &Path, name: &'static str, variables: Vec<String>) -> Self {
        let [token, users, client] = [TOKEN, USERS, CLIENT_FILE].map(|name| directory.join(name));
        Self { name, variables, token, users, client }
    }

    /// Finds or makes the token, and writes the file of users; returns its path.
    fn prepare(&self) -> Result<PathBuf, CliError> {
        let token = match self.read_token()? {
            Some(token) => token,
            None => {
                let token = Digest::from_bytes(rand::rng().random()).hex();
                write(&self.token, &format!("{token}\n"))?;
                token
            }
        };
        let sha256 = Digest::sha256(token.as_bytes()).hex();
        let (name, variables) = (self.name, toml::Value::from(self.variables.clone()));
        let text = format!(
            "[[tokens]]\nname = \"{name}\"\nrole = \"admin\"\nsha256 = \"{sha256}\"\nvariables = \
             {variables}\n"
        );
        write(&self.users, &text)?;
        Ok(self.users.clone())
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
        let address = client_file::address_line(url);
        let text = format!("{address}\nexport {}={token}\n", env_vars::API_TOKEN.name);
        write(&self.client, &text)?;
        Ok(format!("'{}'", self.client.display().to_string().replace('\'', r"'\''")))
    }
}

/// Replaces a file that only the user of this process can read.
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

    fn user(directory: &Path, variables: &[&str]) -> ServerUser {
        let variables = variables.iter().map(|name| (*name).to_owned()).collect();
        ServerUser::new(directory, "user", variables)
    }

    #[test]
    fn token_stays_the_same_and_is_in_the_file_of_users() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = user(directory.path(), &["KEY"]);
        first.prepare().expect("prepared");
        let token = first.read_token().expect("read").expect("a token");
        let later = user(directory.path(), &[]);
        let users = later.prepare().expect("prepared");
        assert_eq!(later.read_token().expect("read").as_ref(), Some(&token));
        TokenFile::open(&users).expect("a file of users");
        assert!(!std::fs::read_to_string(&users).expect("read").contains(&token));
        std::fs::write(&later.token, "short").expect("written");
        let error = later.prepare().expect_err("damaged");
        assert!(error.message.contains("is damaged"), "{}", error.message);
    }

    #[test]
    fn client_file_is_announced_for_the_one_user_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let user = user(&directory.path().join("it's"), &[]);
        std::fs::create_dir(directory.path().join("it's")).expect("made");
        user.prepare().expect("prepared");
        let token = user.read_token().expect("read").expect("a token");
        let client = user.client.clone();
        let text = ServerUsers::One(user).announcement("http://h:1").expect("written");
        assert!(text.starts_with("listening on http://h:1\n"), "{text}");
        assert!(text.ends_with("it'\\''s/client.env'\n"), "{text}");
        let written = std::fs::read_to_string(client).expect("a file");
        assert!(written.contains(&format!("ROLLOUT_API_TOKEN={token}\n")), "{written}");
        let file = ServerUsers::File("tokens.toml".into());
        assert_eq!(file.announcement("http://h:1").expect("no file"), "listening on http://h:1\n");
    }
}
