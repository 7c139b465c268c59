//! Makes one sandbox, or leaves nothing of it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::spec::environment::{ProcessNetwork, ProcessSettings};

use super::cgroup::{self, Groups, Parents};
use super::claim::{self, Claim, Hold, Writer};
use super::control::{self, Control};
use super::guardian::Guardian;
use super::host::{HOSTNAME, Host};
use super::message::Setup;
use super::place::Place;
use super::sandbox::{Made, Sandbox};
use super::tree::{self, Tree};
use super::{failure, not_made, provider, remove};
use crate::environment::process::ProcessConfig;
use crate::environment::process::dockerfile::Recipe;
use crate::environment::{CreateRequest, Failure, FailureKind, ImageSource};
use crate::supervise;

/// How long a supervisor may take to build its root. A few milliseconds are usual; the rest is for
/// a machine that does a thousand things at once.
const COMING_UP: Duration = Duration::from_secs(60);

/// What all sandboxes of a provider share.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    pub(super) config: Arc<ProcessConfig>,
    pub(super) host: Arc<Host>,
    pub(super) parents: Arc<Parents>,
    pub(super) settings: ProcessSettings,
    /// What the sandbox reaches, for as long as it lives.
    pub(super) network: ProcessNetwork,
}

/// Makes and starts a sandbox.
pub(super) async fn create(parts: Parts, request: CreateRequest) -> Result<Sandbox, Failure> {
    let random: u32 = rand::random();
    let id = format!("sandbox-{}-{random:08x}", request.labels.exec.short());
    let directory = parts.config.base.join(&id);
    let hold = Arc::new(Hold::new(&directory));
    let claim = Claim {
        labels: request.labels.clone(),
        groups: parts.parents.candidates(&id),
        preserved: false,
        writer: Writer::current(),
    };
    let made = build(&parts, &id, &directory, claim.clone(), request, &hold).await;
    match made {
        Ok(made) => Ok(Sandbox::new(id, hold, parts, made)),
        Err(error) => {
            let cleaned = clean(&parts.config.base, &id, &directory, &claim).await;
            if let Err(left) = cleaned {
                tracing::warn!(error = %left, "a sandbox that did not come up left something");
            }
            Err(error)
        }
    }
}

/// Removes all that is left of a sandbox whose processes are gone.
pub(super) async fn clean(
    base: &Path,
    id: &str,
    directory: &Path,
    claim: &Claim,
) -> io::Result<()> {
    cgroup::remove(&claim.groups).await?;
    let (base, id, directory) = (base.to_path_buf(), id.to_owned(), directory.to_path_buf());
    supervise::blocking(move || {
        remove::remove_dir(&directory)?;
        Claim::remove(&base, &id)
    })
    .await
}

async fn build(
    parts: &Parts,
    id: &str,
    directory: &Path,
    claim: Claim,
    request: CreateRequest,
    hold: &Arc<Hold>,
) -> Result<Made, Failure> {
    let (parts_too, id, to) = (parts.clone(), id.to_owned(), directory.to_path_buf());
    let (resources, env) = (request.resources, request.env.clone());
    // When nobody waits any more the work still goes on to its end, and a reaper must not come before.
    let held = Arc::clone(hold);
    let on_disk = supervise::blocking(move || {
        let made = prepare(&parts_too, &id, &to, claim, request);
        drop(held);
        made
    });
    let OnDisk { tree, groups, recipe, claim, workdir } = on_disk.await?;
    let (guardian, control) = start(parts, directory).await?;
    Ok(Made { tree, groups, recipe, claim, guardian, control, resources, env, workdir })
}

struct OnDisk {
    tree: Tree,
    groups: Groups,
    recipe: Recipe,
    claim: Claim,
    workdir: String,
}

fn prepare(
    parts: &Parts,
    id: &str,
    directory: &Path,
    claim: Claim,
    request: CreateRequest,
) -> Result<OnDisk, Failure> {
    let recipe = provider::recipe(&request.source, &parts.settings)?;
    let cannot = |error| failure(&format!("make {}", directory.display()), error);
    claim::make_base(&parts.config.base).map_err(cannot)?;
    claim.write(&parts.config.base, id).map_err(cannot)?;
    claim::make_base(directory).map_err(cannot)?;
    let tree = Tree::create(directory).map_err(cannot)?;
    parts.host.furnish(&directory.join(tree::ROOT)).map_err(cannot)?;
    let place = Place { tree: &tree, host: &parts.host };
    if let ImageSource::Context { dir, .. } = &request.source {
        place.recipe(&recipe, dir, parts.settings.ignore_dockerfile)?;
    }
    if let Some(path) = &request.workdir {
        place.workdir(path)?;
    }
    let workdir = request.workdir.unwrap_or_else(|| recipe.workdir.clone());
    place.uploads(request.uploads)?;
    let groups = parts.parents.make(id, &request.resources, parts.config.pids);
    let groups = groups.map_err(|e| failure("make the control groups", e))?;
    Ok(OnDisk { tree, groups, recipe, claim, workdir })
}

async fn start(parts: &Parts, directory: &Path) -> Result<(Guardian, Control), Failure> {
    let network = parts.network;
    let (ours, theirs) = control::sockets().map_err(|e| failure("open a socket", e))?;
    let helper = &parts.config.helper;
    let guardian = Guardian::start(helper, directory, network, theirs)
        .map_err(|e| failure("start the supervisor of a sandbox", e))?;
    let (control, ready) = Control::new(ours).map_err(|e| failure("open a socket", e))?;
    let setup = Setup {
        root: root(directory),
        binds: parts.host.binds.clone(),
        hostname: HOSTNAME.to_owned(),
        own_network: network == ProcessNetwork::None,
    };
    // Without a supervisor there is no answer either, which says more.
    let _sent = control.setup(setup).await;
    let failed = match tokio::time::timeout(COMING_UP, ready).await {
        Ok(Ok(Ok(()))) => return Ok((guardian, control)),
        Ok(Ok(Err(failed))) => not_made(failed),
        Ok(Err(_)) => Failure::new(
            FailureKind::NotStarted,
            "the supervisor of a sandbox ended before the sandbox was there",
        ),
        Err(_) => Failure::new(
            FailureKind::NotStarted,
            format!("a sandbox did not come up within {COMING_UP:?}"),
        ),
    };
    control.close();
    // What did not end stays in its directory, which cannot be removed then and says so.
    let _ended = guardian.end().await;
    Err(failed)
}

/// The root of the sandbox in `directory`, without links on the way: mounts are found by it.
fn root(directory: &Path) -> PathBuf {
    let root = directory.join(tree::ROOT);
    root.canonicalize().unwrap_or(root)
}
