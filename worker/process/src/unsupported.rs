//! Stub for systems without the kernel features that sandboxes need.

use async_trait::async_trait;
use rollout_environment::{
    CreateRequest, DeadOwners, Environment, Failure, FailureKind, Image, ImageRequest, Provider,
    ReapReport,
};
use rollout_protocol::spec::environment::ProviderKind;

use super::ProcessConfig;

/// Fails with the message that sandboxes need Linux.
#[derive(Debug)]
pub struct ProcessProvider;

impl ProcessProvider {
    /// A provider that creates nothing.
    pub fn new(_: ProcessConfig) -> Self {
        Self
    }
}

fn needs_linux() -> Failure {
    let text = "process sandboxes need Linux; use `environment.type: docker` on this system";
    Failure::new(FailureKind::NotPermitted, text)
}

#[async_trait]
impl Provider for ProcessProvider {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Process
    }

    async fn prepare(&self, _: ImageRequest) -> Result<Image, Failure> {
        Err(needs_linux())
    }

    async fn create(&self, _: CreateRequest) -> Result<Box<dyn Environment>, Failure> {
        Err(needs_linux())
    }

    async fn reap(&self, _: &dyn DeadOwners) -> Result<ReapReport, Failure> {
        Ok(ReapReport::default())
    }
}

/// The supervisor, which does not exist here.
pub mod supervisor {
    /// Does nothing and fails.
    pub fn main(_: &[std::ffi::OsString]) -> std::process::ExitCode {
        std::process::ExitCode::FAILURE
    }
}
