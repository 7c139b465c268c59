//! `[[steps]]`.

use std::collections::{BTreeMap, HashMap};

use rollout_protocol::limits::NAME_BYTES;
use rollout_protocol::name;
use rollout_protocol::spec::task::{
    AgentPhase, Artifact, StepFiles, StepSpec, StepStrategy, TaskEnvironment,
};

use super::super::diagnostics::ErrorKind;
use super::super::reader::{Field, Fields};
use super::verifier::TaskVerifier;
use super::{TaskReadContext, agent, healthcheck, verifier};

keys! {
    /// Steps, and how their rewards are combined.
    pub(crate) table StepsKeys {
        multi_step_reward_strategy (Harbor): Value("mean|final"), "mean",
            "How the rewards of several steps are combined.";
        steps (Harbor): Value("list"), "one step", "Steps, run one after the other in one environment.",
            "steps[]" => StepKeys::ALL;
    }

    /// The keys of a step.
    pub(crate) table StepKeys {
        name: TaskPath("text"), "required", "Directory below `steps/`.";
        agent: Value("table"), "as `agent`", "The keys of `agent`, except those of the install script.";
        verifier: Value("table"), "as `verifier`",
            "The keys of `verifier`; `env` and `collect` are added.";
        min_reward: Value("number or table KEY = number"), "none",
            "Reward below which later steps are not run; a number applies to the key `reward`.";
        healthcheck: Value("table"), "absent", "The keys of `environment.healthcheck`.";
        artifacts: Value("list"), "empty", "Files to collect besides those of `artifacts`.";
    }
}

/// The key of a reward that is one number.
const REWARD_NAME: &str = "reward";

/// Defaults of every step.
pub(super) struct StepDefaults<'a> {
    pub(super) environment: &'a TaskEnvironment,
    pub(super) agent: AgentPhase,
    pub(super) verifier: TaskVerifier,
    pub(super) artifacts: Vec<Artifact>,
}

/// The steps, and how their rewards are combined.
pub(super) struct TaskSteps {
    pub(super) steps: Vec<StepSpec>,
    pub(super) strategy: StepStrategy,
}

/// Reads the steps; one without a name if the file has none.
pub(super) fn read(
    fields: &mut Fields<'_>,
    common: StepDefaults<'_>,
    context: &mut TaskReadContext,
) -> TaskSteps {
    let strategies = [("mean", StepStrategy::Mean), ("final", StepStrategy::Final)];
    let strategy = fields.take(StepsKeys::multi_step_reward_strategy);
    let items = fields.take(StepsKeys::steps).items().unwrap_or_default();
    if items.is_empty() && strategy.is_present() {
        strategy.warn("has no effect: the task has no steps");
    }
    let strategy = strategy.keyword(&strategies).unwrap_or_default();
    let mut names = HashMap::new();
    let read = items.iter().filter_map(|item| step(item, &common, &mut names, context));
    let mut steps: Vec<StepSpec> = read.collect();
    if steps.is_empty() {
        let StepDefaults { agent, verifier, artifacts, .. } = common;
        steps.push(StepSpec {
            name: None,
            files: StepFiles::default(),
            agent,
            verifier: verifier.phase,
            healthcheck: None,
            min_reward: BTreeMap::new(),
            artifacts,
            solution_env: BTreeMap::new(),
        });
    }
    TaskSteps { steps, strategy }
}

fn step(
    item: &Field<'_>,
    common: &StepDefaults<'_>,
    names: &mut HashMap<String, String>,
    context: &mut TaskReadContext,
) -> Option<StepSpec> {
    let mut fields = item.mapping()?;
    let name = step_name(&fields.take(StepKeys::name), names);
    let environment = common.environment;
    let agent =
        agent::read_step(&fields.take(StepKeys::agent), &common.agent, environment, context);
    let verifier = &fields.take(StepKeys::verifier);
    let verifier = verifier::read_step(verifier, &common.verifier, environment, context);
    let mut artifacts = common.artifacts.clone();
    artifacts.extend(context.artifacts(&fields.take(StepKeys::artifacts)));
    let healthcheck = healthcheck::read(&fields.take(StepKeys::healthcheck));
    let min_reward = min_reward(&fields.take(StepKeys::min_reward));
    fields.finish();
    Some(StepSpec {
        name: Some(name?),
        files: StepFiles::default(),
        agent,
        verifier: verifier.phase,
        healthcheck,
        min_reward,
        artifacts,
        solution_env: BTreeMap::new(),
    })
}

/// Reads a step name: a valid directory name on every system.
fn step_name(field: &Field<'_>, names: &mut HashMap<String, String>) -> Option<String> {
    field.required("the name of a directory below `steps/`");
    let name = field.string()?;
    let portable = (1..=NAME_BYTES).contains(&name.len())
        && !name.starts_with('.')
        && !name.ends_with('.')
        && name.trim() == name
        && !name.chars().any(|c| c.is_control() || r#"/\:*?"<>|"#.contains(c));
    if !portable {
        field.bad_value(
            "the name of a directory on every system: at most 100 bytes, none of / \\ : * ? \" < > |, \
             no dot or white space at its ends but inside",
        );
        return None;
    }
    if let Some(first) = names.insert(name::fold_case(&name), name.clone()) {
        let found = format!("`{name}`, a duplicate of the step `{first}`");
        let expected = "names that differ in more than upper and lower case";
        field.reject(ErrorKind::DuplicateName, found, expected);
    }
    Some(name)
}

/// Reads a number for the key `reward`, or numbers by key.
fn min_reward(field: &Field<'_>) -> BTreeMap<String, f64> {
    const EXPECTED: &str = "a number, or a table of keys and numbers";
    if field.is_mapping() {
        let entries = field.entries().unwrap_or_default();
        let one = |(key, value): (&str, Field<'_>)| {
            Some((key.to_owned(), value.number("a number", |_| true)?))
        };
        return entries.into_iter().filter_map(one).collect();
    }
    if !field.is_present() {
        return BTreeMap::new();
    }
    let number = field.number(EXPECTED, |_| true);
    number.into_iter().map(|number| (REWARD_NAME.to_owned(), number)).collect()
}
