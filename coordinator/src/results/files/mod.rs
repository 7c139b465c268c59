//! Results as files: `config.json`, `result.json`, and a directory per settled trial.
//!
//! Nothing here is the truth: records and blobs are. So a file that cannot be written is reported
//! and costs no result, and what is missing when a run goes on is written again.
//!
//! * A trial's directory appears whole or not at all: it is made in `.tmp` beside its place, made
//!   durable, then moved.
//! * The entries themselves become durable together, before the job's `result.json` is written.

mod artifacts;
pub(crate) mod content;
pub(crate) mod durable;
pub(crate) mod error_text;
mod json_digest;
pub mod layout;
pub mod store;
#[cfg(test)]
mod tests;
mod trial_dir_writer;
mod trial_result;

use std::path::Path;

use serde::Serialize;

pub use durable::FileError;
pub(crate) use trial_dir_writer::TrialDirWriter;
pub use trial_dir_writer::TrialFilesError;

/// Replaces a JSON document of the run directory, durably.
///
/// # Errors
/// [`FileError`]; the former document is still there then.
pub fn write_document(run_dir: &Path, name: &str, value: &impl Serialize) -> Result<(), FileError> {
    durable::replace_json(&run_dir.join(name), value)
}
