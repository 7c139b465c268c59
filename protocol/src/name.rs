//! Names that become path components: jobs, agents, datasets, tasks.

use crate::limits::NAME_BYTES;

/// Why a name cannot be a path component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Empty.
    #[error("is empty")]
    Empty,
    /// Longer than [`NAME_BYTES`].
    #[error("is longer than 100 bytes")]
    TooLong,
    /// Contains `/` or `\`.
    #[error("contains a path separator")]
    Separator,
    /// Contains a control character.
    #[error("contains a control character")]
    Control,
    /// Starts with a dot.
    #[error("starts with a dot")]
    LeadingDot,
    /// Begins or ends with white space.
    #[error("begins or ends with white space")]
    Blank,
    /// A name that the run directory uses itself.
    #[error("is reserved for the run directory's own files")]
    Reserved,
}

/// Entries of a run directory beside the agents' directories.
const RESERVED: &[&str] = &[
    "config.json",
    "result.json",
    "manifest.json",
    "journal",
    "records",
    "plan",
    "run.lock",
    "run.lock.json",
];

/// Checks that `name` can be an entry of a run directory on every system we write to.
///
/// # Errors
/// The first rule it breaks.
pub fn check(name: &str) -> Result<(), BadName> {
    check_component(name)?;
    if RESERVED.contains(&fold(name).as_str()) {
        return Err(BadName::Reserved);
    }
    Ok(())
}

/// Checks that `name` can be a path component on every system we write to.
///
/// # Errors
/// The first rule it breaks.
pub fn check_component(name: &str) -> Result<(), BadName> {
    if name.is_empty() {
        return Err(BadName::Empty);
    }
    if name.len() > NAME_BYTES {
        return Err(BadName::TooLong);
    }
    if name.contains(['/', '\\']) {
        return Err(BadName::Separator);
    }
    if name.chars().any(char::is_control) {
        return Err(BadName::Control);
    }
    if name.starts_with('.') {
        return Err(BadName::LeadingDot);
    }
    if name.trim() != name {
        return Err(BadName::Blank);
    }
    Ok(())
}

/// The form under which two names collide on a file system that ignores case.
pub fn fold(name: &str) -> String {
    name.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules() {
        for good in ["a", "Claude Code", "gpt-5.1", "日本", &"x".repeat(100)] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("", BadName::Empty),
            ("..", BadName::LeadingDot),
            ("a/b", BadName::Separator),
            ("a\\b", BadName::Separator),
            ("a\nb", BadName::Control),
            (" a", BadName::Blank),
            ("Result.JSON", BadName::Reserved),
            ("journal", BadName::Reserved),
        ] {
            assert_eq!(check(bad), Err(why), "{bad}");
        }
        assert_eq!(check(&"x".repeat(101)), Err(BadName::TooLong));
    }
}
