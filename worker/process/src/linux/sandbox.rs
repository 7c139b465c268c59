//! One running sandbox.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use async_trait::async_trait;
use rollout_base::open_files;
use rollout_base::shown_path::shown;
use rollout_base::supervise::{self, Task};
use rollout_environment::egress::{LedNetwork, LedSockets};
use rollout_environment::{
    ByteStream, CommandExit, Environment, ExecCommand, Failure, FailureKind, ListenerRoute,
    OutputSink, Upload,
};
use rollout_protocol::record::{EnforcedLimits, LimitEnforcement};
use rollout_protocol::spec::environment::ProcessNetwork;
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::NetworkPolicy;

use super::cgroup::CgroupSet;
use super::control::SupervisorConnection;
use super::create::{self, SandboxContext};
use super::launcher::Launcher;
use super::message::CommandRequest;
use super::network;
use super::owner_file::{OwnerFile, SandboxHold};
use super::storage::{self, ExceededLimit};
use super::tree::{self, SandboxTree, relative};
use super::tree_writer::SandboxTreeWriter;
use super::{exec, failure, pack};
use crate::dockerfile::SandboxRecipe;

/// Home directory of the only user.
const HOME: &str = "/root";

/// The parts that [`create`] has made.
#[derive(Debug)]
pub(super) struct SandboxParts {
    pub(super) tree: SandboxTree,
    pub(super) groups: CgroupSet,
    pub(super) recipe: SandboxRecipe,
    pub(super) owner_file: OwnerFile,
    pub(super) launcher: Launcher,
    pub(super) control: SupervisorConnection,
    pub(super) resources: Resources,
    /// Variables on top of the recipe's.
    pub(super) env: BTreeMap<String, String>,
    pub(super) workdir: String,
}

/// A sandbox. Dropping it ends its processes; its files stay until a reaper removes them.
#[derive(Debug)]
pub(super) struct Sandbox {
    id: String,
    directory: PathBuf,
    workdir: String,
    env: BTreeMap<String, String>,
    resources: Resources,
    context: SandboxContext,
    tree: Arc<SandboxTree>,
    groups: Arc<CgroupSet>,
    owner_file: OwnerFile,
    launcher: Launcher,
    control: SupervisorConnection,
    stopped: AtomicBool,
    exceeded: ExceededLimit,
    /// Streams of background processes whose output is discarded.
    discarding: Mutex<Vec<Task<()>>>,
    teardown: tokio::sync::Mutex<()>,
    _storage: Option<Task<()>>,
    _hold: Arc<SandboxHold>,
}

impl Sandbox {
    pub(super) fn new(
        id: String,
        hold: Arc<SandboxHold>,
        context: SandboxContext,
        made: SandboxParts,
    ) -> Self {
        let mut env = made.recipe.env;
        env.extend(made.env);
        env.entry("HOME".to_owned()).or_insert_with(|| HOME.to_owned());
        let tree = Arc::new(made.tree);
        let exceeded = ExceededLimit::default();
        let storage = made.resources.storage_ceiling_mb().map(|limit| {
            let closer = made.control.closer();
            storage::watch(Arc::clone(&tree), limit, Arc::clone(&exceeded), closer)
        });
        Self {
            directory: context.config.base.join(&id),
            id,
            workdir: made.workdir,
            env,
            resources: made.resources,
            context,
            tree,
            groups: Arc::new(made.groups),
            owner_file: made.owner_file,
            launcher: made.launcher,
            control: made.control,
            stopped: AtomicBool::new(false),
            exceeded,
            discarding: Mutex::default(),
            teardown: tokio::sync::Mutex::default(),
            _storage: storage,
            _hold: hold,
        }
    }

    fn gone_failure(&self, what: &str) -> Failure {
        Failure::new(FailureKind::Gone, format!("{}: {what}", self.id))
    }

    /// Fails with the reason if nothing can be changed any more.
    async fn usable(&self) -> Result<(), Failure> {
        self.exists().await?;
        if let Some(what) = self.exceeded.get() {
            let text = format!("{}: {what}", self.id);
            return Err(Failure::new(FailureKind::StorageExceeded, text));
        }
        if self.stopped.load(Ordering::Acquire) {
            return Err(self.gone_failure("the sandbox was stopped"));
        }
        Ok(())
    }

    async fn exists(&self) -> Result<(), Failure> {
        let (tree, directory) = (Arc::clone(&self.tree), self.directory.clone());
        if supervise::blocking(move || tree.is_in(&directory)).await {
            Ok(())
        } else {
            Err(self.gone_failure("the sandbox was removed"))
        }
    }

    /// Replaces a command's failure when the sandbox ended meanwhile.
    async fn explain(&self, error: Failure) -> Failure {
        if error.kind != FailureKind::Gone {
            return error;
        }
        self.usable().await.err().unwrap_or(error)
    }

    /// Ends all processes and the supervisor.
    async fn end(&self) -> Result<(), Failure> {
        self.stopped.store(true, Ordering::Release);
        self.control.close();
        let ended = self.launcher.end().await;
        self.discarding().clear();
        ended.map_err(|error| {
            let text = format!("{}: processes do not exit", self.id);
            Failure::new(FailureKind::LeftBehind, text).with_source(error)
        })
    }

    fn discarding(&self) -> std::sync::MutexGuard<'_, Vec<Task<()>>> {
        self.discarding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self, command: ExecCommand) -> CommandRequest {
        let mut env = self.env.clone();
        env.extend(command.env);
        let held = |controller| self.groups.enforcement(controller) == LimitEnforcement::Enforced;
        let counted = !held("pids") && limits_own_users();
        let memory = self.resources.memory_ceiling_mb().map(|mb| mb * 1024 * 1024);
        CommandRequest {
            argv: command.argv,
            env,
            workdir: command.workdir.unwrap_or_else(|| self.workdir.clone()),
            data_bytes: memory.filter(|_| !held("memory")),
            processes: counted.then_some(self.context.config.pids),
            open_files: open_files::program_limit(),
        }
    }
}

/// Refuses every user but root.
fn only_root(user: Option<&str>) -> Result<(), Failure> {
    match user {
        None | Some("root" | "0") => Ok(()),
        Some(user) => {
            let text = format!(
                "a process sandbox has only the user root and cannot run commands as `{user}`; \
                 use `environment.type: docker`"
            );
            Err(Failure::new(FailureKind::Unsupported, text))
        }
    }
}

/// Whether the kernel's limit on a user's processes can limit one sandbox. Since Linux 5.14 it is
/// counted per user namespace, before that for all processes of the user, and never for root.
fn limits_own_users() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (5, 14) && !rustix::process::geteuid().is_root()
}

#[async_trait]
impl Environment for Sandbox {
    fn id(&self) -> &str {
        &self.id
    }

    fn workdir(&self) -> &str {
        &self.workdir
    }

    fn limits(&self) -> EnforcedLimits {
        let pids = match self.groups.enforcement("pids") {
            LimitEnforcement::No if limits_own_users() => LimitEnforcement::Enforced,
            held => held,
        };
        let measured = self.resources.storage_ceiling_mb().is_some();
        let storage = if measured { LimitEnforcement::Measured } else { LimitEnforcement::No };
        EnforcedLimits {
            cpus: self.groups.enforcement("cpu"),
            memory: self.groups.enforcement("memory"),
            pids,
            storage,
        }
    }

    async fn copy_to(&self, uploads: Vec<Upload>) -> Result<(), Failure> {
        self.usable().await?;
        let (tree, host) = (Arc::clone(&self.tree), Arc::clone(&self.context.host));
        supervise::blocking(move || {
            SandboxTreeWriter { tree: &tree, host: &host }.apply_uploads(uploads)
        })
        .await
    }

    async fn copy_from(&self, path: &str) -> Result<Option<ByteStream>, Failure> {
        self.exists().await?;
        let cannot = |error| failure(&format!("read {path} of the sandbox"), error);
        let Some(below) = relative(path).filter(|below| below.file_name().is_some()) else {
            let text = format!("`{path}` is not an absolute path of a file or directory");
            return Err(Failure::new(FailureKind::Refused, text));
        };
        let tree = Arc::clone(&self.tree);
        let found = supervise::blocking(move || tree.find(&below)).await.map_err(cannot)?;
        let Some(found) = found else { return Ok(None) };
        let stream = pack::stream(found, open_files::walk_permit().await).map_err(cannot)?;
        Ok(Some(Box::new(stream)))
    }

    async fn exec(
        &self,
        command: ExecCommand,
        output: Arc<dyn OutputSink>,
    ) -> Result<CommandExit, Failure> {
        self.usable().await?;
        only_root(command.user.as_deref())?;
        let join_files =
            self.groups.join_files().map_err(|e| failure("open the control groups", e))?;
        let request = self.request(command);
        let finished = exec::run(&self.control, &request, join_files, output.as_ref()).await;
        let finished = match finished {
            Ok(finished) => finished,
            Err(error) => return Err(self.explain(error).await),
        };
        let mut discarding = self.discarding();
        discarding.retain(|task| !task.is_finished());
        let tasks = finished.open_streams.into_iter().map(exec::discard);
        discarding.extend(tasks.map(|task| supervise::spawn("sandbox-discard", task)));
        Ok(CommandExit { code: finished.code })
    }

    async fn kill_processes(&self) -> Result<(), Failure> {
        match self.control.kill_all().await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let text = format!("{}: killed processes do not exit", self.id);
                Err(Failure::new(FailureKind::LeftBehind, text))
            }
            // The supervisor has ended or is ending, and all processes with it.
            Err(_) => {
                self.control.close();
                self.launcher.end().await.map_err(|error| {
                    let text = format!("{}: processes do not exit", self.id);
                    Failure::new(FailureKind::LeftBehind, text).with_source(error)
                })
            }
        }
    }

    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), Failure> {
        let wanted = network::effective_network(&self.context.settings, policy);
        if wanted == self.context.network {
            return Ok(());
        }
        let text = "a process sandbox keeps its initial network: network access cannot differ \
                    between phases; use `environment.type: docker`";
        Err(Failure::new(FailureKind::Unsupported, text))
    }

    async fn listener_route(&self) -> Result<ListenerRoute, Failure> {
        if self.context.network == ProcessNetwork::Host {
            return Ok(ListenerRoute::HostAddress((Ipv4Addr::LOCALHOST, 0).into()));
        }
        let cannot = |error| failure("listen in the network of the sandbox", error);
        let listener = TcpListener::from(self.control.listen().await.map_err(cannot)?);
        listener.set_nonblocking(true).map_err(cannot)?;
        Ok(ListenerRoute::OwnLoopback(listener))
    }

    /// Its user may change nothing on this host, such as the rules that would lead connections.
    async fn lead_connections(
        &self,
        networks: &[LedNetwork],
    ) -> Result<Option<LedSockets>, Failure> {
        static NOTICE: Once = Once::new();
        NOTICE.call_once(|| {
            tracing::info!(
                "programs in sandboxes with allowed hosts must use the proxy: connections do not lead \
                 to it"
            );
        });
        let _unled = networks;
        Ok(None)
    }

    async fn oom_killed(&self) -> bool {
        self.groups.oom_kills() > 0
    }

    async fn check_storage(&self) -> Result<(), Failure> {
        if let Some(limit) = self.resources.storage_ceiling_mb()
            && self.exceeded.get().is_none()
            && let Some(what) = storage::measure_once(&self.tree, limit).await
        {
            // The storage watch may have set it first.
            let _first = self.exceeded.set(what);
            self.control.close();
        }
        match self.exceeded.get() {
            Some(_) => self.usable().await,
            None => Ok(()),
        }
    }

    async fn check_exists(&self) -> Result<(), Failure> {
        self.exists().await
    }

    async fn stop(&self) -> Result<(), Failure> {
        self.exists().await?;
        self.end().await
    }

    async fn destroy(&self) -> Result<(), Failure> {
        let _alone = self.teardown.lock().await;
        self.end().await?;
        let base = &self.context.config.base;
        let groups = &self.owner_file.groups;
        let removed = create::remove_sandbox(base, &self.id, &self.directory, groups);
        removed.await.map_err(|error| {
            let text = format!("cannot remove {}", shown(&self.directory));
            Failure::new(FailureKind::LeftBehind, text).with_source(error)
        })
    }

    async fn preserve(&self) -> Result<String, Failure> {
        self.exists().await?;
        self.end().await?;
        let (base, id) = (self.context.config.base.clone(), self.id.clone());
        let claim = OwnerFile { preserved: true, ..self.owner_file.clone() };
        let marked = supervise::blocking(move || claim.write(&base, &id)).await;
        marked.map_err(|e| failure("mark the sandbox as preserved", e))?;
        let root = self.directory.join(tree::ROOT);
        Ok(format!("files in {} (its processes were killed)", shown(&root)))
    }
}
