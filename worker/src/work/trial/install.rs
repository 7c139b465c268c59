//! Installation of the agent in the image, once for all trials of a host.

use std::collections::BTreeMap;

use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::timeout::seconds;
use rollout_protocol::template::Template;

use super::run::TrialRun;
use super::variables::ScriptEnv;
use crate::dependency;
use crate::environment::{Image, InstallRequest, Provider};

impl TrialRun<'_> {
    /// The image with the agent installed, if the agent and the provider allow it; otherwise the
    /// image itself. If the installation fails, the agent is installed in the environment, where
    /// its output and its error are recorded.
    pub(super) async fn install_agent(&mut self, provider: &dyn Provider, image: Image) -> Image {
        let ctx = self.ctx;
        let AgentKind::Script { install: Some(script), .. } = &ctx.agent.kind else { return image };
        if !ctx.agent.install_once {
            return image;
        }
        let limit = seconds(ctx.agent.limits.install_sec.unwrap_or(ctx.task.install_sec));
        let request = InstallRequest {
            script: script.clone(),
            env: constants(&ctx.agent.env, script),
            timeout: limit,
            settings: ctx.settings.environment.provider.clone(),
            labels: ctx.execution.labels.clone(),
        };
        let installing = provider.install(&image, request);
        match dependency::within(provider.dependency(), limit, installing).await {
            Some(Ok(Some(installed))) => {
                self.is_installed = true;
                installed
            }
            Some(Ok(None)) | None => image,
            Some(Err(failure)) => {
                let error = failure.chain();
                tracing::debug!(
                    image = image.reference,
                    error,
                    "cannot install the agent in the image"
                );
                image
            }
        }
    }
}

/// The variables of the script: those whose values refer to no other variable, as these are no
/// secrets. Variables of this program that the script does not name are left out, so that agents with
/// different models share an image.
fn constants(env: &BTreeMap<String, Template>, script: &str) -> ScriptEnv {
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
