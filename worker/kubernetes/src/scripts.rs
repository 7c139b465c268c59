//! Scripts that run in containers, and their arguments.
//!
//! The exec call of the API has no variables, no directory and no user, its arguments are in a URL
//! that servers log, and a command ends unseen when its connection breaks. So the script of a
//! command travels on standard input, starts detached, and writes its output to files that are read
//! from an offset. What a trial does to these files can only harm itself.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use rollout_environment::{ExecCommand, Upload, kill};

/// A script with its comments and indentation removed: it is part of a URL.
macro_rules! script {
    ($name:ident, $file:literal) => {
        static $name: LazyLock<String> = LazyLock::new(|| compact(include_str!($file)));
    };
}

script!(CONNECT, "scripts/connect.sh");
script!(LAUNCH, "scripts/launch.sh");
script!(PREPARE, "scripts/prepare.sh");
script!(PLACE, "scripts/place.sh");
script!(READ, "scripts/read.sh");
script!(USER, "scripts/user.sh");
script!(KILL_COMMANDS, "scripts/kill_commands.sh");
const RUN: &str = include_str!("scripts/run.sh");
static SWEEP: LazyLock<String> = LazyLock::new(|| compact(kill::SCRIPT));

/// Name of scripts in lists of processes.
const NAME: &str = "rollout";

/// Arguments of an exec call that starts a command, or only reads its output.
pub(super) struct Launch<'a> {
    /// Identifies the command in its container.
    pub(super) id: &'a str,
    /// Bytes of the runner's script that follow on standard input; 0 starts nothing.
    pub(super) script_bytes: usize,
    /// Bytes of both outputs that have arrived.
    pub(super) out: u64,
    pub(super) err: u64,
}

impl Launch<'_> {
    /// The arguments.
    pub(super) fn argv(&self, shell: &str, mark: &str) -> Vec<String> {
        let arguments = [
            self.id.to_owned(),
            self.script_bytes.to_string(),
            self.out.to_string(),
            self.err.to_string(),
            mark.to_owned(),
            shell.to_owned(),
        ];
        argv(shell, LAUNCH.clone(), arguments)
    }
}

/// The script that runs a command: variables of the environment come before those of the command.
pub(super) fn runner(
    id: &str,
    command: &ExecCommand,
    env: &BTreeMap<String, String>,
    workdir: &str,
) -> String {
    let mut all = env.clone();
    all.extend(command.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    let variables: Vec<String> =
        all.iter().map(|(name, value)| quote(&format!("{name}={value}"))).collect();
    let search = all.get("PATH").map_or_else(|| "\"$path\"".to_owned(), |path| quote(path));
    let arguments: Vec<String> = command.argv.iter().map(|argument| quote(argument)).collect();
    let user = quote(command.user.as_deref().unwrap_or_default());
    let workdir = quote(command.workdir.as_deref().unwrap_or(workdir));
    format!(
        "d=/.rollout/c/{id}\nuser={user}\nworkdir={workdir}\nsearch={search}\n\
         set -- {arguments}\nvars() {{ become $session env PATH=\"$path\" {variables} \"$@\"; }}\n{run}",
        arguments = arguments.join(" "),
        variables = variables.join(" "),
        run = compact(RUN),
    )
}

/// Arguments of the call that prepares a container into which files are placed at `places`.
pub(super) fn prepare(
    shell: &str,
    workdir: Option<&str>,
    places: &[String],
    mark: &str,
) -> Vec<String> {
    let workdir = workdir.unwrap_or_default().to_owned();
    let mut argv = argv(shell, PREPARE.clone(), [workdir, mark.to_owned()]);
    argv.extend_from_slice(places);
    argv
}

/// Arguments of the call that looks for a user of the image by name.
pub(super) fn user(shell: &str, name: &str, mark: &str) -> Vec<String> {
    argv(shell, USER.clone(), [name.to_owned(), mark.to_owned()])
}

/// Arguments of the call that tries to connect to the API server, by programs of the operator only or
/// also of the image.
pub(super) fn connect(shell: &str, is_own: bool, mark: &str) -> Vec<String> {
    let whose = if is_own { "own" } else { "any" };
    argv(shell, CONNECT.clone(), [mark.to_owned(), whose.to_owned()])
}

/// Arguments of the call that places files from an archive of `bytes` bytes.
pub(super) fn place(shell: &str, uploads: &[Upload], bytes: u64, mark: &str) -> Vec<String> {
    let script = format!("{}{}extract\n", *PLACE, directories(uploads));
    argv(shell, script, [bytes.to_string(), mark.to_owned()])
}

/// Calls that make the directories of uploads.
fn directories(uploads: &[Upload]) -> String {
    let trimmed = |path: &str| quote(path.trim_end_matches('/'));
    let lines = uploads.iter().filter_map(|upload| match upload {
        Upload::Dir { path } => Some(format!("dir {}\n", trimmed(path))),
        Upload::FreshDir { path } => Some(format!("fresh {} 1777\n", trimmed(path))),
        Upload::Archive { path, .. } => Some(format!("fresh {} 755\n", trimmed(path))),
        Upload::Merge { path, .. } => {
            let is_root = path.trim_end_matches('/').is_empty();
            (!is_root).then(|| format!("parent {}\n", trimmed(path)))
        }
        Upload::File { path, .. } => {
            let (parent, _) = path.rsplit_once('/')?;
            (!parent.is_empty()).then(|| format!("parent {}\n", quote(parent)))
        }
    });
    lines.collect()
}

/// Arguments of the call that reads `path` as an archive, without its first `offset` bytes.
pub(super) fn read(shell: &str, path: &str, offset: u64, mark: &str) -> Vec<String> {
    let path = path.trim_end_matches('/');
    let (parent, name) = match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
        None => (".", path),
    };
    let name = if name.is_empty() { "." } else { name };
    let arguments = [parent.to_owned(), name.to_owned(), offset.to_string(), mark.to_owned()];
    argv(shell, READ.clone(), arguments)
}

/// Arguments of the call that ends all processes. With `keeps_own`, the oldest child of the first
/// process stays, and its children: the environment's own process.
pub(super) fn sweep(shell: &str, keeps_own: bool) -> Vec<String> {
    let mode = if keeps_own { "" } else { "all" };
    argv(shell, format!("ROLLOUT_SWEEP={mode}\n{}", *SWEEP), [])
}

/// Arguments of the call that ends the processes of commands in the container of a service.
pub(super) fn kill_commands(shell: &str) -> Vec<String> {
    argv(shell, KILL_COMMANDS.clone(), [])
}

fn argv<const N: usize>(shell: &str, script: String, arguments: [String; N]) -> Vec<String> {
    let start = [shell.to_owned(), "-c".to_owned(), script, NAME.to_owned()];
    start.into_iter().chain(arguments).collect()
}

/// A text as one word of a shell.
pub(super) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn compact(script: &str) -> String {
    let lines = script.lines().map(str::trim_start);
    let kept = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    kept.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests;
