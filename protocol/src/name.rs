//! Names that become path components: jobs, agents, datasets, tasks.

use crate::limits::{NAME_BYTES, TASK_NAME_BYTES};

/// Why a name cannot be a path component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPathComponent {
    /// Empty.
    #[error("is empty")]
    Empty,
    /// Longer than this number of bytes.
    #[error("is longer than {0} bytes")]
    TooLong(usize),
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
    SurroundingWhitespace,
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
    "tables",
];

/// Checks that the name of a job, agent or dataset can be an entry of a run directory on every
/// supported system.
///
/// # Errors
/// The first violated rule.
pub fn check(name: &str) -> Result<(), InvalidPathComponent> {
    check_entry(name, NAME_BYTES)
}

/// Like [`check`], for the name of a task.
///
/// # Errors
/// The first violated rule.
pub fn check_task(name: &str) -> Result<(), InvalidPathComponent> {
    check_entry(name, TASK_NAME_BYTES)
}

fn check_entry(name: &str, most: usize) -> Result<(), InvalidPathComponent> {
    check_component(name, most)?;
    if RESERVED.contains(&fold_case(name).as_str()) {
        return Err(InvalidPathComponent::Reserved);
    }
    Ok(())
}

/// Checks that `name` can be a path component of at most `most` bytes on every supported system.
///
/// # Errors
/// The first violated rule.
pub fn check_component(name: &str, most: usize) -> Result<(), InvalidPathComponent> {
    if name.is_empty() {
        return Err(InvalidPathComponent::Empty);
    }
    if name.len() > most {
        return Err(InvalidPathComponent::TooLong(most));
    }
    if name.contains(['/', '\\']) {
        return Err(InvalidPathComponent::Separator);
    }
    if name.chars().any(char::is_control) {
        return Err(InvalidPathComponent::Control);
    }
    if name.starts_with('.') {
        return Err(InvalidPathComponent::LeadingDot);
    }
    if name.trim() != name {
        return Err(InvalidPathComponent::SurroundingWhitespace);
    }
    Ok(())
}

/// The form under which two names collide on a file system that ignores case.
pub fn fold_case(name: &str) -> String {
    name.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_forbidden_part_is_refused() {
        for good in ["a", "Claude Code", "gpt-5.1", "日本", &"x".repeat(100)] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("", InvalidPathComponent::Empty),
            ("..", InvalidPathComponent::LeadingDot),
            ("a/b", InvalidPathComponent::Separator),
            ("a\\b", InvalidPathComponent::Separator),
            ("a\nb", InvalidPathComponent::Control),
            (" a", InvalidPathComponent::SurroundingWhitespace),
            ("Result.JSON", InvalidPathComponent::Reserved),
            ("journal", InvalidPathComponent::Reserved),
            ("Tables", InvalidPathComponent::Reserved),
        ] {
            assert_eq!(check(bad), Err(why), "{bad}");
        }
        assert_eq!(check(&"x".repeat(101)), Err(InvalidPathComponent::TooLong(100)));
    }

    #[test]
    fn task_name_leaves_room_for_number_of_attempt() {
        let name = "x".repeat(240);
        assert_eq!(check_task(&name), Ok(()));
        assert!(format!("{name}__{}", u32::MAX).len() <= 255);
        let why = check_task(&format!("{name}x")).expect_err("too long");
        assert_eq!(why.to_string(), "is longer than 240 bytes");
        assert_eq!(check_task("journal"), Err(InvalidPathComponent::Reserved));
    }
}
