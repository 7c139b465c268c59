//! Installation of the agent in the image, once for all executions of a host.

use std::collections::BTreeMap;

use rollout_base::dependency;
use rollout_base::secrets::Redactor;
use rollout_environment::{BuildProxies, EnvironmentLabels, Image, InstallRequest, Provider};
use rollout_protocol::spec::agent::{AgentKind, AgentSpec};
use rollout_protocol::spec::environment::ProviderSpec;
use rollout_protocol::spec::timeout::seconds;
use rollout_protocol::template::Template;

use super::ScriptEnv;

/// The installation of an agent.
#[derive(Debug)]
pub(in crate::work) struct AgentInstallation<'a> {
    /// The agent.
    pub(in crate::work) agent: &'a AgentSpec,
    /// The variables of its scripts, unexpanded.
    pub(in crate::work) env: &'a BTreeMap<String, Template>,
    /// Time limit, seconds.
    pub(in crate::work) limit_sec: f64,
    /// The provider's settings.
    pub(in crate::work) settings: ProviderSpec,
    /// Proxies for the script.
    pub(in crate::work) proxies: BuildProxies,
    /// Masks secrets in the log.
    pub(in crate::work) redactor: &'a Redactor,
    /// Labels of the execution.
    pub(in crate::work) labels: EnvironmentLabels,
}

/// The image with the agent installed; `None` unless the agent and the provider allow it. If the
/// installation fails, the agent is installed in the environment, where its output and its error are
/// recorded.
pub(in crate::work) async fn install_in_image(
    provider: &dyn Provider,
    image: &Image,
    installation: AgentInstallation<'_>,
) -> Option<Image> {
    let AgentInstallation { agent, env, limit_sec, settings, proxies, redactor, labels } =
        installation;
    let AgentKind::Script { install: Some(script), .. } = &agent.kind else { return None };
    if !agent.install_once {
        return None;
    }
    let limit = seconds(limit_sec);
    let env = constants(env, script);
    let (script, timeout) = (script.clone(), limit);
    let request = InstallRequest { script, env, timeout, proxies, settings, labels };
    let installing = provider.install(image, request);
    match dependency::within(provider.dependency(), limit, installing).await {
        Some(Ok(installed)) => installed,
        None => None,
        Some(Err(failure)) => {
            let error = redactor.text(&failure.chain());
            tracing::debug!(
                image = image.reference,
                error,
                "cannot install the agent in the image"
            );
            None
        }
    }
}

/// The variables of the script: those whose values refer to no other variable, as these are no
/// secrets. Variables of this program that the script does not name are left out, so that agents with
/// different models share an image.
pub(super) fn constants(env: &BTreeMap<String, Template>, script: &str) -> ScriptEnv {
    let is_used = |name: &str| !name.starts_with("ROLLOUT_") || script.contains(name);
    let constant = env.iter().filter(|(name, value)| value.variables().is_empty() && is_used(name));
    let expanded =
        constant.filter_map(|(name, value)| Some((name.clone(), value.expand(|_| None).ok()?)));
    expanded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_script_are_constants_that_it_may_use() {
        let env = [
            ("ROLLOUT_AGENT_VERSION", "1"),
            ("ROLLOUT_MODEL", "m"),
            ("PIP_INDEX_URL", "https://h/simple"),
            ("TOKEN", "${TOKEN}"),
            ("PRICE", "$$5"),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), Template::new(value)));
        let found = constants(&env.into(), "npm install x@$ROLLOUT_AGENT_VERSION");
        let expected = [
            ("PIP_INDEX_URL", "https://h/simple"),
            ("PRICE", "$5"),
            ("ROLLOUT_AGENT_VERSION", "1"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(found, ScriptEnv::from(expected));
    }
}
