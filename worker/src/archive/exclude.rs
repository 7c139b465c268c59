//! Patterns of what is left out of an archive, as `tar --exclude` understands them.

use crate::glob;

/// Patterns of names to leave out. `*` and `?` match any characters, `/` included; `[…]` matches
/// one of several. A pattern is held against a path from any of its components on, and what lies
/// below an excluded directory is excluded with it. One that begins with `/` is held against whole
/// paths only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exclude(Vec<String>);

impl Exclude {
    /// These patterns. Blank ones mean nothing.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Self {
        let clean = |pattern: &'a str| pattern.trim_start_matches("./").trim_end_matches('/');
        let patterns = patterns.into_iter().map(clean).filter(|pattern| !pattern.is_empty());
        Self(patterns.map(str::to_owned).collect())
    }

    /// Whether a relative path is left out.
    pub(super) fn holds(&self, path: &[u8]) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_prefix('/') {
            Some(whole) => ancestors(path).any(|path| matches(whole.as_bytes(), path)),
            None => tails(path)
                .any(|tail| ancestors(tail).any(|path| matches(pattern.as_bytes(), path))),
        })
    }
}

/// A path from each of its components on.
fn tails(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let next = |path: &&'_ [u8]| -> Option<usize> { path.iter().position(|byte| *byte == b'/') };
    std::iter::successors(Some(path), move |path| next(path).map(|at| &path[at + 1..]))
}

/// A path and the directories above it.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let last = |path: &&'_ [u8]| -> Option<usize> { path.iter().rposition(|byte| *byte == b'/') };
    std::iter::successors(Some(path), move |path| last(path).map(|at| &path[..at]))
}

fn matches(pattern: &[u8], path: &[u8]) -> bool {
    glob::matches(pattern, path, glob::SHELL)
}

#[cfg(test)]
mod tests {
    use super::Exclude;

    #[test]
    fn patterns_are_those_of_tar() {
        for (pattern, path, excluded) in [
            ("node_modules", "node_modules", true),
            ("node_modules", "web/node_modules/a/b.js", true),
            ("node_modules", "node_modules2", false),
            ("node_modules/", "node_modules/x", true),
            ("*.pyc", "a/b/c.pyc", true),
            ("*.pyc", "a.pyc/x.txt", true),
            ("*.pyc", "a.py", false),
            ("./build/*.o", "build/x/y.o", true),
            ("build/*.o", "sub/build/y.o", true),
            ("/build", "sub/build", false),
            ("/build", "build/x", true),
            ("a?c", "abc", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[", "[", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("*", "anything/at/all", true),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxbxx", false),
            ("", "x", false),
        ] {
            let patterns = Exclude::new([pattern]);
            assert_eq!(patterns.holds(path.as_bytes()), excluded, "{pattern} {path}");
        }
        assert!(!Exclude::default().holds(b"x"));
    }
}
