//! Environment setup: the image, the environment, and its first files.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rollout_base::supervise;
use rollout_environment::{
    ComposeFile, CreateRequest, Environment, EnvironmentPurpose, Failure, Image, ImageSource,
    Provider, Upload,
};
use rollout_gateway::agents::{self, AgentPlan, MCP_FILE, PriorConversation};
use rollout_protocol::error::TrialError;
use rollout_protocol::limits;
use rollout_protocol::spec::agent::{AgentKind, TaskFeature};
use rollout_protocol::spec::task::{
    AfterAgentError, McpServer, StepSpec, TaskEnvironment, TaskFormat,
};

use super::artifacts::ARTIFACTS_DIR;
use super::failure;
use super::{TrialContext, variables};
use crate::executor::errors::SetupError;
use crate::executor::{COPY_LIMIT, ExecutionServices, Sidecar, TaskFiles, TaskPart, with_timeout};

/// The agent's plan for the first step.
#[derive(Debug, Clone)]
pub(super) struct PlannedAgent {
    pub(super) plan: AgentPlan,
    /// Why the agent does nothing, in a task that is verified all the same.
    pub(super) error: Option<TrialError>,
}

/// The agent's plan, or the error of a trial that needs no environment.
pub(super) fn agent_plan(ctx: &TrialContext) -> Result<PlannedAgent, TrialError> {
    let (task, settings) = (&ctx.task, &ctx.settings);
    let model_fault = task.model_fault.as_ref().filter(|_| ctx.agent.kind.calls_models());
    let is_oracle = ctx.agent.kind == AgentKind::Oracle;
    let solution_fault = task.solution_fault.as_ref();
    let solution_fault = solution_fault.filter(|_| is_oracle && !settings.install_only);
    if let Some(fault) = task.fault.as_ref().or(model_fault).or(solution_fault) {
        return Err(fault.clone());
    }
    refuse_unused_features(ctx)?;
    for step in &task.steps {
        if step.files.tests.is_none() && !settings.verifier.disable && !has_tests_in_image(step) {
            let location =
                step.name.as_ref().map_or_else(String::new, |name| format!(" in step `{name}`"));
            let why = format!("the task has no tests/test.sh{location} to verify with");
            return Err(failure::task_invalid(&why));
        }
    }
    if settings.install_only {
        // Nothing runs a solution.
        let plan = agents::plan(&ctx.agent, task.format, ctx.step()).unwrap_or_default();
        return Ok(PlannedAgent { plan, error: None });
    }
    // A step may have no solution: it is verified in the state that earlier steps left.
    let solved = task.steps.iter().any(|step| step.files.solution.is_some());
    if !solved && is_oracle {
        let none = agents::NoSolution { agent: ctx.agent.name.clone() };
        let error = failure::task_invalid(&none.to_string());
        let is_verified = task.rules.after_agent_error == AfterAgentError::Verify;
        if is_verified && !settings.verifier.disable {
            return Ok(PlannedAgent { plan: AgentPlan::default(), error: Some(error) });
        }
        return Err(error);
    }
    let plan = agents::plan(&ctx.agent, task.format, ctx.step());
    plan.map(|plan| PlannedAgent { plan, error: None })
        .map_err(|none| failure::task_invalid(&none.to_string()))
}

/// Refuses a task with features that the agent cannot use: it would attempt another task.
fn refuse_unused_features(ctx: &TrialContext) -> Result<(), TrialError> {
    let features = [
        (TaskFeature::Mcp, !ctx.task.mcp_servers.is_empty()),
        (TaskFeature::McpSse, ctx.task.mcp_servers.iter().any(McpServer::has_sse)),
        (TaskFeature::Skills, ctx.task.skills_dir.is_some()),
        (TaskFeature::Trajectory, has_trajectory(ctx)),
    ];
    let unused = features.into_iter().find(|(feature, has)| *has && !ctx.agent.can_use(*feature));
    let Some((feature, _)) = unused else { return Ok(()) };
    let (task, agent, features) = (&ctx.task.name, &ctx.agent.name, feature.description());
    let text = format!("the task {task} has {features}, which the agent `{agent}` cannot use");
    Err(TrialError::unsupported(text))
}

/// Whether the agent is to continue a conversation.
fn has_trajectory(ctx: &TrialContext) -> bool {
    let mut steps = ctx.task.steps.iter().enumerate();
    steps.any(|(index, step)| ctx.agent.trajectory(index, step).is_some())
}

/// Whether the tests of a step are in the image of its verifier's own environment.
pub(super) const fn has_tests_in_image(step: &StepSpec) -> bool {
    step.verifier.environment.is_some() && step.files.tests.is_none()
}

/// Everything that an environment is created from.
pub(super) struct PreparedEnvironment {
    pub(super) provider: Arc<dyn Provider>,
    pub(super) request: CreateRequest,
    /// Its sidecar services.
    pub(super) services: Vec<Box<dyn Sidecar>>,
    /// Files for its working directory, which is known when it runs.
    pub(super) workdir_files: Option<TaskPart>,
}

/// Services that a task defines for Docker Compose. The provider runs them: they start and end with
/// the environment, which is ready when they are.
#[derive(Debug)]
struct ComposeServices {
    file: ComposeFile,
    /// The unpacked build context with the Compose file, which stays while this lives.
    _context: TaskPart,
}

#[async_trait]
impl Sidecar for ComposeServices {
    fn name(&self) -> &str {
        "compose"
    }

    async fn start(&mut self, request: &mut CreateRequest) -> Result<(), Failure> {
        request.compose = Some(self.file.clone());
        Ok(())
    }
}

/// The sidecar services of an environment: those of its task and of `overlays`, files of the job.
pub(super) async fn sidecars(
    environment: &TaskEnvironment,
    overlays: &[String],
    files: &TaskFiles,
) -> Result<Vec<Box<dyn Sidecar>>, SetupError> {
    if environment.compose.is_none() && overlays.is_empty() {
        return Ok(Vec::new());
    }
    let part = match &environment.context {
        Some(blob) => files.directory("the build context", blob).await,
        None => files.empty_directory().await,
    };
    let part = part.map_err(SetupError::Files)?;
    let file = ComposeFile {
        dir: part.path().to_owned(),
        file: environment.compose.as_ref().map(Into::into),
        overlays: overlays.to_owned(),
    };
    Ok(vec![Box::new(ComposeServices { file, _context: part })])
}

/// Fetches the files for the working directory of an environment.
pub(super) async fn workdir_files(
    environment: &TaskEnvironment,
    files: &TaskFiles,
) -> Result<Option<TaskPart>, SetupError> {
    let Some(blob) = &environment.workdir_files else { return Ok(None) };
    let part = files.archive("the environment's files", blob).await;
    part.map(Some).map_err(SetupError::Files)
}

/// Places files into the working directory of a new environment. The directory is made if the image
/// lacks it.
pub(super) async fn place_workdir_files(
    environment: &dyn Environment,
    part: &TaskPart,
) -> Result<(), SetupError> {
    let (path, tar) = (environment.workdir().to_owned(), part.path().to_owned());
    let placing = environment.copy_to(vec![Upload::Merge { path, tar }]);
    let placed = with_timeout(COPY_LIMIT, "placing the environment's files", placing).await;
    placed.map_err(|mut failure| {
        failure.message = format!("cannot place the environment's files: {}", failure.message);
        SetupError::Create(failure)
    })
}

/// Builds the request for an environment.
pub(super) fn create_request(
    ctx: &TrialContext,
    services: &ExecutionServices,
    environment: &TaskEnvironment,
    purpose: EnvironmentPurpose,
    (source, image): (ImageSource, Image),
    uploads: Vec<Upload>,
) -> CreateRequest {
    CreateRequest {
        image,
        source,
        resources: environment.resources,
        env: variables::environment_env(&services.variables, environment),
        workdir: environment.workdir.clone(),
        network: environment.network.clone(),
        compose: None,
        uploads,
        settings: ctx.settings.environment.provider.clone(),
        labels: ctx.execution.labels.clone(),
        purpose,
    }
}

/// Output directories of scripts, open to every user.
pub(super) fn output_directories(ctx: &TrialContext) -> Vec<Upload> {
    let mut paths = vec!["/logs", "/logs/agent", crate::verifier::VERIFIER_LOGS];
    if ctx.task.format == TaskFormat::Harbor {
        paths.push(ARTIFACTS_DIR);
    }
    paths.into_iter().map(|path| Upload::Dir { path: path.to_owned() }).collect()
}

/// Everything placed in the agent's environment before anything runs.
pub(super) async fn uploads(
    ctx: &TrialContext,
    services: &ExecutionServices,
    plan: &AgentPlan,
    parts: &mut Vec<TaskPart>,
) -> Result<Vec<Upload>, SetupError> {
    let mut uploads = output_directories(ctx);
    add_instruction(ctx, &services.files, ctx.step(), &mut uploads).await?;
    uploads.extend(plan.scripts.iter().cloned());
    let servers = &ctx.task.mcp_servers;
    if ctx.agent.kind.runs_own_scripts() && !servers.is_empty() {
        let value = |template: &_| services.variables.value(template);
        let bytes = agents::mcp_config(servers, value).map_err(SetupError::Unset)?;
        uploads.push(Upload::File { path: MCP_FILE.to_owned(), bytes, executable: false });
    }
    add_skills(ctx, &services.files, &mut uploads, parts).await?;
    add_trajectory(ctx, &services.files, 0, ctx.step(), &mut uploads).await?;
    add_solution(ctx, &services.files, plan, &mut uploads, parts).await?;
    Ok(uploads)
}

/// Adds the skills that the job gives to the agent. One of the task with the same name is replaced.
async fn add_skills(
    ctx: &TrialContext,
    files: &TaskFiles,
    uploads: &mut Vec<Upload>,
    parts: &mut Vec<TaskPart>,
) -> Result<(), SetupError> {
    let Some(directory) = variables::skills_dir(ctx) else { return Ok(()) };
    for skill in &ctx.agent.task_options.skills {
        let part = files.archive("a skill", &skill.archive).await.map_err(SetupError::Files)?;
        let path = format!("{}/{}", directory.trim_end_matches('/'), skill.name);
        uploads.push(Upload::Archive { path, tar: part.path().to_owned() });
        parts.push(part);
    }
    Ok(())
}

/// Adds the conversation that scripts are to continue in a step.
pub(super) async fn add_trajectory(
    ctx: &TrialContext,
    files: &TaskFiles,
    index: usize,
    step: &StepSpec,
    uploads: &mut Vec<Upload>,
) -> Result<(), SetupError> {
    let blob = ctx.agent.trajectory(index, step);
    let Some(blob) = blob.filter(|_| ctx.agent.kind.runs_own_scripts()) else { return Ok(()) };
    let bytes = files.bytes("the trajectory", blob, limits::TRAJECTORY_BYTES).await;
    let bytes = bytes.map_err(SetupError::Files)?;
    let document = bytes.clone();
    let parsed = supervise::blocking(move || PriorConversation::parse(&document)).await;
    let prior = parsed.map_err(|error| SetupError::Trajectory(error.to_string()))?;
    let messages = Bytes::from(prior.messages().to_string());
    for (path, bytes) in [(agents::TRAJECTORY_FILE, bytes), (agents::CONVERSATION_FILE, messages)] {
        uploads.push(Upload::File { path: path.to_owned(), bytes, executable: false });
    }
    Ok(())
}

/// Adds a step's instruction.
pub(super) async fn add_instruction(
    ctx: &TrialContext,
    files: &TaskFiles,
    step: &StepSpec,
    uploads: &mut Vec<Upload>,
) -> Result<(), SetupError> {
    if let Some(blob) = &step.files.instruction {
        let bytes = files.bytes("the instruction", blob, limits::INSTRUCTION_BYTES).await;
        let bytes = bytes.map_err(SetupError::Files)?;
        let bytes = with_extra_instructions(bytes, &ctx.settings.extra_instructions);
        let path = ctx.settings.instruction_path.clone();
        uploads.push(Upload::File { path, bytes, executable: false });
    }
    Ok(())
}

/// An instruction followed by the texts of the job, each after an empty line.
fn with_extra_instructions(instruction: Bytes, extra: &[String]) -> Bytes {
    if extra.is_empty() {
        return instruction;
    }
    let mut text = instruction.to_vec();
    for more in extra {
        text.truncate(text.trim_ascii_end().len());
        text.extend_from_slice(b"\n\n");
        text.extend_from_slice(more.trim_end().as_bytes());
        text.push(b'\n');
    }
    text.into()
}

/// Adds the solution, if the agent runs it.
pub(super) async fn add_solution(
    ctx: &TrialContext,
    files: &TaskFiles,
    plan: &AgentPlan,
    uploads: &mut Vec<Upload>,
    parts: &mut Vec<TaskPart>,
) -> Result<(), SetupError> {
    if let Some(blob) = &plan.solution {
        let part = files.archive("the solution", blob).await.map_err(SetupError::Files)?;
        let tar = part.path().to_owned();
        let [own, other] = agents::solution_dirs(ctx.task.format).map(str::to_owned);
        uploads.push(Upload::Archive { path: own, tar: tar.clone() });
        // Images of this format may have other files of their own there.
        uploads.push(Upload::Merge { path: other, tar });
        parts.push(part);
    }
    Ok(())
}

/// The provider that the job selects.
pub(super) fn provider(
    ctx: &TrialContext,
    services: &ExecutionServices,
) -> Result<Arc<dyn Provider>, SetupError> {
    services.provider(ctx.settings.environment.provider.kind(), ctx.execution.labels.run)
}
