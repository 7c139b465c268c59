//! Documents as files.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use bytes::Bytes;
use rollout_protocol::limits;

use super::super::{check_document_path, check_document_size, directory_of_prefix};
use super::{FsStoreInner, StoreError, ensure_directory, sync_directory};

impl FsStoreInner {
    pub(super) fn put_document(&self, path: &str, bytes: &[u8]) -> Result<bool, StoreError> {
        check_document_path(path)?;
        check_document_size(path, bytes.len() as u64)?;
        let file = self.root.join("docs").join(path);
        let parent = file.parent().expect("documents are below a directory");
        let exists = std::fs::symlink_metadata(&file).is_ok();
        if !exists {
            self.check_present()?;
            self.make_parents(path)?;
        }
        let created = !exists && {
            let mut temp = self.scratch.create()?;
            temp.write(bytes)?;
            temp.sync()?;
            temp.link_new(&file)?
        };
        // Also if it existed: the process that created it may not have synced the directory yet.
        sync_directory(parent)?;
        Ok(created)
    }

    pub(super) fn get_document(&self, path: &str) -> Result<Option<Bytes>, StoreError> {
        use io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
        check_document_path(path)?;
        let file = self.root.join("docs").join(path);
        let mut bytes = Vec::new();
        let read = File::open(&file)
            .and_then(|file| file.take(limits::DOCUMENT_BYTES + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => {
                check_document_size(path, bytes.len() as u64)?;
                Ok(Some(Bytes::from(bytes)))
            }
            Err(error) if matches!(error.kind(), NotFound | NotADirectory | IsADirectory) => {
                self.check_present()?;
                Ok(None)
            }
            Err(error) => Err(StoreError::io("read", &file, error)),
        }
    }

    pub(super) fn list_documents(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let directory = directory_of_prefix(prefix)?;
        self.check_present()?;
        let mut found = Vec::new();
        let mut waiting = vec![directory.to_owned()];
        while let Some(directory) = waiting.pop() {
            list(&self.root.join("docs").join(&directory), |name, is_directory| {
                let path = if directory.is_empty() {
                    name.to_owned()
                } else {
                    format!("{directory}/{name}")
                };
                if !path.starts_with(prefix) {
                    return;
                }
                if is_directory { waiting.push(path) } else { found.push(path) }
            })?;
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Creates the parent directories of a document, durably.
    fn make_parents(&self, path: &str) -> Result<(), StoreError> {
        let docs = self.root.join("docs");
        for (end, _) in path.match_indices('/') {
            let directory = docs.join(&path[..end]);
            if !directory.is_dir() {
                ensure_directory(&directory)?;
            }
        }
        Ok(())
    }
}

fn list(directory: &Path, mut each: impl FnMut(&str, bool)) -> Result<(), StoreError> {
    use io::ErrorKind::{NotADirectory, NotFound};
    let failed = |error| StoreError::io("list", directory, error);
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        // Names of documents are ASCII: other entries are not documents.
        if let Some(name) = entry.file_name().to_str() {
            each(name, kind.is_dir());
        }
    }
    Ok(())
}
