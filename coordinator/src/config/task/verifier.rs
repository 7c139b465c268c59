//! `[verifier]` and `[steps.verifier]`.

use rollout_protocol::spec::task::{NetworkPolicy, TaskEnvironment, VerifierPhase};

use super::super::diagnostics::ErrorKind;
use super::super::elements::timeouts;
use super::super::reader::{Field, Fields};
use super::network::{self, NetworkKeys};
use super::{TaskReadContext, collect, environment};

keys! {
    /// The keys of `verifier`.
    pub(crate) table VerifierPhaseKeys {
        timeout_sec: Value("seconds"), "600", "Time limit of the test script.";
        env (Harbor): Value("table NAME = text"), "empty",
            "Variables of the test script; `${NAME:-default}` refers to a host variable listed in the job's `task_env`.";
        user (Harbor): Value("text|integer"), "image default", "User that the test script runs as.";
        network_mode (Harbor): Value("public|no-network|allowlist"), "as `environment`",
            "Network access of the test script.";
        allowed_hosts (Harbor): Value("list of hosts"), "empty",
            "Hosts for `allowlist`, as in `environment.allowed_hosts`.";
        environment_mode (Harbor): Value("shared|separate"), "separate with `verifier.environment`, else shared",
            "Run the test script in the agent's environment, or in a separate one that receives only the artifacts.";
        environment (Harbor): Value("table"), "as `environment`",
            "The verifier's own environment, with the keys of `environment`; built from `tests/` unless it names an image.";
        collect (Harbor): Value("list"), "empty", "Commands that run before artifacts are collected.",
            "collect[]" => collect::CollectKeys::ALL;
    }
}

/// The network keys of test scripts.
const NETWORK_KEYS: NetworkKeys =
    NetworkKeys { mode: VerifierPhaseKeys::network_mode, hosts: VerifierPhaseKeys::allowed_hosts };

/// Where the test script runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VerifierMode {
    Shared,
    Separate,
}

/// The verifier of a task or step, with the settings that steps inherit.
#[derive(Debug, Clone)]
pub(super) struct TaskVerifier {
    pub(super) phase: VerifierPhase,
    /// Where it runs, if the file sets it.
    mode: Option<VerifierMode>,
    /// `environment`, whether used or not.
    environment: Option<TaskEnvironment>,
}

/// Reads `[verifier]`.
pub(super) fn read(
    field: &Field<'_>,
    environment: &TaskEnvironment,
    context: &mut TaskReadContext,
) -> TaskVerifier {
    let timeout_sec = context.defaults.verifier_sec;
    let phase = VerifierPhase { timeout_sec, ..VerifierPhase::default() };
    let inherited = TaskVerifier { phase, mode: None, environment: None };
    read_step(field, &inherited, environment, context)
}

/// Reads the verifier of a step; absent keys are inherited from `below`.
pub(super) fn read_step(
    field: &Field<'_>,
    inherited: &TaskVerifier,
    environment: &TaskEnvironment,
    context: &mut TaskReadContext,
) -> TaskVerifier {
    let Some(mut fields) = field.mapping() else { return inherited.clone() };
    let verifier = merge(&mut fields, inherited.clone(), environment, context);
    fields.finish();
    verifier
}

fn merge(
    fields: &mut Fields<'_>,
    inherited: TaskVerifier,
    environment: &TaskEnvironment,
    context: &mut TaskReadContext,
) -> TaskVerifier {
    let (mode, own) = read_environment(fields, &inherited, context);
    let separate = mode == Some(VerifierMode::Separate);
    let environment_of = || own.clone().unwrap_or_else(|| environment.clone());
    let verifier_environment = separate.then(|| Box::new(environment_of()));
    let baseline: &NetworkPolicy =
        verifier_environment.as_ref().map_or(&environment.network, |own| &own.network);
    let mut env = inherited.phase.env;
    env.extend(context.env(&fields.take(VerifierPhaseKeys::env)));
    let mut hooks = inherited.phase.collect;
    hooks.extend(collect::read(&fields.take(VerifierPhaseKeys::collect), context));
    let phase = VerifierPhase {
        timeout_sec: timeouts::read(
            &fields.take(VerifierPhaseKeys::timeout_sec),
            inherited.phase.timeout_sec,
        ),
        user: context.user(&fields.take(VerifierPhaseKeys::user)).or(inherited.phase.user),
        network: network::phase(fields, NETWORK_KEYS, baseline, inherited.phase.network, context),
        env,
        collect: hooks,
        environment: verifier_environment,
    };
    TaskVerifier { phase, mode, environment: own }
}

/// Reads `environment_mode` and `environment`; the latter alone means `separate`.
fn read_environment(
    fields: &mut Fields<'_>,
    inherited: &TaskVerifier,
    context: &mut TaskReadContext,
) -> (Option<VerifierMode>, Option<TaskEnvironment>) {
    let mode = fields.take(VerifierPhaseKeys::environment_mode);
    let table = fields.take(VerifierPhaseKeys::environment);
    let own = environment::read_verifier(&table, context);
    let asked =
        mode.keyword(&[("shared", VerifierMode::Shared), ("separate", VerifierMode::Separate)]);
    if asked == Some(VerifierMode::Shared) && table.is_present() {
        let found = "`shared`, but the verifier has its own `environment`";
        mode.reject(ErrorKind::Conflict, found, "`separate`, or no `environment`");
    }
    let asked = asked.or(own.is_some().then_some(VerifierMode::Separate));
    (asked.or(inherited.mode), own.or_else(|| inherited.environment.clone()))
}
