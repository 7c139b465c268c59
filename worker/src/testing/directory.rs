//! Temporary directories of tests whose tasks may still write when they end.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longest time for writers to end.
const DEADLINE: Duration = Duration::from_secs(10);

/// Pause between two attempts to remove a directory.
const PAUSE: Duration = Duration::from_millis(5);

/// A temporary directory that is removed although a task of the test still writes into it for a
/// moment: a task that was ended without being awaited, or a file operation of one.
#[derive(Debug)]
pub struct TestDirectory(Option<TempDir>);

impl TestDirectory {
    /// A new directory.
    ///
    /// # Panics
    /// When it cannot be created.
    #[expect(clippy::new_without_default, reason = "it has an effect")]
    pub fn new() -> Self {
        Self(Some(TempDir::new().expect("a directory")))
    }

    /// Its path.
    ///
    /// # Panics
    /// Never: it has a path until it is dropped.
    pub fn path(&self) -> &Path {
        self.0.as_ref().expect("a directory until the drop").path()
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let Some(directory) = self.0.take() else { return };
        let path = directory.keep();
        let started = Instant::now();
        while let Err(error) = fs::remove_dir_all(&path) {
            if error.kind() == ErrorKind::NotFound || started.elapsed() > DEADLINE {
                break;
            }
            std::thread::park_timeout(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_removed_although_a_thread_still_writes() {
        let directory = TestDirectory::new();
        let path = directory.path().to_owned();
        let scratch = path.join("scratch");
        fs::create_dir(&scratch).expect("created");
        let ends = Instant::now() + Duration::from_millis(50);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for number in 0.. {
                    let _gone = fs::create_dir(scratch.join(number.to_string()));
                    if Instant::now() >= ends {
                        break;
                    }
                }
            });
            drop(directory);
            assert!(!path.exists());
        });
        assert!(!path.exists());
    }
}
