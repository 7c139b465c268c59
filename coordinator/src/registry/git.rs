//! The git program. It runs without hooks, without the system's configuration and without asking
//! anybody anything; the user's own configuration stays, because that is where credentials are.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use super::FetchError;
use super::origin::Origin;

/// Lines of git's messages that are shown.
const SAID_LINES: usize = 6;

/// Longest message that is shown, characters.
const SAID_CHARS: usize = 600;

/// Largest listing that is read: the paths of a million files.
const OUTPUT_BYTES: u64 = 256 * 1024 * 1024;

/// Settings of every call: nothing of a repository is run or obeyed, nothing is done behind our
/// back, and a server that sends nothing for a minute is given up.
const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.autocrlf=false",
    "core.attributesFile=/dev/null",
    "protocol.ext.allow=never",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "filter.lfs.smudge=",
    "filter.lfs.process=",
    "filter.lfs.required=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
    "credential.interactive=false",
    "http.lowSpeedLimit=100",
    "http.lowSpeedTime=60",
];

/// Variables by which a caller's repository would get into ours.
const LOCAL_VARIABLES: &[&str] = &[
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_CONFIG_PARAMETERS",
    "GIT_TEMPLATE_DIR",
    "GIT_EXTERNAL_DIFF",
    "GIT_LFS_SKIP_SMUDGE",
];

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GitError {
    /// The program cannot be started.
    Absent(String),
    /// It failed; the end of what it said.
    Failed(String),
}

impl GitError {
    /// The failure to reach a repository.
    pub(super) fn unreachable(self, origin: &Origin) -> FetchError {
        match self {
            Self::Absent(why) => FetchError::NoGit(why),
            Self::Failed(said) => {
                FetchError::Unreachable { url: origin.shown(), said: origin.shown_in(&said) }
            }
        }
    }

    /// The failure of something else.
    pub(super) fn at(self, origin: &Origin, commit: &str) -> FetchError {
        match self {
            Self::Absent(why) => FetchError::NoGit(why),
            Self::Failed(said) => FetchError::Git {
                url: origin.shown(),
                commit: commit.to_owned(),
                said: origin.shown_in(&said),
            },
        }
    }

    /// Whether another way to ask the same repository may work.
    pub(super) fn may_be_the_request(&self) -> bool {
        let Self::Failed(said) = self else { return false };
        const HOPELESS: &[&str] = &[
            "Could not resolve host",
            "unable to access",
            "unable to look up",
            "unable to connect",
            "Could not read from remote repository",
            "does not appear to be a git repository",
            "Authentication failed",
            "could not read Username",
            "Connection refused",
        ];
        !HOPELESS.iter().any(|sign| said.contains(sign))
    }
}

/// Runs git in `dir` and gives what it wrote.
pub(super) fn run<A: AsRef<OsStr>>(
    dir: &Path,
    args: impl IntoIterator<Item = A>,
) -> Result<Vec<u8>, GitError> {
    with_input(dir, args, &[])
}

/// The same with an input, which must be small enough for a pipe's reader to take while it writes
/// nothing.
pub(super) fn with_input<A: AsRef<OsStr>>(
    dir: &Path,
    args: impl IntoIterator<Item = A>,
    input: &[u8],
) -> Result<Vec<u8>, GitError> {
    let absent = |error: std::io::Error| GitError::Absent(error.to_string());
    let mut command = command(dir);
    command.args(args);
    command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
    let mut child = command.spawn().map_err(absent)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A git that ended early says itself why.
        let _unread = stdin.write_all(input);
    }
    let Output { status, stdout, stderr } = output(child).map_err(absent)?;
    if status.success() { Ok(stdout) } else { Err(GitError::Failed(said(&stderr, status))) }
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    for variable in LOCAL_VARIABLES {
        command.env_remove(variable);
    }
    command
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_ATTR_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_ALLOW_PROTOCOL", "file:git:http:https:ssh")
        .env("GIT_NO_REPLACE_OBJECTS", "1")
        .env("GIT_CEILING_DIRECTORIES", dir.parent().unwrap_or(dir))
        .env("LC_ALL", "C");
    if std::env::var_os("GIT_SSH_COMMAND").is_none() && std::env::var_os("GIT_SSH").is_none() {
        command.env("GIT_SSH_COMMAND", "ssh -oBatchMode=yes -oConnectTimeout=30");
    }
    for setting in SETTINGS {
        command.args(["-c", setting]);
    }
    command
}

/// Both outputs, read at the same time so that neither fills up.
fn output(mut child: Child) -> std::io::Result<Output> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let errors = rollout_worker::supervise::thread("git-errors", move || {
        let mut text = Vec::new();
        if let Some(mut stderr) = stderr {
            let _broken = stderr.read_to_end(&mut text);
        }
        text
    })?;
    let mut answer = Vec::new();
    if let Some(stdout) = stdout {
        stdout.take(OUTPUT_BYTES).read_to_end(&mut answer)?;
    }
    let stderr = errors.join().unwrap_or_default();
    Ok(Output { status: child.wait()?, stdout: answer, stderr })
}

/// The end of what git said, on one line.
fn said(stderr: &[u8], status: std::process::ExitStatus) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text
        .lines()
        .flat_map(|line| line.rsplit('\r').next())
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("warning: "))
        .collect();
    let tail = lines[lines.len().saturating_sub(SAID_LINES)..].join("; ");
    let skipped = tail.chars().count().saturating_sub(SAID_CHARS);
    match tail.chars().skip(skipped).collect::<String>() {
        tail if tail.is_empty() => format!("git ended with {status}"),
        tail => tail,
    }
}
