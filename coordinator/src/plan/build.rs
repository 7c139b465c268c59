//! Building of a job's plan: bundles and stored documents.

use bytes::Bytes;
use rollout_protocol::blob::MediaType;
use rollout_protocol::spec::task::TaskSpec;
use rollout_protocol::wire::offer::SizeClass;
use serde::Serialize;

use super::{JobPlan, JobPlanError, PlannedTask, required};
use crate::config::{ConfigErrors, Diagnostics, ErrorKind, Job, SourceLocation};
use crate::sources::datasets::{BundleError, BundleSink, Dataset, bundle};

/// Error of building a plan.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The job or its tasks have errors.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The tasks could not be bundled or stored.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// A bug: checked input did not make a plan.
    #[error(transparent)]
    Plan(#[from] JobPlanError),
}

/// Bundles the tasks, stores every document that trials refer to, and builds the plan. Also returns
/// the tasks' specs, in plan order.
///
/// # Errors
/// [`BuildError`].
pub async fn build(
    job: &Job,
    datasets: Vec<Dataset>,
    sink: &BundleSink,
) -> Result<(JobPlan, Vec<TaskSpec>), BuildError> {
    check_size(job, &datasets)?;
    let bundled = bundle(job, datasets, sink).await?;
    let mut specs = Vec::with_capacity(bundled.len());
    let mut tasks = Vec::with_capacity(bundled.len());
    for task in bundled {
        tasks.push(PlannedTask {
            dataset: task.spec.dataset.clone(),
            name: task.spec.name.clone(),
            spec: task.digest,
            git_commit_id: task.spec.git_commit_id.clone(),
            files: task.files,
            rules: task.rules,
            class: SizeClass::for_resources(&task.spec.environment.resources),
            resources: task.spec.environment.resources,
            variables: required(task.spec.templates()),
            format: Some(task.spec.format),
            format_guessed: task.spec.other_rules.is_some(),
            about: task.metadata,
        });
        specs.push(task.spec);
    }
    let agents = job.agents.iter().map(|agent| agent.spec.clone()).collect();
    let plan = JobPlan::new(job.settings.clone(), agents, tasks, job.n_attempts)?
        .with_guardrails(job.guardrails.clone());
    store(sink, plan.settings()).await?;
    for agent in &job.agents {
        if let Some(trajectory) = &agent.trajectory {
            sink.put(trajectory.clone(), MediaType::Json).await?;
        }
        for skill in &agent.skills {
            sink.put(skill.archive.clone(), MediaType::Tar).await?;
        }
    }
    for agent in plan.agents() {
        store(sink, &agent.spec).await?;
    }
    Ok((plan, specs))
}

fn check_size(job: &Job, datasets: &[Dataset]) -> Result<(), ConfigErrors> {
    let tasks = datasets.iter().map(|dataset| dataset.tasks.len()).sum();
    let mut problems = Diagnostics::default();
    if let Err(error) = super::check_size(job.agents.len(), tasks, job.n_attempts) {
        let spot = SourceLocation { key: "n_attempts".to_owned(), line: None };
        let expected = "fewer trials in one run";
        problems.error(spot.error(
            &job.file,
            ErrorKind::TooManyTrials,
            error.to_string(),
            expected,
        ));
    }
    problems.finish(()).map(|_| ())
}

async fn store<T: Serialize + Sync>(sink: &BundleSink, document: &T) -> Result<(), BuildError> {
    let bytes = serde_json::to_vec(document).map_err(|error| JobPlanError::NotSerializable {
        what: "a document",
        reason: error.to_string(),
    })?;
    sink.put(Bytes::from(bytes), MediaType::Json).await?;
    Ok(())
}
