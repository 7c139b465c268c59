//! Places of values in files and on the command line.

use std::path::Path;

use super::diagnostics::{ConfigError, ErrorKind};

/// The file that faults of options are found in.
pub(crate) const COMMAND_LINE: &str = "command line";

/// A place in a file, kept with a value that later passes may find fault with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// Key path.
    pub key: String,
    /// Line, from 1, where it is known.
    pub line: Option<usize>,
}

impl SourceLocation {
    /// Whether it is an option of the command line.
    pub(super) fn is_from_command_line(&self) -> bool {
        self.line.is_none() && self.key.starts_with('-')
    }

    /// A fault at this place of `file`.
    pub fn error(
        &self,
        file: &Path,
        kind: ErrorKind,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> ConfigError {
        ConfigError {
            file: if self.is_from_command_line() { COMMAND_LINE.into() } else { file.to_owned() },
            line: self.line,
            key: self.key.clone(),
            kind,
            found: found.into(),
            expected: expected.into(),
            hint: None,
        }
    }
}
