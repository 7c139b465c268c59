//! The commit made from an agent's changes to a checkout.
//!
//! The commit contains every path of its parent, in its current state, and every new path that the
//! parent's ignore rules do not match. It never contains anything that could be taken for a `.git`,
//! links that lead outside, special files, or content of another repository's directory. Submodules
//! stay as they are.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rollout_base::secrets::Redactor;
use rollout_base::supervise;
use rollout_environment::ByteStream;
use rollout_protocol::limits;
use rollout_protocol::record::CheckoutChanges;
use rollout_store::archive::{self, ArchivePath, ArchiveTruncation};
use rollout_store::git::{CommitIdentity, GitError, bundle};

use super::checkout::{Checkout, LIMITS};
use super::compare::{ChangedTreeFile, TreeCompareError, TreeComparison, TreeDifference};
use super::{EvalFilesError, local_dir};
use crate::executor::possible_secrets;

/// An agent's changed checkout, on this host's disk.
#[derive(Debug)]
pub struct ExtractedTree {
    /// The tree.
    pub dir: PathBuf,
    /// Paths that were in the archive and could not be kept.
    pub left_out: Vec<ArchivePath>,
}

/// The outcome of an idea.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CandidateOutcome {
    /// Nothing that is part of a commit changed.
    NoChanges(CheckoutChanges),
    /// A commit.
    Candidate(Candidate),
}

/// The commit made from an idea.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The commit.
    pub commit: String,
    /// Its parent.
    pub parent: String,
    /// The bundle.
    pub file: PathBuf,
    /// Its size.
    pub size_bytes: u64,
    /// The changes.
    pub changes: CheckoutChanges,
    /// Variables of values in new and changed files that look like secrets.
    pub possible_secrets: BTreeSet<String>,
}

impl Checkout {
    /// Extracts the agent's tree from a stream, whose names begin with that of the checkout's
    /// directory.
    ///
    /// # Errors
    /// [`EvalFilesError`].
    pub async fn extract(&self, stream: ByteStream) -> Result<ExtractedTree, EvalFilesError> {
        let into = self.slot.join("out");
        local_dir::remove_path(&into).await?;
        let unpacked = archive::extract_faithful(stream, &into, LIMITS).await;
        let (report, left_out) = unpacked
            .map_err(|source| EvalFilesError::Archive { what: "the changed checkout", source })?;
        match report.cut {
            Some(cut @ (ArchiveTruncation::Entries(_) | ArchiveTruncation::Bytes(_))) => {
                return Err(EvalFilesError::NotCommittable { reason: cut.to_string() });
            }
            Some(cut) => return Err(EvalFilesError::Unreadable { reason: cut.to_string() }),
            None => {}
        }
        let left_out = left_out.into_iter().filter_map(|path| path.without_first()).collect();
        let found = supervise::blocking({
            let into = into.clone();
            move || only_directory(&into)
        });
        let dir =
            found.await.map_err(|source| EvalFilesError::disk_error("list", &into, source))?;
        match dir {
            Some(dir) => Ok(ExtractedTree { dir, left_out }),
            None => {
                let reason = "it is no longer a directory".to_owned();
                Err(EvalFilesError::NotCommittable { reason })
            }
        }
    }

    /// Commits a tree, and writes a bundle of the commit to `to`, which must not exist. Equal trees
    /// and messages give equal commits.
    ///
    /// # Errors
    /// [`EvalFilesError`].
    pub async fn commit(
        &self,
        tree: &ExtractedTree,
        message: &str,
        redactor: &Redactor,
        to: &Path,
    ) -> Result<CandidateOutcome, EvalFilesError> {
        let mut found = self.compare_trees(tree, redactor).await?;
        self.leave_out_ignored(&mut found).await?;
        found.changes.refused += tree.left_out.len() as u64;
        found.changes.written = found.written.len() as u64;
        found.changes.removed = found.removed.len() as u64;
        let changes = found.changes;
        if found.written.is_empty() && found.removed.is_empty() {
            return Ok(CandidateOutcome::NoChanges(changes));
        }
        let tree = self.write_tree(&found).await?;
        let before = format!("{}^{{tree}}", self.commit);
        if self.mirror.bare().reference(&before).await?.as_ref() == Some(&tree) {
            return Ok(CandidateOutcome::NoChanges(changes));
        }
        let identity =
            CommitIdentity { seconds: self.mirror.bare().seconds(&self.commit).await? + 1 };
        let message = commit_message(&redactor.text(message));
        let commit = self.mirror.bare().commit(&tree, &self.commit, &message, identity).await?;
        let (git, parent) = (self.mirror.bare().git(), self.commit.clone());
        let written =
            bundle::write(git, &commit, Some(&parent), to, limits::CANDIDATE_BUNDLE_BYTES);
        let size_bytes = match written.await {
            Err(GitError::TooLarge { max_bytes, .. }) => {
                let reason = format!("the change has more than {max_bytes} bytes");
                return Err(EvalFilesError::NotCommittable { reason });
            }
            written => written?,
        };
        let (file, possible_secrets) =
            (to.to_owned(), self.possible_secrets(&found, redactor).await?);
        Ok(CandidateOutcome::Candidate(Candidate {
            commit,
            parent,
            file,
            size_bytes,
            changes,
            possible_secrets,
        }))
    }

    /// The variables of values that look like secrets, in new and changed files and in their paths.
    async fn possible_secrets(
        &self,
        found: &TreeDifference,
        redactor: &Redactor,
    ) -> Result<BTreeSet<String>, EvalFilesError> {
        let files = found.written.iter().map(|file| file.content.clone()).collect();
        let variables = possible_secrets(files, redactor).await;
        let mut variables = variables
            .map_err(|source| EvalFilesError::disk_error("read", &self.staging(), source))?;
        for file in &found.written {
            variables.extend(redactor.found_in(&file.path).iter().map(ToString::to_string));
        }
        Ok(variables)
    }

    /// The directory for the content of new and changed files.
    fn staging(&self) -> PathBuf {
        self.slot.join("changed")
    }

    async fn compare_trees(
        &self,
        tree: &ExtractedTree,
        redactor: &Redactor,
    ) -> Result<TreeDifference, EvalFilesError> {
        let (base, staging) = (self.base(), self.staging());
        local_dir::remove_path(&staging).await?;
        let made = tokio::fs::create_dir(&staging).await;
        made.map_err(|source| EvalFilesError::disk_error("create", &staging, source))?;
        let mut unknown = self.withheld.clone();
        unknown.extend(tree.left_out.iter().map(|path| path.as_bytes().to_vec()));
        let (entries, tree, redactor) =
            (self.entries.clone(), tree.dir.clone(), redactor.declared());
        let work = move || {
            let entries = entries.iter().map(|entry| (&entry.path[..], entry)).collect();
            let (base, tree, staging) = (&base, &tree, &staging);
            TreeComparison { base, entries, unknown, tree, staging, redactor: &redactor }.run()
        };
        supervise::blocking(work).await.map_err(|error| match error {
            TreeCompareError::Disk(path, source) => {
                EvalFilesError::disk_error("compare", &path, source)
            }
            TreeCompareError::TooLarge(path) => {
                let path = String::from_utf8_lossy(&path).into_owned();
                let most = limits::CANDIDATE_FILE_BYTES;
                let reason = format!("{path:?} has more than {most} bytes");
                EvalFilesError::NotCommittable { reason }
            }
        })
    }

    /// Drops new files that the rules of the parent commit ignore.
    async fn leave_out_ignored(&self, found: &mut TreeDifference) -> Result<(), EvalFilesError> {
        let new = found.written.iter().filter(|file| file.is_new);
        let (base, mut new) = (self.base(), new.map(|file| file.path.clone()).collect::<Vec<_>>());
        let choose = move || {
            new.retain(|path| !is_below_file(&base, path));
            new
        };
        let asked = supervise::blocking(choose).await;
        // A path with this prefix is never read as pathspec magic.
        let input =
            asked.iter().flat_map(|path| [b"./", &path[..], b"\0"]).collect::<Vec<_>>().concat();
        if input.is_empty() {
            return Ok(());
        }
        let call = self.mirror.bare().git().call(["check-ignore", "--no-index", "-z", "--stdin"]);
        let call = call.work_tree(self.base()).index(self.index()).input(input);
        let ignored = match call.run().await {
            Ok(listed) => listed,
            // No path is ignored.
            Err(GitError::Failed { code: Some(1), .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let ignored: std::collections::BTreeSet<&[u8]> =
            ignored.split(|byte| *byte == 0).filter_map(|path| path.strip_prefix(b"./")).collect();
        let before = found.written.len();
        found.written.retain(|file| !(file.is_new && ignored.contains(&file.path[..])));
        found.changes.ignored = (before - found.written.len()) as u64;
        Ok(())
    }

    /// Stores new and changed files, and the resulting tree.
    async fn write_tree(&self, found: &TreeDifference) -> Result<String, EvalFilesError> {
        let objects = self.store_objects(&found.written).await?;
        let mut list = Vec::new();
        let none = "0".repeat(self.commit.len());
        for path in &found.removed {
            list.extend_from_slice(format!("0 {none}\t").as_bytes());
            list.extend_from_slice(path);
            list.push(0);
        }
        for (file, object) in found.written.iter().zip(&objects) {
            list.extend_from_slice(format!("{:o} {object}\t", file.mode).as_bytes());
            list.extend_from_slice(&file.path);
            list.push(0);
        }
        let index = self.slot.join("index.new");
        let copied = tokio::fs::copy(self.index(), &index).await;
        copied.map_err(|source| EvalFilesError::disk_error("copy", &index, source))?;
        let git = self.mirror.bare().git();
        git.call(["update-index", "-z", "--index-info"]).index(&index).input(list).run().await?;
        Ok(git.call(["write-tree"]).index(&index).run_line().await?)
    }

    async fn store_objects(
        &self,
        written: &[ChangedTreeFile],
    ) -> Result<Vec<String>, EvalFilesError> {
        if written.is_empty() {
            return Ok(Vec::new());
        }
        let mut list = Vec::new();
        for file in written {
            list.extend_from_slice(file.content.as_os_str().as_bytes());
            list.push(b'\n');
        }
        let call =
            self.mirror.bare().git().call(["hash-object", "-w", "--no-filters", "--stdin-paths"]);
        let objects: Vec<String> =
            call.input(list).run_line().await?.lines().map(str::to_owned).collect();
        if objects.len() != written.len() {
            let answer = format!("{} objects for {} files", objects.len(), written.len());
            return Err(GitError::Unexpected { what: "hash-object".to_owned(), answer }.into());
        }
        Ok(objects)
    }
}

/// Whether a path leads through something that is no directory in the files of the parent commit: no
/// rules apply to such a path, and git refuses to check it.
fn is_below_file(base: &Path, path: &[u8]) -> bool {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let mut above = ends.map(|at| &path[..at]);
    above.any(|dir| {
        let found = std::fs::symlink_metadata(base.join(OsStr::from_bytes(dir)));
        found.is_ok_and(|found| !found.is_dir())
    })
}

/// The only directory in a directory.
fn only_directory(dir: &Path) -> std::io::Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

/// The message as written to a commit.
fn commit_message(text: &str) -> String {
    let text: String = text.replace("\r\n", "\n").chars().filter(|c| *c != '\0').collect();
    let lines = text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    let text = match lines.trim_matches('\n') {
        "" => "An idea without words",
        text => text,
    };
    limits::shorten(text.to_owned(), limits::COMMIT_MESSAGE_BYTES) + "\n"
}
