//! Errors and warnings of configuration and task files. All are collected, not only the first.

use std::fmt;
use std::path::{Path, PathBuf};

use rollout_base::shown_path::shown;
use serde::Serialize;

/// Kind of a configuration error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// A file or directory does not exist.
    NotFound,
    /// A file or directory cannot be read.
    Unreadable,
    /// A file is larger than its limit.
    TooLarge,
    /// A file is not YAML, JSON or TOML.
    Syntax,
    /// A key occurs twice in one mapping.
    DuplicateKey,
    /// A key is not known.
    UnknownKey,
    /// A required key is missing.
    MissingKey,
    /// A value has the wrong type.
    WrongType,
    /// A value has the right type but is not allowed.
    BadValue,
    /// A source that the operator of this host did not list.
    Refused,
    /// A file of this host, which no document of another user may name.
    HostFile,
    /// Two keys conflict.
    Conflict,
    /// Two things have the same name, or names that differ only in case.
    DuplicateName,
    /// A valid word of the format for a feature that this version lacks.
    Unavailable,
    /// A template refers to a variable that is not set and has no default.
    UnsetVariable,
    /// A task file refers to a variable that the job does not list.
    VariableNotListed,
    /// A dataset without tasks.
    NoTasks,
    /// A required file of a task is missing.
    MissingFile,
    /// A file of a task is outside the task's directory, or is neither file nor directory.
    BadFile,
    /// The Dockerfile has an instruction that the environment does not support.
    UnsupportedInstruction,
    /// The task asks for something that the job's environment does not support.
    Unsupported,
    /// A registry or a repository could not be fetched.
    FetchFailed,
    /// The job has more trials than a run can hold.
    TooManyTrials,
}

/// A configuration error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1, if known.
    pub line: Option<usize>,
    /// Key path, for instance `agents[1].env.KEY`; empty for the whole file.
    pub key: String,
    /// Kind of error.
    pub kind: ErrorKind,
    /// Value found; the whole message if `expected` is empty.
    pub found: String,
    /// Accepted values; empty for a failure that is no matter of values.
    pub expected: String,
    /// Suggested fix, if there is one.
    pub hint: Option<String>,
}

/// A configuration warning; the run continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigWarning {
    /// The file or directory.
    pub file: PathBuf,
    /// Line, from 1, if known.
    pub line: Option<usize>,
    /// Key path; empty for the whole file.
    pub key: String,
    /// The problem and its effect.
    pub message: String,
}

/// All errors of a configuration. Never empty.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.lines().join("\n"))]
pub struct ConfigErrors {
    /// The errors, by file and line.
    pub errors: Vec<ConfigError>,
    /// The warnings found with them.
    pub warnings: Vec<ConfigWarning>,
}

impl ConfigErrors {
    /// The errors as display lines, hints indented below.
    pub fn lines(&self) -> Vec<String> {
        self.errors
            .iter()
            .flat_map(|e| e.to_string().lines().map(str::to_owned).collect::<Vec<_>>())
            .collect()
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_location(f, &self.file, self.line, &self.key)?;
        if self.expected.is_empty() {
            f.write_str(&self.found)?;
        } else {
            write!(f, "found {}, expected {}", self.found, self.expected)?;
        }
        match &self.hint {
            Some(hint) => write!(f, "\n    hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_location(f, &self.file, self.line, &self.key)?;
        f.write_str(&self.message)
    }
}

fn write_location(
    f: &mut fmt::Formatter<'_>,
    file: &Path,
    line: Option<usize>,
    key: &str,
) -> fmt::Result {
    write!(f, "{}:", shown(file))?;
    if let Some(line) = line {
        write!(f, "{line}:")?;
    }
    if !key.is_empty() {
        write!(f, " {key}:")?;
    }
    f.write_str(" ")
}

impl ConfigWarning {
    /// One line per distinct warning: the first location, and the number of further ones.
    pub fn grouped(warnings: &[Self]) -> Vec<String> {
        let mut groups: Vec<(&Self, usize)> = Vec::new();
        let mut index = std::collections::HashMap::new();
        for warning in warnings {
            let at = *index.entry((&warning.key, &warning.message)).or_insert_with(|| {
                groups.push((warning, 0));
                groups.len() - 1
            });
            groups[at].1 += 1;
        }
        let line = |(first, count): (&Self, usize)| match count {
            1 => first.to_string(),
            _ => format!("{first} (and {} more like it)", count - 1),
        };
        groups.into_iter().map(line).collect()
    }
}

/// Collects errors and warnings over all passes and files.
#[derive(Debug, Default)]
pub struct Diagnostics {
    errors: Vec<ConfigError>,
    warnings: Vec<ConfigWarning>,
    /// Every key that a reader asked for, to test the reference against.
    #[cfg(test)]
    pub(crate) keys_read: std::collections::BTreeSet<String>,
}

impl Diagnostics {
    /// Records an error.
    pub fn error(&mut self, error: ConfigError) {
        self.errors.push(error);
    }

    /// Records a warning.
    pub fn warning(&mut self, warning: ConfigWarning) {
        self.warnings.push(warning);
    }

    /// Adds all diagnostics of `other`.
    pub fn extend(&mut self, other: Self) {
        self.errors.extend(other.errors);
        self.warnings.extend(other.warnings);
        #[cfg(test)]
        self.keys_read.extend(other.keys_read);
    }

    /// Numbers of errors and of warnings.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.errors.len(), self.warnings.len())
    }

    /// The last line with an error.
    pub(crate) fn last_line(&self) -> Option<usize> {
        self.errors.iter().filter_map(|error| error.line).max()
    }

    /// Whether an error was recorded.
    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Refused paths of this host, a line each with the key.
    pub fn refusals(&self) -> Vec<String> {
        let kinds = [ErrorKind::Refused, ErrorKind::HostFile];
        let refused = self.errors.iter().filter(|error| kinds.contains(&error.kind));
        refused.map(|error| format!("{}: {}", error.key, error.found)).collect()
    }

    /// Whether the document names a file of this host that no operator can allow.
    pub fn names_host_file(&self) -> bool {
        self.errors.iter().any(|error| error.kind == ErrorKind::HostFile)
    }

    /// All errors and warnings.
    pub fn into_parts(self) -> (Vec<ConfigError>, Vec<ConfigWarning>) {
        (self.errors, self.warnings)
    }

    /// Returns the value and the warnings if there are no errors.
    ///
    /// # Errors
    /// All errors, sorted by file and line.
    pub fn finish<T>(mut self, value: T) -> Result<(T, Vec<ConfigWarning>), ConfigErrors> {
        if self.errors.is_empty() {
            return Ok((value, self.warnings));
        }
        let mut files: Vec<PathBuf> = Vec::new();
        for error in &self.errors {
            if !files.contains(&error.file) {
                files.push(error.file.clone());
            }
        }
        self.errors.sort_by_key(|e| (files.iter().position(|f| *f == e.file), e.line));
        Err(ConfigErrors { errors: self.errors, warnings: self.warnings })
    }
}

/// Longest word that is compared with known ones, bytes: the time grows with its length, and a longer
/// one is no typo.
const TYPO_BYTES: usize = 100;

/// The known word nearest to `word`, if close enough for a typo.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > TYPO_BYTES {
        return None;
    }
    let word = word.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&word, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(file: &str, message: &str) -> ConfigWarning {
        ConfigWarning {
            file: file.into(),
            line: Some(3),
            key: "environment.memory".to_owned(),
            message: message.to_owned(),
        }
    }

    #[test]
    fn warning_repeated_in_many_files_is_printed_once() {
        let lines = ConfigWarning::grouped(&[
            warning("a/task.toml", "deprecated"),
            warning("b/task.toml", "deprecated"),
            warning("b/task.toml", "odd"),
        ]);
        assert_eq!(
            lines,
            [
                "a/task.toml:3: environment.memory: deprecated (and 1 more like it)",
                "b/task.toml:3: environment.memory: odd",
            ]
        );
    }

    #[test]
    fn misspelled_key_suggests_nearest_known_key() {
        let known = ["n_attempts", "n_concurrent_trials", "jobs_dir", "preserve_env"];
        assert_eq!(nearest("n_atempts", known), Some("n_attempts"));
        assert_eq!(nearest("N_Attempts", known), Some("n_attempts"));
        assert_eq!(nearest("zzz", known), None);
    }

    #[test]
    fn long_word_is_not_compared_with_known_ones() {
        let (fits, long) = ("a".repeat(TYPO_BYTES), "a".repeat(TYPO_BYTES + 1));
        assert_eq!(nearest(&fits, [fits.as_str()]), Some(fits.as_str()));
        assert_eq!(nearest(&long, [long.as_str()]), None);
    }
}
