//! Patterns of what is left out of an archive, as `tar --exclude` understands them.

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

/// Whether a pattern matches a text from its beginning to its end.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on when the last `*` takes one more byte.
    let mut again: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            again = Some((p + 1, t));
            p += 1;
            continue;
        }
        if t == text.len() && p == pattern.len() {
            return true;
        }
        match text.get(t).and_then(|byte| one(&pattern[p..], *byte)) {
            Some(length) => (p, t) = (p + length, t + 1),
            None => match again {
                Some((after, from)) if from < text.len() => {
                    again = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                _ => return false,
            },
        }
    }
}

/// The length of what at the beginning of a pattern matches a byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        b'[' => match class(&pattern[1..], byte) {
            Some((length, matched)) => matched.then_some(length + 1),
            None => (byte == b'[').then_some(1),
        },
        literal => (literal == byte).then_some(1),
    }
}

/// The length of a class behind its `[`, and whether it holds a byte; `None` when it never ends.
fn class(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(pattern.first(), Some(b'!' | b'^'));
    let begin = usize::from(negated);
    // A `]` that comes first stands for itself.
    let end = begin + 1 + pattern.get(begin + 1..)?.iter().position(|b| *b == b']')?;
    let members = &pattern[begin..end];
    let (mut at, mut found) = (0, false);
    while at < members.len() {
        if let [low, b'-', high, ..] = members[at..] {
            found |= (low..=high).contains(&byte);
            at += 3;
        } else {
            found |= members[at] == byte;
            at += 1;
        }
    }
    Some((end + 1, found != negated))
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
