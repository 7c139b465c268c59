//! Files of a run in a catalog: small ones that no journal can restore, and those of its end.

use std::path::{Component, Path, PathBuf};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use rollout_base::{durable, supervise};
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::id::RunId;
use serde::{Deserialize, Serialize};
use tokio_util::bytes::Bytes;

use super::header::HEADER;
use super::segments::{OPENING, SUCCESSOR};
use super::{CONCURRENT_READS, Catalog, CatalogError, run_prefix};
use crate::atomic_file::TEMPORARY_PREFIX;
use crate::journal::RunLayout;

/// A file of a run in a catalog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogFile {
    /// Its path below the run directory.
    pub path: String,
    /// Its content.
    pub blob: BlobRef,
}

/// Treatment of the files that a catalog already has of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherFiles {
    /// They stay.
    Keep,
    /// They are no longer files of the run.
    Drop,
}

/// The files of a run at one time.
#[derive(Debug, Serialize, Deserialize)]
struct CatalogFiles {
    files: Vec<CatalogFile>,
}

/// Lists that are read when a document was replaced meanwhile.
const MAX_LISTS: u32 = 5;

/// Path prefix of the documents that name the files of a run.
fn files_prefix(run: RunId) -> String {
    format!("{}files/", run_prefix(run))
}

impl Catalog {
    /// Stores files of a run directory, and names them in a new document with the `others` that the
    /// catalog has of the run. Files that do not exist are left out.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub async fn store_files(
        &self,
        run: RunId,
        epoch: u32,
        layout: &RunLayout,
        paths: &[String],
        others: OtherFiles,
    ) -> Result<(), CatalogError> {
        let (before, mut files) = self.newest_files(run).await?;
        if others == OtherFiles::Drop {
            files.clear();
        }
        let puts = paths.iter().cloned().map(|path| self.store_file(layout.clone(), path));
        let stored: Vec<Option<CatalogFile>> =
            stream::iter(puts).buffered(CONCURRENT_READS).try_collect().await?;
        let stored: Vec<CatalogFile> = stored.into_iter().flatten().collect();
        files.retain(|file| stored.iter().all(|new| new.path != file.path));
        files.extend(stored);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let text: Bytes =
            serde_json::to_vec(&CatalogFiles { files }).expect("text keys only").into();
        let prefix = files_prefix(run);
        let mut number = 1_u32;
        let path = loop {
            // A session writes few of them; those of other sessions have other names.
            let path = format!("{prefix}{epoch:06}-{number:06}");
            if self.store.put_document(&path, text.clone()).await? {
                break path;
            }
            number += 1;
        };
        // Those of a later session count more than this one.
        for older in before.iter().filter(|before| **before < path) {
            self.store.remove_document(older).await?;
        }
        Ok(())
    }

    /// Stores a file of a run directory; `None` if it does not exist.
    async fn store_file(
        &self,
        layout: RunLayout,
        path: String,
    ) -> Result<Option<CatalogFile>, CatalogError> {
        let file = layout.root().join(&path);
        let of = file.clone();
        if !supervise::blocking(move || of.is_file()).await {
            return Ok(None);
        }
        let blob = self.store.put_file(&file, MediaType::Bytes).await?;
        Ok(Some(CatalogFile { path, blob }))
    }

    /// The documents that name files of a run, and the files of the newest one.
    async fn newest_files(
        &self,
        run: RunId,
    ) -> Result<(Vec<String>, Vec<CatalogFile>), CatalogError> {
        let mut missing = String::new();
        for _ in 0..MAX_LISTS {
            let paths = self.store.list_documents(&files_prefix(run)).await?;
            let Some(newest) = paths.last() else { return Ok((paths, Vec::new())) };
            let Some(text) = self.store.get_document(newest).await? else {
                // A newer one has replaced it.
                missing.clone_from(newest);
                continue;
            };
            let parsed = serde_json::from_slice::<CatalogFiles>(&text).map_err(|error| {
                CatalogError::Document { path: newest.clone(), reason: error.to_string() }
            })?;
            return Ok((paths, parsed.files));
        }
        Err(CatalogError::Document { path: missing, reason: "it is missing".to_owned() })
    }

    /// Whether the catalog has nothing of a run but beginnings of sessions, which may have ended
    /// before they were complete.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub async fn has_only_beginnings(&self, run: RunId) -> Result<bool, CatalogError> {
        let paths = self.store.list_documents(&run_prefix(run)).await?;
        let names = paths.iter().filter_map(|path| path.rsplit('/').next());
        Ok(names.into_iter().all(|name| [HEADER, OPENING, SUCCESSOR].contains(&name)))
    }

    /// The files of a run.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub async fn files(&self, run: RunId) -> Result<Vec<CatalogFile>, CatalogError> {
        Ok(self.newest_files(run).await?.1)
    }

    /// Makes a copy of a run in a directory: its journal and its files. What the directory has of
    /// the journal stays. The directory must belong to the caller.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub async fn download(&self, run: RunId, layout: &RunLayout) -> Result<(), CatalogError> {
        let root = layout.root().to_owned();
        let of = root.clone();
        let made = supervise::blocking(move || durable::create_directory(&of)).await;
        made.map_err(CatalogError::file("create", &root))?;
        // The journal last: it holds at least what the files state.
        let files = self.files(run).await?;
        let fetches = files.into_iter().map(|file| self.download_file(file, root.clone()));
        stream::iter(fetches).buffer_unordered(CONCURRENT_READS).try_collect::<()>().await?;
        self.download_journal(run, layout).await
    }

    async fn download_file(&self, file: CatalogFile, root: PathBuf) -> Result<(), CatalogError> {
        let path = Path::new(&file.path);
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            let reason = "a file with a path that leads outside".to_owned();
            return Err(CatalogError::Document { path: file.path.clone(), reason });
        }
        let target = root.join(path);
        let parent = target.parent().unwrap_or(&root).to_owned();
        let incoming = supervise::blocking(move || {
            std::fs::create_dir_all(&parent).map_err(CatalogError::file("create", &parent))?;
            let made = tempfile::Builder::new().prefix(TEMPORARY_PREFIX).tempdir_in(&parent);
            made.map_err(CatalogError::file("create a directory in", &parent))
        })
        .await?;
        let fetched = incoming.path().join("file");
        self.store.get_file(&file.blob.digest, &fetched).await?;
        supervise::blocking(move || {
            // Until then the file of an earlier copy is there.
            let moved = std::fs::rename(&fetched, &target);
            drop(incoming);
            moved.map_err(CatalogError::file("replace", &target))
        })
        .await
    }
}
