//! Conversion of a task to its spec, without files.

use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::{ScriptRules, TaskEnvironment, TaskSpec};

use super::DatasetTask;
use crate::config::{Job, TaskTimeouts, with_hosts};

/// The spec of a task in a job, with the effective time limits and resources.
pub(crate) fn task_spec(job: &Job, dataset: String, task: &DatasetTask) -> TaskSpec {
    let file = &task.file;
    let format = file.format.format;
    let rules = |format| job.rule_overrides.apply(ScriptRules::for_format(format));
    let mut spec = TaskSpec {
        git_commit_id: task.git_commit_id.clone(),
        format,
        environment: agent_environment(job, &file.environment, task.parts.compose.clone()),
        steps: file.steps.clone(),
        strategy: file.strategy,
        rules: rules(format),
        other_rules: file.format.reason.is_guess().then(|| rules(format.other())),
        mcp_servers: job.environment_changes.servers(&file.mcp_servers),
        skills_dir: file.skills_dir.clone(),
        fault: task.fault.clone(),
        model_fault: task.model_fault.clone(),
        solution_fault: task.solution_fault.clone(),
        ..TaskSpec::new(dataset, &task.name)
    };
    for (step, parts) in spec.steps.iter_mut().zip(&task.parts.steps) {
        let limits = job.timeout_rules.apply(&TaskTimeouts {
            build_sec: file.environment.build_sec,
            install_sec: file.install_sec,
            agent_sec: step.agent.timeout_sec,
            verifier_sec: step.verifier.timeout_sec,
        });
        spec.install_sec = limits.install_sec;
        step.agent.timeout_sec = limits.agent_sec;
        step.verifier.timeout_sec = limits.verifier_sec;
        step.healthcheck =
            step.healthcheck.as_ref().map(|check| job.timeout_rules.healthcheck(check));
        let own = step.verifier.environment.as_ref();
        let baseline = own.map_or(&spec.environment.network, |own| &own.network);
        let policy = step.verifier.network.as_ref().unwrap_or(baseline);
        let widened = with_hosts(policy, &job.verifier_hosts);
        if widened != *policy {
            step.verifier.network = Some(widened);
        }
        for hook in &mut step.verifier.collect {
            hook.timeout_sec = job.timeout_rules.hook(hook.timeout_sec);
        }
        if let Some(own) = &mut step.verifier.environment {
            **own = environment(job, own, parts.verifier_compose.clone());
            own.network = with_hosts(&own.network, &job.verifier_hosts);
            if parts.verifier_shares_image {
                own.docker_image.clone_from(&file.environment.docker_image);
            }
        }
    }
    spec
}

fn agent_environment(
    job: &Job,
    written: &TaskEnvironment,
    compose: Option<String>,
) -> TaskEnvironment {
    let mut own = environment(job, written, compose);
    own.network = with_hosts(&own.network, &job.environment_changes.hosts);
    own
}

/// An environment of an agent or of a verifier.
fn environment(job: &Job, written: &TaskEnvironment, compose: Option<String>) -> TaskEnvironment {
    let resources: Resources = job.resource_overrides.apply(&written.resources);
    let build_sec = job.timeout_rules.build(written.build_sec);
    let healthcheck =
        written.healthcheck.as_ref().map(|check| job.timeout_rules.healthcheck(check));
    let start_grace_sec = job.timeout_rules.start_grace_sec.or(written.start_grace_sec);
    let mut env = written.env.clone();
    let changed = job.environment_changes.env.iter();
    env.extend(changed.map(|(name, value)| (name.clone(), value.template.clone())));
    TaskEnvironment {
        env,
        resources,
        build_sec,
        compose,
        healthcheck,
        start_grace_sec,
        ..written.clone()
    }
}
