//! Errors of git calls on remote repositories.

use std::io;

use rollout_store::git;

use super::FetchError;
use super::origin::Origin;

/// Git's words for a redirect of the first request to an address of another form, such as a login page.
const REDIRECTION: &str = "unable to update url base from redirection";

/// Git's words for an answer of another form, such as a login page at the same address.
const NO_REFS: &str = "info/refs not valid";

/// Git's words for an answer of a server that has no such repository: 404, 410 and 451, and the same over SSH.
const ABSENCES: &[&str] =
    &["returned error: 404", "returned error: 410", "returned error: 451", "Repository not found"];

/// Git's words for another answer of a server that does not give the repository: 401, 403, a page that is no
/// repository, a redirect that is not followed, and the same over SSH.
const DENIALS: &[&str] = &[
    "Authentication failed for",
    "could not read Username for",
    "could not read Password for",
    "unable to get password from user",
    "returned error: 401",
    "returned error: 403",
    // All codes from 300 to 309.
    "returned error: 30",
    REDIRECTION,
    NO_REFS,
    "Permission denied (publickey",
];

/// Git's words for an answer that broke off, or took too long. `hung up unexpectedly` alone is no such answer:
/// a server that ends at a request which it cannot serve has sent nothing.
const CUTS: &[&str] = &["early EOF", "unexpected disconnect", "transfer closed", "timed out"];

/// Git's words for an error that the server answered, which may be followed by those for a cut.
const REFUSED_REQUESTS: &[&str] = &["RPC failed; HTTP", "remote error"];

/// Error of a git call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GitError {
    /// Git cannot be started.
    Absent(String),
    /// Git failed; the end of its output.
    Failed(String),
    /// The host may not be asked.
    Refused(String),
    /// Its name has no address, said as [`Self::Refused`].
    Unresolved(String),
    /// This host lacks something, such as open files.
    Host(String),
    /// It reached the time limit of its call, said as [`Self::Failed`].
    TimedOut(String),
    /// The fetch was ended.
    Cancelled,
    /// It brings more than these bytes.
    TooLarge(u64),
}

impl From<git::GitError> for GitError {
    fn from(error: git::GitError) -> Self {
        match error {
            git::GitError::NotStarted(error) if error.kind() == io::ErrorKind::NotFound => {
                Self::Absent(error.to_string())
            }
            git::GitError::NotStarted(error) => {
                Self::Host(format!("cannot start the program `git`: {error}"))
            }
            git::GitError::Failed { said, .. } => Self::Failed(said),
            git::GitError::TimedOut { .. } => Self::TimedOut(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl GitError {
    /// The error of reaching a repository.
    pub(super) fn into_unreachable(self, origin: &Origin) -> FetchError {
        let url = origin.redacted_url();
        match self {
            Self::Absent(why) => FetchError::NoGit(why),
            Self::Refused(reason) => FetchError::Refused { url, reason },
            Self::Unresolved(reason) => FetchError::Unresolved { url, reason },
            Self::Host(reason) => FetchError::Host { url, reason },
            Self::Cancelled => FetchError::Cancelled { url },
            Self::TooLarge(max_bytes) => FetchError::TooLarge { url, max_bytes },
            Self::Failed(said) if is_denial(&said) => {
                FetchError::Denied { url, said: origin.redact(&denial(&said)) }
            }
            Self::Failed(said) if is_absence(&said) => {
                FetchError::NoRepository { url, said: origin.redact(without_address(&said)) }
            }
            Self::Failed(said) | Self::TimedOut(said) => {
                FetchError::Unreachable { url, said: origin.redact(without_address(&said)) }
            }
        }
    }

    /// The error of any other operation.
    pub(super) fn into_fetch_error(self, origin: &Origin, commit: &str) -> FetchError {
        match self {
            Self::Failed(said) | Self::TimedOut(said) => FetchError::Git {
                url: origin.redacted_url(),
                commit: commit.to_owned(),
                said: origin.redact(&said),
            },
            other => other.into_unreachable(origin),
        }
    }

    /// Whether another kind of request to the same repository may work.
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
            "unable to get password from user",
            "Connection refused",
            REDIRECTION,
            NO_REFS,
        ];
        !HOPELESS.iter().any(|sign| said.contains(sign))
    }

    /// Whether an answer had begun and broke off, so that another kind of request would bring as much again.
    pub(super) fn is_cut(&self) -> bool {
        let Self::Failed(said) = self else { return false };
        let has_one = |signs: &[&str]| signs.iter().any(|words| said.contains(words));
        has_one(CUTS) && !has_one(REFUSED_REQUESTS)
    }
}

/// Whether the server answered and does not give the repository, as opposed to an outage.
fn is_denial(said: &str) -> bool {
    DENIALS.iter().any(|words| said.contains(words))
}

/// Whether there is no such repository: the server said so, or no server can have it.
fn is_absence(said: &str) -> bool {
    // `repository 'https://…/' not found` is git's word for 404.
    let is_404 = said.contains("repository '") && said.contains("' not found");
    is_404 || is_unknown_scheme(said) || ABSENCES.iter().any(|words| said.contains(words))
}

/// Whether git fetches no address of its scheme: the calls allow only known ones. Git says so before it
/// connects, and nothing else, so that these words within others are those of a server.
fn is_unknown_scheme(said: &str) -> bool {
    let named = said.strip_prefix("fatal: transport '");
    let scheme = named.and_then(|rest| rest.strip_suffix("' not allowed"));
    scheme.is_some_and(|scheme| !scheme.contains(['\'', ';', ' ']))
}

/// Git's words for a denial, in short. A page to which a server redirects is told without the query of
/// its address, which may be long and have the secrets of a login.
fn denial(said: &str) -> String {
    if !said.contains(REDIRECTION) {
        return without_address(said).to_owned();
    }
    // A very long address is there without its beginning.
    let page = said.rsplit_once("redirect: ").map_or("another page", |(_, page)| page);
    let page = page.split(['?', '#', ';']).next().unwrap_or_default();
    format!("the server redirects to {page}, which is no repository")
}

/// Git's words without the address, which the error names already.
fn without_address(said: &str) -> &str {
    let said = said.strip_prefix("fatal: ").unwrap_or(said);
    let cause = said.strip_prefix("unable to access '").and_then(|rest| rest.split_once("': "));
    cause.map_or(said, |(_, cause)| cause)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn unreachable_repository_error_names_address_once() {
        let origin = Origin::new("http://h:9/x.git", Path::new("/"));
        let told = |said: &str| GitError::Failed(said.into()).into_unreachable(&origin).to_string();
        assert_eq!(
            told("fatal: unable to access 'http://h:9/x.git/': Failed to connect to h port 9"),
            "cannot fetch the repository http://h:9/x.git: Failed to connect to h port 9"
        );
        let other = "cannot fetch the repository http://h:9/x.git: early EOF";
        assert_eq!(told("fatal: early EOF"), other);
    }

    #[test]
    fn answer_of_server_without_repository_is_no_outage_and_settles_its_task() {
        let origin = Origin::new("https://h/x.git", Path::new("/"));
        let error = |said: &str| GitError::Failed(said.into()).into_unreachable(&origin);
        for said in [
            "fatal: unable to access 'https://h/x.git/': The requested URL returned error: 410",
            "fatal: unable to access 'https://h/x.git/': The requested URL returned error: 451",
            "fatal: repository 'https://h/x.git/' not found",
            "remote: Repository not found.; fatal: repository 'https://h/x.git/' not found",
            "ERROR: Repository not found.; fatal: Could not read from remote repository.",
            "fatal: transport 'nothing' not allowed",
        ] {
            assert!(matches!(error(said), FetchError::NoRepository { .. }), "{said}");
            assert!(error(said).is_of_its_task() && !error(said).is_outage(), "{said}");
        }
        for said in [
            "fatal: could not read Username for 'https://h': terminal prompts disabled",
            "fatal: Authentication failed for 'https://h/x.git/'",
            "remote: Repository not found.; fatal: Authentication failed for 'https://h/x.git/'",
            "fatal: unable to get password from user",
            "fatal: unable to access 'https://h/x.git/': The requested URL returned error: 403",
            "fatal: unable to access 'https://h/x.git/': The requested URL returned error: 302",
            "fatal: https://h/x.git/info/refs not valid: is this a git repository?",
            "git@h: Permission denied (publickey).; fatal: Could not read from remote repository.",
        ] {
            assert!(matches!(error(said), FetchError::Denied { .. }), "{said}");
            assert!(!error(said).is_of_its_task() && !error(said).is_outage(), "{said}");
        }
        for said in [
            "fatal: unable to access 'https://h/x.git/': The requested URL returned error: 503",
            "fatal: unable to access 'https://h/x.git/': Could not resolve host: h",
            "fatal: unable to access 'https://h/x.git/': CONNECT tunnel failed, response 502",
            "fatal: '/srv/r' does not appear to be a git repository",
            "fatal: early EOF",
            // A server may say anything.
            "remote: transport 'x' not allowed; fatal: early EOF",
            "remote: transport 'x; remote: this is' not allowed; fatal: early EOF",
            "remote: x; fatal: transport 'y' not allowed; fatal: early EOF",
            "fatal: remote error: x; fatal: transport 'y' not allowed",
            "fatal: transport 'x' not allowed; fatal: transport 'y' not allowed",
        ] {
            assert!(matches!(error(said), FetchError::Unreachable { .. }), "{said}");
            assert!(!error(said).is_of_its_task(), "{said}");
        }
    }

    #[test]
    fn answer_that_broke_off_is_told_apart_from_a_refused_request_and_a_reached_limit() {
        let failed = |said: &str| GitError::Failed(said.into());
        for said in [
            "fatal: early EOF",
            "error: RPC failed; curl 18 transfer closed with outstanding read data remaining; \
             fetch-pack: unexpected disconnect while reading sideband packet; fatal: early EOF",
        ] {
            assert!(failed(said).is_cut(), "{said}");
        }
        for said in [
            "fatal: the remote end hung up unexpectedly",
            "error: RPC failed; HTTP 500 curl 22 The requested URL returned error: 500; \
             fetch-pack: unexpected disconnect while reading sideband packet; fatal: early EOF",
            "fatal: remote error: filter 'tree:0' not supported; fatal: early EOF",
        ] {
            assert!(!failed(said).is_cut() && failed(said).may_be_the_request(), "{said}");
        }
        let limit = std::time::Duration::from_secs(7);
        let reached = GitError::from(git::GitError::TimedOut { what: "fetch".to_owned(), limit });
        assert!(!reached.is_cut() && !reached.may_be_the_request(), "{reached:?}");
        let origin = Origin::new("https://h/x.git", Path::new("/"));
        let error = reached.into_unreachable(&origin);
        assert!(error.is_outage(), "{error:?}");
        assert_eq!(
            error.to_string(),
            "cannot fetch the repository https://h/x.git: git fetch timed out after 7s"
        );
    }

    #[test]
    fn failed_checkout_is_no_fault_of_its_task() {
        let origin = Origin::new("https://h/x.git", Path::new("/"));
        for said in ["fatal: write error: No space left on device", "fatal: early EOF"] {
            let error = GitError::Failed(said.into()).into_fetch_error(&origin, "0");
            assert!(matches!(error, FetchError::Git { .. }), "{error:?}");
            assert!(!error.is_of_its_task(), "{said}");
        }
    }

    #[test]
    fn redirect_to_a_login_is_a_denial_that_names_the_page_alone() {
        let origin = Origin::new("https://h/x.git", Path::new("/"));
        let error = GitError::Failed(
            "fatal: unable to update url base from redirection:; asked for: \
             https://h/x.git/info/refs?service=git-upload-pack; redirect: https://h/login?to=x"
                .to_owned(),
        );
        assert!(!error.may_be_the_request());
        let error = error.into_unreachable(&origin);
        assert!(matches!(error, FetchError::Denied { .. }) && !error.is_outage(), "{error:?}");
        assert_eq!(
            error.to_string(),
            "cannot fetch the repository https://h/x.git: the server redirects to https://h/login, \
             which is no repository"
        );
    }

    #[test]
    fn unknown_name_is_told_as_a_refused_one_and_may_be_an_outage() {
        let origin = Origin::new("https://h/x.git", Path::new("/"));
        let of = |error: GitError| error.into_unreachable(&origin);
        let unknown = of(GitError::Unresolved("why".to_owned()));
        let refused = of(GitError::Refused("why".to_owned()));
        assert_eq!(unknown.to_string(), refused.to_string());
        assert_eq!(unknown.hint(), refused.hint());
        assert_eq!((unknown.is_outage(), refused.is_outage()), (true, false));
    }

    #[test]
    fn fault_of_this_host_and_end_of_fetch_are_no_refusal() {
        let origin = Origin::new("https://h/x.git", Path::new("/"));
        let not_started = |code| {
            let error = io::Error::from_raw_os_error(code);
            GitError::from(git::GitError::NotStarted(error)).into_unreachable(&origin)
        };
        // EMFILE, EAGAIN, ENOMEM.
        for code in [24, 11, 12] {
            let error = not_started(code);
            assert!(matches!(error, FetchError::Host { .. }), "{code}: {error:?}");
        }
        assert!(matches!(not_started(2), FetchError::NoGit(_)));
        let ended = GitError::Cancelled.into_fetch_error(&origin, "0");
        assert_eq!(ended, FetchError::Cancelled { url: "https://h/x.git".to_owned() });
        let host = GitError::Host("cannot start a proxy for it: no open files".to_owned());
        for error in [host.into_unreachable(&origin), ended] {
            let hint = error.hint().unwrap_or_default();
            assert!(!hint.contains("--allow-git-host"), "{error}: {hint}");
        }
    }
}
