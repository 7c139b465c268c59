//! Collection of log directories as clean archives on this host's disk; rewards are read in the
//! same pass. A failed collection never erases a reward that was read.

use std::path::{Path, PathBuf};

use rollout_base::secrets::Redactor;
use rollout_environment::Environment;
use rollout_protocol::limits;
use rollout_store::archive::{
    self, ArchiveLimits, ArchivePath, ArchiveTruncation, CapturedFile, ExcludePatterns,
    RootHandling, SanitizeOptions, SecretMembers,
};

use super::failure::RewardError;
use super::rewards::{RewardFiles, score_from_files};
use super::score::VerifierScore;
use crate::executor::{self, COPY_LIMIT, CleanArchive, CollectionFailure};
use crate::verifier::{LOGS, VERIFIER_LOGS};

/// The directory to collect.
#[derive(Debug, Clone, Copy)]
pub(super) enum LogScope {
    /// `/logs`.
    All,
    /// `/logs` without the verifiers' directory, which was collected separately.
    WithoutVerifier,
    /// `/logs/verifier`, under names that begin with `verifier/`.
    Verifier,
}

/// The collected logs.
#[derive(Debug, Default)]
pub(super) struct CollectedLogs {
    /// The archive.
    pub(super) logs: Option<CleanArchive>,
    /// The verifier's score, when it was requested.
    pub(super) score: Option<Result<VerifierScore, RewardError>>,
    /// The score under the other format, when one was requested and the format is a guess.
    pub(super) other_score: Option<VerifierScore>,
    /// Why the archive is missing or incomplete.
    pub(super) failure: Option<CollectionFailure>,
}

/// Collects logs into a file, and the score of a verifier that succeeded.
///
/// A process that the agent left running can change files while they are read, so that no score can
/// be read. Everything that runs is killed then, and the logs are read once more.
pub(super) async fn collect(
    environment: &dyn Environment,
    what: LogScope,
    file: PathBuf,
    redactor: &Redactor,
    wanted: Option<&RewardFiles<'_>>,
) -> CollectedLogs {
    let collected = collect_once(environment, what, file.clone(), redactor, wanted).await;
    let unreadable = matches!(collected.score, Some(Err(RewardError::Unreadable { .. })));
    if !unreadable || executor::kill_processes(environment).await.is_some() {
        return collected;
    }
    let file = file.with_extension("again.tar");
    let again = collect_once(environment, what, file, redactor, wanted).await;
    CollectedLogs { logs: again.logs.or(collected.logs), ..again }
}

async fn collect_once(
    environment: &dyn Environment,
    what: LogScope,
    file: PathBuf,
    redactor: &Redactor,
    wanted: Option<&RewardFiles<'_>>,
) -> CollectedLogs {
    let path = if matches!(what, LogScope::Verifier) { VERIFIER_LOGS } else { LOGS };
    let captures = wanted.map_or_else(Vec::new, RewardFiles::captures);
    let options = sanitize_options(what, captures, redactor);
    let reading = executor::read_sanitized(environment, path, file.clone(), options).await;
    let mut captured = reading.captured;
    let failure = reading.failure.map(|why| (why, reading.shortage));
    let mut collected =
        CollectedLogs { logs: reading.archive, failure, ..CollectedLogs::default() };
    if let Some(wanted) = wanted {
        for (captured, name) in captured.iter_mut().zip(wanted.files) {
            // An archive has the content of a hard-linked file only at its first name; read alone,
            // the reward's name is the first.
            if matches!(captured, CapturedFile::NotReached | CapturedFile::HardLink) {
                *captured = read_reward_file(environment, name, &file).await;
            }
        }
        let linked = "it is a hard link and cannot be read alone";
        let why = collected.failure.as_ref().map_or(linked, |(why, _)| why);
        collected.other_score = wanted.other_score(&captured, redactor);
        collected.score = Some(score_from_files(wanted, captured, redactor, why));
    }
    collected
}

fn sanitize_options(
    what: LogScope,
    captures: Vec<(ArchivePath, u64)>,
    redactor: &Redactor,
) -> SanitizeOptions {
    let (root, exclude) = match what {
        LogScope::All => (RootHandling::Drop, ExcludePatterns::default()),
        LogScope::WithoutVerifier => (RootHandling::Drop, ExcludePatterns::new(["/verifier"])),
        LogScope::Verifier => (RootHandling::Keep, ExcludePatterns::default()),
    };
    let limits = ArchiveLimits::LOGS;
    let (redactor, secrets) = (redactor.clone(), SecretMembers::Mask);
    SanitizeOptions { limits, root, exclude, faithful: false, captures, redactor, secrets }
}

/// Reads a reward file alone: the logs ended before it, or contained only its name.
async fn read_reward_file(environment: &dyn Environment, name: &str, logs: &Path) -> CapturedFile {
    let stream = match executor::open_stream(environment, &format!("{VERIFIER_LOGS}/{name}")).await
    {
        Ok(Some(stream)) => stream,
        Ok(None) => return CapturedFile::Missing,
        Err(_) => return CapturedFile::NotReached,
    };
    let file = logs.with_extension("reward.tar");
    let most = limits::REWARD_JSON_BYTES;
    let options = SanitizeOptions {
        limits: ArchiveLimits { entries: 1, bytes: most },
        root: RootHandling::Keep,
        exclude: ExcludePatterns::default(),
        faithful: false,
        captures: ArchivePath::clean(name.as_bytes())
            .expect("a short name")
            .map(|path| (path, most))
            .into_iter()
            .collect(),
        redactor: Redactor::default(),
        secrets: SecretMembers::Mask,
    };
    let sanitizing = archive::sanitize(stream, &file, options);
    let captured = match tokio::time::timeout(COPY_LIMIT, sanitizing).await {
        // Nothing else is in this archive that could be too large.
        Ok(mut clean) => match (clean.captured.pop(), clean.report.cut) {
            (Some(CapturedFile::NotReached), Some(ArchiveTruncation::Bytes(bytes))) => {
                CapturedFile::TooLarge(bytes)
            }
            (captured, _) => captured.unwrap_or(CapturedFile::NotReached),
        },
        Err(_) => CapturedFile::NotReached,
    };
    // Best effort: the whole scratch directory is removed later.
    let _removed = tokio::fs::remove_file(&file).await;
    captured
}
