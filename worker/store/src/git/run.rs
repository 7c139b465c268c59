//! Calls of the git program.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use super::GitError;
use super::git_config::RepositoryLocation;

/// Default time limit of a call: a checkout of 200,000 files takes half a minute.
const CALL_TIMEOUT: Duration = Duration::from_secs(600);

/// Time limit of a call to a remote server: 100 GB at 5 MB/s.
const REMOTE_CALL_TIMEOUT: Duration = Duration::from_secs(6 * 60 * 60);

/// Default limit on the output of a call: a listing of a million files.
const OUTPUT_BYTES: u64 = 256 * 1024 * 1024;

/// Bytes of git's standard error that are kept: its end.
const STDERR_BYTES: usize = 4096;

/// Lines of it that are shown.
const STDERR_LINES: usize = 6;

/// Longest message of an error, characters.
const MESSAGE_CHARS: usize = 600;

/// Characters at the beginning of a longer message that are kept: git says there what failed, and long
/// addresses may follow.
const MESSAGE_HEAD_CHARS: usize = 100;

/// A repository that git is called on.
#[derive(Debug, Clone)]
pub struct Git {
    location: RepositoryLocation,
    objects: Option<PathBuf>,
    is_detached: bool,
}

/// Builder of a call.
#[derive(Debug)]
#[must_use = "a call does nothing until it is run"]
pub struct GitCall<'a> {
    git: &'a Git,
    args: Vec<OsString>,
    input: Vec<u8>,
    work_tree: Option<PathBuf>,
    index: Option<PathBuf>,
    variables: Vec<(&'static str, OsString)>,
    limit: Duration,
    max_bytes: u64,
}

impl Git {
    fn at(location: RepositoryLocation) -> Self {
        Self { location, objects: None, is_detached: false }
    }

    /// A repository made by Rollout, by its git directory.
    pub fn own_repository(git_dir: impl Into<PathBuf>) -> Self {
        Self::at(RepositoryLocation::Own(git_dir.into()))
    }

    /// The repository that a directory of the user belongs to. Only for reading, and for patches that
    /// the user applies: the user's configuration applies, except for settings that would run programs.
    pub fn user_repository(dir: impl Into<PathBuf>) -> Self {
        Self::at(RepositoryLocation::User(dir.into()))
    }

    /// The same repository, but objects are looked up in this directory first, and new ones are
    /// written only there.
    pub fn with_objects(self, dir: impl Into<PathBuf>) -> Self {
        Self { objects: Some(dir.into()), ..self }
    }

    /// A directory whose repository is filled from remote servers; any directory for a query to
    /// one. The environment and the configuration of the user apply, because they hold the
    /// credentials, except for settings that would run programs. Calls may take hours.
    pub fn remote(dir: impl Into<PathBuf>) -> Self {
        Self::at(RepositoryLocation::Remote(dir.into()))
    }

    /// The same for somebody other than the user of this process: without its environment, its
    /// configuration and its credentials. All connections are those of the HTTP proxy at this URL.
    pub fn public(dir: impl Into<PathBuf>, proxy: impl Into<String>) -> Self {
        let location = RepositoryLocation::Public { dir: dir.into(), proxy: proxy.into() };
        Self::at(location)
    }

    /// The same without a terminal: calls end with all processes that they started.
    #[must_use]
    pub fn detached(self) -> Self {
        Self { is_detached: true, ..self }
    }

    fn has_own_process_group(&self) -> bool {
        self.is_detached || self.location.has_own_process_group()
    }

    /// The directory given to the constructor.
    pub fn dir(&self) -> &Path {
        self.location.dir()
    }

    /// A call with these arguments.
    pub fn call<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> GitCall<'_> {
        GitCall {
            git: self,
            args: args.into_iter().map(|arg| arg.as_ref().to_owned()).collect(),
            input: Vec::new(),
            work_tree: None,
            index: None,
            variables: Vec::new(),
            limit: if self.location.is_remote() { REMOTE_CALL_TIMEOUT } else { CALL_TIMEOUT },
            max_bytes: OUTPUT_BYTES,
        }
    }
}

impl GitCall<'_> {
    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets its standard input; empty by default.
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = bytes.into();
        self
    }

    /// Sets the work tree.
    pub fn work_tree(mut self, dir: impl Into<PathBuf>) -> Self {
        self.work_tree = Some(dir.into());
        self
    }

    /// Sets the index file.
    pub fn index(mut self, file: impl Into<PathBuf>) -> Self {
        self.index = Some(file.into());
        self
    }

    /// Sets a variable of its environment.
    pub fn variable(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// Limits its output.
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Limits its duration.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs it and returns its output.
    ///
    /// # Errors
    /// [`GitError`].
    pub async fn run(self) -> Result<Vec<u8>, GitError> {
        let mut output = Vec::new();
        self.run_into(&mut output).await?;
        Ok(output)
    }

    /// Runs it and returns its output without the trailing newline.
    ///
    /// # Errors
    /// [`GitError`].
    pub async fn run_line(self) -> Result<String, GitError> {
        let what = self.describe();
        let output = self.run().await?;
        match String::from_utf8(output) {
            Ok(text) => Ok(text.trim_end_matches('\n').to_owned()),
            Err(_) => Err(GitError::Unexpected { what, answer: "not UTF-8".to_owned() }),
        }
    }

    /// Runs it and copies its output to `output`.
    ///
    /// # Errors
    /// [`GitError`]; part of the output may have been written.
    pub async fn run_into<W>(self, output: &mut W) -> Result<u64, GitError>
    where
        W: tokio::io::AsyncWrite + Unpin,
    {
        let (limit, what) = (self.limit, self.describe());
        match tokio::time::timeout(limit, self.run_without_timeout(output)).await {
            Ok(done) => done,
            Err(_) => Err(GitError::TimedOut { what, limit }),
        }
    }

    async fn run_without_timeout<W>(self, output: &mut W) -> Result<u64, GitError>
    where
        W: tokio::io::AsyncWrite + Unpin,
    {
        let (what, max_bytes) = (self.describe(), self.max_bytes);
        // Not on a blocking thread: there it could outlive a process that ends at that moment.
        let mut child = self.command().spawn().map_err(GitError::NotStarted)?;
        let mut group = ProcessGroup(child.id().filter(|_| self.git.has_own_process_group()));
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A git that exits early reports the reason itself.
                let _unread = stdin.write_all(&self.input).await;
            }
        };
        let read = async {
            let Some(stdout) = stdout else { return Ok(0) };
            let copied = tokio::io::copy(&mut stdout.take(max_bytes + 1), output).await;
            let copied = copied.map_err(|error| GitError::io("read", "git's output", error))?;
            output.flush().await.map_err(|e| GitError::io("write", "git's output", e))?;
            match copied > max_bytes {
                true => Err(GitError::TooLarge { what: what.clone(), max_bytes }),
                false => Ok(copied),
            }
        };
        let fed = async {
            feed.await;
            Ok::<_, GitError>(())
        };
        let said = async { Ok::<_, GitError>(tail(stderr).await) };
        let (copied, said, ()) = tokio::try_join!(read, said, fed)?;
        let status = wait(&mut child, &mut group).await.map_err(GitError::NotStarted)?;
        match status.success() {
            true => Ok(copied),
            false => Err(GitError::Failed {
                said: stderr_message(&said, status),
                code: status.code(),
                what,
            }),
        }
    }

    /// The command without settings, for messages.
    fn describe(&self) -> String {
        let settings = |arg: &&OsString| *arg != "-c" && !arg.to_string_lossy().contains('=');
        let command = self.args.iter().find(settings);
        command.map_or_else(String::new, |arg| arg.to_string_lossy().into_owned())
    }

    fn command(&self) -> Command {
        let mut command = Command::new("git");
        self.git.location.apply_settings(&mut command);
        command.args(&self.args);
        self.apply_environment(&mut command);
        let dir = self.work_tree.as_deref().unwrap_or(self.git.dir());
        command.current_dir(dir).kill_on_drop(true);
        if self.git.has_own_process_group() {
            command.process_group(0);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if self.input.is_empty() { Stdio::null() } else { Stdio::piped() });
        command
    }

    fn apply_environment(&self, command: &mut Command) {
        self.git.location.apply_environment(command);
        if let Some(dir) = &self.git.objects {
            command.env("GIT_OBJECT_DIRECTORY", dir);
        }
        if let Some(dir) = &self.work_tree {
            command.env("GIT_WORK_TREE", dir);
        }
        if let Some(file) = &self.index {
            command.env("GIT_INDEX_FILE", file);
        }
        for (name, value) in &self.variables {
            command.env(name, value);
        }
    }
}

/// The process group of a call: git starts child processes. They are killed when the waiting future
/// is dropped.
struct ProcessGroup(Option<u32>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let pid = self.0.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // Fails harmlessly if they have already ended.
            let _gone = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }
}

async fn wait(child: &mut Child, group: &mut ProcessGroup) -> io::Result<ExitStatus> {
    let status = child.wait().await?;
    group.0 = None;
    Ok(status)
}

/// The end of a stream.
async fn tail(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let Some(mut stream) = stream else { return Vec::new() };
    let (mut kept, mut buffer) = (Vec::new(), [0; STDERR_BYTES]);
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..read]);
        let over = kept.len().saturating_sub(STDERR_BYTES);
        kept.drain(..over);
    }
    kept
}

/// The last lines of git's error output, on one line. A long text has its beginning and its end.
fn stderr_message(stderr: &[u8], status: ExitStatus) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text
        .lines()
        // Of an overwritten line, keep only the last text.
        .filter_map(|line| line.rsplit('\r').next())
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("warning: "))
        .collect();
    let message = lines[lines.len().saturating_sub(STDERR_LINES)..].join("; ");
    let excess = message.chars().count().saturating_sub(MESSAGE_CHARS);
    let omitted = MESSAGE_HEAD_CHARS..MESSAGE_HEAD_CHARS + excess;
    let kept = message.chars().enumerate().filter(|(place, _)| !omitted.contains(place));
    let said = kept.map(|(_, c)| if c.is_control() { '\u{fffd}' } else { c });
    match said.collect::<String>() {
        said if said.is_empty() => format!("it ended with {status}"),
        said => said,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn long_message_keeps_its_beginning_and_its_end() {
        let said = format!("fatal: it failed:\n  {} the end\n", "x".repeat(MESSAGE_CHARS));
        let message = stderr_message(said.as_bytes(), ExitStatus::from_raw(0));
        assert_eq!(message.len(), MESSAGE_CHARS, "{message}");
        assert!(message.starts_with("fatal: it failed:; xx"), "{message}");
        assert!(message.ends_with("xx the end"), "{message}");
    }
}
