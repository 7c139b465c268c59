//! Scoring profiles in files.

use std::io;
use std::path::{Path, PathBuf};

use rollout_protocol::limits::CONFIG_FILE_BYTES;

use super::{InvalidProfile, ProfileParseError, ScoringProfile};

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Neither a built-in name nor a file.
    #[error("`{name}` is neither a file nor one of the built-in profiles {}", ScoringProfile::BUILT_IN.join(", "))]
    Unknown {
        /// The name as it was given.
        name: String,
    },
    /// The file cannot be read.
    #[error("reading {path}")]
    Read {
        /// File.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is no profile.
    #[error("{path} is no profile: {reason}")]
    Parse {
        /// File.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// Values that make no sense.
    #[error("the profile `{name}`")]
    Invalid {
        /// Its name.
        name: String,
        /// Which.
        #[source]
        source: InvalidProfile,
    },
}

impl ScoringProfile {
    /// The built-in profile of that name, or the one in that YAML or JSON file.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn load(name: &str) -> Result<Self, ProfileError> {
        if let Some(profile) = Self::built_in(name) {
            return Ok(profile);
        }
        let path = Path::new(name);
        let read = |source| ProfileError::Read { path: path.to_owned(), source };
        let size = match std::fs::metadata(path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ProfileError::Unknown { name: name.to_owned() });
            }
            Err(error) => return Err(read(error)),
        };
        let parse = |reason: String| ProfileError::Parse { path: path.to_owned(), reason };
        if size > CONFIG_FILE_BYTES {
            return Err(parse(format!("it has more than {CONFIG_FILE_BYTES} bytes")));
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        Self::parse(&text).map_err(|error| match error {
            ProfileParseError::Syntax(reason) => parse(reason),
            ProfileParseError::Invalid { name, source } => ProfileError::Invalid { name, source },
        })
    }
}
