//! Result files: `config.json`, `result.json`, and a directory per settled trial.
//!
//! Records and blobs are the source of truth; these files are copies. A file that cannot be written
//! is reported but loses no result, and missing files are written again when a run resumes.
//!
//! * A trial's directory is written atomically: created in `.tmp`, made durable, then moved to its
//!   final path.
//! * The directory entries are made durable together, before the job's `result.json` is written.

mod artifacts;
pub(crate) mod content;
pub(crate) mod durable;
mod empty_files;
pub(crate) mod error_text;
mod former_files;
mod json_digest;
pub mod layout;
mod materialize;
mod registration;
pub mod store;
#[cfg(test)]
mod tests;
mod trial_dir_writer;
mod trial_result;

use std::path::Path;

use serde::Serialize;

pub use durable::FileError;
pub use materialize::MaterializeMode;
pub use registration::{Registration, RegistrationError};
pub(crate) use trial_dir_writer::TrialDirWriter;
pub use trial_dir_writer::TrialFilesError;

/// Replaces a JSON document of the run directory durably.
///
/// # Errors
/// [`FileError`]; the old document is then still there.
pub fn write_document(run_dir: &Path, name: &str, value: &impl Serialize) -> Result<(), FileError> {
    durable::replace_json(&run_dir.join(name), value)
}
