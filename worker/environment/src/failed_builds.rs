//! Builds that failed, remembered so that a run does not repeat them for each of its trials.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use rollout_base::supervise::{self, BlockingDrop};
use rollout_protocol::id::RunId;
use tempfile::{NamedTempFile, TempPath};

use super::{Failure, FailureKind};

/// Builds of one image in a run when the failures may be temporary: as many as the retry policy
/// gives a single trial by default. More are useless, even for many trials.
const BUILDS_PER_RUN: u32 = 3;

/// Limit of remembered builds: more than the tasks of large datasets, some 60 MB at worst.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// Largest log kept for later trials, so that all of them together stay below 1 GB of disk. The
/// tail of every log is in the message anyway.
const LOG_BYTES: u64 = 64 * 1024;

/// An image's tag and the run that builds it.
pub type FailedBuildKey = (String, RunId);

/// A failed build or pull, shared by all callers that waited for it.
#[derive(Debug, Clone)]
pub struct ImageFailure {
    /// Its kind.
    pub kind: FailureKind,
    /// The message, with the tail of the log.
    pub message: String,
    /// The log, kept while a caller may want a copy.
    pub log: Option<Arc<FailedBuildLog>>,
    /// No build began: the failure says nothing about the image.
    pub before_build: bool,
}

/// The log of a failed build, in a temporary file.
#[derive(Debug)]
pub struct FailedBuildLog {
    file: BlockingDrop<TempPath>,
    bytes: u64,
}

impl FailedBuildLog {
    /// Writes a log to a file; `None` for one without text. A log that cannot be written only misses.
    pub async fn save(text: Vec<u8>) -> Option<Arc<Self>> {
        if text.is_empty() {
            return None;
        }
        let bytes = text.len() as u64;
        let write = move || {
            let mut file = NamedTempFile::new()?;
            file.write_all(&text)?;
            io::Result::Ok(BlockingDrop::new(file.into_temp_path()))
        };
        match supervise::blocking(write).await {
            Ok(file) => Some(Arc::new(Self { file, bytes })),
            Err(error) => {
                tracing::warn!("cannot keep the log of a build: {error}");
                None
            }
        }
    }
}

impl From<Failure> for ImageFailure {
    fn from(failure: Failure) -> Self {
        Self { kind: failure.kind, message: failure.chain(), log: None, before_build: false }
    }
}

impl ImageFailure {
    /// The failure for one of the waiting callers, with a copy of the log if requested.
    pub async fn into_failure(self, log: Option<&Path>) -> Failure {
        if let (Some(from), Some(to)) = (&self.log, log)
            && let Err(error) = copy(from, to).await
        {
            tracing::warn!(to = %to.display(), %error, "cannot write the build log");
        }
        Failure::new(self.kind, self.message)
    }
}

/// Copies a log into a directory that may not exist yet. The copy is whole or missing, also if its caller does
/// not wait: a cut may be within a secret, which is not found then.
async fn copy(from: &Arc<FailedBuildLog>, to: &Path) -> io::Result<()> {
    let (from, to) = (Arc::clone(from), to.to_owned());
    let copy = move || {
        let directory = to.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::create_dir_all(directory)?;
        let mut new = NamedTempFile::new_in(directory)?;
        io::copy(&mut File::open(&*from.file)?, &mut new)?;
        new.persist(&to)?;
        Ok(())
    };
    supervise::blocking(copy).await
}

/// Failed builds by image and run.
#[derive(Debug)]
pub struct FailedBuilds {
    known: Mutex<LruCache<FailedBuildKey, FailedBuild>>,
}

#[derive(Debug)]
struct FailedBuild {
    builds: u32,
    last: ImageFailure,
}

impl Default for FailedBuilds {
    fn default() -> Self {
        Self { known: Mutex::new(LruCache::new(REMEMBERED)) }
    }
}

impl FailedBuilds {
    /// The failure to return instead of building again, if any.
    pub fn get(&self, key: &FailedBuildKey) -> Option<ImageFailure> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = known.get(key)?;
        let mut last = failed.last.clone();
        if matches!(last.kind, FailureKind::Refused | FailureKind::Unsupported) {
            return Some(last);
        }
        if failed.builds < BUILDS_PER_RUN {
            return None;
        }
        let builds = failed.builds;
        last.message =
            format!("not built again after {builds} failures in this run: {}", last.message);
        Some(last)
    }

    /// Records the outcome of a build. A success clears the image's failures.
    pub fn record<T>(&self, key: FailedBuildKey, result: &Result<T, ImageFailure>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(broken) = result else {
            known.pop(&key);
            return;
        };
        // Without an answer nothing is known about the build.
        if broken.before_build || broken.kind == FailureKind::Unreachable {
            return;
        }
        let mut last = broken.clone();
        last.log = last.log.filter(|log| log.bytes <= LOG_BYTES);
        let builds = known.peek(&key).map_or(0, |failed| failed.builds) + 1;
        known.put(key, FailedBuild { builds, last });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(run: u8) -> FailedBuildKey {
        ("rollout/task:1".to_owned(), RunId::from_bytes([run; 16]))
    }

    fn broken(kind: FailureKind) -> Result<(), ImageFailure> {
        Err(Failure::new(kind, "why").into())
    }

    #[test]
    fn failed_build_refused_is_cached_for_same_run() {
        let failed = FailedBuilds::default();
        assert!(failed.get(&key(1)).is_none());
        failed.record(key(1), &broken(FailureKind::Refused));
        assert_eq!(failed.get(&key(1)).expect("known").message, "why");
        assert!(failed.get(&key(2)).is_none());
    }

    #[test]
    fn failed_build_transient_is_cached_after_max_builds() {
        let failed = FailedBuilds::default();
        let timed_out = broken(FailureKind::TimedOut);
        for _ in 1..BUILDS_PER_RUN {
            failed.record(key(1), &timed_out);
        }
        assert!(failed.get(&key(1)).is_none());
        failed.record(key(1), &Ok(()));
        for _ in 0..BUILDS_PER_RUN {
            assert!(failed.get(&key(1)).is_none());
            failed.record(key(1), &timed_out);
        }
        let answer = failed.get(&key(1)).expect("known");
        assert_eq!(answer.kind, FailureKind::TimedOut);
        assert_eq!(answer.message, "not built again after 3 failures in this run: why");
    }

    #[test]
    fn failure_before_a_build_is_no_failed_build() {
        let failed = FailedBuilds::default();
        for _ in 0..=BUILDS_PER_RUN {
            let waited = Failure::new(FailureKind::Service, "why");
            let waited = ImageFailure { before_build: true, ..waited.into() };
            failed.record(key(1), &Err::<(), _>(waited));
        }
        assert!(failed.get(&key(1)).is_none());
    }

    #[tokio::test]
    async fn failed_build_log_replaces_an_earlier_one_and_leaves_no_other_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let to = dir.path().join("setup/build.log");
        for text in ["first", "second"] {
            let log = FailedBuildLog::save(text.into()).await;
            let broken = ImageFailure { log, ..Failure::new(FailureKind::Refused, "why").into() };
            broken.into_failure(Some(&to)).await;
            assert_eq!(fs::read_to_string(&to).expect("a log"), text);
            let files = fs::read_dir(dir.path().join("setup")).expect("listed");
            assert_eq!(files.count(), 1, "{text}");
        }
    }

    #[tokio::test]
    async fn failed_build_log_above_limit_is_dropped() {
        let failed = FailedBuilds::default();
        for (run, bytes, kept) in [(1, LOG_BYTES, true), (2, LOG_BYTES + 1, false)] {
            let text = vec![b'x'; usize::try_from(bytes).expect("small")];
            let log = FailedBuildLog::save(text).await;
            assert!(log.is_some(), "{bytes}");
            let broken = Failure::new(FailureKind::Refused, "why");
            let broken = ImageFailure { log, ..broken.into() };
            failed.record(key(run), &Err::<(), _>(broken));
            assert_eq!(failed.get(&key(run)).expect("known").log.is_some(), kept, "{bytes}");
        }
    }
}
