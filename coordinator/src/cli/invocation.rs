//! Command lines that runs were started with, for `rollout retry`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::CliError;
use crate::results::files::layout;

/// Options of `rollout run` whose values may be secrets and are not stored.
const SECRET_OPTIONS: [&str; 6] =
    ["--agent-env", "--ae", "--verifier-env", "--ve", "--nats", "--remote-endpoint"];

/// The command line that a run was started with.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Invocation {
    /// The working directory at the start.
    pub(super) directory: PathBuf,
    /// The arguments of `rollout run`.
    pub(super) arguments: Vec<String>,
    /// Options whose values are not kept.
    #[serde(default)]
    pub(super) left_out: Vec<String>,
}

impl Invocation {
    /// The command line `rollout run …` of this process, if it is valid UTF-8.
    pub(super) fn from_arguments(arguments: Vec<OsString>) -> Option<Self> {
        let directory = std::env::current_dir().ok()?;
        let words: Option<Vec<String>> =
            arguments.into_iter().skip(2).map(|word| word.into_string().ok()).collect();
        let (arguments, left_out) = without_secrets(words?);
        Some(Self { directory, arguments, left_out })
    }

    /// The command line that a run directory records.
    pub(super) fn read(run_dir: &Path) -> Result<Self, CliError> {
        let path = run_dir.join(layout::INVOCATION);
        let what = format!("cannot read the options of the run in {}", run_dir.display());
        let text = std::fs::read(&path).map_err(|error| {
            CliError::failure(what.clone(), &error)
                .hint("start the run again with `rollout run`, which stores its options")
        })?;
        serde_json::from_slice(&text).map_err(|error| CliError::failure(what, &error))
    }
}

/// Leaves out options with values that may be secrets.
fn without_secrets(words: Vec<String>) -> (Vec<String>, Vec<String>) {
    let (mut kept, mut left_out) = (Vec::new(), Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (word.clone(), None),
        };
        // A server's address may have a password in it.
        if !SECRET_OPTIONS.contains(&name.as_str()) {
            kept.push(word);
            continue;
        }
        let value = value.or_else(|| words.next()).unwrap_or_default();
        if matches!(name.as_str(), "--nats" | "--remote-endpoint") && !value.contains('@') {
            kept.extend([name, value]);
        } else {
            left_out.push(name);
        }
    }
    (kept, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn invocation_with_secret_options_omits_them() {
        let all = "job.yaml --agent-env KEY=secret --nats nats://h:1 --ve=A=b -n 4";
        let (kept, left_out) = without_secrets(words(all));
        assert_eq!(kept, words("job.yaml --nats nats://h:1 -n 4"));
        assert_eq!(left_out, ["--agent-env", "--ve"]);
        let (kept, left_out) = without_secrets(words("job.yaml --nats nats://u:p@h:1"));
        assert_eq!((kept, left_out), (words("job.yaml"), words("--nats")));
    }
}
