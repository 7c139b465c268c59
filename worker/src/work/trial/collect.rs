//! Collection: log directories become clean archives on this host's disk, and rewards are read on
//! the way. A collection that fails never erases a reward that was read.

use std::path::{Path, PathBuf};

use rollout_protocol::blob::MediaType;
use rollout_protocol::limits;

use super::failure::RewardError;
use super::rewards::{Wanted, judge};
use super::score::Score;
use super::{CapturedFile, FileRole};
use crate::archive::{self, ArchivePath, Captured, Cut, Exclude, Limits, Root, Sanitize};
use crate::environment::{ByteStream, Environment, Failure, FailureKind};
use crate::executor::{self, COPY_LIMIT, within};
use crate::secrets::Redactor;
use crate::shortage::Shortage;
use crate::verifier::{LOGS, VERIFIER_LOGS};

/// What to collect.
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// `/logs`.
    All,
    /// `/logs` without what verifiers left there: that was collected by itself.
    WithoutVerifier,
    /// `/logs/verifier`, under names that begin with `verifier/`.
    Verifier,
}

/// An archive of logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Logs {
    pub(super) file: PathBuf,
    pub(super) entries: u64,
    pub(super) skipped: u64,
    pub(super) truncated: bool,
}

/// Why something is missing, and what this host ran out of then.
pub(super) type Lost = (String, Option<Shortage>);

/// What was collected.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// The archive.
    pub(super) logs: Option<Logs>,
    /// What the verifier's numbers are, when they were asked for.
    pub(super) score: Option<Result<Score, RewardError>>,
    /// Why the archive is missing or not whole.
    pub(super) failure: Option<Lost>,
}

impl Logs {
    /// As the trial's own logs.
    pub(super) fn of_trial(self) -> CapturedFile {
        let Self { file, entries, skipped, truncated } = self;
        let role = FileRole::Logs { entries, skipped, truncated };
        CapturedFile { file, media_type: MediaType::Tar, role }
    }

    /// As the logs of a step's verifier.
    pub(super) fn of_step(self, step: usize) -> CapturedFile {
        let Self { file, entries, skipped, truncated } = self;
        let role = FileRole::StepLogs { step, entries, skipped, truncated };
        CapturedFile { file, media_type: MediaType::Tar, role }
    }

    /// Both in one archive; the first alone when the disk does not take it.
    pub(super) async fn and(self, other: Self) -> (Self, Option<Lost>) {
        let file = self.file.with_extension("joined.tar");
        match archive::join(vec![self.file.clone(), other.file], &file).await {
            Ok(()) => {
                let joined = Self {
                    file,
                    entries: self.entries + other.entries,
                    skipped: self.skipped + other.skipped,
                    truncated: self.truncated || other.truncated,
                };
                (joined, None)
            }
            Err(error) => (self, Some(lost(LOGS, &error))),
        }
    }
}

/// Collects logs into a file, and the verifier's numbers where it ended well.
///
/// What an agent left running can change files while they are read, so that no number can be read.
/// Everything that runs is ended then, and the logs are read once more.
pub(super) async fn collect(
    environment: &dyn Environment,
    what: What,
    file: PathBuf,
    redactor: &Redactor,
    wanted: Option<&Wanted<'_>>,
) -> Collected {
    let collected = once(environment, what, file.clone(), redactor, wanted).await;
    let unreadable = matches!(collected.score, Some(Err(RewardError::Unreadable { .. })));
    if !unreadable || executor::kill(environment).await.is_some() {
        return collected;
    }
    let file = file.with_extension("again.tar");
    let again = once(environment, what, file, redactor, wanted).await;
    Collected { logs: again.logs.or(collected.logs), ..again }
}

async fn once(
    environment: &dyn Environment,
    what: What,
    file: PathBuf,
    redactor: &Redactor,
    wanted: Option<&Wanted<'_>>,
) -> Collected {
    let path = if matches!(what, What::Verifier) { VERIFIER_LOGS } else { LOGS };
    let mut collected = Collected::default();
    let captures = wanted.map_or_else(Vec::new, Wanted::captures);
    let mut captured = vec![Captured::Unknown; captures.len()];
    match open(environment, path).await {
        Ok(None) => captured.fill(Captured::Missing),
        Ok(Some(stream)) => {
            let options = options(what, captures, redactor);
            let found = logs(stream, path, file.clone(), options, &mut captured).await;
            (collected.logs, collected.failure) = found;
        }
        Err(failure) => {
            let full = (failure.kind == FailureKind::DiskFull).then_some(Shortage::Disk);
            collected.failure = Some((format!("{path}: {}", failure.chain()), full));
        }
    }
    if let Some(wanted) = wanted {
        for (captured, name) in captured.iter_mut().zip(wanted.files) {
            // An archive has the content of a file with several names only at the first of them;
            // asked for by itself, the reward's name is the first.
            if matches!(captured, Captured::Unknown | Captured::HardLink) {
                *captured = reward_alone(environment, name, &file).await;
            }
        }
        let linked = "it is a hard link and could not be read by itself";
        let why = collected.failure.as_ref().map_or(linked, |(why, _)| why);
        collected.score = Some(judge(wanted, captured, redactor, why));
    }
    collected
}

fn options(what: What, captures: Vec<(ArchivePath, u64)>, redactor: &Redactor) -> Sanitize {
    let (root, exclude) = match what {
        What::All => (Root::Dropped, Exclude::default()),
        What::WithoutVerifier => (Root::Dropped, Exclude::new(["/verifier"])),
        What::Verifier => (Root::Kept, Exclude::default()),
    };
    let limits = Limits::LOGS;
    Sanitize { limits, root, exclude, faithful: false, captures, redactor: redactor.clone() }
}

async fn open(environment: &dyn Environment, path: &str) -> Result<Option<ByteStream>, Failure> {
    within(COPY_LIMIT, "reading the logs", environment.copy_from(path)).await
}

async fn logs(
    stream: ByteStream,
    path: &str,
    file: PathBuf,
    options: Sanitize,
    captured: &mut Vec<Captured>,
) -> (Option<Logs>, Option<Lost>) {
    let directory = file.parent().expect("it is below the scratch directory");
    if let Err(error) = tokio::fs::create_dir_all(directory).await {
        let why = format!("{path}: {}: {error}", directory.display());
        return (None, Some((why, Shortage::of(&error))));
    }
    let sanitizing = archive::sanitize(stream, &file, options);
    let Ok(clean) = tokio::time::timeout(COPY_LIMIT, sanitizing).await else {
        let limit = COPY_LIMIT;
        return (None, Some((format!("{path}: reading them took longer than {limit:?}"), None)));
    };
    *captured = clean.captured;
    let report = clean.report;
    let failure = report.cut.as_ref().map(|cut| (format!("{path} is not whole: {cut}"), None));
    match clean.archive {
        Ok(packed) => {
            let (skipped, truncated) = (report.skipped.total(), report.cut.is_some());
            (Some(Logs { file, entries: packed.entries, skipped, truncated }), failure)
        }
        Err(error) => (None, Some(lost(path, &error))),
    }
}

fn lost(path: &str, error: &(dyn std::error::Error + 'static)) -> Lost {
    (format!("{path}: {}", crate::backoff::chain(error)), Shortage::of_cause(error))
}

/// Reads a reward file by itself: reading the logs ended before it came, or gave only its name.
async fn reward_alone(environment: &dyn Environment, name: &str, logs: &Path) -> Captured {
    let stream = match open(environment, &format!("{VERIFIER_LOGS}/{name}")).await {
        Ok(Some(stream)) => stream,
        Ok(None) => return Captured::Missing,
        Err(_) => return Captured::Unknown,
    };
    let file = logs.with_extension("reward.tar");
    let most = limits::REWARD_JSON_BYTES;
    let options = Sanitize {
        limits: Limits { entries: 1, bytes: most },
        root: Root::Kept,
        exclude: Exclude::default(),
        faithful: false,
        captures: ArchivePath::clean(name.as_bytes())
            .expect("a short name")
            .map(|path| (path, most))
            .into_iter()
            .collect(),
        redactor: Redactor::default(),
    };
    let sanitizing = archive::sanitize(stream, &file, options);
    let captured = match tokio::time::timeout(COPY_LIMIT, sanitizing).await {
        // Nothing else is in this archive that could be too large.
        Ok(mut clean) => match (clean.captured.pop(), clean.report.cut) {
            (Some(Captured::Unknown), Some(Cut::Bytes(bytes))) => Captured::TooLarge(bytes),
            (captured, _) => captured.unwrap_or(Captured::Unknown),
        },
        Err(_) => Captured::Unknown,
    };
    // Best effort: the scratch directory goes as a whole.
    let _removed = tokio::fs::remove_file(&file).await;
    captured
}
