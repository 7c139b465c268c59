//! Output of `--dry-run`: the resolved job and its tasks, before anything runs.

use rollout_environment::descriptor;
use rollout_protocol::digest::Digest;
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::{NetworkPolicy, TaskSpec};
use rollout_protocol::spec::timeout::Timeouts;
use serde::Serialize;
use serde_json::Value;

use super::JobPlan;
use crate::config::{self, ConfigWarning, Job, KeyProvenance};
use crate::sources::datasets::FormatView;

/// A job as it would run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DryRun {
    /// Digest of the plan.
    pub plan_digest: Digest,
    /// The run directory.
    pub run_dir: std::path::PathBuf,
    /// Sizes of the plan.
    pub counts: PlanCounts,
    /// The job, resolved; environment values unexpanded.
    pub config: Value,
    /// Source of every value that is not a default.
    pub provenance: Vec<KeyProvenance>,
    /// The tasks, in result order.
    pub tasks: Vec<TaskView>,
    /// The warnings.
    pub warnings: Vec<ConfigWarning>,
}

/// Sizes of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PlanCounts {
    /// Agents.
    pub agents: usize,
    /// Datasets.
    pub datasets: usize,
    /// Tasks of all datasets.
    pub tasks: usize,
    /// Attempts per agent and task.
    pub attempts: u32,
    /// Trials.
    pub trials: u64,
    /// Tasks whose trials will settle as `task_invalid` or `task_not_found`.
    pub faulty_tasks: usize,
}

/// A task as it would run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskView {
    /// Dataset.
    pub dataset: String,
    /// Task.
    pub task: String,
    /// The format of its files.
    pub format: FormatView,
    /// Source of its image.
    pub image: ImageView,
    /// Names of its steps, if it has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
    /// Network policy, unless a phase sets another.
    pub network: NetworkPolicy,
    /// Whether a verifier has an environment of its own.
    pub separate_verifier: bool,
    /// Its resources, after the job's overrides.
    pub resources: Resources,
    /// Its time limits, after the job's multiplier, override and ceiling.
    pub timeouts: Timeouts,
    /// Commit of the repository around it.
    pub git_commit_id: Option<String>,
    /// Digest of its document.
    pub digest: Digest,
    /// Reason why it cannot run.
    pub fault: Option<String>,
}

/// Source of a task's image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "source", rename_all = "snake_case")]
pub enum ImageView {
    /// Built from `environment/Dockerfile`.
    Build {
        /// Digest of the build context; equal contexts are built once.
        context: Option<Digest>,
    },
    /// Pulled if absent.
    Named {
        /// The reference.
        reference: String,
    },
    /// No image: the task runs on the host's files.
    Host,
}

/// Builds the dry-run output. `tasks` are those of the plan and `formats` theirs, in plan order.
pub fn dry_run(
    job: &Job,
    plan: &JobPlan,
    tasks: &[TaskSpec],
    formats: &[FormatView],
    warnings: Vec<ConfigWarning>,
) -> DryRun {
    let mut datasets: Vec<&str> = tasks.iter().map(|task| task.dataset.as_str()).collect();
    datasets.dedup();
    DryRun {
        plan_digest: plan.digest(),
        run_dir: job.run_dir(),
        counts: PlanCounts {
            agents: plan.agents().len(),
            datasets: datasets.len(),
            tasks: tasks.len(),
            attempts: plan.n_attempts(),
            trials: plan.len(),
            faulty_tasks: tasks.iter().filter(|task| task.fault.is_some()).count(),
        },
        config: config::job_document(job),
        provenance: job.provenance.clone(),
        tasks: tasks
            .iter()
            .zip(plan.tasks())
            .zip(formats)
            .map(|((spec, planned), format)| task_view(job, spec, format, planned.spec))
            .collect(),
        warnings,
    }
}

fn task_view(job: &Job, spec: &TaskSpec, format: &FormatView, digest: Digest) -> TaskView {
    let environment = &job.settings.environment;
    let images = descriptor::for_kind(environment.provider.kind()).capabilities.images;
    let image = match &spec.environment.docker_image {
        _ if !images.is_supported() => ImageView::Host,
        Some(reference) if !environment.force_build || spec.environment.context.is_none() => {
            ImageView::Named { reference: reference.clone() }
        }
        _ => {
            ImageView::Build { context: spec.environment.context.as_ref().map(|blob| blob.digest) }
        }
    };
    TaskView {
        dataset: spec.dataset.clone(),
        task: spec.name.clone(),
        format: format.clone(),
        image,
        steps: spec.steps.iter().filter_map(|step| step.name.clone()).collect(),
        network: spec.environment.network.clone(),
        separate_verifier: spec.steps.iter().any(|step| step.verifier.environment.is_some()),
        resources: spec.environment.resources,
        timeouts: Timeouts::for_task(spec),
        git_commit_id: spec.git_commit_id.clone(),
        digest,
        fault: spec.fault.as_ref().map(|fault| fault.message.clone()),
    }
}
