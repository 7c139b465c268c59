//! Lookup of the commits of heads, branches and tags.

use std::collections::BTreeMap;
use std::path::Path;

use super::FetchError;
use super::origin::{Origin, Revision, is_commit};
use super::remote::RemoteAccess;
use crate::config::nearest;

/// Queries a repository for the commits of revisions, in one call.
pub(super) fn query_commits(
    remote: &RemoteAccess,
    wanted: &[&Revision],
) -> Result<Vec<Result<String, FetchError>>, FetchError> {
    let origin = remote.origin();
    let mut args = vec!["ls-remote".to_owned(), "--".to_owned(), origin.url().to_owned()];
    args.extend(wanted.iter().flat_map(|revision| patterns(revision)));
    let known = list(remote, &args)?;
    let mut all = None;
    let mut answers = Vec::with_capacity(wanted.len());
    for revision in wanted {
        let found = patterns(revision).iter().find_map(|name| known.get(name).cloned());
        answers.push(match found {
            Some(commit) => Ok(commit),
            None => {
                if all.is_none() {
                    let url = origin.url().to_owned();
                    all = Some(list(remote, &["ls-remote".to_owned(), "--".to_owned(), url])?);
                }
                Err(unknown(origin, revision, all.as_ref().expect("just made")))
            }
        });
    }
    Ok(answers)
}

/// Digits of the object ids of a repository.
pub(super) fn query_id_digits(remote: &RemoteAccess) -> Result<usize, FetchError> {
    let url = remote.origin().url().to_owned();
    let all = list(remote, &["ls-remote".to_owned(), "--".to_owned(), url])?;
    Ok(all.values().next().map_or(40, String::len))
}

fn list(remote: &RemoteAccess, args: &[String]) -> Result<BTreeMap<String, String>, FetchError> {
    let text = remote.git(Path::new("/"), args);
    let text = text.map_err(|error| error.into_unreachable(remote.origin()))?;
    let text = String::from_utf8_lossy(&text);
    let pairs = text.lines().filter_map(|line| line.split_once('\t'));
    let commits = pairs.filter(|(id, _)| is_commit(id));
    Ok(commits.map(|(id, name)| (name.to_owned(), id.to_owned())).collect())
}

/// Reference names of a revision in the repository, by priority.
fn patterns(revision: &Revision) -> Vec<String> {
    match revision {
        Revision::Head => vec!["HEAD".to_owned()],
        Revision::Commit(_) => Vec::new(),
        Revision::Named(name) if name.starts_with("refs/") => {
            vec![format!("{name}^{{}}"), name.clone()]
        }
        Revision::Named(name) => vec![
            format!("refs/heads/{name}"),
            format!("refs/tags/{name}^{{}}"),
            format!("refs/tags/{name}"),
        ],
    }
}

/// The error of a revision that is none of the references of a repository.
fn unknown(origin: &Origin, revision: &Revision, all: &BTreeMap<String, String>) -> FetchError {
    if all.is_empty() {
        // Git takes a page in one line, such as a login, for a repository without references.
        let said =
            "it names no branch or tag: is this a repository, and not an empty one?".to_owned();
        return FetchError::Denied { url: origin.redacted_url(), said };
    }
    let reference = match revision {
        Revision::Named(name) | Revision::Commit(name) => name.clone(),
        Revision::Head => "HEAD".to_owned(),
    };
    let names = all.keys().filter_map(|name| {
        name.strip_prefix("refs/heads/").or_else(|| name.strip_prefix("refs/tags/"))
    });
    let near = nearest(&reference, names.filter(|name| !name.ends_with("^{}")));
    let near = near.map(str::to_owned);
    FetchError::UnknownReference { url: origin.redacted_url(), reference, near }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_without_references_is_told_apart_from_an_unknown_reference() {
        let origin = Origin::new("https://h/x.git", Path::new("/"));
        let mut all = BTreeMap::new();
        for revision in [Revision::Head, Revision::Named("main".to_owned())] {
            let error = unknown(&origin, &revision, &all);
            assert_eq!(
                error.to_string(),
                "cannot fetch the repository https://h/x.git: it names no branch or tag: is this a \
                 repository, and not an empty one?"
            );
            assert!(!error.is_outage(), "its last known content may not be used");
            assert!(
                !error.is_of_its_task(),
                "the page may be that of a network which wants a login"
            );
        }
        all.insert("refs/heads/main".to_owned(), "0".repeat(40));
        let error = unknown(&origin, &Revision::Named("maim".to_owned()), &all);
        assert!(error.is_missing() && error.to_string().contains("`main`"), "{error}");
    }
}
