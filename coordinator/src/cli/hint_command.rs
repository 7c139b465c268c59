//! Complete command lines in hints. Every one that names a run is made by [`command`].

use std::fmt;
use std::path::{Path, PathBuf};

use rollout_engine::{OutcomeFilter, ReopenSelection, TrialFilter};

use super::invocation::{self, Invocation};
use super::left_out::{LeftOutOption, NEEDS_SERVER};
use super::output::quoted;
use super::run_place::CatalogAddress;
use crate::config::env_vars;
use crate::results::files::layout;

/// A command line for a shell. In a hint, where it stands in backquotes, the steps without which it
/// does not work follow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShellCommand {
    /// The command line.
    pub(super) line: String,
    /// Steps of the user that must come before it.
    pub(super) needs: Vec<String>,
}

impl fmt::Display for ShellCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.line)?;
        match self.needs.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", self.needs.join("; ")),
        }
    }
}

/// A run, as a command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HintedRun {
    /// A run or a search in a directory.
    Directory(PathBuf),
    /// The same with the options that a command gave for its session. Those that hold once are not
    /// among them.
    Session {
        /// The directory.
        directory: PathBuf,
        /// The options, in words.
        options: Vec<String>,
    },
    /// A run in a catalog: `s3://bucket/prefix#RUN`.
    Catalog(String),
}

/// Effect of a command on a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RunAction {
    /// Runs what is pending.
    Resume,
    /// Runs settled trials again.
    Retry(ReopenSelection),
}

/// A hint that ends with a command, which is known where the run is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandHint {
    /// Step before the command.
    first: Option<String>,
    /// Options of the command, for its session only.
    pub(super) options: &'static [&'static str],
    /// Purpose of the command, an infinitive.
    purpose: &'static str,
    /// Whether it is the command line of this process, not one that resumes the run.
    is_of_this_process: bool,
    /// Trials that it runs again; `None` to resume.
    retried: Option<ReopenSelection>,
}

impl HintedRun {
    /// The run that an argument of a command names.
    pub(super) fn named(text: &Path) -> Self {
        match CatalogAddress::parse(text) {
            Ok(Some(address)) => Self::Catalog(address.to_string()),
            Ok(None) | Err(_) => Self::Directory(text.to_owned()),
        }
    }

    /// The run that a session of this process has: `again` is the directory and the options of
    /// `rollout resume` and `retry`.
    pub(super) fn of_session(directory: PathBuf, again: Option<&[String]>) -> Self {
        match again.map(|options| invocation::without_session_options(options.to_vec())) {
            Some(options) if !options.is_empty() => Self::Session { directory, options },
            _ => Self::Directory(directory),
        }
    }

    /// Its directory, and the options of the session.
    fn directory(&self) -> Option<(&Path, &[String])> {
        match self {
            Self::Directory(directory) => Some((directory.as_path(), &[])),
            Self::Session { directory, options } => Some((directory.as_path(), options.as_slice())),
            Self::Catalog(_) => None,
        }
    }

    /// Whether a command can resume it: a directory has the options that it was started with.
    pub(super) fn is_resumable(&self) -> bool {
        self.directory().is_none_or(|(directory, _)| directory.join(layout::INVOCATION).is_file())
    }
}

impl RunAction {
    const fn verb(&self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Retry(_) => "retry",
        }
    }

    /// The options that select trials.
    fn selection(&self) -> Vec<String> {
        match self {
            Self::Resume => Vec::new(),
            Self::Retry(ReopenSelection::Failed) => vec!["--failed".to_owned()],
            Self::Retry(ReopenSelection::Infrastructure) => vec!["--infra".to_owned()],
            Self::Retry(ReopenSelection::Trials(trials)) => {
                let named = trials.iter().map(|trial| ["--trial".to_owned(), trial.clone()]);
                named.flatten().collect()
            }
            Self::Retry(ReopenSelection::Filtered(TrialFilter { outcome, agents, tasks })) => {
                let outcome = match outcome {
                    OutcomeFilter::Any => None,
                    OutcomeFilter::Failed => Some("--failed".to_owned()),
                    OutcomeFilter::Infrastructure => Some("--infra".to_owned()),
                };
                let agents = agents.iter().map(|agent| ["--agent".to_owned(), agent.clone()]);
                let tasks = tasks.iter().map(|task| ["--task".to_owned(), task.clone()]);
                outcome.into_iter().chain(agents.chain(tasks).flatten()).collect()
            }
        }
    }
}

impl CommandHint {
    /// A command for a purpose, an infinitive.
    pub(super) const fn new(purpose: &'static str) -> Self {
        Self { first: None, options: &[], purpose, is_of_this_process: false, retried: None }
    }

    /// The same with the command line of this process: the options that the run has are not those of
    /// this command.
    #[must_use]
    pub(super) fn of_this_process(self) -> Self {
        Self { is_of_this_process: true, ..self }
    }

    /// The same with a command that runs trials again.
    #[must_use]
    pub(super) fn retrying(self, selection: ReopenSelection) -> Self {
        Self { retried: Some(selection), ..self }
    }

    /// The effect of the command on the run.
    pub(super) fn action(&self) -> RunAction {
        self.retried.clone().map_or(RunAction::Resume, RunAction::Retry)
    }

    /// Whether it is the command line of this process.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.is_of_this_process
    }

    /// The same with a step before the command.
    #[must_use]
    pub(super) fn after(self, first: impl Into<String>) -> Self {
        Self { first: Some(first.into()), ..self }
    }

    /// The same with options of the command.
    #[must_use]
    pub(super) fn with_options(self, options: &'static [&'static str]) -> Self {
        Self { options, ..self }
    }

    /// Step before the command.
    #[cfg(feature = "serve")]
    pub(super) fn first(&self) -> Option<&str> {
        self.first.as_deref()
    }

    /// The hint with its command.
    pub(super) fn text(&self, command: &ShellCommand) -> String {
        let Self { first, purpose, .. } = self;
        match first {
            Some(first) => format!("{first}, then run {command} to {purpose}"),
            None => format!("run {command} to {purpose}"),
        }
    }
}

/// The command line that does this with a run, in the current directory. `options` are for its
/// session; values among them that may be secrets are not shown.
pub(super) fn command(run: &HintedRun, action: &RunAction, options: &[&str]) -> ShellCommand {
    let given = session_options(run, options);
    let (shown, mut left_out) = invocation::without_secrets(given.clone());
    left_out.retain(|option| !option.is("--nats") || !is_server_of_environment(&given));
    let mut words = vec!["rollout".to_owned(), action.verb().to_owned()];
    let mut elsewhere = None;
    match run {
        HintedRun::Directory(directory) | HintedRun::Session { directory, .. } => {
            let stored = Invocation::read(directory).ok();
            let lacking = stored.iter().flat_map(|stored| &stored.left_out);
            let lacking = lacking.filter(|option| !invocation::is_given(option, &given));
            left_out.extend(lacking.filter(|lack| !lack.is("--nats") || !has_server()).cloned());
            elsewhere = stored.map(|stored| stored.directory).filter(|place| !is_current(place));
            let absolute = elsewhere.as_ref().and_then(|_| std::path::absolute(directory).ok());
            let directory = absolute.as_deref().unwrap_or(directory);
            words.push(directory.to_string_lossy().into_owned());
        }
        HintedRun::Catalog(address) => words.push(address.clone()),
    }
    words.extend(action.selection());
    let mut needs: Vec<String> = left_out.iter().map(LeftOutOption::need).collect();
    if matches!(run, HintedRun::Catalog(_)) && !has_server() {
        add_server(&mut words, &mut needs);
    }
    let mut line = joined(&words);
    let further = shown.iter().map(|word| quoted(word));
    let further: Vec<String> =
        further.chain(left_out.iter().map(LeftOutOption::for_shell)).collect();
    if !further.is_empty() {
        // The command that resumes a run in a catalog has its options itself.
        let is_own = matches!((run, action), (HintedRun::Catalog(_), RunAction::Resume));
        let separator = if is_own { " " } else { " -- " };
        line = format!("{line}{separator}{}", further.join(" "));
    }
    if let Some(place) = elsewhere {
        line = format!("cd {} && {line}", quoted(&place.to_string_lossy()));
    }
    ShellCommand { line, needs }
}

/// The options of a session: those that a command gave for it, and further ones.
fn session_options(run: &HintedRun, options: &[&str]) -> Vec<String> {
    let mut given = run.directory().map(|(_, session)| session.to_vec()).unwrap_or_default();
    given.extend(options.iter().map(|word| (*word).to_owned()));
    if given.iter().any(|word| word == "--force") {
        // They exclude each other.
        given.retain(|word| word != "--no-wait");
    }
    given
}

/// The command line that does this with a run whose coordinator runs: that one has its options. One on
/// another host is reached through its server.
pub(super) fn live_command(run: &HintedRun, action: &RunAction) -> ShellCommand {
    let Some((directory, _)) = run.directory() else { return command(run, action, &[]) };
    let stored = Invocation::read(directory).ok();
    let needs_server =
        stored.is_some_and(|stored| stored.left_out.iter().any(|option| option.is("--nats")));
    let (mut words, mut needs) = (vec!["rollout".to_owned(), action.verb().to_owned()], Vec::new());
    words.push(directory.to_string_lossy().into_owned());
    words.extend(action.selection());
    if needs_server && !has_server() {
        add_server(&mut words, &mut needs);
    }
    ShellCommand { line: joined(&words), needs }
}

/// Adds the option for a server whose address is unknown.
fn add_server(words: &mut Vec<String>, needs: &mut Vec<String>) {
    words.extend(["--nats", "URL"].map(str::to_owned));
    needs.push(NEEDS_SERVER.to_owned());
}

/// The command line that resumes the run or the search in a directory; `None` if the directory does
/// not have its options.
pub(super) fn resume_directory(directory: &Path) -> Option<ShellCommand> {
    let run = HintedRun::Directory(directory.to_owned());
    run.is_resumable().then(|| command(&run, &RunAction::Resume, &[]))
}

/// The command line of this process, with further options.
pub(super) fn of_this_process(options: &[String]) -> ShellCommand {
    let (words, left_out) = invocation::words_of_process();
    let words = words.iter().map(|word| quoted(word)).collect();
    let needs = left_out.iter().map(LeftOutOption::need).collect();
    let left_out = left_out.iter().map(LeftOutOption::for_shell);
    let options = left_out.chain(options.iter().map(|word| quoted(word))).collect();
    ShellCommand { line: with_options(words, options).join(" "), needs }
}

/// A command line with further options of its run, both in words for a shell. Commands that repeat a
/// command line take them after `--`, except for a resumed run in a catalog.
fn with_options(mut words: Vec<String>, options: Vec<String>) -> Vec<String> {
    if options.iter().any(|option| option == "--force") {
        words.retain(|word| word != "--no-wait");
    }
    let end = words.iter().position(|word| word == "--");
    let is_again = match words.first().map(String::as_str) {
        Some("retry") => true,
        Some("resume" | "continue") => !words.iter().any(|word| word.contains("://")),
        _ => false,
    };
    match end {
        Some(_) if is_again => words.extend(options),
        None if is_again && !options.is_empty() => {
            words.push("--".to_owned());
            words.extend(options);
        }
        end => {
            let end = end.unwrap_or(words.len());
            words.splice(end..end, options);
        }
    }
    words.insert(0, "rollout".to_owned());
    words
}

fn joined(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

fn is_current(directory: &Path) -> bool {
    std::env::current_dir().is_ok_and(|current| current == directory)
}

/// Whether the environment names a server.
fn has_server() -> bool {
    std::env::var_os(env_vars::NATS_URL.name).is_some_and(|url| !url.is_empty())
}

/// Whether options name the server that the environment names as well.
fn is_server_of_environment(options: &[String]) -> bool {
    let server = std::env::var(env_vars::NATS_URL.name).unwrap_or_default();
    let is_it = |word: &String| *word == server || word.strip_prefix("--nats=") == Some(&*server);
    !server.is_empty() && options.iter().any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(path: impl Into<PathBuf>) -> HintedRun {
        HintedRun::Directory(path.into())
    }

    #[test]
    fn command_selects_trials_as_the_action_does() {
        let trials = vec!["a/d/t__1".to_owned(), "a b/d/t__2".to_owned()];
        for (action, expected) in [
            (RunAction::Resume, "rollout resume jobs/demo"),
            (RunAction::Retry(ReopenSelection::Failed), "rollout retry jobs/demo --failed"),
            (RunAction::Retry(ReopenSelection::Infrastructure), "rollout retry jobs/demo --infra"),
            (
                RunAction::Retry(ReopenSelection::Trials(trials)),
                "rollout retry jobs/demo --trial a/d/t__1 --trial 'a b/d/t__2'",
            ),
        ] {
            assert_eq!(command(&directory("jobs/demo"), &action, &[]).line, expected);
        }
        let forced = command(&directory("jobs/demo"), &RunAction::Resume, &["--force"]);
        assert_eq!(forced.to_string(), "`rollout resume jobs/demo -- --force`");
    }

    #[test]
    fn command_of_run_that_began_elsewhere_goes_there_and_names_lacking_options() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = temp.path().to_str().expect("text");
        let text = r#"{"directory": "/a b", "arguments": [], "left_out": ["--agent-env=A"]}"#;
        std::fs::write(temp.path().join("invocation.json"), text).expect("writable");
        let resume = resume_directory(temp.path()).expect("it has its options").to_string();
        assert_eq!(
            resume,
            format!(
                "`cd '/a b' && rollout resume {path} -- --agent-env \"A=${{A:?}}\"` (set A in the \
                 shell first: hints show no values of variables)"
            )
        );
        assert_eq!(resume_directory(&temp.path().join("none")), None);
        // Its coordinator has them.
        let trial = RunAction::Retry(ReopenSelection::Trials(vec!["a/d/t__1".to_owned()]));
        let live = live_command(&directory(temp.path()), &trial);
        assert_eq!(live.line, format!("rollout retry {path} --trial a/d/t__1"));
        let text = r#"{"directory": "/a b", "arguments": [], "left_out": ["--ae", "--nats"]}"#;
        std::fs::write(temp.path().join("invocation.json"), text).expect("writable");
        let live = live_command(&directory(temp.path()), &trial);
        assert_eq!(live.line, format!("rollout retry {path} --trial a/d/t__1 --nats URL"));
        assert_eq!(live.needs, ["with the address of your NATS server in place of URL"]);
    }

    #[test]
    fn command_repeats_options_of_session_and_asks_for_their_secrets() {
        let temp = tempfile::tempdir().expect("a directory");
        let current = std::env::current_dir().expect("a directory");
        let text = serde_json::json!({
            "directory": current,
            "arguments": [],
            "left_out": ["--agent-env=A", "--agent-env=B"],
        });
        std::fs::write(temp.path().join("invocation.json"), text.to_string()).expect("writable");
        let path = temp.path().to_str().expect("text");
        let options = ["-n", "4", "--ae", "A=secret", "--ve=C=secret", "--accept-changed"];
        let failed = RunAction::Retry(ReopenSelection::Failed);
        let given = command(&directory(temp.path()), &failed, &options);
        assert_eq!(
            given.line,
            format!(
                "rollout retry {path} --failed -- -n 4 --accept-changed --agent-env \"A=${{A:?}}\" \
                 --verifier-env \"C=${{C:?}}\" --agent-env \"B=${{B:?}}\""
            )
        );
        assert_eq!(given.needs.len(), 3, "{given}");
        // An option that holds once is not repeated after a session.
        let repository =
            command(&directory("jobs/demo"), &failed, &["--repo", "https://me:TOKEN@h/r", "-q"]);
        assert_eq!(repository.line, "rollout retry jobs/demo --failed -- -q --repo URL");
        assert_eq!(repository.needs, ["with https://h/r and its login in place of URL"]);
        let options = ["-n", "4", "--force", "--accept-changed"].map(str::to_owned);
        let session = HintedRun::of_session("jobs/demo".into(), Some(options.as_slice()));
        let next = command(&session, &failed, &[]);
        assert_eq!(next.line, "rollout retry jobs/demo --failed -- -n 4");
        let forced = command(&directory("jobs/demo"), &failed, &["--no-wait", "--force"]);
        assert_eq!(forced.line, "rollout retry jobs/demo --failed -- --force");
    }

    #[test]
    fn command_of_catalog_has_options_of_its_own() {
        let run = HintedRun::Catalog("file:///store#cat".to_owned());
        let resume = command(&run, &RunAction::Resume, &["--force"]).line;
        assert!(resume.ends_with(" --force") && !resume.contains(" -- "), "{resume}");
        let retry = RunAction::Retry(ReopenSelection::Failed);
        let retry = command(&run, &retry, &["--force"]).line;
        assert!(retry.ends_with(" -- --force"), "{retry}");
    }

    #[test]
    fn command_of_catalog_says_what_stands_for_the_address() {
        let run = HintedRun::Catalog("file:///store#cat".to_owned());
        let resume = command(&run, &RunAction::Resume, &[]).to_string();
        assert_eq!(
            resume,
            "`rollout resume 'file:///store#cat' --nats URL` (with the address of your NATS server \
             in place of URL)"
        );
    }

    #[test]
    fn further_options_are_where_the_command_takes_them() {
        for (words, expected) in [
            ("run job.yaml", "rollout run job.yaml -n 4"),
            ("run -q -- job.yaml", "rollout run -q -n 4 -- job.yaml"),
            ("resume jobs/demo", "rollout resume jobs/demo -- -n 4"),
            ("resume s3://b#demo", "rollout resume s3://b#demo -n 4"),
            ("retry jobs/demo --failed -- -q", "rollout retry jobs/demo --failed -- -q -n 4"),
        ] {
            let split = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(with_options(split(words), split("-n 4")), split(expected));
        }
        let words = ["resume", "--no-wait", "jobs/demo"].map(str::to_owned).to_vec();
        let same = with_options(words.clone(), Vec::new());
        assert_eq!(same, ["rollout", "resume", "--no-wait", "jobs/demo"]);
        let forced = with_options(words, vec!["--force".to_owned()]);
        assert_eq!(forced, ["rollout", "resume", "jobs/demo", "--", "--force"]);
    }

    #[test]
    fn command_hint_says_what_to_do_first() {
        let hint = CommandHint::new("resume");
        let command = ShellCommand { line: "rollout x".to_owned(), needs: Vec::new() };
        assert_eq!(hint.text(&command), "run `rollout x` to resume");
        let full = hint.after("free space");
        assert_eq!(full.text(&command), "free space, then run `rollout x` to resume");
    }
}
