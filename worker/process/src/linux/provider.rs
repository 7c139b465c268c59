//! The provider of process sandboxes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rollout_base::confined::{ConfinedDir, leads_outside};
use rollout_base::supervise;
use rollout_environment::{
    CreateRequest, DeadOwners, Environment, Failure, FailureKind, Image, ImageRequest, ImageSource,
    Provider, ReapReport,
};
use rollout_protocol::limits;
use rollout_protocol::spec::environment::{ProcessSettings, ProviderKind, ProviderSpec};
use rustix::io::Errno;

use super::cgroup::CgroupParents;
use super::host_view::HostView;
use super::{create, failure, network, owner_file, reap};
use crate::ProcessConfig;
use crate::dockerfile::{self, SandboxRecipe};

/// Limit of unsupported instructions listed in one failure.
const MAX_LISTED_INSTRUCTIONS: usize = 5;

/// Makes sandboxes on this host.
#[derive(Debug)]
pub struct ProcessProvider {
    config: Arc<ProcessConfig>,
    host: Arc<HostView>,
    groups: Arc<CgroupParents>,
}

impl ProcessProvider {
    /// A provider whose sandboxes are below `config.base`.
    pub fn new(config: ProcessConfig) -> Self {
        let (host, groups) = (Arc::new(HostView::detect()), Arc::new(CgroupParents::find()));
        Self { config: Arc::new(config), host, groups }
    }
}

#[async_trait]
impl Provider for ProcessProvider {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Process
    }

    async fn disk(&self) -> Result<Option<PathBuf>, Failure> {
        // The first sandbox creates it.
        let base = self.config.base.clone();
        let find = move || base.ancestors().find(|path| path.is_dir()).map(Path::to_path_buf);
        Ok(supervise::blocking(find).await)
    }

    /// Builds nothing: checks that the source is supported.
    async fn prepare(&self, request: ImageRequest) -> Result<Image, Failure> {
        let settings = settings(&request.settings)?;
        let source = request.source.clone();
        supervise::blocking(move || recipe(&source, &settings)).await?;
        let reference = match &request.source {
            ImageSource::Named(name) => format!("process:{name}"),
            ImageSource::Context { digest, .. } => format!("process:{digest}"),
        };
        Ok(Image::found(reference))
    }

    async fn create(&self, mut request: CreateRequest) -> Result<Box<dyn Environment>, Failure> {
        let settings = settings(&request.settings)?;
        check_request(&request)?;
        if let Some(bundle) = &self.config.ca_bundle {
            bundle.place(&mut request);
        }
        let network = network::effective_network(&settings, &request.network);
        let parts = create::SandboxContext {
            config: Arc::clone(&self.config),
            host: Arc::clone(&self.host),
            parents: Arc::clone(&self.groups),
            settings,
            network,
        };
        Ok(Box::new(create::create(parts, request).await?))
    }

    async fn reap(&self, dead: &dyn DeadOwners) -> Result<ReapReport, Failure> {
        let base = self.config.base.clone();
        let claims = supervise::blocking(move || owner_file::read_all(&base)).await;
        let claims = claims.map_err(|e| failure("list the sandboxes", e))?;
        let groups = |id: &str| self.groups.candidates(id);
        let (doomed, kept) = reap::select_abandoned(&self.config.base, claims, dead, groups);
        let mut reaped = reap::remove(&self.config.base, doomed).await;
        reaped.kept += kept;
        Ok(reaped)
    }
}

fn settings(spec: &ProviderSpec) -> Result<ProcessSettings, Failure> {
    match spec {
        ProviderSpec::Process(settings) => Ok(settings.clone()),
        other => {
            let text = format!("the process provider got the settings of `{}`", other.kind());
            Err(Failure::new(FailureKind::Bug, text))
        }
    }
}

/// Refuses options that no sandbox supports.
fn check_request(request: &CreateRequest) -> Result<(), Failure> {
    let what = if request.compose.is_some() {
        "a process sandbox does not support services"
    } else if request.resources.gpus > 0 {
        "a process sandbox does not support GPUs"
    } else {
        return Ok(());
    };
    let text = format!("{what}; use `environment.type: docker`");
    Err(Failure::new(FailureKind::Unsupported, text))
}

/// The supported part of a source. Unsupported instructions are refused, unless the job allows
/// them.
pub(super) fn recipe(
    source: &ImageSource,
    settings: &ProcessSettings,
) -> Result<SandboxRecipe, Failure> {
    let recipe = match source {
        ImageSource::Named(_) if settings.ignore_dockerfile => SandboxRecipe::empty(),
        ImageSource::Named(name) => {
            let text = format!(
                "the task runs in the image `{name}`, and a process sandbox has no images; use \
                 `environment.type: docker`, or `ignore_dockerfile: true` to run it on the host's \
                 own system"
            );
            return Err(Failure::new(FailureKind::Unsupported, text));
        }
        ImageSource::Context { dir, .. } => read(dir)?,
    };
    if recipe.unsupported.is_empty() || settings.ignore_dockerfile {
        return Ok(recipe);
    }
    let mut text: Vec<_> =
        recipe.unsupported.iter().take(MAX_LISTED_INSTRUCTIONS).map(ToString::to_string).collect();
    if recipe.unsupported.len() > MAX_LISTED_INSTRUCTIONS {
        text.push(format!("and {} more", recipe.unsupported.len() - MAX_LISTED_INSTRUCTIONS));
    }
    Err(Failure::new(FailureKind::Unsupported, text.join("; ")))
}

/// Reads the Dockerfile of a context; without one the recipe is empty.
fn read(context: &Path) -> Result<SandboxRecipe, Failure> {
    let name = dockerfile::DOCKERFILE_NAME;
    let text = ConfinedDir::open(context)
        .and_then(|dir| dir.read_text(Path::new(name), limits::CONFIG_FILE_BYTES));
    match text {
        Ok(text) => Ok(SandboxRecipe::read(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(SandboxRecipe::empty()),
        Err(error) if is_fault_of_task(&error) => {
            let text = format!("cannot read `{name}` of the build context");
            Err(Failure::new(FailureKind::Refused, text).with_source(error))
        }
        Err(error) => Err(failure(&format!("read `{name}` of the build context"), error)),
    }
}

/// Whether a file cannot be read for a reason that lies in it, on every host.
fn is_fault_of_task(error: &io::Error) -> bool {
    let is_loop = error.raw_os_error() == Some(Errno::LOOP.raw_os_error());
    let kinds = [
        io::ErrorKind::FileTooLarge,
        io::ErrorKind::InvalidData,
        io::ErrorKind::InvalidInput,
        io::ErrorKind::IsADirectory,
        io::ErrorKind::NotADirectory,
    ];
    is_loop || leads_outside(error) || kinds.contains(&error.kind())
}
