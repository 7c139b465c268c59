//! Locations of values in files and on the command line.

use std::path::Path;

use super::diagnostics::{ConfigError, ErrorKind};

/// The file name in errors about command-line options.
pub(crate) const COMMAND_LINE: &str = "command line";

/// A location in a file, kept with a value that later passes check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// Key path.
    pub key: String,
    /// Line, from 1, if known.
    pub line: Option<usize>,
}

impl SourceLocation {
    /// Whether it is a command-line option.
    pub(super) fn is_from_command_line(&self) -> bool {
        self.line.is_none() && self.key.starts_with('-')
    }

    /// An error at this location of `file`.
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

    /// A failure at this location of `file`: its message is a whole sentence.
    pub fn failure(&self, file: &Path, kind: ErrorKind, message: impl Into<String>) -> ConfigError {
        self.error(file, kind, message, "")
    }
}
