//! A scripted provider in memory, for tests. Its environments have files and a small shell, no
//! processes and no kernel. Any call can be made to fail, hang or panic (`faults`). Every call is
//! recorded, so that a test can check that no environment is left at its end.
//!
//! # The shell
//! Commands are `sh|bash -c TEXT` and `sh|bash PATH ARGUMENT…` (no statement reads arguments).
//! Statements end at a newline or `;`; the first that fails ends the script with code 1. Words
//! support `'…'`, `"…"` and `$NAME`; redirections are `> PATH`, `>> PATH` and `>&2`. A `|| exit` at
//! the end of a statement changes nothing.
//!
//! | Statement | Effect |
//! | --- | --- |
//! | `echo [-n] WORD…`, `cat PATH`, `pwd`, `exit N` | as in a shell |
//! | `test -d\|-f\|-e\|-s\|-L PATH`, `test WORD = WORD` | as in a shell |
//! | `mkdir [-p] PATH`, `ln -s TARGET PATH`, `rm [-rf] PATH`, `rm -f -- PATH…` | as in a shell |
//! | `mv -f -- FROM TO` | as in a shell, for files and links |
//! | `exec < PATH`, `cat` | reads the file as standard input, prints it |
//! | `sleep SECONDS` | waits that long or until it is killed |
//! | `wait-for PATH` | waits until it is killed if there is no such path |
//! | `flood BYTES` | prints that many bytes |
//! | `background NAME` | leaves a process behind; `alive NAME` succeeds while it lives |
//! | `oom` | the memory limit kills the script: 137 |
//! | `vanish` | the environment disappears while the script runs |
//! | `remove` | something removes the environment, and the script fails: 1 |
//! | `panic` | the provider panics |
//!
//! A command with a time limit that the environment keeps itself (`time_limit`) ends there: 137.
//!
//! Every user exists, except those whose names begin with `no-such`.

mod environment;
mod faults;
mod files;
mod shell;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use rollout_base::dependency::Dependency;
use rollout_protocol::record::EnforcedLimits;
use rollout_protocol::spec::environment::{ProviderKind, ProviderSpec};
use rollout_protocol::spec::task::NetworkPolicy;
use tokio::sync::watch;
use tokio::time::Instant;

use self::environment::FakeEnvironment;
pub use self::faults::{FakeCall, FakeFault, FaultEffect, FaultTrigger};
pub use self::files::{FileNode, FileTree};

use super::descriptor;
use super::{
    ByteStream, CaBundle, CreateRequest, DeadOwners, Environment, Failure, FailureKind,
    HostProxies, Image, ImageRequest, ImageSource, OwnHealthcheck, Owner, Provider, ReapReport,
};

/// The kind of provider that it stands in for, unless a test names another.
const KIND: ProviderKind = ProviderKind::Docker;

/// Working directory of the fake's environments.
pub const WORKDIR: &str = "/app";

/// Returns the read result of a hostile environment for a path: a stream, nothing (`Some(None)`),
/// or the real content (`None`).
pub type HostileReader = Arc<dyn Fn(&str) -> Option<Option<ByteStream>> + Send + Sync>;

/// A provider scripted by its test.
#[derive(Debug, Clone)]
pub struct FakeProvider {
    kind: ProviderKind,
    in_memory: bool,
    engine: Option<Arc<Dependency>>,
    state: Arc<Mutex<FakeState>>,
}

struct FakeState {
    faults: Vec<FakeFault>,
    calls: Vec<FakeCall>,
    image: FileTree,
    hostile: Option<HostileReader>,
    environments: BTreeMap<String, FakeEnvironmentState>,
    images: BTreeMap<String, usize>,
    services: Vec<String>,
    /// What an observation of programs that environments run by themselves prints, if they run any.
    own_programs: Option<String>,
    /// Whether these have ended their environments.
    own_programs_end: bool,
    /// The file of a service that they start, and the time that it takes.
    own_service: Option<(String, Duration)>,
    own_healthcheck: Option<OwnHealthcheck>,
    proxies: HostProxies,
    ca_bundle: Option<CaBundle>,
    made: usize,
}

/// One environment.
struct FakeEnvironmentState {
    files: FileTree,
    owner: Owner,
    lifecycle: FakeLifecycle,
    preserved: bool,
    oom_killed: bool,
    /// The file of a service that it starts by itself, and when the service has started.
    starting: Option<(String, Instant)>,
    background: Vec<String>,
    running: usize,
    /// Counts the kills: a command ends when it changes.
    kills: watch::Sender<u64>,
    commands: Vec<super::ExecCommand>,
    /// The request that created it.
    request: CreateRequest,
    /// The network policies set afterwards, in order.
    networks: Vec<NetworkPolicy>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FakeLifecycle {
    Up,
    Stopped,
    Gone,
}

impl fmt::Debug for FakeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeState").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl Default for FakeProvider {
    fn default() -> Self {
        Self::new(KIND)
    }
}

impl FakeProvider {
    /// A fake provider of `kind`. Its images hold `/app` and `/tmp`.
    pub fn new(kind: ProviderKind) -> Self {
        let mut image = FileTree::default();
        for path in [WORKDIR, "/tmp"] {
            image.make_dir(path).expect("an empty tree takes directories");
        }
        let state = FakeState {
            faults: Vec::new(),
            calls: Vec::new(),
            image,
            hostile: None,
            environments: BTreeMap::new(),
            images: BTreeMap::new(),
            services: Vec::new(),
            own_programs: None,
            own_programs_end: false,
            own_service: None,
            own_healthcheck: None,
            proxies: HostProxies::default(),
            ca_bundle: None,
            made: 0,
        };
        Self { kind, in_memory: false, engine: None, state: Arc::new(Mutex::new(state)) }
    }

    /// Makes the environments depend on a service that can be unavailable.
    #[must_use]
    pub fn with_engine(self, engine: Arc<Dependency>) -> Self {
        Self { engine: Some(engine), ..self }
    }

    /// Makes the provider report that its environments are only memory.
    #[must_use]
    pub fn in_memory(self) -> Self {
        Self { in_memory: true, ..self }
    }

    /// Settings that name this provider.
    pub fn settings() -> ProviderSpec {
        descriptor::for_kind(KIND).default_spec()
    }

    /// Adds a file to the image of every environment.
    pub fn image_file(&self, path: &str, content: &str) {
        let node = FileNode::File { bytes: content.as_bytes().to_vec().into(), executable: false };
        self.lock().image.put(path, node).expect("a path of directories");
    }

    /// Gives every environment a service.
    pub fn add_service(&self, name: &str) {
        self.lock().services.push(name.to_owned());
    }

    /// Makes every environment run programs by itself. An observation of their start prints this text.
    pub fn run_own_programs(&self, printed: &str) {
        self.lock().own_programs = Some(printed.to_owned());
    }

    /// Makes every environment run programs by itself that end it.
    pub fn end_by_own_programs(&self) {
        self.run_own_programs("");
        self.lock().own_programs_end = true;
    }

    /// Makes every environment run programs by itself that start a service, which takes some time from the
    /// environment's creation. Its file is there from then on, and an observation lasts until then.
    pub fn start_own_service(&self, file: &str, takes: Duration) {
        self.run_own_programs("until=settled waited=120 processes=2 sockets=1");
        self.lock().own_service = Some((file.to_owned(), takes));
    }

    /// Gives every environment a healthcheck besides that of its task.
    pub fn set_own_healthcheck(&self, check: OwnHealthcheck) {
        self.lock().own_healthcheck = Some(check);
    }

    /// Makes this host give proxies to every environment.
    pub fn set_proxies(&self, proxies: HostProxies) {
        self.lock().proxies = proxies;
    }

    /// Makes this host give a CA bundle to every environment.
    pub fn set_ca_bundle(&self, bundle: CaBundle) {
        self.lock().ca_bundle = Some(bundle);
    }

    /// The request that created each environment and the network policies set afterwards, in order
    /// of creation.
    pub fn requests(&self) -> Vec<(CreateRequest, Vec<NetworkPolicy>)> {
        let state = self.lock();
        let places = state.environments.iter().filter(|(id, _)| !id.contains('/'));
        places.map(|(_, place)| (place.request.clone(), place.networks.clone())).collect()
    }

    /// Replaces the result of reading paths.
    pub fn set_hostile_reader(&self, hostile: HostileReader) {
        self.lock().hostile = Some(hostile);
    }

    /// Every command of every environment, in order of creation.
    pub fn commands(&self) -> Vec<super::ExecCommand> {
        self.lock().environments.values().flat_map(|place| place.commands.clone()).collect()
    }

    /// Content of a file in the first environment that exists and has it.
    pub fn file(&self, path: &str) -> Option<bytes::Bytes> {
        let state = self.lock();
        let mut existing =
            state.environments.values().filter(|place| place.lifecycle != FakeLifecycle::Gone);
        existing.find_map(|place| match place.files.get(path) {
            Some(FileNode::File { bytes, .. }) => Some(bytes.clone()),
            _ => None,
        })
    }

    /// Writes a file into every environment that exists, as one of its processes might.
    pub fn write_file(&self, path: &str, content: &[u8]) {
        let mut state = self.lock();
        for place in state.environments.values_mut() {
            if place.lifecycle != FakeLifecycle::Gone {
                let bytes = bytes::Bytes::copy_from_slice(content);
                let node = FileNode::File { bytes, executable: false };
                place.files.put(path, node).expect("a path of directories");
            }
        }
    }

    /// Names of environments that exist: running, stopped or preserved.
    pub fn existing(&self) -> Vec<String> {
        self.list(|place| place.lifecycle != FakeLifecycle::Gone)
    }

    /// Names of environments that exist and were preserved.
    pub fn preserved(&self) -> Vec<String> {
        self.list(|place| place.lifecycle != FakeLifecycle::Gone && place.preserved)
    }

    /// Names of environments that exist without having been preserved: leaks.
    pub fn leaked(&self) -> Vec<String> {
        self.list(|place| place.lifecycle != FakeLifecycle::Gone && !place.preserved)
    }

    /// Names of environments with a running command or a background process.
    pub fn busy(&self) -> Vec<String> {
        self.list(|place| place.running > 0 || !place.background.is_empty())
    }

    fn list(&self, wanted: impl Fn(&FakeEnvironmentState) -> bool) -> Vec<String> {
        let state = self.lock();
        state.environments.iter().filter(|(_, p)| wanted(p)).map(|(id, _)| id.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, FakeState> {
        // Scripted panics happen without the lock.
        self.state.lock().expect("nothing panics while it holds the state")
    }
}

#[async_trait]
impl Provider for FakeProvider {
    fn kind(&self) -> ProviderKind {
        self.kind
    }

    fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    fn dependency(&self) -> Option<&Dependency> {
        self.engine.as_deref()
    }

    fn proxies(&self, _: &ProviderSpec) -> HostProxies {
        self.lock().proxies.clone()
    }

    async fn prepare(&self, request: ImageRequest) -> Result<Image, Failure> {
        let work = async {
            let reference = match &request.source {
                ImageSource::Named(name) => name.clone(),
                ImageSource::Context { digest, .. } => format!("fake:{}", digest.short()),
            };
            let mut state = self.lock();
            let uses = state.images.entry(reference.clone()).or_insert(0);
            let made = *uses == 0 || request.force_build;
            *uses += 1;
            Ok(Image { made, ..Image::found(reference) })
        };
        self.call(FakeCall::Prepare, work).await
    }

    async fn prepare_services(&self, request: &CreateRequest) -> Result<(), Failure> {
        if request.compose.is_none() {
            return Ok(());
        }
        self.call(FakeCall::PrepareServices, async { Ok(()) }).await
    }

    async fn create(&self, mut request: CreateRequest) -> Result<Box<dyn Environment>, Failure> {
        if let Some(bundle) = &self.lock().ca_bundle {
            bundle.place(&mut request);
        }
        let mut made = None;
        let services = self.lock().services.clone();
        let workdir = request.workdir.clone().unwrap_or_else(|| WORKDIR.to_owned());
        let answer = self.call(FakeCall::Create, async {
            let beside: Vec<_> = services.iter().map(|_| request.clone()).collect();
            let id = made.insert(self.insert_environment(None, request)?).clone();
            for (service, request) in services.iter().zip(beside) {
                let request = CreateRequest { uploads: Vec::new(), ..request };
                self.insert_environment(Some(format!("{id}/{service}")), request)?;
            }
            Ok(id)
        });
        match answer.await {
            Ok(id) => Ok(Box::new(FakeEnvironment::new(self.clone(), id, workdir, &services))),
            Err(failure) => {
                if let Some(id) = made {
                    self.lock().environments.retain(|name, _| !name.starts_with(&id));
                }
                Err(failure)
            }
        }
    }

    async fn reap(&self, dead: &dyn DeadOwners) -> Result<ReapReport, Failure> {
        let mut reaped = ReapReport::default();
        let mut state = self.lock();
        for (id, place) in
            state.environments.iter_mut().filter(|(_, p)| p.lifecycle != FakeLifecycle::Gone)
        {
            if !place.preserved && dead.is_dead(&place.owner) {
                place.end(FakeLifecycle::Gone);
                reaped.removed.push(id.clone());
            } else {
                reaped.kept += 1;
            }
        }
        drop(state);
        Ok(reaped)
    }
}

impl FakeProvider {
    fn insert_environment(
        &self,
        id: Option<String>,
        request: CreateRequest,
    ) -> Result<String, Failure> {
        let mut files = self.lock().image.clone();
        match request.workdir.as_deref() {
            None | Some("/") => {}
            Some(workdir) if workdir.starts_with('/') => files.make_dir(workdir)?,
            Some(workdir) => {
                let text = format!("the working directory `{workdir}` is not absolute");
                return Err(Failure::new(FailureKind::Refused, text));
            }
        }
        files.apply(&request.uploads)?;
        let mut state = self.lock();
        let now = Instant::now();
        let starting = state.own_service.clone().map(|(file, takes)| (file, now + takes));
        state.made += 1;
        let id = id.unwrap_or_else(|| format!("fake-{}", state.made));
        let place = FakeEnvironmentState {
            files,
            owner: request.labels.owner.clone(),
            lifecycle: FakeLifecycle::Up,
            preserved: false,
            oom_killed: false,
            starting,
            background: Vec::new(),
            running: 0,
            kills: watch::Sender::new(0),
            commands: Vec::new(),
            request,
            networks: Vec::new(),
        };
        state.environments.insert(id.clone(), place);
        drop(state);
        Ok(id)
    }
}

impl FakeEnvironmentState {
    /// Starts the service of the environment's own programs if its time has come; otherwise that time.
    fn start_service(&mut self) -> Option<Instant> {
        if let Some((file, _)) = self.starting.take_if(|(_, at)| *at <= Instant::now()) {
            let node = FileNode::File { bytes: bytes::Bytes::new(), executable: false };
            self.files.put(&file, node).expect("a path of directories");
        }
        self.starting.as_ref().map(|(_, at)| *at)
    }

    /// Ends every process.
    fn kill(&mut self) {
        self.background.clear();
        self.kills.send_modify(|kills| *kills += 1);
    }

    fn end(&mut self, life: FakeLifecycle) {
        self.lifecycle = life;
        self.kill();
    }
}

/// The enforced limits that every fake environment reports.
const LIMITS: EnforcedLimits = EnforcedLimits {
    cpus: rollout_protocol::record::LimitEnforcement::No,
    memory: rollout_protocol::record::LimitEnforcement::No,
    pids: rollout_protocol::record::LimitEnforcement::No,
    storage: rollout_protocol::record::LimitEnforcement::No,
};
