//! Paths of this host in texts. A server and its workers give texts to users who know none of their
//! directories, so these are hidden there. A path is hidden where a text is made of it. Nothing is
//! replaced in a text: a user who writes a guess into a text of one's own gets the text back as it was,
//! and learns nothing about the guess.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

/// Hidden directories of this process, with the words that stand for them. One inside another comes
/// first.
static HIDDEN: RwLock<Vec<(PathBuf, &'static str)>> = RwLock::new(Vec::new());

/// A path as texts show it.
#[derive(Debug, Clone, Copy)]
pub struct ShownPath<'a>(&'a Path);

/// Hides a directory in all texts that this process makes from now on: a word, such as `<server>`,
/// stands for it. Also without links. The root and relative paths are not hidden.
pub fn hide(directory: &Path, word: &'static str) {
    let real = directory.canonicalize().ok();
    let mut hidden = HIDDEN.write().unwrap_or_else(PoisonError::into_inner);
    for path in [Some(directory.to_owned()), real].into_iter().flatten() {
        let is_specific = path.is_absolute() && path.parent().is_some();
        if is_specific && !hidden.iter().any(|(known, _)| *known == path) {
            hidden.push((path, word));
        }
    }
    hidden.sort_by_key(|(path, _)| std::cmp::Reverse(path.components().count()));
}

/// A path for a text: below a hidden directory it begins with the word of the directory.
pub fn shown(path: &Path) -> ShownPath<'_> {
    ShownPath(path)
}

impl fmt::Display for ShownPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = HIDDEN.read().unwrap_or_else(PoisonError::into_inner);
        let found = hidden
            .iter()
            .find_map(|(hidden, word)| Some((word, self.0.strip_prefix(hidden).ok()?)));
        match found {
            None => self.0.display().fmt(f),
            Some((word, rest)) if rest == Path::new("") => f.write_str(word),
            Some((word, rest)) => write!(f, "{word}/{}", rest.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_directory_is_in_no_path_and_others_stay() {
        let root = tempfile::tempdir().expect("a directory");
        let (outer, inner) = (root.path().join("state"), root.path().join("state/blobs"));
        std::fs::create_dir_all(&inner).expect("made");
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&outer, &link).expect("a link");
        hide(&link, "<server>");
        hide(&inner, "<store>");
        for never in ["/", "relative"] {
            hide(Path::new(never), "<never>");
        }
        for (path, expected) in [
            (outer.clone(), "<server>"),
            (outer.join("jobs/r1"), "<server>/jobs/r1"),
            (link.join("jobs"), "<server>/jobs"),
            (inner.join("ab"), "<store>/ab"),
        ] {
            assert_eq!(shown(&path).to_string(), expected);
        }
        for path in [root.path().join("state-of-another"), PathBuf::from("relative/x"), "/x".into()]
        {
            assert_eq!(shown(&path).to_string(), path.display().to_string());
        }
    }
}
