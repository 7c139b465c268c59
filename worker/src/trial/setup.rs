//! Environment setup: the image, the environment, and the first files in it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::limits;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::spec::settings::TrialSettings;
use rollout_protocol::spec::task::{NetworkPolicy, TaskSpec};
use rollout_protocol::spec::timeout::seconds;

use super::TrialContext;
use super::failure::{self, SetupError};
use super::files::{TaskFiles, TaskPart};
use crate::agent::{self, ORACLE_DIR, Plan};
use crate::environment::{
    CreateRequest, Failure, FailureKind, Image, ImageRequest, ImageSource, Provider, Purpose,
    Upload,
};
use rollout_protocol::error::TrialError;

/// How much later than the provider we give up on an image: it knows more about what went wrong.
const GRACE: Duration = Duration::from_secs(10);

/// What an agent does with the task; or why the trial is settled without any environment.
pub(super) fn plan(ctx: &TrialContext) -> Result<Plan, TrialError> {
    let (task, settings) = (&ctx.task, &ctx.settings);
    if let Some(fault) = &task.fault {
        return Err(fault.clone());
    }
    if ctx.step().files.tests.is_none() && !settings.verifier.disable {
        return Err(failure::task_invalid("the task has no tests/test.sh to verify with"));
    }
    agent::plan(&ctx.agent, ctx.step()).map_err(|none| failure::task_invalid(&none.to_string()))
}

/// Where the image comes from; the part must live as long as the source is used.
pub(super) async fn source(
    task: &TaskSpec,
    settings: &TrialSettings,
    files: &TaskFiles,
) -> Result<(ImageSource, Option<TaskPart>), SetupError> {
    let environment = &settings.environment;
    // A sandbox cannot have an image; it honours the Dockerfile that says what is in it.
    let sandbox = environment.provider.kind() == ProviderKind::Process;
    let build = environment.force_build || (sandbox && task.environment.context.is_some());
    if let Some(image) = task.environment.docker_image.as_ref().filter(|_| !build) {
        return Ok((ImageSource::Named(image.clone()), None));
    }
    let (digest, part) = match &task.environment.context {
        Some(blob) => (blob.digest, files.directory("the build context", blob).await),
        None => (rollout_protocol::digest::Digest::of(b""), files.empty_directory().await),
    };
    let part = part.map_err(SetupError::Files)?;
    Ok((ImageSource::Context { digest, dir: part.path().to_owned() }, Some(part)))
}

/// Makes the image present.
pub(super) async fn image(
    ctx: &TrialContext,
    provider: &dyn Provider,
    source: &ImageSource,
    log: PathBuf,
) -> Result<Image, SetupError> {
    let limit = seconds(ctx.task.environment.build_sec);
    let named = matches!(source, ImageSource::Named(_));
    let request = ImageRequest {
        source: source.clone(),
        force_build: ctx.settings.environment.force_build,
        timeout: limit,
        log: Some(log),
        settings: ctx.settings.environment.provider.clone(),
        labels: ctx.labels.clone(),
    };
    let failed = |failure| SetupError::Image { named, limit, failure };
    match tokio::time::timeout(limit.saturating_add(GRACE), provider.prepare(request)).await {
        Ok(image) => image.map_err(failed),
        Err(_) => Err(failed(Failure::new(FailureKind::TimedOut, "no answer in time"))),
    }
}

/// Everything that the environment is created with.
pub(super) struct Creation {
    pub(super) request: CreateRequest,
    /// The archives that the request names.
    pub(super) parts: Vec<TaskPart>,
}

/// Puts together what the environment is created with.
pub(super) async fn creation(
    ctx: &TrialContext,
    files: &TaskFiles,
    plan: &Plan,
    source: ImageSource,
    image: Image,
) -> Result<Creation, SetupError> {
    let mut parts = Vec::new();
    let mut uploads: Vec<Upload> = ["/logs", "/logs/agent", crate::verifier::VERIFIER_LOGS]
        .map(|path| Upload::Dir { path: path.to_owned() })
        .into();
    if let Some(blob) = &ctx.step().files.instruction {
        let bytes = files.bytes("the instruction", blob, limits::INSTRUCTION_BYTES).await;
        let bytes = bytes.map_err(SetupError::Files)?;
        let path = ctx.settings.instruction_path.clone();
        uploads.push(Upload::File { path, bytes, executable: false });
    }
    uploads.extend(plan.scripts.iter().cloned());
    if let Some(blob) = &plan.solution {
        let part = files.archive("the solution", blob).await.map_err(SetupError::Files)?;
        let tar = part.path().to_owned();
        uploads.push(Upload::Archive { path: ORACLE_DIR.to_owned(), tar });
        parts.push(part);
    }
    let request = CreateRequest {
        image,
        source,
        resources: ctx.task.environment.resources,
        env: std::collections::BTreeMap::new(),
        workdir: None,
        network: NetworkPolicy::Public,
        compose: None,
        uploads,
        settings: ctx.settings.environment.provider.clone(),
        labels: ctx.labels.clone(),
        purpose: Purpose::Agent,
    };
    Ok(Creation { request, parts })
}

/// The provider that the job wants.
pub(super) fn provider(
    ctx: &TrialContext,
    services: &super::TrialServices,
) -> Result<Arc<dyn Provider>, SetupError> {
    let kind = ctx.settings.environment.provider.kind();
    let provider = services.providers.get(&kind);
    provider.cloned().ok_or_else(|| SetupError::NoProvider(kind.to_string()))
}
