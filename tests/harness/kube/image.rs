//! Images that the double's nodes can pull.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Result of pulling an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PullOutcome {
    /// It is pulled.
    #[default]
    Pulled,
    /// It is pulled after a time.
    Slow(Duration),
    /// The registry does not have it.
    Missing,
    /// The registry refuses the credentials.
    Denied,
    /// The registry does not answer.
    Unreachable,
}

/// An image: programs of this host with own files, and the settings of a container.
#[derive(Debug, Clone, Default)]
pub struct ImageFixture {
    pub(super) workdir: String,
    pub(super) env: BTreeMap<String, String>,
    pub(super) entrypoint: Vec<String>,
    pub(super) user: u32,
    /// Its user by name, if it names one.
    pub(super) user_name: Option<String>,
    pub(super) files: Vec<(PathBuf, Vec<u8>, u32)>,
    pub(super) pull: PullOutcome,
    pub(super) is_lazy: bool,
    pub(super) removed: Vec<String>,
    pub(super) pushes: bool,
}

impl ImageFixture {
    /// An image with the working directory `/app` and no entry point.
    pub fn new() -> Self {
        Self { workdir: "/app".to_owned(), ..Self::default() }
    }

    /// Sets the working directory.
    #[must_use]
    pub fn workdir(mut self, directory: &str) -> Self {
        directory.clone_into(&mut self.workdir);
        self
    }

    /// Adds a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets the entry point.
    #[must_use]
    pub fn entrypoint(mut self, command: &[&str]) -> Self {
        self.entrypoint = command.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Sets the user ID of its processes, which otherwise is 0.
    #[must_use]
    pub fn user(mut self, user: u32) -> Self {
        self.user = user;
        self
    }

    /// Sets the user of its processes by name, whose ID nodes do not know.
    #[must_use]
    pub fn named_user(self, name: &str, user: u32) -> Self {
        Self { user_name: Some(name.to_owned()), ..self.user(user) }
    }

    /// Adds a file at an absolute path.
    #[must_use]
    pub fn file(mut self, path: &str, content: &[u8], mode: u32) -> Self {
        let path = PathBuf::from(path.trim_start_matches('/'));
        self.files.push((path, content.to_vec(), mode));
        self
    }

    /// Sets the result of pulling it.
    #[must_use]
    pub fn pull(mut self, outcome: PullOutcome) -> Self {
        self.pull = outcome;
        self
    }

    /// Removes programs of the host, such as `tar`, from it.
    #[must_use]
    pub fn without(mut self, programs: &[&str]) -> Self {
        self.removed.extend(programs.iter().map(|&program| program.to_owned()));
        self
    }

    /// Its containers push images: what they write to `/registry/NAME` becomes the file
    /// `/built-from` of an image that nodes can pull by this name.
    #[must_use]
    pub fn pushes(mut self) -> Self {
        self.pushes = true;
        self
    }

    /// Its pods run without processes until the first exec, so that many cost little.
    #[must_use]
    pub fn lazy(mut self) -> Self {
        self.is_lazy = true;
        self
    }
}

/// Reason and message of a container that waits for an image, if it does not come: first as
/// reported by the failed pull, then during the back-off.
pub(super) fn pull_failure(reference: &str, outcome: &PullOutcome) -> Option<(String, String)> {
    let cause = match outcome {
        PullOutcome::Pulled | PullOutcome::Slow(_) => return None,
        PullOutcome::Missing => format!(
            "failed to pull and unpack image \"{reference}\": failed to resolve reference \
             \"{reference}\": {reference}: not found"
        ),
        PullOutcome::Denied => format!(
            "failed to pull and unpack image \"{reference}\": failed to resolve reference \
             \"{reference}\": pull access denied, repository does not exist or may require \
             authorization: server message: insufficient_scope: authorization failed"
        ),
        PullOutcome::Unreachable => format!(
            "failed to pull and unpack image \"{reference}\": failed to resolve reference \
             \"{reference}\": failed to do request: Head \"https://registry.test/v2/\": dial tcp \
             192.0.2.1:443: i/o timeout"
        ),
    };
    let code = match outcome {
        PullOutcome::Missing => "NotFound",
        _ => "Unknown",
    };
    let error = format!("rpc error: code = {code} desc = {cause}");
    let back_off = format!("Back-off pulling image \"{reference}\": ErrImagePull: {error}");
    Some((error, back_off))
}

/// Whether a reference can name an image.
pub(super) fn is_valid_reference(reference: &str) -> bool {
    let name = reference.split('@').next().unwrap_or_default();
    !name.is_empty()
        && !name.starts_with('/')
        && name.rsplit('/').next().is_some_and(|last| !last.is_empty() && !last.starts_with(':'))
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:".contains(c))
        && !name.rsplit('/').next().is_some_and(|last| {
            last.split(':').next().is_some_and(|base| base.chars().any(|c| c.is_ascii_uppercase()))
        })
}
