//! Variables of a trial's scripts, and their precedence.

use std::collections::BTreeMap;
use std::time::Duration;

use rollout_protocol::Timestamp;
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::budget::{BudgetLimits, TryBudget};
use rollout_protocol::spec::gateway::{GatewaySpec, declared_secrets};
use rollout_protocol::spec::task::{StepSpec, TaskEnvironment};
use rollout_protocol::template::{Template, UnsetVariable};

use super::TrialContext;
use crate::agents::{
    INSTRUCTION_VARIABLE, MCP_FILE, MCP_VARIABLE, SKILLS_DIR, SKILLS_VARIABLE, harness_variables,
};
use crate::secrets::{Redactor, TrialVariables};
use crate::work::agent::ScriptEnv;

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
    variables.redactor(templates, &declared)
}

fn add_expanded(
    variables: &TrialVariables,
    templates: &BTreeMap<String, Template>,
    env: &mut ScriptEnv,
) {
    variables.add(templates, env).expect("every template was expanded before");
}

/// Variables of everything that runs in an environment.
pub(super) fn environment_env(
    variables: &TrialVariables,
    environment: &TaskEnvironment,
) -> ScriptEnv {
    let mut env = ScriptEnv::new();
    add_expanded(variables, &environment.env, &mut env);
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

/// Variables that tell a script of the agent its limits: the time of its end at the earliest, in seconds
/// since 1970, its time limit, and the budget of its model calls. A wait for a service that does not
/// answer, and a pause, make the end later.
pub(super) fn limits_env(
    limit: Duration,
    now: Timestamp,
    budget: Option<&TryBudget>,
) -> impl Iterator<Item = (String, String)> {
    let BudgetLimits { cost, tokens, calls, sec } =
        budget.map(|budget| budget.limits).unwrap_or_default();
    let is_limited = limit != Duration::MAX;
    let end = i64::try_from(limit.as_secs()).ok().and_then(|sec| now.as_second().checked_add(sec));
    let text = |number: Option<f64>| number.map(|number| number.to_string());
    let count = |number: Option<u64>| number.map(|number| number.to_string());
    [
        ("ROLLOUT_DEADLINE", end.filter(|_| is_limited).map(|end| end.to_string())),
        ("ROLLOUT_TIMEOUT_SEC", is_limited.then(|| limit.as_secs_f64().to_string())),
        ("ROLLOUT_BUDGET_COST", text(cost)),
        ("ROLLOUT_BUDGET_TOKENS", count(tokens)),
        ("ROLLOUT_BUDGET_CALLS", count(calls)),
        ("ROLLOUT_BUDGET_SEC", text(sec)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value?)))
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
    env.insert(INSTRUCTION_VARIABLE.to_owned(), ctx.settings.instruction_path.clone());
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_agent_are_in_variables_if_there_are_any() {
        let env = |limit, budget: Option<&TryBudget>| {
            let now = Timestamp::from_second(1000).expect("a time");
            let env = limits_env(limit, now, budget);
            env.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(env(Duration::MAX, None), [""; 0]);
        let limits = BudgetLimits { cost: Some(1.5), calls: Some(7), ..BudgetLimits::default() };
        let budget = TryBudget { limits, output_reserve: 0 };
        assert_eq!(
            env(Duration::from_secs_f64(90.5), Some(&budget)),
            [
                "ROLLOUT_DEADLINE=1090",
                "ROLLOUT_TIMEOUT_SEC=90.5",
                "ROLLOUT_BUDGET_COST=1.5",
                "ROLLOUT_BUDGET_CALLS=7",
            ]
        );
        let none = TryBudget { limits: BudgetLimits::default(), output_reserve: 0 };
        let most = Duration::from_secs(u64::MAX);
        assert_eq!(env(most, Some(&none)).len(), 1, "such an end cannot be written");
    }
}
