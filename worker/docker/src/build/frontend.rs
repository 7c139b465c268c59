//! Choice of the frontend that reads a Dockerfile: the engine's own, the image named in `#
//! syntax=`, or the image that this host sets for all Dockerfiles.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rollout_environment::dockerfile::{Dockerfile, lacks_heredocs};
use rollout_environment::{Failure, FailureKind};

use crate::client::DockerClient;
use crate::image;

/// Variable that sets the frontend of Dockerfiles that name none.
pub(in super::super) const VARIABLE: &str = "ROLLOUT_DOCKERFILE_FRONTEND";

/// Timeout of the pull of a frontend, an image of some 15 MB.
const PULLED_WITHIN: Duration = Duration::from_secs(60);

/// Pause before a frontend that could not be pulled is tried again.
const PULL_RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// The first Engine API whose own frontend supports here-documents (Docker 23).
const HEREDOCS_API: (usize, usize) = (1, 42);

/// Frontends that are available at an engine.
#[derive(Debug)]
pub(in super::super) struct FrontendSelector {
    host_default: Option<String>,
    missing: Mutex<HashMap<String, (Instant, String)>>,
}

/// The Dockerfile to send.
pub(super) struct FrontendDockerfile {
    /// The text.
    pub(super) text: String,
    /// Lines for the log about the frontend.
    pub(super) notes: String,
    /// Whether the engine's own frontend reads it.
    pub(super) own: bool,
}

impl FrontendSelector {
    /// A selector for a host whose default frontend is `named`.
    pub(in super::super) fn new(named: Option<String>) -> Self {
        let host_default =
            named.or_else(|| std::env::var(VARIABLE).ok()).filter(|name| !name.is_empty());
        Self { host_default, missing: Mutex::default() }
    }

    /// The frontend that this host sets.
    pub(in super::super) fn named(&self) -> Option<&str> {
        self.host_default.as_deref()
    }

    /// Chooses the frontend of a Dockerfile.
    pub(super) async fn choose(
        &self,
        client: &DockerClient,
        text: &str,
        file: &Dockerfile,
    ) -> Result<FrontendDockerfile, Failure> {
        let mut notes = String::new();
        let written = file.syntax.as_ref().map(|(_, image)| image.as_str());
        let wanted = written.into_iter().chain(self.named());
        for image in wanted {
            let is_written = written == Some(image);
            let why = match !is_written && is_too_old(file, image) {
                true => Some("it has no here-documents".to_owned()),
                false => self.missing(client, image).await?,
            };
            match why {
                None if is_written => {
                    return Ok(FrontendDockerfile { text: text.to_owned(), notes, own: false });
                }
                None => {
                    let text = with_syntax(text, file, Some(image));
                    notes.push_str(&format!("The Dockerfile frontend is {image}.\n"));
                    return Ok(FrontendDockerfile { text, notes, own: false });
                }
                Some(why) => notes.push_str(&format!(
                    "The frontend {image} cannot be used: {why}. Trying the next one.\n"
                )),
            }
        }
        if !notes.is_empty() {
            tracing::warn!("{}", notes.trim_end());
        }
        Ok(FrontendDockerfile { text: with_syntax(text, file, None), notes, own: true })
    }

    /// The reason why a frontend's image is neither present nor can be pulled.
    async fn missing(&self, client: &DockerClient, image: &str) -> Result<Option<String>, Failure> {
        if image::is_present(client, image, None).await? {
            return Ok(None);
        }
        let known = self.known_missing(image);
        if known.is_some() {
            return Ok(known);
        }
        let pulled = tokio::time::timeout(PULLED_WITHIN, image::pull(client, image, None)).await;
        let why = match pulled {
            Ok(Ok(())) => return Ok(None),
            // If the engine does not answer, the frontend may still be available.
            Ok(Err(failure)) if client.docker().await?.ping().await.is_err() => {
                return Err(failure);
            }
            Ok(Err(failure)) => failure.chain(),
            Err(_) => format!("the pull took longer than {PULLED_WITHIN:?}"),
        };
        let mut missing = self.missing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        missing.insert(image.to_owned(), (Instant::now(), why.clone()));
        Ok(Some(why))
    }

    fn known_missing(&self, image: &str) -> Option<String> {
        let mut missing = self.missing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        missing.retain(|_, (since, _)| since.elapsed() < PULL_RETRY_INTERVAL);
        missing.get(image).map(|(_, why)| why.clone())
    }
}

/// Whether a frontend reads here-documents of a Dockerfile as instructions.
fn is_too_old(file: &Dockerfile, frontend: &str) -> bool {
    file.has_heredocs() && lacks_heredocs(frontend)
}

/// Whether the engine's own frontend lacks here-documents.
pub(super) async fn is_old(client: &DockerClient) -> Result<bool, Failure> {
    let version = client.docker().await?.client_version();
    Ok((version.major_version, version.minor_version) < HEREDOCS_API)
}

/// Hint on how to get a newer frontend.
pub(super) fn remedy() -> String {
    format!(
        "use Docker 23 or newer, or a newer frontend that the engine can pull, set by \
         `# syntax=docker/dockerfile:1` in the Dockerfile or by {VARIABLE} on this host"
    )
}

/// Refuses here-documents, which an old frontend would read as instructions.
pub(super) fn check_heredocs(what: &str, file: &Dockerfile) -> Result<(), Failure> {
    let Some(first) = file.instructions.iter().find(|one| one.heredocs > 0) else {
        return Ok(());
    };
    let message = format!(
        "{what}: line {}: {} has a here-document, which the Dockerfile frontend of this engine \
         does not support: {}",
        first.line,
        first.name,
        remedy()
    );
    Err(Failure::new(FailureKind::Refused, message))
}

/// The Dockerfile with another frontend, or with none. Other directives stay. Line numbers stay the
/// same where the Dockerfile had a frontend.
fn with_syntax(text: &str, file: &Dockerfile, image: Option<&str>) -> String {
    let directive = image.map(|image| format!("# syntax={image}\n"));
    let Some((line, _)) = file.syntax else {
        return directive.unwrap_or_default() + text.trim_start_matches('\u{feff}');
    };
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    match &directive {
        Some(directive) => {
            lines[line - 1] = directive;
            lines.concat()
        }
        None => {
            // A comment in its place would end the directives, so it goes after them.
            lines.remove(line - 1);
            let directive = |line: &&&str| line.starts_with('#') && line.contains('=');
            let end = lines.iter().take_while(directive).count();
            lines.insert(end, "#\n");
            lines.concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frontend_of_the_host_without_heredocs_reads_no_dockerfile_with_them() {
        let plain = Dockerfile::read("FROM a\nRUN b\n");
        let heredoc = Dockerfile::read("FROM a\nRUN <<CMD\nFROM b\nCMD\n");
        for (frontend, expected) in [
            ("docker/dockerfile:1.3", true),
            ("docker.io/docker/dockerfile:1.2@sha256:00", true),
            ("docker/dockerfile:1", false),
        ] {
            assert_eq!(is_too_old(&heredoc, frontend), expected, "{frontend}");
            assert!(!is_too_old(&plain, frontend), "{frontend}");
        }
    }

    #[test]
    fn dockerfile_syntax_line_is_replaced_or_removed() {
        let with = |text: &str, image: Option<&str>| {
            let sent = with_syntax(text, &Dockerfile::read(text), image);
            let file = Dockerfile::read(&sent);
            (sent, file)
        };
        let (sent, file) = with("FROM a\n", Some("x/y:1"));
        assert_eq!(
            (sent.as_str(), file.syntax),
            ("# syntax=x/y:1\nFROM a\n", Some((1, "x/y:1".into())))
        );
        let text = "# syntax=old\n# escape=`\nFROM a\nRUN b `\n  c\n";
        let (_, file) = with(text, Some("new"));
        assert_eq!((file.syntax, file.escape), (Some((1, "new".into())), '`'));
        let (sent, file) = with(text, None);
        assert_eq!((file.syntax, file.escape, file.instructions.len()), (None, '`', 2));
        assert_eq!(file.instructions[1].line, 4, "{sent}");
        assert_eq!(with("FROM a\n", None).0, "FROM a\n");
    }
}
