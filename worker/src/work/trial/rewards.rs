//! Interpretation of the files that a verifier writes its reward to.

use bytes::Bytes;
use rollout_base::secrets::Redactor;
use rollout_protocol::limits;
use rollout_protocol::spec::settings::VerifierSettings;
use rollout_protocol::spec::task::{TaskFormat, TaskSpec};
use rollout_store::archive::{ArchivePath, CapturedFile};

use super::failure::RewardError;
use super::score::VerifierScore;
use crate::verifier::{KEYED_FILE, REWARD_FILE, keyed_reward, reward};

/// The files that are searched for a reward.
#[derive(Debug, Clone, Copy)]
pub(super) struct RewardFiles<'a> {
    /// Files below the verifier's logs; the first that exists counts.
    pub(super) files: &'static [&'static str],
    /// The files in the order of the other format, if the format is a guess.
    other: Option<&'static [&'static str]>,
    key: Option<&'a str>,
}

/// The files in the order of a format.
const fn ordered_files(format: TaskFormat) -> &'static [&'static str] {
    match format {
        TaskFormat::Rollout => &[REWARD_FILE, KEYED_FILE],
        TaskFormat::Harbor => &[KEYED_FILE, REWARD_FILE],
    }
}

impl<'a> RewardFiles<'a> {
    /// Both files, in the order of the task's format: the first that exists counts.
    pub(super) fn for_task(task: &TaskSpec, settings: &'a VerifierSettings) -> Self {
        let other = task.other_rules.map(|_| ordered_files(task.format.other()));
        let key = settings.reward_key.as_deref();
        Self { files: ordered_files(task.format), other, key }
    }

    /// The score under the other format, if the format is a guess and there is one.
    pub(super) fn other_score(
        &self,
        captured: &[CapturedFile],
        redactor: &Redactor,
    ) -> Option<VerifierScore> {
        let wanted = Self { files: self.other?, other: None, key: self.key };
        let captured = captured.iter().rev().cloned().collect();
        score_from_files(&wanted, captured, redactor, "").ok()
    }

    /// The files in an archive of the logs, with their size limits.
    pub(super) fn captures(&self) -> Vec<(ArchivePath, u64)> {
        let path = |name: &str| {
            let path = ArchivePath::clean(format!("verifier/{name}").as_bytes());
            path.expect("a short path").expect("not the root")
        };
        self.files.iter().map(|name| (path(name), max_reward_bytes(name))).collect()
    }
}

fn max_reward_bytes(name: &str) -> u64 {
    if name == KEYED_FILE { limits::REWARD_JSON_BYTES } else { limits::REWARD_FILE_BYTES }
}

/// The score in captured reward files; `why` explains an unreadable file.
pub(super) fn score_from_files(
    wanted: &RewardFiles<'_>,
    captured: Vec<CapturedFile>,
    redactor: &Redactor,
    why: &str,
) -> Result<VerifierScore, RewardError> {
    for (captured, file) in captured.into_iter().zip(wanted.files) {
        let invalid = |why: String| Err(RewardError::Invalid { file, why });
        let too_large = || invalid(format!("it has more than {} bytes", max_reward_bytes(file)));
        return match captured {
            CapturedFile::Missing => continue,
            CapturedFile::Found(bytes) if bytes.len() as u64 > max_reward_bytes(file) => {
                too_large()
            }
            CapturedFile::Found(bytes) => {
                parse_score(wanted, file, &bytes, redactor).or_else(invalid)
            }
            CapturedFile::NotRegular | CapturedFile::HardLink => {
                invalid("it is not a regular file".to_owned())
            }
            CapturedFile::TooLarge(_) => too_large(),
            CapturedFile::NotReached => Err(RewardError::Unreadable { file, why: why.to_owned() }),
        };
    }
    Err(RewardError::Missing { files: wanted.files })
}

fn parse_score(
    wanted: &RewardFiles<'_>,
    file: &str,
    bytes: &Bytes,
    redactor: &Redactor,
) -> Result<VerifierScore, String> {
    if file == KEYED_FILE {
        keyed_reward::parse(bytes, redactor)
            .map(|numbers| VerifierScore::keyed(numbers, wanted.key))
    } else {
        reward::parse(bytes, redactor).map(VerifierScore::plain).map_err(|error| error.to_string())
    }
}
