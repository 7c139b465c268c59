//! Harbor ids and names, derived from the run's and trials' ids.

use std::path::Path;

use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::id::{ItemId, RunId};
use rollout_protocol::spec::trial::TrialName;

/// Characters of the suffix of a trial's name, without easily confused ones.
const ALPHABET: &[u8] = b"23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

/// Length of that suffix.
const SUFFIX_LEN: usize = 7;

/// Maximum length of the task name within a trial's name.
const TASK_NAME_LEN: usize = 32;

/// Id of a job.
pub(super) fn job_id(run: RunId) -> String {
    uuid(*run.as_bytes())
}

/// Id of a trial.
pub(super) fn trial_id(run: RunId, item: ItemId) -> String {
    let mut hasher = DigestHasher::default();
    hasher.update_part(b"trial of a run");
    hasher.update_part(run.as_bytes());
    hasher.update_part(item.as_bytes());
    let digest = hasher.finish();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_bytes()[..16]);
    uuid(bytes)
}

/// A UUID of version 8, whose content is application-defined (RFC 9562).
fn uuid(mut bytes: [u8; 16]) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// An unused name for a trial's directory in `job`: the short suffix may collide.
pub(super) fn free_trial_name(trial: &TrialName, job: &Path) -> String {
    let mut names = (0..).map(|round| trial_name(trial, round));
    let free = names.find(|name| job.join(name).symlink_metadata().is_err());
    free.expect("some name is unused")
}

fn trial_name(trial: &TrialName, round: u32) -> String {
    let task: String = trial.task.chars().take(TASK_NAME_LEN).collect();
    let task = task.trim_end_matches(['_', '-']);
    let mut hasher = DigestHasher::default();
    hasher.update_part(trial.item().as_bytes());
    hasher.update_part(&round.to_be_bytes());
    let digest: Digest = hasher.finish();
    let suffix: String = (digest.as_bytes()[..SUFFIX_LEN].iter())
        .map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]))
        .collect();
    format!("{task}__{suffix}")
}

/// The `file://` URI of a path.
pub(super) fn file_uri(path: &Path) -> String {
    use std::fmt::Write as _;
    use std::os::unix::ffi::OsStrExt as _;
    let mut uri = "file://".to_owned();
    for byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            uri.push(char::from(*byte));
        } else {
            write!(uri, "%{byte:02X}").expect("writing to a string does not fail");
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(task: &str, attempt: u32) -> TrialName {
        TrialName { agent: "a".into(), dataset: "d".into(), task: task.into(), attempt }
    }

    #[test]
    fn harbor_trial_names_are_short_and_unique() {
        let dir = tempfile::tempdir().expect("a directory");
        let long = trial("a-task-with-a-name-of-thirty-one_-and-more", 1);
        let name = free_trial_name(&long, dir.path());
        assert!(name.starts_with("a-task-with-a-name-of-thirty-one__"), "{name}");
        assert_eq!(name.len(), "a-task-with-a-name-of-thirty-one__".len() + SUFFIX_LEN);
        assert_eq!(name, free_trial_name(&long, dir.path()));
        std::fs::create_dir(dir.path().join(&name)).expect("a directory");
        assert_ne!(name, free_trial_name(&long, dir.path()));
        assert_ne!(trial_name(&trial("t", 1), 0), trial_name(&trial("t", 2), 0));
    }

    #[test]
    fn harbor_ids_are_uuids() {
        assert_eq!(job_id(RunId::from_bytes([0xff; 16])), "ffffffff-ffff-8fff-bfff-ffffffffffff");
        let id = trial_id(RunId::from_bytes([1; 16]), trial("t", 1).item());
        assert_eq!((id.len(), &id[14..15]), (36, "8"));
    }

    #[test]
    fn file_uri_of_any_path_is_percent_encoded() {
        assert_eq!(file_uri(Path::new("/a b/ü%")), "file:///a%20b/%C3%BC%25");
    }
}
