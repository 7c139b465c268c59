//! Collection: `/logs` becomes one clean archive on this host's disk, and the reward is read on the
//! way. A collection that fails never erases a reward that was read.

use std::path::Path;

use rollout_protocol::blob::MediaType;
use rollout_protocol::limits;

use super::failure::RewardError;
use super::{CapturedFile, FileRole, within};
use crate::archive::{self, ArchivePath, Captured, Cut, Limits, Sanitize};
use crate::environment::{ByteStream, Environment, Failure};
use crate::secrets::Redactor;
use crate::verifier::{REWARD_FILE, reward};

/// What was collected.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// The archive of `/logs`.
    pub(super) logs: Option<CapturedFile>,
    /// The reward, when one was asked for.
    pub(super) reward: Option<Result<f64, RewardError>>,
    /// Why the archive is missing or not whole.
    pub(super) failure: Option<String>,
}

/// Collects `/logs` into `scratch`, and the reward where the verifier ended well.
pub(super) async fn collect(
    environment: &dyn Environment,
    scratch: &Path,
    redactor: &Redactor,
    wants_reward: bool,
) -> Collected {
    let (mut collected, mut captured) = (Collected::default(), Captured::Unknown);
    match open(environment, "/logs").await {
        Ok(None) => captured = Captured::Missing,
        Ok(Some(stream)) => {
            let (logs, found, failure) = logs(stream, scratch, redactor).await;
            (collected.logs, captured, collected.failure) = (logs, found, failure);
        }
        Err(failure) => collected.failure = Some(format!("/logs: {}", failure.chain())),
    }
    if wants_reward {
        // An archive has the content of a file with several names only at the first of them; asked
        // for by itself, the reward's name is the first.
        if matches!(captured, Captured::Unknown | Captured::HardLink) {
            captured = reward_alone(environment, scratch).await;
        }
        let linked = "it is a hard link and could not be read by itself";
        let why = || collected.failure.clone().unwrap_or_else(|| linked.to_owned());
        collected.reward = Some(judge(captured, redactor, why));
    }
    collected
}

async fn open(environment: &dyn Environment, path: &str) -> Result<Option<ByteStream>, Failure> {
    within(super::COPY_LIMIT, "reading the logs", environment.copy_from(path)).await
}

async fn logs(
    stream: ByteStream,
    scratch: &Path,
    redactor: &Redactor,
) -> (Option<CapturedFile>, Captured, Option<String>) {
    let file = scratch.join("logs.tar");
    if let Err(error) = tokio::fs::create_dir_all(scratch).await {
        return (None, Captured::Unknown, Some(format!("/logs: {}: {error}", scratch.display())));
    }
    let options = Sanitize {
        limits: Limits::LOGS,
        strip_first: true,
        capture: reward_path("verifier/reward.txt"),
        redactor: redactor.clone(),
    };
    let sanitizing = archive::sanitize(stream, &file, options);
    let Ok(clean) = tokio::time::timeout(super::COPY_LIMIT, sanitizing).await else {
        let why = format!("/logs: reading them took longer than {:?}", super::COPY_LIMIT);
        return (None, Captured::Unknown, Some(why));
    };
    let report = clean.report;
    let failure = report.cut.as_ref().map(|cut| format!("/logs is not whole: {cut}"));
    match clean.archive {
        Ok(packed) => {
            let role = FileRole::Logs {
                entries: packed.entries,
                skipped: report.skipped.total(),
                truncated: report.cut.is_some(),
            };
            let logs = CapturedFile { file, media_type: MediaType::Tar, role };
            (Some(logs), clean.captured, failure)
        }
        Err(error) => {
            let cause =
                std::error::Error::source(&error).map_or_else(String::new, |e| format!(": {e}"));
            (None, clean.captured, Some(format!("/logs: {error}{cause}")))
        }
    }
}

fn reward_path(path: &str) -> Option<(ArchivePath, u64)> {
    let path = ArchivePath::clean(path.as_bytes()).expect("a short path")?;
    Some((path, limits::REWARD_FILE_BYTES))
}

/// Reads the reward file by itself: reading `/logs` ended before it came, or gave only its name.
async fn reward_alone(environment: &dyn Environment, scratch: &Path) -> Captured {
    let stream = match open(environment, REWARD_FILE).await {
        Ok(Some(stream)) => stream,
        Ok(None) => return Captured::Missing,
        Err(_) => return Captured::Unknown,
    };
    let file = scratch.join("reward.tar");
    let options = Sanitize {
        limits: Limits { entries: 1, bytes: limits::REWARD_FILE_BYTES },
        strip_first: false,
        capture: reward_path("reward.txt"),
        redactor: Redactor::default(),
    };
    let sanitizing = archive::sanitize(stream, &file, options);
    let captured = match tokio::time::timeout(super::COPY_LIMIT, sanitizing).await {
        // Nothing else is in this archive that could be too large.
        Ok(clean) => match (clean.captured, clean.report.cut) {
            (Captured::Unknown, Some(Cut::Bytes(bytes))) => Captured::TooLarge(bytes),
            (captured, _) => captured,
        },
        Err(_) => Captured::Unknown,
    };
    // Best effort: the scratch directory goes as a whole.
    let _removed = tokio::fs::remove_file(&file).await;
    captured
}

/// What a captured reward file means.
fn judge(
    captured: Captured,
    redactor: &Redactor,
    why: impl FnOnce() -> String,
) -> Result<f64, RewardError> {
    let most = limits::REWARD_FILE_BYTES;
    match captured {
        Captured::Found(bytes) => {
            let reward = reward::parse(&bytes, redactor);
            reward.map_err(|error| RewardError::Invalid(error.to_string()))
        }
        Captured::Missing => Err(RewardError::Missing),
        Captured::NotRegular | Captured::HardLink => {
            Err(RewardError::Invalid("it is not a regular file".into()))
        }
        Captured::TooLarge(_) => {
            Err(RewardError::Invalid(format!("it has more than {most} bytes")))
        }
        Captured::Unknown => Err(RewardError::Unreadable(why())),
    }
}
