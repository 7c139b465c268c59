//! Exclude patterns of archives, as `tar --exclude` understands them.

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};
use rollout_base::glob;

/// Patterns of names to exclude. `*` and `?` match any characters, including `/`; `[…]` matches one
/// of several. A pattern is matched against a path from the start of any of its components, and
/// everything below an excluded directory is excluded too. A pattern that begins with `/` is
/// matched against whole paths only.
#[derive(Debug, Clone, Default)]
pub struct ExcludePatterns(Vec<GlobSet>);

impl ExcludePatterns {
    /// These patterns. Blank patterns are ignored, as are those with a class like `[z-a]` and those
    /// of hundreds of kilobytes.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Self {
        let clean = |pattern: &'a str| pattern.trim_start_matches("./").trim_end_matches('/');
        let patterns = patterns.into_iter().map(clean).filter(|pattern| !pattern.is_empty());
        Self(patterns.filter_map(globs).collect())
    }

    /// Whether a relative path is excluded.
    pub fn matches(&self, path: &[u8]) -> bool {
        let path = Candidate::from_bytes(path);
        self.0.iter().any(|globs| globs.is_match_candidate(&path))
    }
}

/// Globs for the path itself and everything below it, and for the same in any subdirectory unless
/// the pattern begins with `/`.
fn globs(pattern: &str) -> Option<GlobSet> {
    let is_whole = pattern.starts_with('/');
    let glob = glob::for_globset(pattern.strip_prefix('/').unwrap_or(pattern), false);
    let prefixes: &[&str] = if is_whole { &[""] } else { &["", "**/"] };
    let mut globs = GlobSetBuilder::new();
    for start in prefixes {
        for end in ["", "/**"] {
            let glob = format!("{start}{glob}{end}");
            let mut glob = GlobBuilder::new(&glob);
            globs.add(glob.backslash_escape(true).allow_unclosed_class(true).build().ok()?);
        }
    }
    globs.build().ok()
}

#[cfg(test)]
mod tests {
    use super::ExcludePatterns;

    #[test]
    fn exclude_patterns_match_like_tar() {
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
            ("{a,b}", "a", false),
            ("{a,b}", "x/{a,b}/c", true),
            ("a/**/b", "a/b", false),
            ("a/**/b", "a/x/y/b", true),
            ("**/a", "a", false),
            ("\\", "\\", true),
            ("[z-a]", "m", false),
        ] {
            let patterns = ExcludePatterns::new([pattern]);
            assert_eq!(patterns.matches(path.as_bytes()), excluded, "{pattern} {path}");
        }
        assert!(
            ExcludePatterns::new(["a?\\?"]).matches(b"ab?")
                && !ExcludePatterns::default().matches(b"x")
        );
        assert!(ExcludePatterns::new(["?".repeat(400_000).as_str(), "a"]).matches(b"a"));
        assert!(
            ExcludePatterns::new(["a??"]).matches(b"ab\xff")
                && ExcludePatterns::new(["a*"]).matches(b"a\xff")
        );
    }
}
