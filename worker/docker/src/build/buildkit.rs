//! Builds with BuildKit over the Engine API.

use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use bollard::errors::Error;
use bollard::query_parameters::BuilderVersion;
use bytes::Bytes;
use regex::Regex;
use rollout_base::supervise;
use rollout_environment::build_context::{ContextEntry, ContextKind};
use rollout_environment::dockerfile::{Dockerfile, with_ca_bundle, without_ca_bundle};
use rollout_environment::{Failure, FailureKind, dockerignore};
use rollout_protocol::digest::DigestHasher;
use serde::Deserialize;
use serde_json::Value;

use super::filesync::{SessionDir, SessionFiles};
use super::log::ImageBuildLog;
use super::progress::BuildSteps;
use super::session::{self, BuildSession};
use super::{
    BUILDKIT, BuildFailure, BuildSpec, FrontendSelector, OpenedSession, context, failure_kind,
    frontend, network_failure, reason,
};
use crate::client::DockerClient;
use crate::connection::{self, EngineConnection};

/// The text with which an engine refuses a build for which it has no BuildKit, before it reads anything of
/// the build.
const WITHOUT_BUILDKIT: &str = "buildkit is not enabled on daemon";

/// Type of progress messages.
const TRACE: &str = "moby.buildkit.trace";

/// Prefixes of errors, and names that change with every build.
static NOISE: LazyLock<Regex> = LazyLock::new(|| {
    let texts = [
        r"failed to solve(?: with frontend \S+)?: ",
        r"failed to create LLB definition: ",
        r"failed to calculate checksum of ref \S+: ",
        r"rpc error: code = Unknown desc = ",
    ];
    Regex::new(&texts.join("|")).expect("a pattern")
});

/// The end of a failed command's error.
static EXIT_CODE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"exit code: (\d+)$").expect("a pattern"));

/// One line of the engine's answer.
#[derive(Debug, Deserialize)]
struct BuildOutputLine {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    aux: Option<Value>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    stream: Option<String>,
}

/// Builds the image. Dropping the future closes the session and the connection, which cancels the
/// build in the engine.
pub(super) async fn run(
    client: &DockerClient,
    frontends: &FrontendSelector,
    build: &BuildSpec,
    text: &str,
    no_cache: bool,
    log: &mut ImageBuildLog,
) -> Result<(), BuildFailure> {
    let what = build.title();
    let file = Dockerfile::read(text);
    let failed = Arc::new(Mutex::new(None));
    let mut sent = frontends.choose(client, text, &file).await?;
    if build.ca_bundle.is_some() {
        sent.text = with_ca_bundle(&sent.text);
    }
    let files = files(build, &sent.text, Arc::clone(&failed)).await?;
    let session = match session::open(client, files, &content_key(build, &sent.text)).await? {
        OpenedSession::Session(session) => session,
        OpenedSession::Unsupported(why) => return Err(BuildFailure::NoBuilder(why)),
    };
    let old = sent.own && frontend::is_old(client).await?;
    if old {
        frontend::check_heredocs(&what, &file)?;
    }
    log.add(&sent.notes);
    let mut steps = BuildSteps::default();
    let solved = solve(client, &session, build, no_cache, &mut steps, log).await;
    match solved {
        Ok(true) => Ok(()),
        Ok(false) => {
            let message = format!("{what}: the engine ended the build without a result");
            Err(Failure::new(FailureKind::Unreachable, message).into())
        }
        Err(Error::DockerResponseServerError { status_code, message })
            if lacks_buildkit(status_code, &message) =>
        {
            Err(BuildFailure::NoBuilder(format!("{message} (status {status_code})")))
        }
        Err(error) => {
            if let Some(why) = failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let message = format!("{what}: cannot read the build context");
                return Err(Failure::local(FailureKind::Refused, message, why).into());
            }
            let mut failure = explain(client, &what, error, &steps);
            if old && failure.message.contains("Unknown flag") {
                failure.message.push_str(&format!(
                    ": the Dockerfile frontend of this engine may be too old: {}",
                    frontend::remedy()
                ));
            }
            Err(failure.into())
        }
    }
}

/// Whether an engine refused a build because it has no BuildKit. Other texts may have words of the task.
fn lacks_buildkit(status: u16, message: &str) -> bool {
    (400..500).contains(&status) && message.trim() == WITHOUT_BUILDKIT
}

/// Session key: identifies everything that the build may read, by content.
fn content_key(build: &BuildSpec, text: &str) -> String {
    let mut hasher = DigestHasher::default();
    for part in [build.digest.as_bytes().as_slice(), build.dockerfile.as_bytes(), text.as_bytes()] {
        hasher.update_part(part);
    }
    hasher.finish().hex()
}

/// The directories that the build may read.
async fn files(
    build: &BuildSpec,
    text: &str,
    failed: Arc<Mutex<Option<std::io::Error>>>,
) -> Result<SessionFiles, Failure> {
    let (root, dockerfile) = (build.context.clone(), build.dockerfile.clone());
    let listed = supervise::blocking(move || {
        let entries = context::visible(&root, &dockerfile)?;
        let own = format!("{dockerfile}{}", dockerignore::FILE_NAME);
        let patterns = [dockerignore::FILE_NAME, &own];
        let patterns: Vec<&str> =
            patterns.into_iter().filter(|name| root.join(name).is_file()).collect();
        let ignore = with_parents(&patterns);
        let dockerfile = with_parents(&[patterns.as_slice(), &[dockerfile.as_str()]].concat());
        Ok::<_, std::io::Error>((entries, ignore, dockerfile))
    });
    let (entries, ignore, dockerfile) = listed.await.map_err(|error| {
        let message = format!("{}: cannot read the build context", build.title());
        Failure::local(FailureKind::Refused, message, error)
    })?;
    let dir = |entries: Vec<ContextEntry>, replacement| SessionDir {
        root: build.context.clone(),
        entries: entries.into(),
        replacement,
    };
    let instead = (build.dockerfile.clone(), Bytes::copy_from_slice(text.as_bytes()));
    Ok(SessionFiles {
        context: dir(entries, None),
        dockerfile: dir(dockerfile, Some(instead)),
        ignore: dir(ignore, None),
        ca_bundle: build.ca_bundle.clone(),
        failed,
    })
}

/// Files and the directories above them, in the order of a listing.
fn with_parents(paths: &[&str]) -> Vec<ContextEntry> {
    let mut found: Vec<ContextEntry> = Vec::new();
    for path in paths {
        let above = Path::new(path).ancestors().skip(1).filter_map(Path::to_str);
        for dir in above.filter(|dir| !dir.is_empty()) {
            found.push(ContextEntry { path: dir.to_owned(), kind: ContextKind::Dir });
        }
        let kind = ContextKind::File { executable: false };
        found.push(ContextEntry { path: (*path).to_owned(), kind });
    }
    found.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
    found.dedup();
    found
}

/// Runs the build to its end; returns whether it produced an image.
async fn solve(
    client: &DockerClient,
    session: &BuildSession,
    build: &BuildSpec,
    no_cache: bool,
    steps: &mut BuildSteps,
    log: &mut ImageBuildLog,
) -> Result<bool, Error> {
    let options = bollard::query_parameters::BuildImageOptions {
        version: BuilderVersion::BuilderBuildKit,
        remote: Some("client-session".to_owned()),
        ..build.options(no_cache, BUILDKIT)
    };
    let query =
        serde_urlencoded::to_string(&options).map_err(|err| Error::URLEncodedError { err })?;
    let mut connection = match EngineConnection::open(client).await {
        Ok(connection) => connection,
        Err(failure) => {
            return Err(Error::IOError { err: std::io::Error::other(failure.chain()) });
        }
    };
    let answer =
        connection.post(client, &format!("/build?{query}&session={}", session.id), &[]).await?;
    if !answer.status().is_success() {
        return Err(connection::refusal(answer).await);
    }
    let mut lines = connection.lines(answer);
    let mut built = false;
    while let Some(line) = lines.next().await? {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let line: BuildOutputLine =
            serde_json::from_slice(&line).map_err(|err| Error::JsonSerdeError { err })?;
        match (line.id.as_deref(), line.aux) {
            (Some(TRACE), Some(Value::String(aux))) => steps.read_status(&build.tag, &aux, log),
            (_, Some(Value::Object(image))) => built |= image.contains_key("ID"),
            _ => {}
        }
        if let Some(text) = line.stream {
            log.add(&text);
        }
        if let Some(error) = line.error {
            return Err(Error::DockerStreamError { error });
        }
    }
    Ok(built)
}

/// The failed step with its instruction, the reason and the last lines that it printed.
fn explain(client: &DockerClient, what: &str, error: Error, steps: &BuildSteps) -> Failure {
    let Error::DockerStreamError { error } = error else { return client.failure(what, error) };
    let said = NOISE.replace_all(error.trim(), "").into_owned();
    let exit = EXIT_CODE.captures(&said).map(|found| found[1].to_owned());
    let kind = if exit.is_some() {
        FailureKind::Refused
    } else {
        let own = reason::own_words(&error);
        if let Some(failure) = network_failure(what, &own, &said) {
            return failure;
        }
        let of_engine = Error::DockerStreamError { error: own.clone() };
        failure_kind(&own, client.failure(what, of_engine).kind)
    };
    let Some(step) = steps.failed(&error) else {
        return Failure::new(kind, format!("{what}: {said}"));
    };
    let reason = exit.map_or(said, |code| format!("exit code {code}"));
    let name = without_ca_bundle(&step.name);
    let mut message = format!("{what}: the step `{name}` failed: {reason}");
    let printed = step.printed();
    if !printed.is_empty() {
        message.push_str(&format!("\nThe last lines of the step's output:\n{printed}"));
    }
    Failure::new(kind, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_lacks_buildkit_by_its_own_words() {
        assert!(lacks_buildkit(400, WITHOUT_BUILDKIT) && !lacks_buildkit(500, WITHOUT_BUILDKIT));
        assert!(lacks_buildkit(400, &format!("{WITHOUT_BUILDKIT}\n")));
        for message in [
            "dockerfile parse error line 2: unknown instruction: BUILDKIT",
            "failed to solve: target stage \"buildkit\" could not be found",
            "stat /tmp/buildkit-mount1/x: no such file or directory",
            "unknown instruction: buildkit is not enabled on daemon",
            "Buildkit is not enabled on daemon",
        ] {
            assert!(!lacks_buildkit(400, message), "{message}");
        }
    }

    #[test]
    fn build_context_entries_follow_their_directories() {
        let found =
            with_parents(&[".dockerignore", "a/b/Dockerfile", "a/b/Dockerfile.dockerignore"]);
        let paths: Vec<_> = found.iter().map(|entry| entry.path.as_str()).collect();
        let expected =
            [".dockerignore", "a", "a/b", "a/b/Dockerfile", "a/b/Dockerfile.dockerignore"];
        assert_eq!(paths, expected);
    }
}
