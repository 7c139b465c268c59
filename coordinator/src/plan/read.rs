//! Reading and checking of a job file with its datasets.

use std::path::Path;

use super::PLAN_FILE;
use crate::config::{
    ConfigErrors, ConfigWarning, Diagnostics, Job, JobOptions, job_from_settings, read_job,
};
use crate::sources::datasets::{self, Dataset};

/// A job whose configuration is valid.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedJob {
    /// The job.
    pub job: Job,
    /// Its datasets, in file order.
    pub datasets: Vec<Dataset>,
    /// The warnings.
    pub warnings: Vec<ConfigWarning>,
}

/// Reads a job, from a file or from the command line alone, and the task files of its datasets.
/// Blocks on the file system, and on the network if tasks must be fetched.
///
/// # Errors
/// All errors of all files.
pub fn read(file: Option<&Path>, options: &JobOptions<'_>) -> Result<PreparedJob, ConfigErrors> {
    let mut problems = Diagnostics::default();
    let job = match file {
        Some(file) => read_job(file, options, &mut problems),
        None => job_from_settings(options, &mut problems),
    };
    let prepared = job.map(|mut job| {
        job.settings.environment.provider.set_build_guard(options.images.listed());
        let planned = datasets::read_planned_formats(&job.run_dir().join(PLAN_FILE));
        let datasets = datasets::load(&job, options, &planned, &mut problems);
        if options.trust_tasks {
            let files = datasets.iter().flat_map(|dataset| &dataset.tasks).map(|task| &task.file);
            let used = files.flat_map(|file| file.variables.iter().chain(&file.solution_variables));
            let names = used.flat_map(|variable| variable.template.variables());
            job.task_env.extend(names.map(|(name, _)| name));
        }
        (job, datasets)
    });
    let (prepared, warnings) = problems.finish(prepared)?;
    let (job, datasets) = prepared.expect("a job without a fault was read");
    Ok(PreparedJob { job, datasets, warnings })
}
