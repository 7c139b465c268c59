//! Runs on the command line: a run directory, or a run in the catalog of a blob store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
#[cfg(feature = "nats")]
use std::time::Duration;

use rollout_engine::catalog::{Catalog, CatalogHeader};
use rollout_engine::journal::RunLayout;
use rollout_protocol::id::RunId;
use rollout_protocol::name;
#[cfg(feature = "nats")]
use rollout_queue::nats::Nats;
use rollout_store::{BlobStore, StoreUrl};
use tempfile::TempDir;

use super::error::CliError;
#[cfg(feature = "nats")]
use super::nats::{self, ServedRun, ServerAddress};
use super::output::quoted;
use super::store_url;
use crate::results::files::store::{StorePlace, StoreReference};
use crate::results::files::{layout, write_document};
use crate::results::view::{RunDirectory, RunViewError};

/// Schemes of stores. A text without one is a run directory.
const SCHEMES: [&str; 2] = ["s3://", "file://"];

/// A run in a catalog, as a user names it: `s3://bucket/prefix?endpoint=…#RUN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CatalogAddress {
    /// The store.
    pub(super) store: StoreUrl,
    /// Id or job of the run, after `#`.
    pub(super) run: Option<String>,
}

impl CatalogAddress {
    /// The run in a catalog that a text means; `None` for a path.
    ///
    /// # Errors
    /// The URL is not one of a store.
    pub(super) fn parse(text: &Path) -> Result<Option<Self>, CliError> {
        let Some(text) = text.to_str().filter(|text| is_url(text)) else { return Ok(None) };
        let (url, run) = match text.split_once('#') {
            Some((url, run)) => (url, Some(run.to_owned()).filter(|run| !run.is_empty())),
            None => (text, None),
        };
        Ok(Some(Self { store: store_url::parse(url)?, run }))
    }

    /// Opens the store, which must exist.
    pub(super) async fn open_store(&self) -> Result<Arc<dyn BlobStore>, CliError> {
        Ok(rollout_store::open_existing(&self.store).await?)
    }
}

impl fmt::Display for CatalogAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.store.directory() {
            Some(path) => write!(f, "file://{}", path.display())?,
            None => write!(f, "{}", self.store)?,
        }
        self.run.iter().try_for_each(|run| write!(f, "#{run}"))
    }
}

/// Whether a text is a URL rather than a path.
fn is_url(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| text.starts_with(scheme))
}

/// A run to read: its directory, or a temporary copy of a run in a catalog.
#[derive(Debug)]
pub(super) struct RunPlace {
    directory: PathBuf,
    copy: Option<RunCopy>,
}

/// A temporary copy of a run.
#[derive(Debug)]
struct RunCopy {
    _directory: TempDir,
    source: CopySource,
    run: RunId,
}

/// The source of a copy.
#[derive(Debug)]
enum CopySource {
    Catalog(Catalog),
    /// The run's coordinator.
    #[cfg(feature = "nats")]
    Coordinator(Box<Nats>),
}

impl RunPlace {
    /// Opens the run that a user names. A run in a catalog is copied without its blobs.
    ///
    /// # Errors
    /// The store cannot be read, or has no such run.
    pub(super) async fn open(text: &Path) -> Result<Self, CliError> {
        #[cfg(feature = "nats")]
        if let Some(address) = ServerAddress::parse(text) {
            return Self::open_live(&address).await;
        }
        let Some(address) = CatalogAddress::parse(text)? else {
            if text.try_exists().is_ok_and(|exists| !exists) {
                return Err(no_run(text));
            }
            return Ok(Self { directory: text.to_owned(), copy: None });
        };
        let store = address.open_store().await?;
        let header = Catalog::new(Arc::clone(&store)).find(address.run.as_deref()).await?;
        let copies = temporary()?;
        let directory = copies.path().join(directory_name(&header));
        copy_run(&store, &address.store, &header, &directory).await?;
        let source = CopySource::Catalog(Catalog::new(store));
        let copy = RunCopy { _directory: copies, source, run: header.run };
        Ok(Self { directory, copy: Some(copy) })
    }

    /// Copies a run that its coordinator shows.
    #[cfg(feature = "nats")]
    async fn open_live(address: &ServerAddress) -> Result<Self, CliError> {
        let nats = Box::new(address.connect().await?);
        let ServedRun { run, entry, .. } = address.find(&nats).await?;
        let copies = temporary()?;
        let name = if name::check(&entry.job).is_ok() { entry.job } else { run.to_string() };
        let directory = copies.path().join(name);
        nats::copy_run(&nats, run, &directory).await?;
        let source = CopySource::Coordinator(nats);
        Ok(Self { directory, copy: Some(RunCopy { _directory: copies, source, run }) })
    }

    /// Brings a copy up to date.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) async fn refresh(&self) -> Result<(), CliError> {
        let Some(RunCopy { source, run, .. }) = &self.copy else { return Ok(()) };
        match source {
            CopySource::Catalog(catalog) => {
                Ok(catalog.download(*run, &RunLayout::new(&self.directory)).await?)
            }
            #[cfg(feature = "nats")]
            CopySource::Coordinator(nats) => nats::copy_run(nats, *run, &self.directory).await,
        }
    }

    /// Whether its files are on another host, or belong to one.
    pub(super) fn is_copy(&self) -> bool {
        self.copy.is_some()
    }

    /// Its directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Reads its documents.
    ///
    /// # Errors
    /// [`RunViewError`].
    pub(super) fn read(&self) -> Result<RunDirectory, RunViewError> {
        let directory = RunDirectory::open(&self.directory)?;
        Ok(match self.copy.as_ref().map(|copy| &copy.source) {
            None => directory,
            Some(CopySource::Catalog(_)) => directory.without_owner(),
            // It has just answered, whatever the clock of its host shows.
            #[cfg(feature = "nats")]
            Some(CopySource::Coordinator(_)) => {
                directory.without_owner().with_heartbeat_age(Duration::ZERO)
            }
        })
    }
}

/// Copies of all runs in a catalog, one directory each, or why a run cannot be copied.
///
/// # Errors
/// The store cannot be read.
pub(super) async fn copy_all(
    address: &CatalogAddress,
) -> Result<(TempDir, Vec<(CatalogHeader, Result<PathBuf, CliError>)>), CliError> {
    let store = address.open_store().await?;
    let headers = match &address.run {
        Some(run) => vec![Catalog::new(Arc::clone(&store)).find(Some(run)).await?],
        None => Catalog::new(Arc::clone(&store)).runs().await?,
    };
    let (copies, mut copied) = (temporary()?, Vec::new());
    for header in headers {
        let directory = copies.path().join(header.run.to_string());
        let made = copy_run(&store, &address.store, &header, &directory).await;
        copied.push((header, made.map(|()| directory)));
    }
    Ok((copies, copied))
}

async fn copy_run(
    store: &Arc<dyn BlobStore>,
    url: &StoreUrl,
    header: &CatalogHeader,
    directory: &Path,
) -> Result<(), CliError> {
    Catalog::new(Arc::clone(store)).download(header.run, &RunLayout::new(directory)).await?;
    let place = match url.directory() {
        Some(path) => {
            StorePlace::Directory { directory: path.to_owned(), relative: path.to_owned() }
        }
        None => StorePlace::Service { url: url.to_string() },
    };
    let reference = StoreReference { identity: store.identity().to_owned(), place };
    write_document(directory, layout::STORE, &reference)
        .map_err(|error| CliError::failure("cannot copy the run", &error))
}

/// The error of a run directory that does not exist.
pub(super) fn no_run(run_dir: &Path) -> CliError {
    let parent = run_dir.parent().map(|parent| match parent.as_os_str().is_empty() {
        true => Path::new("."),
        false => parent,
    });
    let parent = parent.filter(|parent| parent.is_dir());
    let hint = match parent {
        Some(parent) => {
            format!("run `rollout list {}` to see its runs", quoted(&parent.to_string_lossy()))
        }
        None => "`rollout list DIR` shows the runs in a directory".to_owned(),
    };
    CliError::refused(format!("cannot find the run: no run at {}", run_dir.display())).hint(&hint)
}

/// The error of a path that is not a run directory.
pub(super) fn not_a_run(path: &Path, missing: &'static str) -> CliError {
    RunViewError::NotRunDirectory { path: path.to_owned(), what: missing }.into()
}

/// The parent and the name of a run directory that a user names; `None` if it is `planned`, where its
/// options say it is. Otherwise it was moved, or options of an earlier version do not name it.
pub(super) fn moved(run_dir: &Path, planned: &Path) -> Result<Option<(PathBuf, String)>, CliError> {
    let what = || format!("cannot use the run directory {}", run_dir.display());
    let full = run_dir.canonicalize().map_err(|error| CliError::failure(what(), &error))?;
    if planned.canonicalize().is_ok_and(|planned| planned == full) {
        return Ok(None);
    }
    let name = full.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name::check(name).map_err(|error| CliError::config(what(), &error))?;
    Ok(Some((full.parent().unwrap_or(&full).to_owned(), name.to_owned())))
}

/// The name of a copy: views show it as the name of the job.
fn directory_name(header: &CatalogHeader) -> String {
    match name::check(&header.job) {
        Ok(()) => header.job.clone(),
        Err(_) => header.run.to_string(),
    }
}

fn temporary() -> Result<TempDir, CliError> {
    let made = tempfile::Builder::new().prefix("rollout-").tempdir();
    made.map_err(|error| CliError::failure("cannot make a temporary directory", &error))
}

#[cfg(test)]
mod tests {
    use rollout_protocol::exit::ExitCode;

    use super::*;

    fn parse(text: &str) -> Option<(String, Option<String>)> {
        let parsed = CatalogAddress::parse(Path::new(text)).expect("valid");
        parsed.map(|address| (address.store.to_string(), address.run))
    }

    #[test]
    fn run_of_catalog_is_named_by_url_and_fragment() {
        let url = "s3://bucket/a?endpoint=http%3A%2F%2Fhost%3A9000".to_owned();
        let named = parse(&format!("{url}#demo"));
        assert_eq!(named, Some((url.clone(), Some("demo".to_owned()))));
        assert_eq!(parse(&url), Some((url.clone(), None)));
        assert_eq!(parse(&format!("{url}#")), Some((url, None)));
        assert_eq!(parse("file:///a/b"), Some(("/a/b".to_owned(), None)));
        for path in ["jobs/demo", "./s3://odd", "jobs/a#b"] {
            assert_eq!(parse(path), None, "{path}");
        }
        assert!(CatalogAddress::parse(Path::new("s3://")).is_err());
    }

    #[tokio::test]
    async fn run_directory_that_does_not_exist_is_named_with_its_siblings() {
        let temp = tempfile::tempdir().expect("a directory");
        let nope = temp.path().join("nope");
        let refused = RunPlace::open(&nope).await.expect_err("no run");
        assert_eq!(refused.code, ExitCode::Config);
        let expected = format!("cannot find the run: no run at {}", nope.display());
        assert_eq!(refused.message, expected);
        let list = format!("run `rollout list {}` to see its runs", temp.path().display());
        assert_eq!(refused.hints, [list]);
        let far = no_run(Path::new("none/at/all"));
        assert_eq!(far.hints, ["`rollout list DIR` shows the runs in a directory"]);
    }

    #[test]
    fn run_directory_moved_is_where_the_user_says() {
        let temp = tempfile::tempdir().expect("a directory");
        let root = temp.path().canonicalize().expect("a path");
        let (demo, other) = (root.join("demo"), root.join("other"));
        std::fs::create_dir(&demo).expect("creatable");
        let found = |planned: &Path| moved(&demo, planned).expect("a directory");
        assert_eq!(found(&root.join("./demo/")), None);
        let there = Some((root.clone(), "demo".to_owned()));
        assert_eq!(found(&other), there, "it does not exist");
        std::fs::create_dir(&other).expect("creatable");
        assert_eq!(found(&other), there, "another run");
        assert!(moved(&root.join("none"), &demo).is_err());
    }
}
