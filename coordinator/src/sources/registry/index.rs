//! `registry.json`: datasets by name and version, and the sources of their tasks.
//!
//! The file is an array of datasets, or an object with the array under `datasets`. Several versions
//! of a dataset are several entries with its name. Without a version, `head` is used; if there is
//! none, the highest version; if the versions are not numbers, the last in alphabetical order.

use std::path::{Path, PathBuf};

use rollout_base::regular_file;
use rollout_base::shown_path::shown;
use rollout_protocol::spec::task::TaskFormat;
use serde::{Deserialize, Deserializer};

use super::cache::CacheScope;
use super::guard::Guard;
use super::{FETCH_HINT, HOST_HINT, http, version};
use crate::config::{FetchAccess, FetchNetwork, RegistryRef, RemoteHost, nearest, without_secrets};

/// Largest registry that is read: about a million tasks.
const REGISTRY_BYTES: u64 = 256 * 1024 * 1024;

/// Known names shown in a hint.
const MAX_NAMES_SHOWN: usize = 8;

/// A registry.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RegistryIndex {
    datasets: Vec<DatasetEntry>,
    /// Base directory for the paths of tasks without a repository.
    base: Option<PathBuf>,
}

/// A dataset of a registry.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct DatasetEntry {
    /// Name.
    pub name: String,
    /// Version.
    #[serde(default, deserialize_with = "text")]
    pub version: Option<String>,
    /// Description, informational.
    #[serde(default)]
    pub description: Option<String>,
    /// Format of its tasks.
    #[serde(default)]
    pub format: Option<TaskFormat>,
    /// Its tasks.
    pub tasks: Vec<TaskEntry>,
}

/// A task of a registry.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TaskEntry {
    /// Name; the directory's if absent.
    #[serde(default)]
    pub name: Option<String>,
    /// Repository; the registry's own directory if absent.
    #[serde(default)]
    pub git_url: Option<String>,
    /// Commit, branch or tag; HEAD if absent.
    #[serde(default)]
    pub git_commit_id: Option<String>,
    /// Directory inside the repository; its root if absent.
    #[serde(default)]
    pub path: Option<String>,
}

/// A parsed registry, with a warning if it may be stale.
#[derive(Debug)]
pub struct RegistryText {
    /// The registry.
    pub index: RegistryIndex,
    /// Reason why it may be stale.
    pub warning: Option<String>,
}

/// Error of finding a dataset in a registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The file does not exist.
    #[error("cannot read the registry {0}: no such file")]
    NotFound(String),
    /// The file cannot be read, or the URL is of an unknown kind.
    #[error("cannot read the registry {place}: {reason}")]
    Unreadable {
        /// Path or URL.
        place: String,
        /// Cause.
        reason: String,
    },
    /// Its server did not deliver it.
    #[error("cannot fetch the registry {url}: {reason}")]
    FetchFailed {
        /// Address, without password.
        url: String,
        /// Cause.
        reason: String,
    },
    /// This host lacks something that a fetch needs, such as open files.
    #[error("cannot fetch the registry {url}: {reason}")]
    Host {
        /// Address, without password.
        url: String,
        /// The system's error.
        reason: String,
    },
    /// It is not a valid registry.
    #[error("cannot read the registry {place}: it is not a list of datasets in JSON: {reason}")]
    Malformed {
        /// Path or URL.
        place: String,
        /// Cause, with the line.
        reason: String,
    },
    /// No dataset has the name.
    #[error("the dataset `{name}`, which the registry does not have")]
    UnknownDataset {
        /// The name as written.
        name: String,
        /// Names of existing datasets, truncated.
        known: Vec<String>,
        /// A similar name, if there is one.
        near: Option<String>,
    },
    /// No such version.
    #[error("version {version} of `{name}`, which the registry does not have")]
    UnknownVersion {
        /// Dataset.
        name: String,
        /// The version as written.
        version: String,
        /// The existing versions.
        known: Vec<String>,
    },
    /// Two entries for one version.
    #[error("two entries of the registry for `{name}`{}", version.as_ref().map(|v| format!(" version {v}")).unwrap_or_default())]
    Ambiguous {
        /// Dataset.
        name: String,
        /// Version.
        version: Option<String>,
    },
}

/// Reads a registry. A registry at a URL is kept in `cache`, and read from there while its server
/// does not answer, or this host cannot ask.
///
/// # Errors
/// [`IndexError`].
pub fn read(
    registry: &RegistryRef,
    base: &Path,
    cache: &Path,
    access: &FetchAccess,
) -> Result<RegistryText, IndexError> {
    match registry {
        RegistryRef::Path(path) => read_file(&base.join(path)),
        RegistryRef::Url(url) => match url.strip_prefix("file://") {
            Some(path) => read_file(Path::new(path)),
            None => fetch(url, &cache.join("registries"), access),
        },
    }
}

fn read_file(path: &Path) -> Result<RegistryText, IndexError> {
    let place = shown(path).to_string();
    let bytes = regular_file::read(path, REGISTRY_BYTES).map_err(|error| match error.kind() {
        // It may be an address with a mistake.
        std::io::ErrorKind::NotFound => IndexError::NotFound(without_secrets(&place)),
        _ => IndexError::Unreadable { place: place.clone(), reason: error.to_string() },
    })?;
    let mut index = parse(&bytes, &place)?;
    index.base = path.parent().map(Path::to_owned);
    Ok(RegistryText { index, warning: None })
}

fn fetch(url: &str, cache_dir: &Path, access: &FetchAccess) -> Result<RegistryText, IndexError> {
    let place = without_secrets(url);
    let known = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
    if !known {
        let reason = "its address is not `http`, `https` or `file`".to_owned();
        return Err(IndexError::Unreadable { place, reason });
    }
    let scope = match access.network {
        FetchNetwork::OwnUser => CacheScope::Credentials,
        FetchNetwork::Guarded(_) => CacheScope::Public,
    };
    let file = cache_dir.join(format!("{}.json", scope.key(url)));
    match download(url, access) {
        Ok(bytes) => {
            let index = parse(&bytes, &place)?;
            // Best effort: if it is not stored, it is fetched again next time.
            let _kept = store(cache_dir, &file, &bytes);
            Ok(RegistryText { index, warning: None })
        }
        Err(error) => last_known(error, &file, place),
    }
}

/// The cached content of a registry that was not got, if it may be used.
fn last_known(
    error: DownloadError,
    file: &Path,
    place: String,
) -> Result<RegistryText, IndexError> {
    let is_final = match &error {
        // Its cached content may not be used either.
        DownloadError::Refused(_) => true,
        DownloadError::Failed(reason) => http::is_denial(reason),
        DownloadError::Unresolved(_) | DownloadError::Host(_) => false,
    };
    let cached = if is_final { None } else { std::fs::read(file).ok() };
    let Some(bytes) = cached else { return Err(error.told(place)) };
    let warning = format!("{}; using its last known content", error.told(place.clone()));
    Ok(RegistryText { index: parse(&bytes, &place)?, warning: Some(warning) })
}

/// Why a registry was not got.
enum DownloadError {
    /// A host of it may not be asked.
    Refused(String),
    /// A host of it has no address now, told as [`Self::Refused`].
    Unresolved(String),
    /// This host lacks something, such as open files.
    Host(String),
    /// Its server did not deliver it.
    Failed(String),
}

impl DownloadError {
    /// The error for the author of a document.
    fn told(self, url: String) -> IndexError {
        match self {
            Self::Host(reason) => IndexError::Host { url, reason },
            Self::Refused(reason) | Self::Unresolved(reason) | Self::Failed(reason) => {
                IndexError::FetchFailed { url, reason }
            }
        }
    }
}

/// The registry at a URL. For a document of somebody else, its host was allowed with the URL; a
/// redirect may lead to it, to public addresses and to listed hosts.
fn download(url: &str, access: &FetchAccess) -> Result<Vec<u8>, DownloadError> {
    let hosts = match &access.network {
        FetchNetwork::OwnUser => {
            return http::get(url, REGISTRY_BYTES, None).map_err(DownloadError::Failed);
        }
        FetchNetwork::Guarded(hosts) => hosts.clone(),
    };
    let rule = RemoteHost::parse(url).and_then(|host| host.rule().parse().ok());
    let no_host = || DownloadError::Refused("its address has no plain host".to_owned());
    let hosts = hosts.with(rule.ok_or_else(no_host)?);
    let guard = Guard::start(hosts, access.cancelled.clone());
    let no_proxy = |error| DownloadError::Host(format!("cannot start a proxy for it: {error}"));
    let guard = guard.map_err(no_proxy)?;
    let body = http::get(url, REGISTRY_BYTES, Some(guard.url()));
    body.map_err(|reason| match guard.refusal() {
        // The look-up may have failed.
        Some(refused) if guard.lacks_addresses() => DownloadError::Unresolved(refused.to_owned()),
        Some(refused) => DownloadError::Refused(refused.to_owned()),
        None => DownloadError::Failed(reason),
    })
}

fn store(directory: &Path, file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let mut temporary = tempfile::Builder::new().prefix(".tmp-").tempfile_in(directory)?;
    std::io::Write::write_all(&mut temporary, bytes)?;
    temporary.as_file().sync_all()?;
    temporary.persist(file).map(|_| ()).map_err(|error| error.error)
}

fn parse(bytes: &[u8], place: &str) -> Result<RegistryIndex, IndexError> {
    #[derive(Deserialize)]
    struct RegistryObject {
        datasets: Vec<DatasetEntry>,
    }
    let is_object = bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
    let datasets = if is_object {
        serde_json::from_slice::<RegistryObject>(bytes).map(|object| object.datasets)
    } else {
        serde_json::from_slice(bytes)
    };
    let malformed = |error: serde_json::Error| IndexError::Malformed {
        place: place.to_owned(),
        reason: error.to_string(),
    };
    Ok(RegistryIndex { datasets: datasets.map_err(malformed)?, base: None })
}

impl RegistryIndex {
    /// The entry of a dataset.
    ///
    /// # Errors
    /// [`IndexError`] if there is none, or more than one.
    pub fn find(&self, name: &str, version: Option<&str>) -> Result<&DatasetEntry, IndexError> {
        let named = || self.datasets.iter().filter(|entry| entry.name == name);
        if named().next().is_none() {
            return Err(self.unknown(name));
        }
        let chosen = match version {
            Some(wanted) => named().find(|entry| entry.version.as_deref() == Some(wanted)),
            None => version::latest(named(), |entry| entry.version.as_deref()),
        };
        let Some(chosen) = chosen else {
            return Err(IndexError::UnknownVersion {
                name: name.to_owned(),
                version: version.unwrap_or_default().to_owned(),
                known: named().filter_map(|entry| entry.version.clone()).collect(),
            });
        };
        if named().filter(|entry| entry.version == chosen.version).count() > 1 {
            let version = chosen.version.clone();
            return Err(IndexError::Ambiguous { name: name.to_owned(), version });
        }
        Ok(chosen)
    }

    /// Base directory for the paths of tasks without a repository; `None` for a registry at a URL.
    pub fn base(&self) -> Option<&Path> {
        self.base.as_deref()
    }

    fn unknown(&self, name: &str) -> IndexError {
        let mut names: Vec<&str> = self.datasets.iter().map(|entry| entry.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let near = nearest(name, names.iter().copied()).map(str::to_owned);
        let known = names.into_iter().take(MAX_NAMES_SHOWN).map(str::to_owned).collect();
        IndexError::UnknownDataset { name: name.to_owned(), known, near }
    }
}

impl IndexError {
    /// Suggested fix.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::FetchFailed { .. } => Some(FETCH_HINT.to_owned()),
            Self::Host { .. } => Some(HOST_HINT.to_owned()),
            Self::UnknownDataset { near: Some(near), .. } => {
                Some(format!("did you mean `{near}`?"))
            }
            Self::UnknownDataset { known, .. } | Self::UnknownVersion { known, .. } => {
                Some(format!(
                    "available: {}",
                    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
                ))
            }
            _ => None,
        }
    }
}

/// Deserializes text, or a number as its text.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum TextOrNumber {
        Text(String),
        Number(serde_json::Number),
        Nothing(()),
    }
    Ok(match TextOrNumber::deserialize(deserializer)? {
        TextOrNumber::Text(text) => Some(text),
        TextOrNumber::Number(number) => Some(number.to_string()),
        TextOrNumber::Nothing(()) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread::JoinHandle;

    use rollout_base::supervise;

    use super::*;

    const REGISTRY: &str = r#"[
        {"name": "bench", "version": "1.0", "tasks": [{"git_url": "u", "path": "a"}], "metrics": []},
        {"name": "bench", "version": 1.1, "description": "newer", "format": "harbor", "tasks": []},
        {"name": "other", "tasks": []},
        {"name": "twice", "version": "1", "tasks": []},
        {"name": "twice", "version": "1", "tasks": []}
    ]"#;

    #[test]
    fn registry_file_that_is_an_odd_address_is_named_without_its_login() {
        let error = read_file(Path::new("/srv/https:/me:word@h/r.json")).expect_err("absent");
        assert!(!error.to_string().contains("word"), "{error}");
        let error = read_file(Path::new("/srv/none.json")).expect_err("absent");
        assert_eq!(error.to_string(), "cannot read the registry /srv/none.json: no such file");
    }

    #[test]
    fn registry_index_of_either_form_finds_version() {
        for text in [REGISTRY.to_owned(), format!(" {{\"datasets\": {REGISTRY}, \"x\": 1}}")] {
            let index = parse(text.as_bytes(), "r").expect("a registry");
            let version = |name, version| index.find(name, version).expect("found").version.clone();
            assert_eq!(version("bench", None).as_deref(), Some("1.1"));
            assert_eq!(version("bench", Some("1.0")).as_deref(), Some("1.0"));
            assert_eq!(version("other", None), None);
            let newest = index.find("bench", None).expect("found");
            assert_eq!(newest.format, Some(TaskFormat::Harbor));
        }
    }

    #[test]
    fn registry_index_lookup_failure_hints_known_names() {
        let index = parse(REGISTRY.as_bytes(), "r").expect("a registry");
        let error = index.find("benhc", None).expect_err("unknown");
        assert_eq!(error.hint().as_deref(), Some("did you mean `bench`?"));
        let error = index.find("zzz", None).expect_err("unknown");
        assert_eq!(error.hint().as_deref(), Some("available: bench, other, twice"));
        let error = index.find("bench", Some("2")).expect_err("unknown");
        assert_eq!(error.hint().as_deref(), Some("available: 1.0, 1.1"));
        assert!(matches!(index.find("twice", None), Err(IndexError::Ambiguous { .. })));
        for bad in ["", "{}", "[{\"name\": \"x\"}]", "[1]", "{\"datasets\": 3}"] {
            assert!(
                matches!(parse(bad.as_bytes(), "r"), Err(IndexError::Malformed { .. })),
                "{bad}"
            );
        }
    }

    /// The URL of a server that gives each of these answers once.
    fn serving(answers: Vec<String>) -> (String, JoinHandle<()>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let url = format!("http://{}/r.json", listener.local_addr().expect("an address"));
        let serving = move || {
            for text in answers {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut request = [0; 4096];
                let _whole = stream.read(&mut request).expect("a request");
                stream.write_all(text.as_bytes()).expect("answered");
            }
        };
        (url, supervise::thread("registry", serving).expect("a thread"))
    }

    fn answer(head: &str, body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
    }

    #[test]
    fn unknown_name_is_told_as_a_refused_one_and_may_be_an_outage_of_a_registry() {
        let cache = tempfile::tempdir().expect("a directory");
        let moved = |host: &str| answer(&format!("302 Found\r\nLocation: http://{host}/x"), "");
        let (url, server) = serving(vec![
            moved("a.invalid"),
            answer("200 OK", REGISTRY),
            moved("a.invalid"),
            moved("localhost"),
        ]);
        let fetched = || fetch(&url, cache.path(), &FetchAccess::default());
        let unknown = fetched().expect_err("nothing is known");
        let first = fetched().expect("a registry");
        let known = fetched().expect("the cached one");
        let warning = known.warning.expect("a warning");
        assert!(warning.contains("using its last known content"), "{warning}");
        assert_eq!((first.warning, first.index), (None, known.index));
        let refused = fetched().expect_err("it may not be asked");
        server.join().expect("it served");
        assert_eq!((unknown.hint(), &unknown), (refused.hint(), &refused));
    }

    #[test]
    fn server_that_only_redirects_gives_no_last_known_registry() {
        let cache = tempfile::tempdir().expect("a directory");
        let file = cache.path().join("r.json");
        std::fs::write(&file, REGISTRY).expect("written");
        let error = DownloadError::Failed(http::reason(&ureq::Error::TooManyRedirects));
        let error = last_known(error, &file, "http://h/r.json".to_owned()).expect_err("denied");
        assert!(error.to_string().contains("redirects too many times"), "{error}");
    }

    #[test]
    fn fault_of_this_host_leaves_the_last_known_registry() {
        let cache = tempfile::tempdir().expect("a directory");
        let file = cache.path().join("r.json");
        let found = || {
            let error = DownloadError::Host("no open files".to_owned());
            last_known(error, &file, "http://h/r.json".to_owned())
        };
        let error = found().expect_err("nothing is known");
        assert!(matches!(error, IndexError::Host { .. }), "{error:?}");
        assert_eq!(error.hint().as_deref(), Some(HOST_HINT));
        std::fs::write(&file, REGISTRY).expect("written");
        let warning = found().expect("the cached one").warning.expect("a warning");
        assert!(warning.contains("no open files; using its last known content"), "{warning}");
    }
}
