//! `[verifier]`, and `[steps.verifier]` on top of it.

use rollout_protocol::spec::task::{NetworkPolicy, TaskEnvironment, VerifierPhase};

use super::super::diagnostics::ErrorKind;
use super::super::elements::timeouts;
use super::super::reader::{Field, Fields};
use super::network::{self, NetworkKeys};
use super::{TaskReadContext, collect, environment};

keys! {
    /// The keys of `verifier`.
    pub(crate) table VerifierPhaseKeys {
        timeout_sec: "seconds", "600", "Time limit of the test script.";
        env (Harbor): "table NAME = text", "empty",
            "Variables of the test script; `${NAME:-default}` takes one of the host that the job's `task_env` lists.";
        user (Harbor): "text|integer", "the image's", "User that the test script runs as.";
        network_mode (Harbor): "public|no-network|allowlist", "the environment's",
            "What the test script may reach.";
        allowed_hosts (Harbor): "list of hosts", "empty", "For `allowlist`, as below.";
        environment_mode (Harbor): "shared|separate", "separate with `verifier.environment`, else shared",
            "Whether the test script runs where the agent did, or in an environment that only the artifacts reach.";
        environment (Harbor): "table", "as `environment`",
            "The verifier's own environment, with the keys of `environment`; built from `tests/` unless it names an image.";
        collect (Harbor): "list", "empty", "Commands that run before the artifacts are taken.",
            "collect[]" => collect::CollectKeys::ALL;
    }
}

/// The keys of what test scripts may reach.
const NETWORK_KEYS: NetworkKeys =
    NetworkKeys { mode: VerifierPhaseKeys::network_mode, hosts: VerifierPhaseKeys::allowed_hosts };

/// Where verifiers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VerifierMode {
    Shared,
    Separate,
}

/// How a result is verified, with what steps build on.
#[derive(Debug, Clone)]
pub(super) struct TaskVerifier {
    pub(super) phase: VerifierPhase,
    /// Where it runs, when the file says so.
    mode: Option<VerifierMode>,
    /// `environment`, whether it is used or not.
    own: Option<TaskEnvironment>,
}

/// `[verifier]`.
pub(super) fn read(
    field: &Field<'_>,
    environment: &TaskEnvironment,
    reading: &mut TaskReadContext,
) -> TaskVerifier {
    let timeout_sec = reading.defaults.verifier_sec;
    let phase = VerifierPhase { timeout_sec, ..VerifierPhase::default() };
    let below = TaskVerifier { phase, mode: None, own: None };
    read_step(field, &below, environment, reading)
}

/// How a step is verified: what it does not say is as in `below`.
pub(super) fn read_step(
    field: &Field<'_>,
    below: &TaskVerifier,
    environment: &TaskEnvironment,
    reading: &mut TaskReadContext,
) -> TaskVerifier {
    let Some(mut fields) = field.mapping() else { return below.clone() };
    let verifier = merge(&mut fields, below.clone(), environment, reading);
    fields.finish();
    verifier
}

fn merge(
    fields: &mut Fields<'_>,
    below: TaskVerifier,
    environment: &TaskEnvironment,
    reading: &mut TaskReadContext,
) -> TaskVerifier {
    let (mode, own) = read_environment(fields, &below, reading);
    let separate = mode == Some(VerifierMode::Separate);
    let environment_of = || own.clone().unwrap_or_else(|| environment.clone());
    let place = separate.then(|| Box::new(environment_of()));
    let baseline: &NetworkPolicy = place.as_ref().map_or(&environment.network, |own| &own.network);
    let mut env = below.phase.env;
    env.extend(reading.env(&fields.take(VerifierPhaseKeys::env)));
    let mut hooks = below.phase.collect;
    hooks.extend(collect::read(&fields.take(VerifierPhaseKeys::collect), reading));
    let phase = VerifierPhase {
        timeout_sec: timeouts::read(
            &fields.take(VerifierPhaseKeys::timeout_sec),
            below.phase.timeout_sec,
        ),
        user: reading.user(&fields.take(VerifierPhaseKeys::user)).or(below.phase.user),
        network: network::phase(fields, NETWORK_KEYS, baseline, below.phase.network, reading),
        env,
        collect: hooks,
        environment: place,
    };
    TaskVerifier { phase, mode, own }
}

/// `environment_mode` and `environment`: the latter alone means `separate`.
fn read_environment(
    fields: &mut Fields<'_>,
    below: &TaskVerifier,
    reading: &mut TaskReadContext,
) -> (Option<VerifierMode>, Option<TaskEnvironment>) {
    let mode = fields.take(VerifierPhaseKeys::environment_mode);
    let table = fields.take(VerifierPhaseKeys::environment);
    let own = environment::read_verifier(&table, reading);
    let asked =
        mode.keyword(&[("shared", VerifierMode::Shared), ("separate", VerifierMode::Separate)]);
    if asked == Some(VerifierMode::Shared) && table.is_present() {
        let found = "`shared` although the verifier has an `environment` of its own";
        mode.reject(ErrorKind::Conflict, found, "`separate`, or no `environment`");
    }
    let asked = asked.or(own.is_some().then_some(VerifierMode::Separate));
    (asked.or(below.mode), own.or_else(|| below.own.clone()))
}
