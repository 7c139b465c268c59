//! References between a run and its blob store: `store.json` in the run directory locates the store
//! for later commands and after a move; documents in the store list the directories of its runs.

use std::path::{Component, Path, PathBuf};

use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_worker::backoff::error_chain;
use rollout_worker::store::{BlobStore, StoreError};
use serde::{Deserialize, Serialize};

use super::durable::FileError;
use super::{layout, write_document};

/// Path prefix of the documents in a store that name its runs.
pub const RUNS: &str = "runs/";

/// Location of a run's blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReference {
    /// Identity of the store.
    pub identity: String,
    /// Its directory.
    pub directory: PathBuf,
    /// Its directory relative to the run directory: valid after both were moved together.
    pub relative: PathBuf,
}

/// The blob store of a run was not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot find the blob store of the run: looked in {}", places(searched))]
pub struct NoStore {
    /// Directories that were searched.
    pub searched: Vec<PathBuf>,
    /// Store that the run used.
    pub reference: Option<StoreReference>,
}

fn places(looked: &[PathBuf]) -> String {
    let places: Vec<_> = looked.iter().map(|place| place.display().to_string()).collect();
    places.join(" and ")
}

/// Writes the reference to the store into the run directory, and the run's path into the store.
///
/// # Errors
/// [`FileError`].
pub async fn write_reference(
    run_dir: &Path,
    run: RunId,
    store: &dyn BlobStore,
    directory: &Path,
) -> Result<(), FileError> {
    let directory = directory.canonicalize().map_err(FileError::with_context("find", directory))?;
    let root = run_dir.canonicalize().map_err(FileError::with_context("find", run_dir))?;
    let (identity, relative) = (store.identity().to_owned(), relative(&root, &directory));
    let name = Digest::sha256(root.as_os_str().as_encoded_bytes()).hex();
    let path = format!("{RUNS}{run}/{}", &name[..32]);
    let text = root.to_string_lossy().into_owned();
    if let Err(error) = store.put_document(&path, text.into()).await {
        tracing::warn!("cannot register the run in its blob store: {}", error_chain(&error));
    }
    let reference = StoreReference { identity, directory, relative };
    if StoreReference::read(&root).as_ref() == Some(&reference) {
        return Ok(());
    }
    write_document(&root, layout::STORE, &reference)
}

impl StoreReference {
    /// Reads the reference of a run directory; `None` if it is missing or unreadable.
    pub fn read(run_dir: &Path) -> Option<Self> {
        let text = std::fs::read(run_dir.join(layout::STORE)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// Finds the directory of a run's store: where the run refers to, or beside the run.
///
/// # Errors
/// [`NoStore`].
pub fn find(run_dir: &Path) -> Result<PathBuf, NoStore> {
    let run_dir = run_dir.canonicalize().unwrap_or_else(|_| run_dir.to_owned());
    let reference = StoreReference::read(&run_dir);
    let beside = run_dir.parent().unwrap_or(Path::new(".")).join(".rollout/blobs");
    let noted = reference
        .iter()
        .flat_map(|note| [resolve(&run_dir, &note.relative), note.directory.clone()]);
    let mut searched: Vec<PathBuf> = Vec::new();
    for candidate in noted.chain([beside]) {
        let place = candidate.canonicalize().unwrap_or(candidate);
        if searched.contains(&place) {
            continue;
        }
        let found = identity_of(&place);
        if found.is_some_and(|id| reference.as_ref().is_none_or(|note| note.identity == id)) {
            return Ok(place);
        }
        searched.push(place);
    }
    Err(NoStore { searched, reference })
}

/// The identity of the store in a directory; `None` without one.
pub fn identity_of(directory: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Identity {
        id: String,
    }
    let text = std::fs::read(directory.join(layout::STORE)).ok()?;
    serde_json::from_slice::<Identity>(&text).ok().map(|identity| identity.id)
}

/// The directories of the runs that are registered in a store.
///
/// # Errors
/// [`StoreError`].
pub async fn runs_using(store: &dyn BlobStore) -> Result<Vec<(RunId, PathBuf)>, StoreError> {
    let mut found = Vec::new();
    for path in store.list_documents(RUNS).await? {
        let run = path.strip_prefix(RUNS).and_then(|rest| rest.split('/').next());
        let Some(run) = run.and_then(|run| run.parse().ok()) else { continue };
        let Some(text) = store.get_document(&path).await? else { continue };
        found.push((run, PathBuf::from(String::from_utf8_lossy(&text).into_owned())));
    }
    Ok(found)
}

/// The path that is `relative` to a canonical directory, without `..`. It need not exist.
fn resolve(directory: &Path, relative: &Path) -> PathBuf {
    let up = relative.components().take_while(|part| *part == Component::ParentDir).count();
    let below: PathBuf = relative.components().skip(up).collect();
    directory.ancestors().nth(up).map_or_else(|| directory.join(relative), |base| base.join(below))
}

/// The relative path from one absolute directory to another.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let common = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(common).map(|_| Component::ParentDir);
    up.chain(to.components().skip(common)).collect()
}

#[cfg(test)]
mod tests {
    use rollout_worker::store::fs::FsStore;

    use super::*;

    #[tokio::test]
    async fn blob_store_of_moved_run_is_found() {
        let temp = tempfile::tempdir().expect("a directory");
        let root = temp.path().canonicalize().expect("there");
        let (run_dir, blobs) = (root.join("jobs/run"), root.join("elsewhere/blobs"));
        std::fs::create_dir_all(&run_dir).expect("creatable");
        let store = FsStore::open(&blobs).await.expect("a store");
        let run = RunId::from_bytes([3; 16]);
        write_reference(&run_dir, run, &store, &blobs).await.expect("noted");
        assert_eq!(find(&run_dir), Ok(blobs.clone()));
        let users = runs_using(&store).await.expect("readable");
        assert_eq!(users, [(run, run_dir.clone())]);

        // Move only the run.
        let moved = root.join("archive/of/runs/run");
        std::fs::create_dir_all(moved.parent().expect("below")).expect("creatable");
        std::fs::rename(&run_dir, &moved).expect("movable");
        assert_eq!(find(&moved), Ok(blobs.clone()));
        write_reference(&moved, run, &store, &blobs).await.expect("noted");
        assert_eq!(runs_using(&store).await.expect("readable").len(), 2);

        // Move both, and create another store at the old path.
        let whole = root.join("whole");
        std::fs::create_dir(&whole).expect("creatable");
        for name in ["archive", "elsewhere"] {
            std::fs::rename(root.join(name), whole.join(name)).expect("movable");
        }
        drop(FsStore::open(&blobs).await.expect("another store"));
        let run_dir = whole.join("archive/of/runs/run");
        assert_eq!(find(&run_dir), Ok(whole.join("elsewhere/blobs")));

        std::fs::remove_dir_all(whole.join("elsewhere")).expect("removable");
        let missing = find(&run_dir).expect_err("it is gone");
        assert_eq!(missing.reference.expect("noted").directory, blobs);
        assert!(missing.searched.contains(&blobs), "{:?}", missing.searched);
        let with_parent = |place: &PathBuf| place.ends_with("../elsewhere/blobs");
        assert!(!missing.searched.iter().any(with_parent), "{:?}", missing.searched);
    }
}
