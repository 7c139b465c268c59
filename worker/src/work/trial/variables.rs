//! Variables of a trial's scripts, and their precedence.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollout_base::secrets::{Redactor, TrialVariables};
use rollout_environment::proxies;
use rollout_gateway::agents::{
    INSTRUCTION_VARIABLE, MCP_FILE, MCP_VARIABLE, SKILLS_DIR, SKILLS_VARIABLE, harness_variables,
};
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::gateway::{GatewaySpec, declared_secrets};
use rollout_protocol::spec::task::{StepSpec, TaskEnvironment};
use rollout_protocol::template::{Template, UnsetVariable};

use super::TrialContext;
use crate::executor::ExecutionServices;
use crate::work::agent::ScriptEnv;

/// The context with the proxies of this host in the environments of its task that name none.
pub(super) fn with_host_proxies(
    mut ctx: TrialContext,
    services: &ExecutionServices,
) -> TrialContext {
    let proxies = services.proxies(&ctx.settings.environment.provider);
    if !proxies.is_empty() {
        let task = Arc::make_mut(&mut ctx.task);
        proxies.add_to(&mut task.environment.env);
        for step in &mut task.steps {
            if let Some(own) = &mut step.verifier.environment {
                proxies.add_to(&mut own.env);
            }
        }
    }
    ctx
}

/// The redactor for the values of all phases. When it can be built, every template that a trial
/// needs has a value.
pub(super) fn redactor(
    ctx: &TrialContext,
    variables: &TrialVariables,
) -> Result<Redactor, UnsetVariable> {
    let (task, verifier) = (&ctx.task, &ctx.settings.verifier);
    let solutions = task.steps.iter().filter(|_| ctx.agent.kind == AgentKind::Oracle);
    let templates = task.templates().chain(ctx.agent.env.values()).chain(verifier.env.values());
    let templates = templates.chain(ctx.settings.gateway.iter().flat_map(GatewaySpec::keys));
    let templates = templates.chain(solutions.flat_map(|step| step.solution_env.values()));
    let declared = declared_secrets(&ctx.settings.secrets, ctx.settings.gateway.as_ref());
    let own = task.steps.iter().filter_map(|step| step.verifier.environment.as_deref());
    let mut logins = Vec::new();
    for environment in [&task.environment].into_iter().chain(own) {
        let mut env = ScriptEnv::new();
        variables.add(&environment.env, &mut env)?;
        logins.extend(proxies::logins(&env));
    }
    variables.redactor(templates, &declared, &logins)
}

fn add_expanded(
    variables: &TrialVariables,
    templates: &BTreeMap<String, Template>,
    env: &mut ScriptEnv,
) {
    variables.add(templates, env).expect("every template was expanded before");
}

/// Variables of everything that runs in an environment. Its own services are behind no proxy.
pub(super) fn environment_env(
    variables: &TrialVariables,
    environment: &TaskEnvironment,
) -> ScriptEnv {
    let mut env = ScriptEnv::new();
    add_expanded(variables, &environment.env, &mut env);
    proxies::exempt(&mut env, []);
    env
}

/// Variables of the agent's scripts: the environment's, the solution's if the agent runs it, and
/// the agent's own, which win.
pub(super) fn agent_env(
    ctx: &TrialContext,
    variables: &TrialVariables,
    step: &StepSpec,
) -> ScriptEnv {
    let task = &ctx.task;
    let mut env = environment_env(variables, &task.environment);
    if ctx.agent.kind == AgentKind::Oracle {
        env.insert("DEBIAN_FRONTEND".to_owned(), "noninteractive".to_owned());
        add_expanded(variables, &step.solution_env, &mut env);
    }
    add_expanded(variables, &ctx.agent.env, &mut env);
    env.insert(INSTRUCTION_VARIABLE.to_owned(), ctx.settings.instruction_path.clone());
    if let AgentKind::Harness(harness) = &ctx.agent.kind {
        let variables = harness_variables(harness);
        env.extend(variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    if ctx.agent.kind.runs_own_scripts() && !task.mcp_servers.is_empty() {
        env.insert(MCP_VARIABLE.to_owned(), MCP_FILE.to_owned());
    }
    if ctx.agent.kind.calls_models()
        && let Some(directory) = skills_dir(ctx)
    {
        env.insert(SKILLS_VARIABLE.to_owned(), directory.to_owned());
    }
    env
}

/// The directory with the skills of the task and of the job, if there are any.
pub(super) fn skills_dir(ctx: &TrialContext) -> Option<&str> {
    let of_job = (!ctx.agent.task_options.skills.is_empty()).then_some(SKILLS_DIR);
    ctx.task.skills_dir.as_deref().or(of_job)
}

/// Variables of a step's tests: the environment's, the step's and the job's, which win. Those of
/// the agent are not included.
pub(super) fn verifier_env(
    ctx: &TrialContext,
    variables: &TrialVariables,
    step: &StepSpec,
) -> ScriptEnv {
    let own = step.verifier.environment.as_deref();
    let mut env = environment_env(variables, own.unwrap_or(&ctx.task.environment));
    add_expanded(variables, &step.verifier.env, &mut env);
    add_expanded(variables, &ctx.settings.verifier.env, &mut env);
    // Another list of hosts may have taken the place of the first.
    proxies::exempt(&mut env, []);
    env.insert(INSTRUCTION_VARIABLE.to_owned(), ctx.settings.instruction_path.clone());
    env
}
