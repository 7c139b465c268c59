//! Paths in an eval's environment, and the variables that name them.
//!
//! | Variable | Meaning |
//! | --- | --- |
//! | `ROLLOUT_TREE`, `ROLLOUT_NODE_ID`, `ROLLOUT_EVAL_ID` | the search, the node and the eval |
//! | `ROLLOUT_STAGE` | `implement`, `tests`, `review` or `sweep` |
//! | `ROLLOUT_REPOSITORY` | the checkout, where commands run |
//! | `ROLLOUT_IDEA_FILE` | the idea |
//! | `ROLLOUT_DECISION_FILE` | file for the decision of a review by an agent |
//! | `ROLLOUT_LOGS_DIR` | directory kept as the eval's logs |
//! | `ROLLOUT_TIMEOUT_SEC`, `ROLLOUT_DEADLINE`, `ROLLOUT_LIMITS` | limits, if there are any |
//! | `ROLLOUT_COST_FILE` | file for the cost of a command: a number, in the unit of the budget |
//! | `ROLLOUT_OUTPUT_DIR`, `AGENTIC_OUTPUT_DIR` | the sweep's output, for this execution alone |
//! | `ROLLOUT_RESULTS_CSV`, `AGENTIC_RESULTS_CSV` | file for the results of the sweep |
//! | `ROLLOUT_SWEEP_CONFIG_LIMIT` | configurations to run; absent when there is no limit |
//!
//! With such a limit N, the sweep's script also gets the arguments `--sweep-config-limit N`.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollout_base::secrets::{Redactor, TrialVariables};
use rollout_environment::proxies;
use rollout_protocol::spec::eval::{EvalSpec, EvalStage};
use rollout_protocol::spec::gateway::{GatewaySpec, declared_secrets};
use rollout_protocol::spec::task::TaskEnvironment;
use rollout_protocol::template::UnsetVariable;

use super::EvalContext;
use crate::executor::ExecutionServices;
use crate::executor::cost::COST_FILE;
use crate::work::agent::command;

/// The checkout.
pub const REPOSITORY: &str = "/repository";

/// The idea.
pub const IDEA: &str = "/idea/idea.md";

/// Directory for the decision of a review by an agent.
pub(super) const REVIEW: &str = "/review";

/// The decision of a review by an agent.
pub(super) const DECISION: &str = "/review/decision";

/// Directory kept as logs.
pub const LOGS: &str = "/logs";

/// Directory of the commands' scripts.
pub(super) const COMMANDS: &str = "/commands";

/// Parent of the output directories: each execution has its own.
const OUTPUT: &str = "/output";

const STAGES: [EvalStage; 4] =
    [EvalStage::Implement, EvalStage::Tests, EvalStage::Review, EvalStage::Sweep];

/// Expanded variables.
#[derive(Debug, Default)]
pub(super) struct EvalVariables {
    /// For everything that runs in the environment.
    pub(super) environment: BTreeMap<String, String>,
    /// For everything that runs in the sweep's own environment.
    pub(super) sweep_environment: BTreeMap<String, String>,
    stages: BTreeMap<EvalStage, BTreeMap<String, String>>,
}

impl EvalVariables {
    /// The variables of a command.
    pub(super) fn for_stage(&self, stage: EvalStage) -> BTreeMap<String, String> {
        self.stages.get(&stage).cloned().unwrap_or_default()
    }
}

/// The context with the proxies of this host in the environments of the eval that name none.
pub(super) fn with_host_proxies(mut ctx: EvalContext, services: &ExecutionServices) -> EvalContext {
    let proxies = services.proxies(&ctx.eval.settings.provider);
    let own = ctx.eval.sweep_environment.as_ref().map(|own| &own.settings.provider);
    let of_sweep = own.map(|settings| services.proxies(settings)).unwrap_or_default();
    if !proxies.is_empty() || !of_sweep.is_empty() {
        let eval = Arc::make_mut(&mut ctx.eval);
        proxies.add_to(&mut eval.environment.env);
        if let Some(own) = &mut eval.sweep_environment {
            of_sweep.add_to(&mut own.environment.env);
        }
    }
    ctx
}

/// The path of a command's script.
pub(super) fn script_path(stage: EvalStage) -> String {
    format!("{COMMANDS}/{}.sh", stage.as_str())
}

/// Script arguments of a stage: the number of configurations for the sweep, as `"$@"`.
pub(super) fn arguments(eval: &EvalSpec, stage: EvalStage) -> Vec<String> {
    match eval.sweep_config_limit.filter(|_| stage == EvalStage::Sweep) {
        Some(limit) => vec!["--sweep-config-limit".to_owned(), limit.to_string()],
        None => Vec::new(),
    }
}

/// The sweep's output directory: no two executions share one.
pub(super) fn output_dir(ctx: &EvalContext) -> String {
    format!("{OUTPUT}/{}", ctx.execution.labels.exec)
}

/// Expands the variables of all commands, and returns the redactor of their secrets.
pub(super) fn expand(
    known: &TrialVariables,
    ctx: &EvalContext,
) -> Result<(EvalVariables, Redactor), UnsetVariable> {
    let (eval, commands) = (&ctx.eval, &ctx.eval.commands);
    let (mut stages, mut templates) = (BTreeMap::new(), Vec::new());
    let environment = environment_env(known, &eval.environment)?;
    let mut sweep_environment = BTreeMap::new();
    if let Some(own) = &eval.sweep_environment {
        sweep_environment = environment_env(known, &own.environment)?;
        templates.extend(own.environment.env.values());
    }
    for stage in STAGES {
        let Some(command) = commands.command(stage) else { continue };
        // The address of the gateway is added to the hosts without a proxy.
        let is_apart = stage == EvalStage::Sweep && eval.sweep_environment.is_some();
        let mut env = if is_apart { sweep_environment.clone() } else { environment.clone() };
        known.add(&eval.env, &mut env)?;
        known.add(&command.env, &mut env)?;
        env.extend(location_variables(ctx, stage));
        if command.agent.is_some() {
            env.extend(agent_variables(stage));
        }
        stages.insert(stage, env);
        templates.extend(command.env.values());
    }
    // One redactor knows the secrets of all commands.
    templates.extend(eval.env.values().chain(eval.environment.env.values()));
    templates.extend(eval.gateway.iter().flat_map(GatewaySpec::keys));
    let declared = declared_secrets(&eval.secrets, eval.gateway.as_ref());
    let mut logins = proxies::logins(&environment);
    logins.extend(proxies::logins(&sweep_environment));
    let redactor = known.redactor(templates.into_iter(), &declared, &logins)?;
    Ok((EvalVariables { environment, sweep_environment, stages }, redactor))
}

/// The variables of everything that runs in an environment. Its own services are behind no proxy.
fn environment_env(
    known: &TrialVariables,
    environment: &TaskEnvironment,
) -> Result<BTreeMap<String, String>, UnsetVariable> {
    let mut env = BTreeMap::new();
    known.add(&environment.env, &mut env)?;
    proxies::exempt(&mut env, []);
    Ok(env)
}

/// Variables of a command that an agent runs.
fn agent_variables(stage: EvalStage) -> BTreeMap<String, String> {
    let mut own = command::variables();
    if stage == EvalStage::Review {
        own.insert("ROLLOUT_DECISION_FILE".to_owned(), DECISION.to_owned());
    }
    own
}

/// Variables that name the eval and its paths.
fn location_variables(ctx: &EvalContext, stage: EvalStage) -> BTreeMap<String, String> {
    let (eval, output) = (&ctx.eval, output_dir(ctx));
    let results = format!("{output}/{}", eval.results_file);
    let mut own: Vec<(&str, String)> = vec![
        ("ROLLOUT_TREE", eval.name.tree.clone()),
        ("ROLLOUT_NODE_ID", eval.name.node.clone()),
        ("ROLLOUT_EVAL_ID", eval.name.eval.clone()),
        ("ROLLOUT_STAGE", stage.as_str().to_owned()),
        ("ROLLOUT_REPOSITORY", REPOSITORY.to_owned()),
        ("ROLLOUT_IDEA_FILE", IDEA.to_owned()),
        ("ROLLOUT_LOGS_DIR", LOGS.to_owned()),
        ("ROLLOUT_COST_FILE", COST_FILE.to_owned()),
        ("ROLLOUT_OUTPUT_DIR", output.clone()),
        ("AGENTIC_OUTPUT_DIR", output),
        ("ROLLOUT_RESULTS_CSV", results.clone()),
        ("AGENTIC_RESULTS_CSV", results),
    ];
    if let Some(limit) = eval.sweep_config_limit {
        own.push(("ROLLOUT_SWEEP_CONFIG_LIMIT", limit.to_string()));
    }
    own.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
