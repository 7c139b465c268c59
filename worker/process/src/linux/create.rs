//! Creation of one sandbox, all or nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollout_base::shown_path::shown;
use rollout_base::supervise;
use rollout_environment::{CreateRequest, Failure, FailureKind, ImageSource};
use rollout_protocol::spec::environment::{ProcessNetwork, ProcessSettings};

use super::cgroup::{self, CgroupParents, CgroupSet};
use super::control::{self, SupervisorConnection};
use super::host_view::{HOSTNAME, HostView};
use super::launcher::Launcher;
use super::message::SandboxSetup;
use super::owner_file::{self, OwnerFile, ProcessIdentity, SandboxHold};
use super::sandbox::{Sandbox, SandboxParts};
use super::tree::{self, SandboxTree};
use super::tree_writer::SandboxTreeWriter;
use super::{failure, not_made, provider, remove};
use crate::ProcessConfig;
use crate::dockerfile::SandboxRecipe;

/// Timeout of the sandbox's start. A few milliseconds are usual; the rest is for an overloaded
/// machine.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);

/// State shared by all sandboxes of a provider.
#[derive(Debug, Clone)]
pub(super) struct SandboxContext {
    pub(super) config: Arc<ProcessConfig>,
    pub(super) host: Arc<HostView>,
    pub(super) parents: Arc<CgroupParents>,
    pub(super) settings: ProcessSettings,
    /// The network of the sandbox for its whole lifetime.
    pub(super) network: ProcessNetwork,
}

/// Creates and starts a sandbox.
pub(super) async fn create(
    context: SandboxContext,
    request: CreateRequest,
) -> Result<Sandbox, Failure> {
    let random: u32 = rand::random();
    let id = format!("sandbox-{}-{random:08x}", request.labels.exec.short());
    let directory = context.config.base.join(&id);
    let hold = Arc::new(SandboxHold::new(&directory));
    let owner_file = OwnerFile {
        labels: request.labels.clone(),
        groups: context.parents.candidates(&id),
        preserved: false,
        writer: ProcessIdentity::current(),
    };
    let made = build(&context, &id, &directory, owner_file.clone(), request, &hold).await;
    match made {
        Ok(made) => Ok(Sandbox::new(id, hold, context, made)),
        Err(error) => {
            let base = &context.config.base;
            let cleaned = remove_sandbox(base, &id, &directory, &owner_file.groups).await;
            if let Err(left) = cleaned {
                tracing::warn!(error = %left, "cannot clean up a sandbox that did not start");
            }
            Err(error)
        }
    }
}

/// Removes the files and groups of a sandbox whose processes have ended.
pub(super) async fn remove_sandbox(
    base: &Path,
    id: &str,
    directory: &Path,
    groups: &[PathBuf],
) -> io::Result<()> {
    cgroup::remove(groups).await?;
    let (base, id, directory) = (base.to_path_buf(), id.to_owned(), directory.to_path_buf());
    supervise::blocking(move || {
        remove::remove_dir(&directory)?;
        OwnerFile::remove(&base, &id)
    })
    .await
}

async fn build(
    context: &SandboxContext,
    id: &str,
    directory: &Path,
    owner_file: OwnerFile,
    request: CreateRequest,
    hold: &Arc<SandboxHold>,
) -> Result<SandboxParts, Failure> {
    let (parts_too, id, to) = (context.clone(), id.to_owned(), directory.to_path_buf());
    let (resources, env) = (request.resources, request.env.clone());
    // If the caller stops waiting, the work still runs to its end, and no reaper may interfere.
    let held = Arc::clone(hold);
    let on_disk = supervise::blocking(move || {
        let made = prepare(&parts_too, &id, &to, owner_file, request);
        drop(held);
        made
    });
    let SandboxFiles { tree, root, groups, recipe, owner_file, workdir } = on_disk.await?;
    let (launcher, control) = start(context, directory, root).await?;
    Ok(SandboxParts {
        tree,
        groups,
        recipe,
        owner_file,
        launcher,
        control,
        resources,
        env,
        workdir,
    })
}

struct SandboxFiles {
    tree: SandboxTree,
    /// Its root, with links resolved: mounts are found by this path.
    root: PathBuf,
    groups: CgroupSet,
    recipe: SandboxRecipe,
    owner_file: OwnerFile,
    workdir: String,
}

fn prepare(
    context: &SandboxContext,
    id: &str,
    directory: &Path,
    owner_file: OwnerFile,
    request: CreateRequest,
) -> Result<SandboxFiles, Failure> {
    let recipe = provider::recipe(&request.source, &context.settings)?;
    let cannot = |error| failure(&format!("make {}", shown(directory)), error);
    owner_file::make_base(&context.config.base).map_err(cannot)?;
    owner_file.write(&context.config.base, id).map_err(cannot)?;
    owner_file::make_base(directory).map_err(cannot)?;
    let tree = SandboxTree::create(directory).map_err(cannot)?;
    context.host.populate(&directory.join(tree::ROOT)).map_err(cannot)?;
    let tree_writer = SandboxTreeWriter { tree: &tree, host: &context.host };
    if let ImageSource::Context { dir, .. } = &request.source {
        tree_writer.apply_recipe(&recipe, dir, context.settings.ignore_dockerfile)?;
    }
    if let Some(path) = &request.workdir {
        tree_writer.make_workdir(path)?;
    }
    let workdir = request.workdir.unwrap_or_else(|| recipe.workdir.clone());
    tree_writer.apply_uploads(request.uploads)?;
    let groups = context.parents.make(id, &request.resources, context.config.pids);
    let groups = groups.map_err(|e| failure("make the control groups", e))?;
    let root = directory.join(tree::ROOT);
    let root = root.canonicalize().unwrap_or(root);
    Ok(SandboxFiles { tree, root, groups, recipe, owner_file, workdir })
}

async fn start(
    context: &SandboxContext,
    directory: &Path,
    root: PathBuf,
) -> Result<(Launcher, SupervisorConnection), Failure> {
    let network = context.network;
    let (ours, theirs) = control::sockets().map_err(|e| failure("open a socket", e))?;
    let helper = &context.config.helper;
    let launcher = Launcher::start(helper, directory, network, theirs)
        .await
        .map_err(|e| failure("start the supervisor of a sandbox", e))?;
    let (control, ready) =
        SupervisorConnection::new(ours).map_err(|e| failure("open a socket", e))?;
    let setup = SandboxSetup {
        root,
        binds: context.host.binds.clone(),
        hostname: HOSTNAME.to_owned(),
        own_network: network == ProcessNetwork::None,
    };
    // Without a supervisor there is no answer either, and that error says more.
    let _sent = control.setup(setup).await;
    let failed = match tokio::time::timeout(STARTUP_TIMEOUT, ready).await {
        Ok(Ok(Ok(()))) => return Ok((launcher, control)),
        Ok(Ok(Err(failed))) => not_made(failed),
        Ok(Err(_)) => Failure::new(
            FailureKind::NotStarted,
            "the supervisor of a sandbox exited before the sandbox was ready",
        ),
        Err(_) => Failure::new(
            FailureKind::NotStarted,
            format!("a sandbox did not start within {STARTUP_TIMEOUT:?}"),
        ),
    };
    control.close();
    // Processes that did not end keep their directory, whose removal then fails and reports it.
    let _ended = launcher.end().await;
    Err(failed)
}
