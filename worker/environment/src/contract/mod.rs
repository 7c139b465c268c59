//! The contract suite that every provider passes. A provider's tests make a [`ProviderUnderTest`]
//! and call [`run_all`].
//!
//! Checks are plain functions. Each gets its own environment, which is removed afterwards, also
//! when the check fails. Checks marked [`CheckRequirement::Shell`] use a real shell and real
//! processes.

mod commands;
mod files;
mod lifecycle;
mod processes;
mod requests;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rollout_base::supervise::panic_message;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use rollout_protocol::spec::environment::ProviderSpec;
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::NetworkPolicy;
use tokio::io::AsyncReadExt as _;

use super::{
    BuildProxies, CaBundle, CommandExit, CreateRequest, Environment, EnvironmentLabels,
    EnvironmentPurpose, ExecCommand, Failure, ImageRequest, ImageSource, OutputSink, OutputStream,
    Owner, Provider, Upload,
};

/// Timeout of one check. Image builds are slow, everything else is not.
const CHECK_LIMIT: Duration = Duration::from_secs(120);

/// Timeout for an effect that an environment should show at once.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(20);

/// A provider under test and what it needs to make environments.
#[derive(Debug)]
pub struct ProviderUnderTest {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// An image with `/bin/sh`, `bash` and the usual small programs (coreutils). Its working
    /// directory exists and it starts as root.
    pub source: ImageSource,
    /// The provider's settings.
    pub settings: ProviderSpec,
    /// Resource limits of every environment.
    pub resources: Resources,
    /// The live owner of the environments: this process.
    pub owner: Owner,
    /// Worker ID of the environments.
    pub worker: WorkerId,
    /// A scratch directory used only by this test.
    pub scratch: PathBuf,
    /// The CA bundle that the provider gives to environments.
    pub ca_bundle: CaBundle,
    /// Whether commands run in a real shell with real processes.
    pub real_shell: bool,
}

/// Capability that a check needs of the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckRequirement {
    /// Files and the simplest commands: `echo`, `cat`, `pwd`, `test`, `exit`, `sleep`.
    Basic,
    /// A real shell and real processes.
    Shell,
}

/// One check.
#[derive(Debug, Clone, Copy)]
pub struct ProviderCheck {
    /// Its name.
    pub name: &'static str,
    /// Its requirement.
    pub needs: CheckRequirement,
    /// The check; panics when the provider breaks the contract.
    pub run: for<'a> fn(&'a ProviderUnderTest, &'a dyn Environment) -> BoxFuture<'a, ()>,
}

macro_rules! checks {
    ($($needs:ident $module:ident :: $name:ident;)*) => {
        /// Every check.
        pub const CHECKS: &[ProviderCheck] = &[$(ProviderCheck {
            name: stringify!($name),
            needs: CheckRequirement::$needs,
            run: |subject, environment| Box::pin($module::$name(subject, environment)),
        }),*];
    };
}

checks! {
    Basic commands::exit_code_is_returned;
    Shell commands::signal_ends_with_128_plus_number;
    Basic commands::output_streams_are_separate;
    Basic commands::command_gets_its_variables_and_no_others;
    Basic commands::working_directory_defaults_to_that_of_image;
    Basic commands::program_missing_is_not_started;
    Shell commands::working_directory_missing_is_not_started;
    Shell commands::standard_input_is_empty;
    Shell commands::output_large_arrives_whole_and_in_order;
    Basic files::upload_at_creation_is_present;
    Basic files::file_is_placed_with_its_parents;
    Basic files::directory_existing_keeps_its_content;
    Basic files::fresh_directory_replaces_tree;
    Basic files::fresh_directory_replaces_symlink_and_not_its_target;
    Basic files::fresh_directory_replaces_file;
    Shell files::directory_replaces_any_other_file_type;
    Shell files::reading_below_a_file_returns_none;
    Shell commands::usage_within_storage_limit_is_allowed;
    Basic files::archive_replaces_directory_and_is_not_nested;
    Basic files::archive_is_merged_with_existing_directory;
    Shell files::placed_files_are_readable_by_every_user;
    Basic files::reading_names_entries_by_base_name;
    Basic files::reading_file_returns_one_entry;
    Basic files::reading_missing_path_returns_none;
    Basic files::reading_does_not_follow_symlinks;
    Shell files::transfer_dropped_leaves_environment_usable;
    Shell processes::background_process_survives_end_of_command;
    Shell processes::command_with_time_limit_is_ended_alone;
    Shell processes::kill_ends_every_process_of_command;
    Basic processes::kill_ends_running_command_and_environment_stays_usable;
    Basic processes::kill_without_processes_succeeds;
    Shell processes::command_dropped_can_be_killed;
    Basic processes::out_of_memory_is_not_reported_without_cause;
    Basic requests::user_existing_runs_commands;
    Basic requests::user_missing_is_refused;
    Basic requests::environment_variables_reach_every_command;
    Basic requests::ca_bundle_is_placed_and_named_unless_request_names_another;
    Basic requests::working_directory_requested_is_created_and_used;
    Basic requests::network_allowlist_is_enforced_or_refused;
    Basic requests::network_policy_in_effect_can_be_set_again;
    Shell requests::network_disabled_leaves_only_loopback;
    Basic requests::resources_without_ceilings_are_not_limited;
    Basic lifecycle::image_is_built_once;
    Basic lifecycle::environments_are_isolated_from_each_other;
    Basic lifecycle::destroy_is_idempotent_and_other_calls_fail_after;
    Basic lifecycle::destroy_ends_running_command;
    Basic lifecycle::files_are_readable_after_stop;
    Basic lifecycle::reap_removes_only_environments_of_dead_owners;
    Basic lifecycle::preserved_environment_is_not_reaped;
}

/// Runs every check that the provider supports.
///
/// # Panics
/// When a check fails; the message names every failed check.
pub async fn run_all(subject: &ProviderUnderTest) {
    let mut failed = Vec::new();
    for check in CHECKS.iter().filter(|c| subject.real_shell || c.needs == CheckRequirement::Basic)
    {
        if let Err(reason) = run_one(subject, *check).await {
            failed.push(format!("{}: {reason}", check.name));
        }
    }
    assert!(failed.is_empty(), "{} checks failed:\n{}", failed.len(), failed.join("\n"));
}

/// Runs one check in its own environment.
///
/// # Errors
/// The reason why it failed.
pub async fn run_one(subject: &ProviderUnderTest, check: ProviderCheck) -> Result<(), String> {
    let environment = subject.create(Vec::new()).await.map_err(|f| f.chain())?;
    let run = AssertUnwindSafe((check.run)(subject, environment.as_ref())).catch_unwind();
    let ended = tokio::time::timeout(CHECK_LIMIT, run).await;
    let destroyed = environment.destroy().await;
    match ended {
        Err(_) => Err(format!("took longer than {CHECK_LIMIT:?}")),
        Ok(Err(panic)) => Err(panic_message(panic.as_ref())),
        Ok(Ok(())) => destroyed.map_err(|f| f.chain()),
    }
}

impl ProviderUnderTest {
    fn labels(&self, owner: Owner) -> EnvironmentLabels {
        static COUNTER: AtomicU64 = AtomicU64::new(1);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let mut exec = [0; 16];
        exec[..4].copy_from_slice(&std::process::id().to_be_bytes());
        exec[8..].copy_from_slice(&number.to_be_bytes());
        EnvironmentLabels {
            run: RunId::from_bytes([1; 16]),
            item: ItemId::for_trial("contract", "suite", "check", 1),
            try_id: TryId::first(1),
            exec: ExecId::from_bytes(exec),
            worker: self.worker.clone(),
            owner,
        }
    }

    async fn create(&self, uploads: Vec<Upload>) -> Result<Box<dyn Environment>, Failure> {
        self.create_for(self.owner.clone(), uploads).await
    }

    async fn create_for(
        &self,
        owner: Owner,
        uploads: Vec<Upload>,
    ) -> Result<Box<dyn Environment>, Failure> {
        let request = self.request_for(owner, uploads).await?;
        self.provider.create(request).await
    }

    async fn request_for(
        &self,
        owner: Owner,
        uploads: Vec<Upload>,
    ) -> Result<CreateRequest, Failure> {
        let labels = self.labels(owner);
        let image = self.provider.prepare(self.image_request(labels.clone())).await?;
        Ok(CreateRequest {
            image,
            source: self.source.clone(),
            resources: self.resources,
            env: std::collections::BTreeMap::new(),
            workdir: None,
            network: NetworkPolicy::Public,
            compose: None,
            uploads,
            settings: self.settings.clone(),
            labels,
            purpose: EnvironmentPurpose::Agent,
        })
    }

    /// Creates an environment from a plain request that `change` modifies.
    async fn create_changed(
        &self,
        change: impl FnOnce(&mut CreateRequest),
    ) -> Result<Box<dyn Environment>, Failure> {
        let mut request = self.request_for(self.owner.clone(), Vec::new()).await?;
        change(&mut request);
        self.provider.create(request).await
    }

    fn image_request(&self, labels: EnvironmentLabels) -> ImageRequest {
        ImageRequest {
            source: self.source.clone(),
            force_build: false,
            log: None,
            timeout: CHECK_LIMIT,
            proxies: BuildProxies::default(),
            settings: self.settings.clone(),
            labels,
        }
    }

    /// A deterministic archive of names and contents; a name that ends in `/` is a directory.
    fn archive(&self, entries: &[(&str, &str)]) -> PathBuf {
        static COUNTER: AtomicU64 = AtomicU64::new(1);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = self.scratch.join(format!("contract-{number}.tar"));
        let file = std::fs::File::create_new(&path).expect("a new file in the scratch directory");
        let mut tar = tar::Builder::new(file);
        for (name, content) in entries {
            let mut header = tar::Header::new_ustar();
            header.set_mtime(0);
            header.set_mode(if content.starts_with("#!") { 0o755 } else { 0o644 });
            if name.ends_with('/') {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(0o755);
            }
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, name, content.as_bytes()).expect("appended");
        }
        tar.into_inner().expect("finished");
        path
    }
}

/// Captured output of a command.
#[derive(Debug, Default)]
struct ContractOutput(std::sync::Mutex<[Vec<u8>; 2]>);

impl OutputSink for ContractOutput {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        self.0.lock().expect("not poisoned")[stream as usize].extend_from_slice(bytes);
    }
}

impl ContractOutput {
    fn text(&self, stream: OutputStream) -> String {
        let bytes = self.0.lock().expect("not poisoned")[stream as usize].clone();
        String::from_utf8(bytes).expect("text")
    }
}

fn shell(script: &str) -> ExecCommand {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    ExecCommand { argv, env: std::collections::BTreeMap::new(), workdir: None, user: None }
}

/// Runs a script; returns its exit code, standard output and standard error.
async fn run(environment: &dyn Environment, script: &str) -> (i32, String, String) {
    let printed = Arc::new(ContractOutput::default());
    let CommandExit { code } = match environment.exec(shell(script), printed.clone()).await {
        Ok(exit) => exit,
        Err(failure) => panic!("`{script}` failed: {}", failure.chain()),
    };
    (code, printed.text(OutputStream::Stdout), printed.text(OutputStream::Stderr))
}

/// Runs a script that must succeed; returns its standard output.
async fn output(environment: &dyn Environment, script: &str) -> String {
    let (code, stdout, stderr) = run(environment, script).await;
    assert_eq!(code, 0, "`{script}`: {stdout}{stderr}");
    stdout
}

async fn upload(environment: &dyn Environment, uploads: Vec<Upload>) {
    if let Err(failure) = environment.copy_to(uploads).await {
        panic!("copying failed: {}", failure.chain());
    }
}

fn file(path: &str, content: &str) -> Upload {
    let bytes = Bytes::copy_from_slice(content.as_bytes());
    Upload::File { path: path.to_owned(), bytes, executable: false }
}

/// Reads a path of the environment as (name, kind, content), sorted by name.
async fn read(
    environment: &dyn Environment,
    path: &str,
) -> Option<Vec<(String, tar::EntryType, Vec<u8>)>> {
    let mut stream = match environment.copy_from(path).await {
        Ok(stream) => stream?,
        Err(failure) => panic!("reading {path} failed: {}", failure.chain()),
    };
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.expect("a whole stream");
    let mut archive = tar::Archive::new(bytes.as_slice());
    let mut found = Vec::new();
    for entry in archive.entries().expect("a tar archive") {
        let mut entry = entry.expect("an entry");
        let name = String::from_utf8_lossy(&entry.path_bytes()).trim_end_matches('/').to_owned();
        let kind = entry.header().entry_type();
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut content).expect("content");
        found.push((name, kind, content));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Some(found)
}

/// Waits until `condition` prints `wanted` or fails.
async fn eventually(environment: &dyn Environment, condition: &str) {
    let deadline = tokio::time::Instant::now() + EFFECT_TIMEOUT;
    loop {
        let (code, ..) = run(environment, condition).await;
        if code == 0 {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "`{condition}` did not become true");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
