//! A service of an environment, for commands and files.

use std::sync::Arc;

use async_trait::async_trait;
use bollard::query_parameters::RestartContainerOptions;
use rollout_environment::{
    ByteStream, CommandExit, Environment, ExecCommand, Failure, OutputSink, Upload,
};
use rollout_protocol::record::EnforcedLimits;
use rollout_protocol::spec::task::NetworkPolicy;

use super::super::container::Container;

/// One container of a service. It lives as long as the environment.
#[derive(Debug)]
pub(in super::super) struct ComposeService {
    pub(super) container: Container,
    pub(super) workdir: String,
}

#[async_trait]
impl Environment for ComposeService {
    fn id(&self) -> &str {
        &self.container.name
    }

    fn workdir(&self) -> &str {
        &self.workdir
    }

    fn limits(&self) -> EnforcedLimits {
        EnforcedLimits::default()
    }

    async fn copy_to(&self, uploads: Vec<Upload>) -> Result<(), Failure> {
        self.container.copy_to(uploads).await
    }

    async fn copy_from(&self, path: &str) -> Result<Option<ByteStream>, Failure> {
        self.container.copy_from(path).await
    }

    async fn exec(
        &self,
        command: ExecCommand,
        output: Arc<dyn OutputSink>,
    ) -> Result<CommandExit, Failure> {
        self.container.exec(command, output).await
    }

    /// Restarts the service. In an image whose first process is not the keep-alive, the service's
    /// own processes cannot be told apart from those that commands started.
    async fn kill_processes(&self) -> Result<(), Failure> {
        let options = RestartContainerOptions { t: Some(0), signal: None };
        let docker = self.container.client.docker().await?;
        docker
            .restart_container(&self.container.engine_id, Some(options))
            .await
            .map_err(|e| self.container.failure("cannot end all processes by a restart", e))
    }

    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), Failure> {
        self.container.set_network(policy).await
    }

    async fn oom_killed(&self) -> bool {
        self.container.oom_killed().await
    }

    async fn stop(&self) -> Result<(), Failure> {
        self.container.stop().await
    }

    /// Removed with the environment.
    async fn destroy(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn preserve(&self) -> Result<String, Failure> {
        let name = self.container.preserve().await?;
        Ok(format!("docker start {name} && docker exec -it {name} /bin/sh"))
    }
}
