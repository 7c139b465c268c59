//! References between a run and its blob store: `store.json` in the run directory locates the store
//! for later commands and after a move; documents in the store list the directories of its runs.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rollout_base::shown_path::shown;
use rollout_environment::Owner;
use rollout_protocol::digest::DigestHasher;
use rollout_protocol::id::RunId;
use rollout_store::{BlobStore, StoreError, StoreUrl};
use serde::{Deserialize, Serialize};

use super::durable::FileError;
use super::registration::Registration;
use super::{layout, write_document};

/// Path prefix of the documents in a store that name its runs.
pub const RUNS: &str = "runs/";

/// Location of a run's blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReference {
    /// Identity of the store.
    pub identity: String,
    /// Its place.
    #[serde(flatten)]
    pub place: StorePlace,
}

/// Place of a blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StorePlace {
    /// A directory.
    Directory {
        /// Its path.
        directory: PathBuf,
        /// Its path relative to the run directory: valid after both were moved together.
        relative: PathBuf,
    },
    /// A service.
    Service {
        /// URL of the store, without secrets.
        url: String,
    },
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { directory, .. } => shown(directory).fmt(f),
            Self::Service { url } => f.write_str(url),
        }
    }
}

/// The blob store of a run was not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot find the blob store of the run: looked in {}", places(searched))]
pub struct NoStore {
    /// Places that were searched.
    pub searched: Vec<PathBuf>,
    /// Store that the run used.
    pub reference: Option<StoreReference>,
}

fn places(looked: &[PathBuf]) -> String {
    let places: Vec<_> = looked.iter().map(|place| shown(place).to_string()).collect();
    places.join(" and ")
}

/// Writes the reference to the store at `url` into the run directory, and the run's path into the
/// store. The caller has to finish the registration when the run ends.
///
/// # Errors
/// [`FileError`].
pub async fn write_reference(
    run_dir: &Path,
    run: RunId,
    store: &Arc<dyn BlobStore>,
    url: &StoreUrl,
) -> Result<Registration, FileError> {
    let root = run_dir.canonicalize().map_err(FileError::with_context("find", run_dir))?;
    let place = match url.directory() {
        Some(directory) => {
            let found = directory.canonicalize();
            let directory = found.map_err(FileError::with_context("find", directory))?;
            StorePlace::Directory { relative: relative(&root, &directory), directory }
        }
        None => StorePlace::Service { url: url.to_string() },
    };
    let registration =
        RegistrationDocument { host: this_host(), path: root.to_string_lossy().into_owned() };
    let text = serde_json::to_vec(&registration).expect("two texts have a JSON form");
    let path = registration_path(run, &registration.host, &root);
    let registration = Registration::start(Arc::clone(store), path, text.into()).await;
    let reference = StoreReference { identity: store.identity().to_owned(), place };
    if StoreReference::read(&root).as_ref() == Some(&reference) {
        return Ok(registration);
    }
    write_document(&root, layout::STORE, &reference)?;
    Ok(registration)
}

/// Path of the document that registers a directory of this host.
pub fn own_registration(run: RunId, run_dir: &Path) -> String {
    let root = run_dir.canonicalize().unwrap_or_else(|_| run_dir.to_owned());
    registration_path(run, &this_host(), &root)
}

fn registration_path(run: RunId, host: &str, root: &Path) -> String {
    let mut name = DigestHasher::default();
    name.update_part(host.as_bytes());
    name.update_part(root.as_os_str().as_encoded_bytes());
    format!("{RUNS}{run}/{}", &name.finish().hex()[..32])
}

impl StoreReference {
    /// Reads the reference of a run directory; `None` if it is missing or unreadable.
    pub fn read(run_dir: &Path) -> Option<Self> {
        let text = std::fs::read(run_dir.join(layout::STORE)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// Finds a run's store: where the run refers to, or beside the run.
///
/// # Errors
/// [`NoStore`].
pub fn find(run_dir: &Path) -> Result<StoreUrl, NoStore> {
    let run_dir = run_dir.canonicalize().unwrap_or_else(|_| run_dir.to_owned());
    let reference = StoreReference::read(&run_dir);
    let noted = match reference.as_ref().map(|reference| &reference.place) {
        Some(StorePlace::Service { url }) => {
            let absent = NoStore { searched: vec![url.into()], reference: reference.clone() };
            return url.parse().map_err(|_| absent);
        }
        Some(StorePlace::Directory { directory, relative }) => {
            vec![resolve(&run_dir, relative), directory.clone()]
        }
        None => Vec::new(),
    };
    let beside = run_dir.parent().unwrap_or(Path::new(".")).join(".rollout/blobs");
    let mut searched: Vec<PathBuf> = Vec::new();
    for candidate in noted.into_iter().chain([beside]) {
        let place = candidate.canonicalize().unwrap_or(candidate);
        if searched.contains(&place) {
            continue;
        }
        let found = identity_of(&place);
        if found.is_some_and(|id| reference.as_ref().is_none_or(|note| note.identity == id)) {
            return Ok(place.into());
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

/// A run's directory, as it is registered in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRegistration {
    /// The run.
    pub run: RunId,
    /// Name and machine of the host; absent in documents of earlier versions.
    pub host: Option<String>,
    /// The directory.
    pub directory: PathBuf,
}

impl RunRegistration {
    /// Whether the directory is on this host, as far as is known.
    pub fn is_of_this_host(&self) -> bool {
        self.host.as_ref().is_none_or(|host| *host == this_host())
    }
}

impl fmt::Display for RunRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (run {}", shown(&self.directory), self.run)?;
        match &self.host {
            Some(host) if !self.is_of_this_host() => {
                write!(f, " on {})", host.split('/').next().unwrap_or_default())
            }
            _ => f.write_str(")"),
        }
    }
}

/// Name of this host, and a token of its machine: machines that were copied may have the same name.
fn this_host() -> String {
    Owner::current(PathBuf::new()).host
}

/// Content of the document that registers a run.
#[derive(Serialize, Deserialize)]
struct RegistrationDocument {
    host: String,
    path: String,
}

/// Parses the document that registers a run. Earlier versions wrote the path alone.
fn parse_registration(run: RunId, text: &[u8]) -> RunRegistration {
    match serde_json::from_slice::<RegistrationDocument>(text) {
        Ok(document) => {
            let RegistrationDocument { host, path } = document;
            RunRegistration { run, host: Some(host), directory: path.into() }
        }
        Err(_) => {
            let directory = PathBuf::from(String::from_utf8_lossy(text).into_owned());
            RunRegistration { run, host: None, directory }
        }
    }
}

/// The directories of the runs that are registered in a store.
///
/// # Errors
/// [`StoreError`].
pub async fn runs_using(store: &dyn BlobStore) -> Result<Vec<RunRegistration>, StoreError> {
    let mut found = Vec::new();
    for path in store.list_documents(RUNS).await? {
        let run = path.strip_prefix(RUNS).and_then(|rest| rest.split('/').next());
        let Some(run) = run.and_then(|run| run.parse().ok()) else { continue };
        let Some(text) = store.get_document(&path).await? else { continue };
        found.push(parse_registration(run, &text));
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
    use rollout_store::fs::FsStore;

    use super::*;

    #[tokio::test]
    async fn blob_store_of_moved_run_is_found() {
        let temp = tempfile::tempdir().expect("a directory");
        let root = temp.path().canonicalize().expect("there");
        let (run_dir, blobs) = (root.join("jobs/run"), root.join("elsewhere/blobs"));
        std::fs::create_dir_all(&run_dir).expect("creatable");
        let store: Arc<dyn BlobStore> = Arc::new(FsStore::open(&blobs).await.expect("a store"));
        let run = RunId::from_bytes([3; 16]);
        write_reference(&run_dir, run, &store, &blobs.clone().into()).await.expect("noted");
        assert_eq!(find(&run_dir), Ok(blobs.clone().into()));
        let users = runs_using(&*store).await.expect("readable");
        let host = Some(this_host());
        assert_eq!(users, [RunRegistration { run, host, directory: run_dir.clone() }]);

        // Move only the run.
        let moved = root.join("archive/of/runs/run");
        std::fs::create_dir_all(moved.parent().expect("below")).expect("creatable");
        std::fs::rename(&run_dir, &moved).expect("movable");
        assert_eq!(find(&moved), Ok(blobs.clone().into()));
        write_reference(&moved, run, &store, &blobs.clone().into()).await.expect("noted");
        assert_eq!(runs_using(&*store).await.expect("readable").len(), 2);

        // Move both, and create another store at the old path.
        let whole = root.join("whole");
        std::fs::create_dir(&whole).expect("creatable");
        for name in ["archive", "elsewhere"] {
            std::fs::rename(root.join(name), whole.join(name)).expect("movable");
        }
        drop(FsStore::open(&blobs).await.expect("another store"));
        let run_dir = whole.join("archive/of/runs/run");
        assert_eq!(find(&run_dir), Ok(whole.join("elsewhere/blobs").into()));

        std::fs::remove_dir_all(whole.join("elsewhere")).expect("removable");
        let missing = find(&run_dir).expect_err("it is gone");
        assert_eq!(
            missing.reference.expect("noted").place.to_string(),
            blobs.display().to_string()
        );
        assert!(missing.searched.contains(&blobs), "{:?}", missing.searched);
        let with_parent = |place: &PathBuf| place.ends_with("../elsewhere/blobs");
        assert!(!missing.searched.iter().any(with_parent), "{:?}", missing.searched);
    }

    #[test]
    fn registration_of_earlier_version_is_a_path_on_this_host() {
        let run = RunId::from_bytes([3; 16]);
        let former = parse_registration(run, b"/jobs/a b");
        assert!(former.is_of_this_host());
        assert_eq!(former.to_string(), format!("/jobs/a b (run {run})"));
        let other =
            parse_registration(run, br#"{"host": "other/1a", "path": "/jobs/a", "new": 1}"#);
        assert!(!other.is_of_this_host());
        assert_eq!(other.to_string(), format!("/jobs/a (run {run} on other)"));
    }

    #[test]
    fn reference_to_service_is_its_url() {
        let temp = tempfile::tempdir().expect("a directory");
        let url = "s3://bucket/a?endpoint=http%3A%2F%2Fhost%3A9000";
        let directory = StorePlace::Directory { directory: "/a".into(), relative: "../a".into() };
        let service = StorePlace::Service { url: url.to_owned() };
        for place in [directory, service] {
            let reference = StoreReference { identity: "1a".to_owned(), place };
            write_document(temp.path(), layout::STORE, &reference).expect("written");
            assert_eq!(StoreReference::read(temp.path()), Some(reference));
        }
        assert_eq!(find(temp.path()).expect("found").to_string(), url);
    }
}
