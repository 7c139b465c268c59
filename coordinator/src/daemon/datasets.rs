//! Datasets that users upload: archives named by their digest, unpacked once for all runs. A dataset
//! is for those who uploaded it; others get the answer for one that is not there.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rollout_base::shared_limit::{LimitUser, SharedPlace};
use rollout_base::{durable, supervise};
use rollout_protocol::digest::Digest;
use rollout_protocol::limits::TASK_NAME_BYTES;
use rollout_protocol::name;
use rollout_store::archive::{ArchiveLimits, extract_faithful};
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};

use super::disk::bytes_in;
use super::policy::DocumentPolicy;
use super::principal::{Principal, Role};
use super::record::RecordError;
use super::{Daemon, DaemonError};

/// Uploads that are unpacked and written to the disk at a time: each waits for all of a file system.
pub(super) const CONCURRENT_STORINGS: u64 = 4;

/// Beginning of a path in a document that names an uploaded dataset.
const UPLOADED: &str = "dataset:";

/// The uploaded datasets that documents of a user may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedUploads {
    /// Directory of all of them.
    pub directory: PathBuf,
    /// Names of the allowed ones; `None` for all of them.
    pub names: Option<BTreeSet<String>>,
}

/// Part of an uploaded dataset that a key of a document may name.
#[derive(Debug, Clone, Copy)]
enum UploadPart {
    /// The whole, or a directory at its root: a dataset, or a single task.
    Tasks,
    /// A directory.
    Directory,
    /// A file.
    File,
}

/// A document of a submission.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubmittedDocument {
    /// YAML or JSON.
    pub text: String,
    /// Names of the uploaded datasets that it named by `dataset:`, in whose place their paths are. Another
    /// path of an upload is refused as any path of the server: the user would learn that it is one.
    pub uploads: BTreeSet<String>,
}

impl AllowedUploads {
    /// The uploaded dataset, of any user, at or above a path without links.
    pub(super) fn find(&self, path: &Path) -> Option<PathBuf> {
        upload_of(path, &self.directory)
    }

    /// Whether a path without links is in an allowed dataset.
    pub(super) fn allows(&self, path: &Path) -> bool {
        let Some(upload) = self.find(path) else { return false };
        let name = upload.file_name().and_then(OsStr::to_str).unwrap_or_default();
        self.names.as_ref().is_none_or(|names| names.contains(name))
    }
}

impl Daemon {
    /// Whether a user may use a dataset that is there.
    pub async fn has_dataset(&self, user: &Principal, digest: Digest) -> bool {
        let (path, is_allowed) = self.dataset_of(user, &digest.hex());
        supervise::blocking(move || path.is_dir()).await && is_allowed
    }

    /// The operator's rules for a document that a user submits.
    pub(super) fn policy_of_submission(&self, document: &SubmittedDocument) -> DocumentPolicy {
        let names = Some(document.uploads.clone());
        let uploads = Some(AllowedUploads { directory: self.dir.uploads(), names });
        DocumentPolicy { uploads, ..self.options.policy.clone() }
    }

    /// The operator's rules for documents that a user has submitted.
    pub(super) fn policy_of(&self, user: &LimitUser) -> DocumentPolicy {
        let names = (!user.is_admin).then(|| self.disk.uploaded_by(&user.name));
        let uploads = Some(AllowedUploads { directory: self.dir.uploads(), names });
        DocumentPolicy { uploads, ..self.options.policy.clone() }
    }

    /// The directory of a dataset, and whether a user may use it.
    fn dataset_of(&self, user: &Principal, hex: &str) -> (PathBuf, bool) {
        let is_allowed = user.role == Role::Admin || self.disk.has_uploaded(&user.name, hex);
        (self.dataset_path(hex), is_allowed)
    }

    /// A file for the archive of a dataset that is being uploaded. Blocks.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn dataset_file(&self) -> Result<NamedTempFile, RecordError> {
        let uploads = self.dir.uploads();
        NamedTempFile::new_in(&uploads).map_err(RecordError::file("write", &uploads))
    }

    /// Room on the disk for the archive of a dataset.
    ///
    /// # Errors
    /// [`DaemonError::NoDisk`].
    pub async fn dataset_room(
        &self,
        user: &Principal,
        bytes: u64,
    ) -> Result<SharedPlace, DaemonError> {
        let (disk, user) = (Arc::clone(&self.disk), user.limit_user());
        supervise::blocking(move || disk.room(&user, bytes)).await
    }

    /// Unpacks the archive of a dataset. Its digest must have been checked. It is a part of the disk of
    /// the user whose room it has, who may use it when this returns. A request that goes while it waits
    /// for its turn leaves nothing; one that goes later is stored, and keeps its turn until then.
    ///
    /// # Errors
    /// [`DaemonError::BadQuery`] for an archive that has other members than files, directories and
    /// links inside it, or that is cut.
    pub async fn store_dataset(
        &self,
        digest: Digest,
        archive: NamedTempFile,
        mut room: SharedPlace,
    ) -> Result<(), DaemonError> {
        let (uploads, path) = (self.dir.uploads(), self.dataset_path(&digest.hex()));
        let disk = Arc::clone(&self.disk);
        let user = room.user().clone();
        let turn = self.storings.acquire(&user, 0, 1).await;
        let storing = async move {
            let failed = |action| RecordError::file(action, &uploads);
            let scratch = TempDir::new_in(&uploads).map_err(failed("write"))?;
            let file = archive.reopen().map_err(failed("read"))?;
            let content = scratch.path().join("content");
            let limits = ArchiveLimits::BUNDLE;
            let file = tokio::fs::File::from_std(file);
            let extracted = extract_faithful(file, &content, limits).await;
            let (report, left_out) =
                extracted.map_err(|error| failed("unpack")(std::io::Error::other(error)))?;
            if let Some(cut) = report.cut {
                return Err(DaemonError::BadQuery(format!("cannot use the archive: {cut}")));
            }
            if !left_out.is_empty() || report.skipped.total() > 0 {
                let text =
                    "cannot use the archive: it has members that lead outside, or special files";
                return Err(DaemonError::BadQuery(text.to_owned()));
            }
            // One piece, which owns the directory: the end of this process drops the rest.
            let stored = supervise::blocking(move || {
                // The turn ends last, also if the request has gone.
                let _turn = turn;
                let _scratch = scratch;
                drop(archive);
                disk.fit(&mut room, bytes_in(&content)).map_err(DaemonError::NoDisk)?;
                // Its former users must not have what others upload.
                disk.forget_if_removed(&digest.hex());
                move_durably(&content, &path, &uploads)
                    .map_err(RecordError::file("store in", &uploads))?;
                disk.keep(&digest.hex(), room)?;
                Ok(())
            });
            stored.await
        };
        self.finish(storing).await
    }

    /// Puts the paths of uploaded datasets in the place of their names in a document of a user, and gives
    /// the names. Blocks.
    ///
    /// # Errors
    /// [`DaemonError::NoDataset`], also for a dataset of another user.
    pub fn resolve_datasets(
        &self,
        user: &Principal,
        document: &mut Value,
    ) -> Result<BTreeSet<String>, DaemonError> {
        let mut uploads = BTreeSet::new();
        for (path, part) in uploaded_paths(document) {
            let text = path.as_str().unwrap_or_default();
            let found = self.uploaded(user, text, part).ok_or(DaemonError::NoDataset)?;
            let upload = upload_of(&found, &self.dir.uploads());
            let name = upload.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
            uploads.extend(name.map(str::to_owned));
            *path = Value::String(found.display().to_string());
        }
        Ok(uploads)
    }

    /// The path of `dataset:DIGEST` or `dataset:DIGEST/NAME`, if the user may use it and such a part is
    /// there.
    fn uploaded(&self, user: &Principal, text: &str, part: UploadPart) -> Option<PathBuf> {
        let rest = text.strip_prefix(UPLOADED)?;
        let (hex, name) =
            rest.split_once('/').map_or((rest, None), |(hex, name)| (hex, Some(name)));
        let is_digest = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (directory, is_allowed) =
            is_digest.then(|| self.dataset_of(user, &hex.to_ascii_lowercase()))?;
        if !is_allowed {
            return None;
        }
        // A run on this host takes a hidden directory that is named.
        let is_name = |name: &str| {
            name::check_component(name.trim_start_matches('.'), TASK_NAME_BYTES).is_ok()
        };
        let found = match name {
            None => directory,
            Some(name) => {
                let is_inside = match part {
                    UploadPart::Tasks => is_name(name),
                    UploadPart::Directory | UploadPart::File => name.split('/').all(is_name),
                };
                is_inside.then(|| directory.join(name))?
            }
        };
        let is_there = match part {
            UploadPart::Tasks | UploadPart::Directory => found.is_dir(),
            UploadPart::File => found.is_file(),
        };
        is_there.then_some(found)
    }

    fn dataset_path(&self, hex: &str) -> PathBuf {
        self.dir.uploads().join(hex)
    }
}

/// The texts in a document that begin as a name of an uploaded dataset, with the part that each may name.
fn uploaded_paths(document: &mut Value) -> Vec<(&mut Value, UploadPart)> {
    let mut found = Vec::new();
    for (key, value) in document.as_object_mut().into_iter().flatten() {
        match (key.as_str(), value) {
            ("datasets" | "tasks", Value::Array(entries)) => {
                let paths = entries.iter_mut().filter_map(|entry| entry.get_mut("path"));
                found.extend(paths.map(|path| (path, UploadPart::Tasks)));
            }
            // Of a search.
            ("context_ideas_dirs", Value::Array(paths)) => {
                found.extend(paths.iter_mut().map(|path| (path, UploadPart::Directory)));
            }
            ("root_baseline_csv", path) => found.push((path, UploadPart::File)),
            _ => {}
        }
    }
    found.retain(|(path, _)| is_uploaded(path));
    found
}

/// Gives an unpacked dataset its name after its files are on disk: the name means that it is whole.
fn move_durably(content: &Path, path: &Path, uploads: &Path) -> io::Result<()> {
    // Also for content that is there: the time that this takes would tell.
    rustix::fs::syncfs(File::open(content)?)?;
    if path.is_dir() {
        // A removal of unused datasets counts from their last upload.
        File::open(path)?.set_modified(SystemTime::now())?;
    } else {
        match std::fs::rename(content, path) {
            // Another upload of the same content was faster.
            Err(_) if path.is_dir() => {}
            renamed => renamed?,
        }
    }
    durable::sync_directory(uploads)
}

fn is_uploaded(path: &Value) -> bool {
    path.as_str().is_some_and(|path| path.starts_with(UPLOADED))
}

/// The uploaded dataset that a path is, or is inside of: not the directory of all of them.
fn upload_of(path: &Path, uploads: &Path) -> Option<PathBuf> {
    let first = path.strip_prefix(uploads).ok()?.components().next()?;
    (first.as_os_str().len() == 64).then(|| uploads.join(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dataset_that_is_there_already_stays_and_a_new_one_gets_its_name() {
        let uploads = tempfile::tempdir().expect("a directory");
        let path = uploads.path().join("digest");
        for (name, text) in [("first", "1"), ("second", "2")] {
            let content = uploads.path().join(name);
            std::fs::create_dir(&content).expect("made");
            std::fs::write(content.join("file"), text).expect("written");
            move_durably(&content, &path, uploads.path()).expect("moved");
        }
        assert_eq!(std::fs::read_to_string(path.join("file")).expect("a file"), "1");
    }
}
