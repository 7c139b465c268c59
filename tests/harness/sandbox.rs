//! Process sandboxes for tests.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rollout_coordinator::launch::host::SANDBOX_COMMAND;
use rollout_environment::{
    CreateRequest, Environment, EnvironmentLabels, EnvironmentPurpose, ExecCommand, Failure, Image,
    ImageSource, OutputSink, OutputStream, Owner, Provider, Upload,
};
use rollout_process::{DEFAULT_PIDS, ProcessConfig, ProcessProvider};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::spec::environment::{ProcessSettings, ProviderSpec};
use rollout_protocol::spec::resources::{ResourceCeilings, Resources};
use rollout_protocol::spec::task::NetworkPolicy;

/// Resource limits that no ordinary test reaches.
pub const AMPLE_RESOURCES: Resources = Resources {
    cpus: 2,
    memory_mb: 1024,
    storage_mb: 1024,
    gpus: 0,
    ceilings: ResourceCeilings::ALL,
};

/// A provider whose sandboxes live below `base`, with the program under test, `helper`, as their supervisor.
pub fn provider(base: &Path, helper: &Path) -> ProcessProvider {
    ProcessProvider::new(config(base, helper))
}

/// The configuration of such a provider.
pub fn config(base: &Path, helper: &Path) -> ProcessConfig {
    let helper = vec![helper.as_os_str().to_owned(), OsString::from(SANDBOX_COMMAND)];
    ProcessConfig { base: base.to_path_buf(), helper, pids: DEFAULT_PIDS, ca_bundle: None }
}

/// Labels of this process.
pub fn labels() -> EnvironmentLabels {
    EnvironmentLabels {
        run: RunId::from_bytes([1; 16]),
        item: ItemId::for_trial("agent", "dataset", "task", 1),
        try_id: TryId::first(1),
        exec: ExecId::from_bytes([7; 16]),
        worker: "tester".parse().expect("a worker id"),
        owner: Owner::current(PathBuf::from("/nowhere")),
    }
}

/// A request for an empty environment.
pub fn request(settings: ProcessSettings, resources: Resources) -> CreateRequest {
    CreateRequest {
        image: Image::found("process:test"),
        source: ImageSource::Context {
            digest: Digest::sha256(b""),
            dir: PathBuf::from("/nowhere"),
        },
        resources,
        env: BTreeMap::new(),
        workdir: None,
        network: NetworkPolicy::Public,
        compose: None,
        uploads: Vec::new(),
        settings: ProviderSpec::Process(settings),
        labels: labels(),
        purpose: EnvironmentPurpose::Agent,
    }
}

/// Creates an empty environment.
///
/// # Panics
/// When it cannot be created.
pub async fn create(provider: &ProcessProvider) -> Box<dyn Environment> {
    let request = request(ProcessSettings::default(), AMPLE_RESOURCES);
    provider.create(request).await.unwrap_or_else(|failure| panic!("{}", failure.chain()))
}

/// Captured output of a command.
#[derive(Debug, Default)]
pub struct CapturedOutput(Mutex<[Vec<u8>; 2]>);

impl OutputSink for CapturedOutput {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        self.0.lock().expect("not poisoned")[stream as usize].extend_from_slice(bytes);
    }
}

impl CapturedOutput {
    /// One stream as text.
    pub fn text(&self, stream: OutputStream) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("not poisoned")[stream as usize]).into_owned()
    }
}

/// A shell script as a command.
pub fn shell(script: &str) -> ExecCommand {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    ExecCommand { argv, env: BTreeMap::new(), workdir: None, user: None }
}

/// Runs a script and returns its exit code and output.
///
/// # Errors
/// When it cannot be run to its end.
pub async fn try_run(
    environment: &dyn Environment,
    script: &str,
) -> Result<(i32, String), Failure> {
    let printed = Arc::new(CapturedOutput::default());
    let exit = environment.exec(shell(script), printed.clone()).await?;
    Ok((exit.code, printed.text(OutputStream::Stdout) + &printed.text(OutputStream::Stderr)))
}

/// Runs a script that must end, and returns its exit code and output.
///
/// # Panics
/// When it does not end.
pub async fn run(environment: &dyn Environment, script: &str) -> (i32, String) {
    let ended = try_run(environment, script).await;
    ended.unwrap_or_else(|failure| panic!("`{script}`: {}", failure.chain()))
}

/// Runs a script that must succeed, and returns its output.
///
/// # Panics
/// When it fails.
pub async fn output(environment: &dyn Environment, script: &str) -> String {
    let (code, printed) = run(environment, script).await;
    assert_eq!(code, 0, "`{script}`: {printed}");
    printed
}

/// A file to upload.
pub fn file(path: &str, content: &str) -> Upload {
    Upload::File { path: path.to_owned(), bytes: content.to_owned().into(), executable: false }
}
