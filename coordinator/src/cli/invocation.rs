//! Command lines that runs and searches were started with, for `rollout resume` and `retry`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::args::with_run;
use super::error::CliError;
use super::left_out::LeftOutOption;
use super::run_place;
use crate::results::files::layout;
use crate::results::view::{RunDirectory, RunViewError};

/// Options that hold for one session and are not stored, and whether a value follows them.
const SESSION_OPTIONS: [(&str, bool); 5] = [
    ("--force", false),
    ("--accept-changed", false),
    ("--rerun-evals", false),
    ("--force-regenerate-ideas", false),
    ("--resume", true),
];

/// The command line that a run or a search was started with.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Invocation {
    /// The working directory at the start.
    pub(super) directory: PathBuf,
    /// The command: `run` or `tree run`.
    #[serde(default = "command_of_jobs")]
    pub(super) command: Vec<String>,
    /// Its arguments. Those of this version name the run.
    pub(super) arguments: Vec<String>,
    /// Options whose values are not kept.
    #[serde(default)]
    pub(super) left_out: Vec<LeftOutOption>,
    /// Of a search: the repository, or the directory in one, that it began from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) repository: Option<PathBuf>,
}

/// The command of documents from before searches had them.
fn command_of_jobs() -> Vec<String> {
    vec!["run".to_owned()]
}

impl Invocation {
    /// The command line of this process, whose first words are `rollout` and `command`, if it is
    /// valid UTF-8.
    pub(super) fn of_process(command: &[&str]) -> Option<Self> {
        let words = with_run(std::env::args_os().collect());
        Self::from_arguments(command, words.into_iter().skip(1 + command.len()))
    }

    fn from_arguments(command: &[&str], words: impl Iterator<Item = OsString>) -> Option<Self> {
        let directory = std::env::current_dir().ok()?;
        let words: Option<Vec<String>> = words.map(|word| word.into_string().ok()).collect();
        let (arguments, left_out) = without_secrets(without_session_options(words?));
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        Some(Self { directory, command, arguments, left_out, repository: None })
    }

    /// The command line that a run directory records.
    pub(super) fn read(run_dir: &Path) -> Result<Self, CliError> {
        let path = run_dir.join(layout::INVOCATION);
        let what = format!("cannot read the options of the run in {}", run_dir.display());
        let text = std::fs::read(&path).map_err(|error| {
            if run_dir.try_exists().is_ok_and(|exists| !exists) {
                return run_place::no_run(run_dir);
            }
            if let Err(error @ RunViewError::NotRunDirectory { .. }) = RunDirectory::open(run_dir) {
                return error.into();
            }
            CliError::failure(what.clone(), &error).hint(
                "only `rollout run` and `rollout tree run` store their options: a run of `rollout \
                 serve` is resumed by its server",
            )
        })?;
        serde_json::from_slice(&text).map_err(|error| CliError::failure(what, &error))
    }

    /// Adds an option, before a `--` that ends the options.
    pub(super) fn add(&mut self, option: &str, value: &str) {
        let end = self.arguments.iter().position(|word| word == "--");
        self.arguments.insert(end.unwrap_or(self.arguments.len()), format!("{option}={value}"));
    }

    /// Adds the server of the run, if it comes from the environment of this process.
    #[cfg(feature = "nats")]
    pub(super) fn add_server(&mut self, url: &str) {
        const OPTION: &str = "--nats";
        let is_named = [OPTION, "--remote-endpoint"].iter().any(|option| {
            self.arguments.iter().any(|word| is_option(word, option))
                || self.left_out.iter().any(|left_out| left_out.is(option))
        });
        if is_named {
            return;
        }
        match LeftOutOption::of(OPTION, url) {
            Some(option) => self.left_out.push(option),
            None => self.add(OPTION, url),
        }
    }

    /// The options that it has besides those of an earlier command line; `None` if it has other ones, or if
    /// its paths are relative to another directory.
    pub(super) fn further_than(&self, earlier: &Self) -> Option<Vec<String>> {
        if self.directory != earlier.directory {
            return None;
        }
        if self.command != earlier.command || self.left_out != earlier.left_out {
            return None;
        }
        let (all, known) = (&self.arguments, &earlier.arguments);
        let same = all.iter().zip(known).take_while(|(word, known)| word == known).count();
        let end = all.len().checked_sub(known.len() - same)?;
        let further = all.get(same..end)?;
        // Words that begin within an option are not options themselves.
        let are_options = further.first().is_none_or(|word| word.starts_with('-'))
            && further.iter().all(|word| word != "--");
        (are_options && all[end..] == known[same..]).then(|| further.to_vec())
    }

    /// The whole command line, with further options.
    pub(super) fn words(self, options: Vec<String>) -> Vec<String> {
        let mut words = vec!["rollout".to_owned()];
        words.extend(self.command);
        let mut arguments = self.arguments;
        let end = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
        arguments.splice(end..end, options);
        words.extend(arguments);
        words
    }
}

/// The words of this process after `rollout`, and the options whose values are left out.
pub(super) fn words_of_process() -> (Vec<String>, Vec<LeftOutOption>) {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    without_secrets(words.collect())
}

/// Whether a word gives an option, with or without its value.
pub(super) fn is_option(word: &str, option: &str) -> bool {
    word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// Leaves out options that hold for one session.
pub(super) fn without_session_options(words: Vec<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match SESSION_OPTIONS.iter().find(|(option, _)| is_option(&word, option)) {
            Some((option, true)) if word == *option => drop(words.next()),
            Some(_) => {}
            None => kept.push(word),
        }
    }
    kept
}

/// Leaves out options with values that may be secrets, and names them.
pub(super) fn without_secrets(words: Vec<String>) -> (Vec<String>, Vec<LeftOutOption>) {
    let (mut kept, mut left_out) = (Vec::new(), Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let Some((option, value)) = with_secret(&word, &mut words) else {
            kept.push(word);
            continue;
        };
        match LeftOutOption::of(&option, &value) {
            Some(option) if left_out.contains(&option) => {}
            Some(option) => left_out.push(option),
            None => kept.extend([option, value]),
        }
    }
    (kept, left_out)
}

/// Whether options give a value that is not stored.
pub(super) fn is_given(left_out: &LeftOutOption, options: &[String]) -> bool {
    let mut words = options.iter().cloned();
    while let Some(word) = words.next() {
        let given = with_secret(&word, &mut words);
        if given.is_some_and(|(option, value)| left_out.is_given_by(&option, &value)) {
            return true;
        }
    }
    false
}

/// The option of a word whose value may be a secret, and its value, which may be the next word.
fn with_secret(word: &str, next: &mut impl Iterator<Item = String>) -> Option<(String, String)> {
    let (option, value) = match word.split_once('=') {
        Some((option, value)) => (option, Some(value.to_owned())),
        None => (word, None),
    };
    LeftOutOption::is_possible(option)
        .then(|| (option.to_owned(), value.or_else(|| next.next()).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn shown(left_out: &[LeftOutOption]) -> Vec<String> {
        left_out.iter().map(LeftOutOption::shown).collect()
    }

    fn invocation(text: &str) -> Invocation {
        let arguments = words(text).into_iter().map(OsString::from);
        Invocation::from_arguments(&["tree", "run"], arguments).expect("text")
    }

    #[test]
    fn invocation_with_secret_options_omits_them() {
        let all = "job.yaml --agent-env KEY=secret --nats nats://h:1 --ve=A=b -n 4";
        let (kept, left_out) = without_secrets(words(all));
        assert_eq!(kept, words("job.yaml --nats nats://h:1 -n 4"));
        assert_eq!(shown(&left_out), ["--agent-env KEY", "--verifier-env A"]);
        let (kept, left_out) = without_secrets(words("job.yaml --nats nats://u:p@h:1"));
        assert_eq!((kept, shown(&left_out)), (words("job.yaml"), words("--nats")));
        let twice = words("--ae A=1 --agent-env=A=2 --ae B=${B}");
        let (kept, left_out) = without_secrets(twice);
        assert_eq!(
            (kept, shown(&left_out)),
            (words("--ae B=${B}"), vec!["--agent-env A".to_owned()])
        );
        let all = "--repo https://me:pw@h/a --registry=https://t@h/r.json --repo https://me:pw@h/b";
        let (kept, left_out) = without_secrets(words(&format!("{all} --repo git@h:c")));
        assert_eq!(kept, words("--repo git@h:c"));
        let expected = ["--repo https://h/a", "--registry https://h/r.json", "--repo https://h/b"];
        assert_eq!(shown(&left_out), expected);
    }

    #[test]
    fn each_value_that_is_not_stored_is_given_by_its_name() {
        let (_, left_out) = without_secrets(words("--ae A=1 --ae B=2 --nats nats://u:p@h:1"));
        let given = words("-q --agent-env A=3 --nats=nats://u:q@h:1");
        let found: Vec<bool> = left_out.iter().map(|option| is_given(option, &given)).collect();
        assert_eq!(found, [true, false, true]);
    }

    #[test]
    fn invocation_omits_options_of_one_session() {
        let all = "t.yaml --force --rerun-evals --resume true --max-depth 2 --resume=false";
        assert_eq!(invocation(all).arguments, words("t.yaml --max-depth 2"));
    }

    #[test]
    fn invocation_takes_options_before_the_end_of_options() {
        let mut invocation = invocation("-q -- t.yaml");
        invocation.add("--tree-run-id", "x");
        assert_eq!(invocation.arguments, words("-q --tree-run-id=x -- t.yaml"));
        let again = words("rollout tree run -q --tree-run-id=x --json -- t.yaml");
        assert_eq!(invocation.words(words("--json")), again);
    }

    #[test]
    fn further_options_are_those_that_an_earlier_command_line_lacks() {
        for (given, earlier, further) in [
            ("j --name=x", "j --name=x", Some("")),
            ("j -q -n 4 --name=x", "j --name=x", Some("-q -n 4")),
            ("-n 4 j --name=x", "j --name=x", Some("-n 4")),
            ("j -a x -a y", "j -a x", Some("-a y")),
            ("j -a y -a x", "j -a x", None),
            ("j --name=x", "j -q --name=x", None),
            ("other --name=x", "j --name=x", None),
            ("j --ae A=1", "j", None),
        ] {
            let found = invocation(given).further_than(&invocation(earlier));
            assert_eq!(found.map(|words| words.join(" ")).as_deref(), further, "{given}");
        }
        let elsewhere = Invocation { directory: "/elsewhere".into(), ..invocation("j --name=x") };
        assert_eq!(invocation("j -q --name=x").further_than(&elsewhere), None);
    }

    #[test]
    fn invocation_of_earlier_version_is_that_of_a_job() {
        let text = r#"{"directory": "/d", "arguments": ["job.yaml"]}"#;
        let read: Invocation = serde_json::from_str(text).expect("valid");
        assert_eq!(read.words(Vec::new()), words("rollout run job.yaml"));
    }

    #[cfg(feature = "nats")]
    #[test]
    fn invocation_with_server_of_the_environment_names_it_once() {
        for (given, url, arguments, left_out) in [
            ("j", "nats://h:1", "j --nats=nats://h:1", 0),
            ("j --nats nats://a:1", "nats://h:1", "j --nats nats://a:1", 0),
            ("j --remote-endpoint=nats://a:1", "nats://h:1", "j --remote-endpoint nats://a:1", 0),
            ("j", "nats://u:p@h:1", "j", 1),
        ] {
            let mut invocation = invocation(given);
            invocation.add_server(url);
            assert_eq!(invocation.arguments, words(arguments), "{given}");
            assert_eq!(invocation.left_out.len(), left_out, "{given}");
        }
    }

    #[test]
    fn option_with_longer_name_is_another_option() {
        for given in ["--nats", "--nats=nats://far"] {
            assert!(is_option(given, "--nats"), "{given}");
        }
        for other in ["--nats-creds", "--nats-creds=file", "nats", "--na"] {
            assert!(!is_option(other, "--nats"), "{other}");
        }
    }
}
