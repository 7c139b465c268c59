//! Parser and matcher of `.dockerignore`, which excludes files of a build context from a build.
//!
//! The rules are those of Docker's own matcher: patterns are matched against the whole relative
//! path and against each of its parent directories, `*` and `?` stop at `/`, `**` does not, a
//! leading `!` includes files again, and the last pattern that matches wins.

use std::path::Path;

use regex::Regex;
use rollout_base::confined::ConfinedDir;
use rollout_base::glob::{self, Dialect};
use rollout_protocol::limits::CONFIG_FILE_BYTES;

/// The file's name, at the root of the context.
pub const FILE_NAME: &str = ".dockerignore";

/// An invalid pattern.
#[derive(Debug, thiserror::Error)]
#[error("{FILE_NAME} line {line}: `{pattern}` is not a valid pattern")]
pub struct InvalidPattern {
    /// Line of the pattern, from 1.
    pub line: usize,
    /// The pattern as written.
    pub pattern: String,
}

/// The patterns of a `.dockerignore` file. Without patterns nothing is excluded.
#[derive(Debug, Clone, Default)]
pub struct Dockerignore {
    patterns: Vec<IgnorePattern>,
}

#[derive(Debug, Clone)]
struct IgnorePattern {
    takes_back: bool,
    matcher: PatternMatcher,
}

#[derive(Debug, Clone)]
enum PatternMatcher {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Pattern(Regex),
}

impl Dockerignore {
    /// Reads `.dockerignore` at the root of `context`; an absent file has no patterns.
    ///
    /// # Errors
    /// When the file cannot be read, lies outside of the context or holds an invalid pattern.
    pub fn read(context: &Path) -> std::io::Result<Self> {
        Self::read_file(context, FILE_NAME)
    }

    /// Reads the patterns of another file below `context`.
    ///
    /// # Errors
    /// As [`Dockerignore::read`].
    pub fn read_file(context: &Path, name: &str) -> std::io::Result<Self> {
        let text = ConfinedDir::open(context)
            .and_then(|dir| dir.read_text(Path::new(name), CONFIG_FILE_BYTES));
        match text {
            Ok(text) => Self::parse(&text)
                .map_err(|e| std::io::Error::new(std::io::ErrorKind::InvalidData, e)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Parses the text of a `.dockerignore` file.
    ///
    /// # Errors
    /// [`InvalidPattern`].
    pub fn parse(text: &str) -> Result<Self, InvalidPattern> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut patterns = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let written = line.trim();
            if line.starts_with('#') || written.is_empty() {
                continue;
            }
            let invalid = || InvalidPattern { line: index + 1, pattern: written.to_owned() };
            let (takes_back, pattern) = match written.strip_prefix('!') {
                Some(rest) => (true, rest.trim()),
                None => (false, written),
            };
            if pattern.is_empty() {
                return Err(invalid());
            }
            let pattern = clean(pattern);
            let matcher = compile(&pattern).ok_or_else(invalid)?;
            patterns.push(IgnorePattern { takes_back, matcher });
        }
        Ok(Self { patterns })
    }

    /// Whether `path` (relative to the context, separated by `/`) is excluded from the build.
    pub fn excludes(&self, path: &str) -> bool {
        let mut excluded = false;
        for pattern in &self.patterns {
            if pattern.takes_back != excluded {
                continue;
            }
            if with_parents(path).any(|candidate| pattern.matcher.matches(candidate)) {
                excluded = !pattern.takes_back;
            }
        }
        excluded
    }

    /// Whether a file below an excluded directory may be included again, so that the directory has
    /// to be read.
    pub fn has_exceptions(&self) -> bool {
        self.patterns.iter().any(|pattern| pattern.takes_back)
    }
}

/// `path` and its parent directories, the longest first.
fn with_parents(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| path.rfind('/').map(|end| &path[..end]))
}

impl PatternMatcher {
    fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(text) => path == text,
            Self::Prefix(text) => path.starts_with(text.as_str()),
            Self::Suffix(text) => {
                path.ends_with(text.as_str()) || text.strip_prefix('/') == Some(path)
            }
            Self::Pattern(regex) => regex.is_match(path),
        }
    }
}

/// Lexical cleaning: removes empty, `.` and inner `..` parts and leading and trailing slashes.
fn clean(pattern: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in pattern.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    if parts.is_empty() { ".".to_owned() } else { parts.join("/") }
}

/// Translates a cleaned pattern; `None` when it is not valid.
fn compile(pattern: &str) -> Option<PatternMatcher> {
    let plain = |text: &str| !text.contains(['*', '?', '[', '\\']);
    if plain(pattern) {
        return Some(PatternMatcher::Exact(pattern.to_owned()));
    }
    if let Some(rest) = pattern.strip_suffix("**").filter(|rest| plain(rest)) {
        return Some(PatternMatcher::Prefix(rest.to_owned()));
    }
    if let Some(rest) = pattern.strip_prefix("**").filter(|rest| plain(rest)) {
        return Some(PatternMatcher::Suffix(rest.to_owned()));
    }
    glob::compile(pattern, Dialect::Docker).map(PatternMatcher::Pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excluded(text: &str, path: &str) -> bool {
        Dockerignore::parse(text).expect("valid").excludes(path)
    }

    #[test]
    fn dockerignore_patterns_match_like_docker() {
        // pattern, path, excluded
        let cases = [
            ("secret", "secret", true),
            ("secret", "secret/a/b", true),
            ("secret", "a/secret", false),
            ("/secret/", "secret", true),
            ("./a//b/../c", "a/c", true),
            ("*.log", "x.log", true),
            ("*.log", "a/x.log", false),
            ("*/*.log", "a/x.log", true),
            ("*/*.log", "a/b/x.log", false),
            ("**/*.log", "x.log", true),
            ("**/*.log", "a/b/x.log", true),
            ("**/node_modules", "a/node_modules/b/c.js", true),
            ("**/node_modules", "node_modules", true),
            ("**/foo/bar", "foo/bar", true),
            ("docs/**", "docs/a/b", true),
            ("docs/**", "docs", false),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/c/z", true),
            ("a/**/z", "b/a/z", false),
            ("?.txt", "a.txt", true),
            ("?.txt", "ab.txt", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("a.b", "axb", false),
            (r"a\*b", "a*b", true),
            (r"a\*b", "axb", false),
            ("*", "any/thing", true),
            ("# comment", "# comment", false),
            ("  spaced  ", "spaced", true),
            ("temp+(1)", "temp+(1)", true),
            ("{a,b}", "a", false),
            ("?.txt", "ä.txt", true),
            ("a**b", "ab", true),
            ("a**b", "ax/b", true),
            ("a**b", "axb", false),
            (r"[\]x]", "]", true),
            (r"[a\-z]", "-", true),
            (r"[a\-z]", "m", false),
        ];
        for (pattern, path, expected) in cases {
            assert_eq!(excluded(pattern, path), expected, "`{pattern}` on `{path}`");
        }
    }

    #[test]
    fn dockerignore_last_matching_pattern_wins() {
        let text = "\u{feff}# first\n*\n!src\n!*.md\nREADME.md\nsrc/**/*.tmp\r\n";
        for (path, expected) in [
            ("main.c", true),
            ("src/main.c", false),
            ("src/a/b.tmp", true),
            ("CHANGES.md", false),
            ("README.md", true),
        ] {
            assert_eq!(excluded(text, path), expected, "{path}");
        }
        assert!(excluded("!a\na", "a"));
        assert!(!excluded("a\n!a/b", "a/b"));
        assert!(excluded("a\n!a/b", "a/c"));
    }

    #[test]
    fn dockerignore_invalid_pattern_is_reported_with_line() {
        for (text, line) in
            [("a\n!", 2), ("[", 1), ("a\nb\n[]", 3), ("x\\", 1), ("[]a]", 1), ("[z-a]", 1)]
        {
            let error = Dockerignore::parse(text).expect_err("invalid");
            assert_eq!(error.line, line, "{text}");
        }
    }

    #[test]
    fn dockerignore_file_missing_excludes_nothing() {
        let dir = tempfile::tempdir().expect("directory");
        let ignore = Dockerignore::read(dir.path()).expect("absent is fine");
        assert!(!ignore.excludes("anything"));
        std::fs::write(dir.path().join(FILE_NAME), "[").expect("written");
        assert!(Dockerignore::read(dir.path()).is_err());
    }
}
