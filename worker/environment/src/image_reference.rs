//! Image references, by the grammar of Docker. Engines take no other names, and the API of an engine has
//! them in its paths: a text such as `a/../b` or `a?x` would be another request.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use regex::Regex;

use super::{Failure, FailureKind};

/// Longest name, without tag and digest, in bytes.
const NAME_BYTES: usize = 255;

/// Longest part of a refused text in a message, in characters.
const SHOWN_CHARS: usize = 100;

/// `[domain[:port]/]path[:tag][@digest]`. The length of a digest is left to the engine.
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    let label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?";
    let domain = format!(r"(?:{label}(?:\.{label})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?");
    let component = r"[a-z0-9]+(?:(?:\.|__|_|-+)[a-z0-9]+)*";
    let tag = "[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}";
    let digest = "[a-zA-Z][a-zA-Z0-9]*(?:[-_+.][a-zA-Z][a-zA-Z0-9]*)*:[0-9a-fA-F]+";
    let name = format!("(?:{domain}/)?{component}(?:/{component})*");
    Regex::new(&format!(r"\A({name})(?::{tag})?(?:@{digest})?\z")).expect("a pattern")
});

/// The name of an image as engines take it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageReference(String);

/// A text that is no image reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidImageReference {
    /// The text, shortened and without control characters.
    shown: String,
}

impl ImageReference {
    /// The reference as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ImageReference {
    type Err = InvalidImageReference;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = REFERENCE.captures(text).and_then(|parts| parts.get(1));
        match name.is_some_and(|name| name.len() <= NAME_BYTES) {
            true => Ok(Self(text.to_owned())),
            false => {
                let shown = text.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
                Err(InvalidImageReference { shown })
            }
        }
    }
}

/// Whether a text, as the path of a request or as a part of it, could be another path. Parts of a name that
/// are not known yet may be empty.
pub(super) fn leaves_its_place(text: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "._-+/:@[]".contains(c);
    let is_known = !text.contains('$');
    text.split('/').any(|part| matches!(part, "." | ".."))
        || (is_known && !text.chars().all(is_of_name))
}

impl fmt::Display for InvalidImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the image `{}`, which is no reference such as `debian:12`", self.shown)
    }
}

impl std::error::Error for InvalidImageReference {}

impl From<InvalidImageReference> for Failure {
    fn from(error: InvalidImageReference) -> Self {
        Self::new(FailureKind::Refused, format!("cannot use {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_is_read_by_the_grammar_of_docker() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let longest = "a".repeat(NAME_BYTES);
        for text in [
            "debian",
            "debian:bookworm-slim",
            "a/b_c/d__e/f---g.h",
            "localhost:5000/x",
            "INNER/a",
            "[::1]:5000/a/b:1",
            "registry.example/a/b:V_1.2-rc",
            &format!("registry.example/a/b:1@{digest}"),
            &digest,
            "0123456789ab",
            &longest,
            &format!("a:{}", "t".repeat(128)),
        ] {
            assert_eq!(
                text.parse::<ImageReference>(),
                Ok(ImageReference(text.to_owned())),
                "{text}"
            );
        }
        for text in [
            "",
            "a/../127.0.0.1:18901/ptfrom",
            "docker.io/../127.0.0.1:18901/x",
            "a/./b",
            "a//b",
            "/a",
            "a/",
            "a/../../events?x=1#b",
            "a/../../info#",
            "a?x=1",
            "a#b",
            "a%2f..%2fb",
            "a\\b",
            "a b",
            "a\n",
            "é",
            "a/B",
            "Debian",
            "a..b",
            "-a",
            "a:",
            "a:.x",
            "a@sha256",
            "a@sha256:xyz",
            "http://h/a",
            "u@h/a",
            &format!("{longest}a"),
            &format!("a:{}", "t".repeat(129)),
        ] {
            assert!(text.parse::<ImageReference>().is_err(), "{text}");
        }
    }

    #[test]
    fn name_that_is_another_path_is_told_from_one_with_parts_that_are_not_known() {
        for text in ["debian:", "a//b", "web-/x", "a/b:$V", "[::1]:5000/x@sha256:00", ""] {
            assert!(!leaves_its_place(text), "{text}");
        }
        for text in ["a/../h:1/x", "../x", "a/./b", "a/../h:1/x:$V", "a?x", "a#", "a%2f", "a b"] {
            assert!(leaves_its_place(text), "{text}");
        }
    }

    #[test]
    fn message_of_a_refused_text_is_short_and_has_no_control_characters() {
        let text = format!("a\u{1b}[31m\n{}", "b".repeat(4096));
        let error = text.parse::<ImageReference>().expect_err("no reference");
        let shown = error.to_string();
        assert!(shown.len() < 200 && !shown.contains(char::is_control), "{shown}");
        assert_eq!(Failure::from(error).kind, FailureKind::Refused);
    }
}
