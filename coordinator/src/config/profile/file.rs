//! Scoring profiles read from files.

use std::io;
use std::path::{Path, PathBuf};

use rollout_base::regular_file;
use rollout_protocol::limits::CONFIG_FILE_BYTES;

use super::{InvalidProfile, ProfileParseError, ScoringProfile};

/// Error of loading a profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Neither a built-in name nor a file.
    #[error("`{name}` is neither a file nor one of the built-in profiles {}", ScoringProfile::BUILT_IN.join(", "))]
    Unknown {
        /// The name as written.
        name: String,
    },
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// File.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The file is not a valid profile.
    #[error("{path} is not a profile: {reason}")]
    Parse {
        /// File.
        path: PathBuf,
        /// Location and cause.
        reason: String,
    },
    /// The profile has an invalid value.
    #[error("invalid profile `{name}`")]
    Invalid {
        /// Its name.
        name: String,
        /// The invalid value.
        #[source]
        source: InvalidProfile,
    },
}

impl ScoringProfile {
    /// Loads the built-in profile of that name, or the YAML or JSON file at that path.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn load(name: &str) -> Result<Self, ProfileError> {
        if let Some(profile) = Self::built_in(name) {
            return Ok(profile);
        }
        let path = Path::new(name);
        let read = |source| ProfileError::Read { path: path.to_owned(), source };
        let parse = |reason: String| ProfileError::Parse { path: path.to_owned(), reason };
        let text = regular_file::read_text(path, CONFIG_FILE_BYTES);
        let text = text.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ProfileError::Unknown { name: name.to_owned() },
            io::ErrorKind::FileTooLarge => parse(error.to_string()),
            _ => read(error),
        })?;
        Self::parse(&text).map_err(|error| match error {
            ProfileParseError::Syntax(reason) => parse(reason),
            ProfileParseError::Invalid { name, source } => ProfileError::Invalid { name, source },
        })
    }
}
