//! The `docker compose` program.
//!
//! It is run directly and not through `docker`: a client that is killed leaves its plugin behind.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rollout_base::supervise;
use rollout_environment::{Failure, FailureKind};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

/// Variable with the path of the program, for when it is in none of the usual directories.
pub(super) const VARIABLE: &str = "ROLLOUT_DOCKER_COMPOSE";

/// Directories in which plugins of the `docker` program are installed for every user.
const DIRECTORIES: [&str; 4] = [
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
];

const NAME: &str = "docker-compose";

/// Timeout of the version query.
const VERSION_WITHIN: Duration = Duration::from_secs(20);

/// Variables that it always has, so that no other one and no file of a task sets them: it starts no
/// program, contacts nothing but the engine and reads no files of variables but those that are named.
/// Empty ones are for compose files as if they were not set.
const FIXED_VARIABLES: [(&str, &str); 7] = [
    ("PATH", ""),
    ("HOME", ""),
    // Newer versions set it to the directory of the worker.
    ("PWD", ""),
    ("DOCKER_CONTEXT", ""),
    ("COMPOSE_DISABLE_ENV_FILE", "1"),
    ("COMPOSE_EXPERIMENTAL_GIT_REMOTE", "0"),
    ("COMPOSE_EXPERIMENTAL_OCI_REMOTE", "0"),
];

/// Variables that the program, the libraries in it and their runtime read: they make it contact
/// collectors of traces, for example.
const OWN_VARIABLES: [&str; 10] = [
    "GCONV_PATH",
    "GOCOVERDIR",
    "GODEBUG",
    "GOGC",
    "GOMAXPROCS",
    "GOMEMLIMIT",
    "GOTRACEBACK",
    "HOME",
    "PATH",
    "PWD",
];
const OWN_PREFIXES: [&str; 9] =
    ["BUILDKIT_", "BUILDX_", "COMPOSE_", "DOCKER_", "GLIBC_", "LD_", "OTEL_", "SSL_CERT_", "XDG_"];

/// Bytes of memory that it may write to. Variables let a small file ask for any amount.
#[cfg(target_os = "linux")]
const MEMORY_BYTES: u64 = 1024 * 1024 * 1024;

/// Message in place of the state that its runtime prints when it has no memory left.
const NO_MEMORY: &str = "docker compose needs more than 1 GiB of memory";

/// Limit of its output: a resolved file of hundreds of services, and messages.
const OUTPUT_BYTES: u64 = 16 * 1024 * 1024;
const MESSAGE_BYTES: u64 = 64 * 1024;

/// A program that was found.
#[derive(Debug, Clone)]
pub(super) struct ComposeProgram(PathBuf);

/// Outcome of a run of the program.
#[derive(Debug)]
pub(super) struct ProgramOutput {
    pub(super) success: bool,
    pub(super) output: Vec<u8>,
    /// Its standard error, or that it had no memory left.
    pub(super) messages: String,
}

impl ComposeProgram {
    /// Looks for a program of version 2 or newer.
    pub(super) async fn find(named: Option<&Path>) -> Result<Self, Failure> {
        let paths = match named {
            Some(path) => vec![path.to_owned()],
            None => plugin_paths(),
        };
        for path in paths {
            if !tokio::fs::metadata(&path).await.is_ok_and(|found| found.is_file()) {
                continue;
            }
            let program = Self(path);
            let words = ["version".into(), "--short".into()];
            let ended = match program.run(&words, &BTreeMap::new(), VERSION_WITHIN).await {
                Ok(ended) => ended,
                // It is installed, but this host is too busy.
                Err(failure) if failure.kind == FailureKind::TimedOut => return Err(failure),
                Err(_) => continue,
            };
            let version = String::from_utf8_lossy(&ended.output).trim().to_owned();
            if ended.success && is_new_enough(&version) {
                tracing::info!(program = %program.0.display(), version, "found docker compose");
                return Ok(program);
            }
        }
        let text = format!(
            "the task has services, but the program `docker compose` (version 2 or newer) was not \
             found: install it (package docker-compose-plugin or docker-compose-v2), or set its \
             path in {VARIABLE}"
        );
        Err(Failure::new(FailureKind::Unsupported, text))
    }

    /// Runs it with only these variables: a file that it resolves can refer to them.
    pub(super) async fn run(
        &self,
        words: &[OsString],
        variables: &BTreeMap<String, String>,
        limit: Duration,
    ) -> Result<ProgramOutput, Failure> {
        let mut command = Command::new(&self.0);
        command.args(words).env_clear().kill_on_drop(true);
        command
            .envs(variables)
            .envs(FIXED_VARIABLES)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let cannot = |error: io::Error| {
            let text = "cannot run the program `docker compose`";
            Failure::new(FailureKind::NotPermitted, text).with_source(error)
        };
        // The program may be on a disk that gives no answer.
        let start = move || {
            let child = command.spawn()?;
            limit_memory(&child)?;
            io::Result::Ok(child)
        };
        let mut child = supervise::blocking(start).await.map_err(cannot)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let run = async {
            let (output, messages, status) = tokio::join!(
                bounded(stdout, OUTPUT_BYTES),
                bounded(stderr, MESSAGE_BYTES),
                child.wait()
            );
            let success = status.map_err(cannot)?.success();
            let messages = plain_messages(success, &messages);
            Ok(ProgramOutput { success, output, messages })
        };
        match tokio::time::timeout(limit, run).await {
            Ok(ended) => ended,
            Err(_) => {
                let text = format!("docker compose took longer than {limit:?}");
                Err(Failure::new(FailureKind::TimedOut, text))
            }
        }
    }
}

/// Limits the memory of the program. Systems without such limits have none.
fn limit_memory(child: &Child) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};

        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let limit = Rlimit { current: Some(MEMORY_BYTES), maximum: Some(MEMORY_BYTES) };
            prlimit(Some(pid), Resource::Data, limit)?;
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _unlimited = child;
    Ok(())
}

/// The messages of the program, without the state that its runtime prints when it has no memory left.
fn plain_messages(success: bool, messages: &[u8]) -> String {
    let messages = String::from_utf8_lossy(messages);
    let had_no_memory = messages.lines().any(|line| {
        let is_fatal = line.starts_with("fatal error: ") && line.contains("memory");
        is_fatal || line.starts_with("runtime: out of memory")
    });
    if had_no_memory && !success { NO_MEMORY.to_owned() } else { messages.into_owned() }
}

/// Whether the program reads a variable for itself, so that no task may set it.
pub(super) fn reads(variable: &str) -> bool {
    OWN_VARIABLES.contains(&variable)
        || OWN_PREFIXES.iter().any(|prefix| variable.starts_with(prefix))
}

/// Path of the installed program, version 2 or newer.
pub async fn find_compose() -> Option<PathBuf> {
    ComposeProgram::find(None).await.ok().map(|program| program.0)
}

fn plugin_paths() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".docker/cli-plugins"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = home.into_iter().collect();
    places.extend(DIRECTORIES.map(PathBuf::from));
    places.extend(std::env::split_paths(&path));
    places.into_iter().map(|place| place.join(NAME)).collect()
}

fn is_new_enough(version: &str) -> bool {
    let version = version.trim_start_matches('v');
    version
        .split('.')
        .next()
        .and_then(|major| major.parse().ok())
        .is_some_and(|major: u32| major >= 2)
}

/// The beginning of a stream, which is read to its end.
async fn bounded(stream: Option<impl AsyncRead + Unpin>, limit: u64) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut stream) = stream else { return kept };
    // A stream that breaks has ended.
    let _read = (&mut stream).take(limit).read_to_end(&mut kept).await;
    let _rest = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    kept
}

#[cfg(test)]
mod tests {
    use super::{NO_MEMORY, is_new_enough, plain_messages, reads};

    #[test]
    fn program_without_memory_has_one_plain_message() {
        for said in [
            "fatal error: out of memory allocating heap arena metadata\n\nruntime \
             stack:\nruntime.throw({0x1, 0x2})\n\tpanic.go:1023 +0x5c pc=0x478548",
            "runtime: out of memory: cannot allocate 4194304-byte block (1 in use)\nfatal error: \
             out of memory\n\ngoroutine 1 [running]:",
            "fatal error: runtime: cannot allocate memory\n\nruntime stack:",
        ] {
            assert_eq!(plain_messages(false, said.as_bytes()), NO_MEMORY, "{said}");
        }
        for (success, said) in [
            (false, "service \"db\" exited: out of memory"),
            (false, "fatal error: all goroutines are asleep - deadlock!"),
            (true, "fatal error: out of memory"),
        ] {
            assert_eq!(plain_messages(success, said.as_bytes()), said);
        }
    }

    #[test]
    fn variables_of_the_program_are_known() {
        for name in ["OTEL_EXPORTER_OTLP_ENDPOINT", "DOCKER_HOST", "GODEBUG", "PATH", "LD_PRELOAD"]
        {
            assert!(reads(name), "{name}");
        }
        for name in ["GOOGLE_API_KEY", "MY_PATH", "DATABASE_URL", "CONTEXT_DIR"] {
            assert!(!reads(name), "{name}");
        }
    }

    #[test]
    fn compose_version_one_is_too_old() {
        for (version, enough) in
            [("2.26.1-4", true), ("v2.40.0", true), ("5.0.1", true), ("1.29.2", false), ("", false)]
        {
            assert_eq!(is_new_enough(version), enough, "{version}");
        }
    }
}
