//! The secret key of the digests of proxies with logins. Tags, labels and keys of layers have such digests:
//! without a key, anyone who can read these could try passwords.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rollout_base::shown_path::shown;
use tempfile::NamedTempFile;

/// Name of the file with the key.
const FILE: &str = "proxies.key";

const KEY_BYTES: usize = 32;

/// The bytes of a key.
type KeyBytes = [u8; KEY_BYTES];

/// A random key, made when it is first needed. The default is one of this process alone: images that were
/// built with such proxies are built again by the next one. Its debug output has no key.
#[derive(Default)]
pub struct ProxyKey {
    /// Directory with the key of all processes of a host.
    directory: Option<PathBuf>,
    bytes: OnceLock<KeyBytes>,
}

impl ProxyKey {
    /// The key in a directory of this host, which only its user can read.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self { directory: Some(directory.into()), bytes: OnceLock::new() }
    }

    /// The key. The first call may read and write a small file.
    pub(super) fn bytes(&self) -> &KeyBytes {
        self.bytes.get_or_init(|| {
            let Some(directory) = &self.directory else { return rand::random() };
            kept(directory).unwrap_or_else(|error| {
                tracing::warn!(
                    "cannot keep a key in {}: {error}; images that are built with proxies that have a \
                     login are built again by the next process",
                    shown(directory)
                );
                rand::random()
            })
        })
    }
}

impl fmt::Debug for ProxyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyKey").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// The key in a directory, which is made if there is none.
fn kept(directory: &Path) -> io::Result<KeyBytes> {
    let path = directory.join(FILE);
    let is_damaged = match read(&path) {
        Ok(key) => return Ok(key),
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) if error.kind() == ErrorKind::InvalidData => true,
        Err(error) => return Err(error),
    };
    fs::create_dir_all(directory)?;
    let key: KeyBytes = rand::random();
    let mut file = NamedTempFile::new_in(directory)?;
    file.write_all(&key)?;
    file.as_file().sync_all()?;
    if is_damaged {
        file.persist(&path)?;
        return Ok(key);
    }
    match file.persist_noclobber(&path) {
        Ok(_file) => Ok(key),
        // Another process was faster.
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => read(&path),
        Err(error) => Err(error.error),
    }
}

/// The key in a file.
fn read(path: &Path) -> io::Result<KeyBytes> {
    fs::read(path)?.try_into().map_err(|_| ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_directory_is_that_of_all_processes_and_others_differ() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| ProxyKey::in_directory(directory.path().join(name));
        let key = *at("a/b").bytes();
        assert_eq!(at("a/b").bytes(), &key);
        assert_ne!(at("other").bytes(), &key);
        let own = ProxyKey::default();
        assert!(own.bytes() != &key && own.bytes() == own.bytes());
        assert_ne!(own.bytes(), ProxyKey::default().bytes());
        fs::write(directory.path().join("a/b").join(FILE), "short").expect("written");
        let new = *at("a/b").bytes();
        assert_ne!(new, key);
        assert_eq!(at("a/b").bytes(), &new, "a damaged key is replaced");
    }

    #[cfg(unix)]
    #[test]
    fn key_file_is_readable_by_its_user_only_and_a_key_that_cannot_be_kept_is_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        ProxyKey::in_directory(directory.path()).bytes();
        let path = directory.path().join(FILE);
        let mode = fs::metadata(&path).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Not a directory.
        let nowhere = ProxyKey::in_directory(&path);
        assert_eq!(nowhere.bytes(), nowhere.bytes());
        assert!(!format!("{nowhere:?}").contains("bytes"), "{nowhere:?}");
    }
}
