//! A job file with its datasets, checked as one.

use std::path::Path;

use crate::config::{ConfigErrors, ConfigWarning, Job, Options, Problems, read_job};
use crate::dataset::{self, Dataset};

/// A job whose configuration is right.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// The job.
    pub job: Job,
    /// Its datasets, in the order of the file.
    pub datasets: Vec<Dataset>,
    /// What is odd.
    pub warnings: Vec<ConfigWarning>,
}

/// Reads a job file and the task files of its datasets. This blocks on the file system.
///
/// # Errors
/// Every fault of all files.
pub fn read(file: &Path, options: &Options<'_>) -> Result<Prepared, ConfigErrors> {
    let mut problems = Problems::default();
    let prepared = read_job(file, options, &mut problems).map(|job| {
        let datasets = dataset::load(&job, options, &mut problems);
        (job, datasets)
    });
    let (prepared, warnings) = problems.finish(prepared)?;
    let (job, datasets) = prepared.expect("a job without a fault was read");
    Ok(Prepared { job, datasets, warnings })
}
