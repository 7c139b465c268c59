//! Fixtures shared by the tests of this crate and of its users.

mod directory;
mod flaky_source;
mod ignored;
mod recording_exporter;
mod sample;

pub use self::directory::TestDirectory;
pub use self::flaky_source::{FlakySource, SourceCall};
pub use self::ignored::{report_ignored, report_ignored_part};
pub use self::recording_exporter::RecordingExporter;
pub use self::sample::{SampleRun, passed_trial, trial_record};
