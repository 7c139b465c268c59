//! A no-op provider: every call returns at once.

use std::sync::Arc;

use async_trait::async_trait;
use rollout_protocol::record::EnforcedLimits;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::spec::task::NetworkPolicy;

use super::{
    ByteStream, CommandExit, CreateRequest, DeadOwners, Environment, ExecCommand, Failure, Image,
    ImageRequest, OutputSink, Provider, ReapReport, Upload,
};

/// Creates no-op environments in place of a kind's provider, for measurements of everything around
/// environments.
#[derive(Debug)]
pub struct NullProvider(pub ProviderKind);

#[async_trait]
impl Provider for NullProvider {
    fn kind(&self) -> ProviderKind {
        self.0
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    async fn prepare(&self, _: ImageRequest) -> Result<Image, Failure> {
        Ok(Image::found(""))
    }

    async fn create(&self, _: CreateRequest) -> Result<Box<dyn Environment>, Failure> {
        Ok(Box::new(NullEnvironment))
    }

    async fn reap(&self, _: &dyn DeadOwners) -> Result<ReapReport, Failure> {
        Ok(ReapReport::default())
    }
}

#[derive(Debug)]
struct NullEnvironment;

#[async_trait]
impl Environment for NullEnvironment {
    fn id(&self) -> &str {
        ""
    }

    fn workdir(&self) -> &str {
        "/"
    }

    fn limits(&self) -> EnforcedLimits {
        EnforcedLimits::default()
    }

    async fn copy_to(&self, _: Vec<Upload>) -> Result<(), Failure> {
        Ok(())
    }

    async fn copy_from(&self, _: &str) -> Result<Option<ByteStream>, Failure> {
        Ok(None)
    }

    async fn exec(&self, _: ExecCommand, _: Arc<dyn OutputSink>) -> Result<CommandExit, Failure> {
        Ok(CommandExit { code: 0 })
    }

    async fn kill_processes(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn set_network(&self, _: &NetworkPolicy) -> Result<(), Failure> {
        Ok(())
    }

    async fn oom_killed(&self) -> bool {
        false
    }

    async fn stop(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn destroy(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn preserve(&self) -> Result<String, Failure> {
        Ok(String::new())
    }
}
