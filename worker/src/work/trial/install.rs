//! Installation of the agent in the image, once for all trials of a host.

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
            env: constants(&ctx.agent.env),
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

/// The variables whose values refer to no other variable: these are no secrets.
fn constants(env: &std::collections::BTreeMap<String, Template>) -> ScriptEnv {
    let constant = env.iter().filter(|(_, value)| value.variables().is_empty());
    let expanded =
        constant.filter_map(|(name, value)| Some((name.clone(), value.expand(|_| None).ok()?)));
    expanded.collect()
}
