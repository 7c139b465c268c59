//! Installation of the agent in the image, once for all trials of a host.

use rollout_environment::{BuildProxies, Image, Provider};

use super::run::TrialRun;
use super::variables;
use crate::work::agent::{AgentInstallation, install_in_image};

impl TrialRun<'_> {
    /// The image with the agent installed, if the agent and the provider allow it; otherwise the
    /// image itself.
    pub(super) async fn install_agent(&mut self, provider: &dyn Provider, image: Image) -> Image {
        let ctx = self.ctx;
        let env = variables::environment_env(&self.services.variables, &ctx.task.environment);
        let installation = AgentInstallation {
            agent: &ctx.agent,
            env: &ctx.agent.env,
            limit_sec: ctx.agent.limits.install_sec.unwrap_or(ctx.task.install_sec),
            settings: ctx.settings.environment.provider.clone(),
            proxies: BuildProxies::of(&env),
            redactor: &self.attempt.redactor,
            labels: ctx.execution.labels.clone(),
        };
        let installed = install_in_image(provider, &image, installation).await;
        self.is_installed = installed.is_some();
        self.agent_began |= self.is_installed;
        installed.unwrap_or(image)
    }
}
