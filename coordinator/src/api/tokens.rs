//! Bearer tokens: a file with the SHA-256 of each, a name, a role and variables. It is read again when
//! it changes.

use std::collections::{BTreeSet, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rollout_base::regular_file;
use rollout_base::shown_path::shown;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::daemon::{AllowedVariables, Principal, Role};

/// Time between two looks at the file.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Largest file, bytes.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Why a file of tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// It cannot be read.
    #[error("cannot read the tokens in {}", shown(path))]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Its content is wrong.
    #[error("cannot use the tokens in {}: {reason}", shown(path))]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
}

/// The content of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokensDocument {
    #[serde(default)]
    tokens: Vec<TokenEntry>,
}

/// One token.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    role: Role,
    sha256: String,
    #[serde(default)]
    variables: BTreeSet<String>,
}

/// The tokens of a file.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    state: Mutex<TokenState>,
}

#[derive(Debug)]
struct TokenState {
    /// Users by the SHA-256 of their token. An attacker who measures the time of a search learns
    /// about hashes of his own guesses only.
    users: Arc<HashMap<[u8; 32], Principal>>,
    version: Option<FileVersion>,
    checked_at: Instant,
}

/// The part that changes when a file changes.
type FileVersion = (SystemTime, u64, u64);

impl TokenFile {
    /// Reads the file. Blocks.
    ///
    /// # Errors
    /// [`TokensError`].
    pub fn open(path: &Path) -> Result<Self, TokensError> {
        let version = version(path);
        let users = Arc::new(read(path)?);
        let state = Mutex::new(TokenState { users, version, checked_at: Instant::now() });
        Ok(Self { path: path.to_owned(), state })
    }

    /// The user of a token. Reads the file again if it has changed; one that cannot be read changes
    /// nothing.
    pub(super) fn find(&self, token: &str) -> Option<Principal> {
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        self.current().get(&digest).cloned()
    }

    fn current(&self) -> Arc<HashMap<[u8; 32], Principal>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.checked_at.elapsed() >= CHECK_INTERVAL {
            state.checked_at = Instant::now();
            let found = version(&self.path);
            if found != state.version {
                state.version = found;
                match read(&self.path) {
                    Ok(users) => {
                        tracing::info!("read {} tokens", users.len());
                        state.users = Arc::new(users);
                    }
                    Err(error) => {
                        tracing::error!("{error}; the tokens that were read before stay valid");
                    }
                }
            }
        }
        Arc::clone(&state.users)
    }
}

fn version(path: &Path) -> Option<FileVersion> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}

fn read(path: &Path) -> Result<HashMap<[u8; 32], Principal>, TokensError> {
    let wrong = |reason: String| TokensError::Content { path: path.to_owned(), reason };
    let text =
        regular_file::read_text(path, MAX_FILE_BYTES).map_err(|error| match error.kind() {
            ErrorKind::FileTooLarge | ErrorKind::InvalidInput => wrong(error.to_string()),
            _ => TokensError::Read { path: path.to_owned(), source: error },
        })?;
    let document: TokensDocument =
        toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))?;
    let mut users = HashMap::new();
    for entry in document.tokens {
        let TokenEntry { name, role, sha256, variables } = entry;
        if name.is_empty() {
            return Err(wrong("a token has no name".to_owned()));
        }
        let Some(digest) = digest(&sha256) else {
            return Err(wrong(format!("`sha256` of {name} is not 64 hexadecimal digits")));
        };
        let variables = AllowedVariables::Named(variables);
        if users.insert(digest, Principal { name: name.clone(), role, variables }).is_some() {
            return Err(wrong(format!("the token of {name} is in the file twice")));
        }
    }
    Ok(users)
}

fn digest(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, role: &str, token: &str) -> String {
        let sha256: String =
            Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("[[tokens]]\nname = '{name}'\nrole = '{role}'\nsha256 = '{sha256}'\n")
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_read_again_when_the_file_changes() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tokens.toml");
        std::fs::write(&path, entry("ada", "submit", "one")).expect("written");
        let tokens = TokenFile::open(&path).expect("tokens");
        let role = |token: &str| tokens.find(token).map(|user| (user.name, user.role));
        assert_eq!(role("one"), Some(("ada".to_owned(), Role::Submit)));
        assert_eq!(role("two"), None);

        let both = entry("ada", "submit", "one") + &entry("bob", "admin", "two");
        std::fs::write(&path, both).expect("written");
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(role("two"), Some(("bob".to_owned(), Role::Admin)));

        std::fs::write(&path, "tokens = 7").expect("written");
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(role("two"), Some(("bob".to_owned(), Role::Admin)));
    }

    #[test]
    fn wrong_files_are_refused_with_their_fault() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tokens.toml");
        let twice = entry("a", "read", "x") + &entry("b", "read", "x");
        for (text, fault) in [
            ("[[tokens]]\nname = 'a'\nrole = 'read'\nsha256 = 'short'\n", "64 hexadecimal"),
            ("[[tokens]]\nname = 'a'\nrole = 'king'\nsha256 = 'x'\n", "king"),
            ("[[tokens]]\ntoken = 'plain'\n", "token"),
            (&*twice, "twice"),
            (&*" ".repeat(MAX_FILE_BYTES as usize + 1), "more than 4194304 bytes"),
        ] {
            std::fs::write(&path, text).expect("written");
            let error = TokenFile::open(&path).expect_err("refused").to_string();
            assert!(error.contains(fault), "{error}");
        }
    }
}
