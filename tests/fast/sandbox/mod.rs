//! Tests of process sandboxes on this kernel: the provider contract, and hostile code.

mod build;
mod hostile;
mod isolation;
mod lifecycle;
mod limits;
mod resource_exhaustion;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollout_environment::CaBundle;
use rollout_environment::contract::{self, ProviderUnderTest};
use rollout_process::{ProcessConfig, ProcessProvider};
use rollout_protocol::spec::environment::{ProcessSettings, ProviderSpec};
use rollout_tests::sandbox;

/// Deadline for anything that should happen at once.
const WAIT_DEADLINE: Duration = Duration::from_secs(120);

/// Path of the supervisor.
fn helper() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_rollout-under-test"))
}

/// A provider with its own directory.
struct SandboxFixture {
    provider: ProcessProvider,
    scratch: tempfile::TempDir,
}

impl SandboxFixture {
    fn new() -> Self {
        Self::in_scratch(tempfile::tempdir().expect("a directory"), |_| ())
    }

    /// On a disk: files in memory count against the memory limit.
    fn on_disk() -> Self {
        let in_memory = std::env::temp_dir().starts_with("/dev/shm");
        let made = if in_memory { tempfile::tempdir_in("/var/tmp") } else { tempfile::tempdir() };
        Self::in_scratch(made.expect("a directory"), |_| ())
    }

    fn with_pids(pids: u64) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        Self::in_scratch(scratch, |config| config.pids = pids)
    }

    fn with_bundle(bundle: &CaBundle) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        Self::in_scratch(scratch, |config| config.ca_bundle = Some(bundle.clone()))
    }

    fn in_scratch(scratch: tempfile::TempDir, change: impl FnOnce(&mut ProcessConfig)) -> Self {
        let mut config = sandbox::config(&scratch.path().join("sandboxes"), helper());
        change(&mut config);
        Self { provider: ProcessProvider::new(config), scratch }
    }

    fn base(&self) -> PathBuf {
        self.scratch.path().join("sandboxes")
    }

    /// Names in the directory of all sandboxes.
    fn remaining_sandboxes(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.base()).expect("there");
        entries.map(|entry| entry.expect("entry").file_name().to_string_lossy().into()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn process_provider_passes_contract() {
    let ca_bundle = CaBundle::new("certificates\n");
    let SandboxFixture { provider, scratch } = SandboxFixture::with_bundle(&ca_bundle);
    let labels = sandbox::labels();
    let request = sandbox::request(ProcessSettings::default(), sandbox::AMPLE_RESOURCES);
    let subject = ProviderUnderTest {
        provider: Arc::new(provider),
        source: request.source,
        settings: ProviderSpec::Process(ProcessSettings::default()),
        resources: sandbox::AMPLE_RESOURCES,
        owner: labels.owner,
        worker: labels.worker,
        scratch: scratch.path().to_path_buf(),
        ca_bundle,
        real_shell: true,
    };
    contract::run_all(&subject).await;
}
