//! A user's repository, for tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::spec::eval::CommitBundle;

use super::{Git, bundle};
use crate::BlobStore;

/// A repository with a work tree, in a temporary directory.
#[derive(Debug)]
pub struct UserRepository {
    dir: tempfile::TempDir,
}

impl Default for UserRepository {
    fn default() -> Self {
        let repository = Self { dir: tempfile::tempdir().expect("a directory") };
        repository.git(&["init", "-q", "-b", "main"]);
        repository
    }
}

impl UserRepository {
    /// Its work tree.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Runs git as a user would; returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn git(&self, args: &[&str]) -> String {
        let mut command = Command::new("git");
        command.current_dir(self.path()).args(args).env_clear().env("HOME", "/nonexistent");
        command.env("PATH", std::env::var_os("PATH").expect("a path"));
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "user").env(format!("GIT_{who}_EMAIL"), "u@u");
            command.env(format!("GIT_{who}_DATE"), "@1700000000 +0100");
        }
        let output = command.output().expect("git runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {args:?}: {said}");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Writes a file and creates its parent directories.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().expect("below")).expect("directories");
        std::fs::write(&path, content).expect("written");
        path
    }

    /// Commits everything; returns the commit.
    pub fn commit(&self, message: &str) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Stores a commit without its history.
    pub async fn stored(&self, commit: &str, store: &dyn BlobStore) -> CommitBundle {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("root");
        let git = Git::user_repository(self.path());
        bundle::write(&git, commit, None, &file, u64::MAX >> 1).await.expect("a bundle");
        let blob: BlobRef = store.put_file(&file, MediaType::Bytes).await.expect("stored");
        CommitBundle { commit: commit.to_owned(), parent: None, blob }
    }
}
