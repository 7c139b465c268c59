//! Environments with services, described in the Docker Compose format.
//!
//! * `files`, `rules`, `shares`: the files, keys and resources that a compose file may use;
//!   everything else is refused before anything is created. `files` writes what the program reads.
//! * `guard`: the images and builds that a resolved file of a server's user may have.
//! * `host_paths`: directories of the environment that services share; `uploads`: files that are placed.
//! * `service_hosts`: hosts that no proxy leads to.
//! * `program`: the program `docker compose`, which resolves the file and starts the services.
//! * `render`: the file that is started. The program neither builds nor pulls: images are made
//!   present like all others, each once per content.
//! * `project`, `service`: the started containers. They are removed by label, without the program.
//!
//! The service `main` is the environment. The network of the services is decided when they are
//! created: with a network they get their own one with access to the outside, without one they get
//! an internal one that reaches nothing, not even the host. `own_networks`: services that name a
//! network keep it then.

mod files;
mod guard;
mod host_paths;
mod own_networks;
mod program;
pub(super) mod project;
mod render;
mod rules;
mod service;
mod service_hosts;
mod shares;
mod uploads;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rollout_base::shown_path::{ShownPath, shown};
use rollout_base::supervise::{self, BlockingDrop};
use rollout_environment::compose::{self, HostPath, MAIN};
use rollout_environment::image_access::ImageAccess;
use rollout_environment::service_hosts::ServiceHosts;
use rollout_environment::start::HEALTHY_WITHIN;
use rollout_environment::{
    BuildProxies, CaBundle, ComposeFile, CreateRequest, Failure, FailureKind, ImageRequest,
    ImageSource, OwnHealthcheck, Upload, with_words,
};
use rollout_protocol::spec::environment::{DockerNetwork, DockerSettings, ProviderSpec};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;

pub(crate) use self::files::check;
use self::files::{ComposeFiles, json_text};
use self::program::ComposeProgram;
pub use self::program::find_compose;
use self::project::ProjectContainer;
use self::render::{PlacedContent, PlacedFile, RenderContext, ServiceImage, ServiceRequirements};
pub(super) use self::service::ComposeService;

use super::build::{self, BuildSpec};
use super::client::DockerClient;
use super::container::Container;
use super::create::{self, KEEP_ALIVE, RunningState, StartedContainer};
use super::deferred_removal::{DeferredRemoval, DeferredRemovals};
use super::failure;
use super::image::ImageManager;
use super::labels;
use super::network::{self, ContainerNetwork};
use super::storage::StorageLimit;

/// Timeout for resolving a file and for making the images of all services present.
const RESOLVED_WITHIN: Duration = Duration::from_secs(60);
const IMAGES_WITHIN: Duration = Duration::from_secs(480);

/// Timeout for creating all containers.
const CREATED_WITHIN: Duration = Duration::from_secs(120);

/// Bytes of the program's messages that a failure quotes.
const MESSAGE_BYTES: usize = 4 * 1024;

/// `DOCKER_CONFIG` of the program while it resolves a file: not the user's, because the file can
/// refer to it.
const NO_SETTINGS: &str = "/nonexistent";

/// Name of the program's project directory, which has only [`ComposeFiles`].
const PROJECT: &str = "project";

/// Starts environments with services.
#[derive(Debug)]
pub(super) struct ComposeRunner {
    client: Arc<DockerClient>,
    images: Arc<ImageManager>,
    program_path: Option<PathBuf>,
    program: OnceCell<ComposeProgram>,
}

/// The services of an environment, by name; of several containers of one service, the first.
pub(super) type ComposeServiceMap = BTreeMap<String, ComposeService>;

/// The project that an environment belongs to.
#[derive(Debug)]
pub(super) struct ComposeProject {
    pub(super) name: String,
    pub(super) services: ComposeServiceMap,
}

/// State of one creation.
struct ComposeCreation<'a> {
    compose: &'a ComposeRunner,
    program: &'a ComposeProgram,
    settings: &'a DockerSettings,
    request: &'a CreateRequest,
    file: &'a ComposeFile,
    /// It, the files of the job, and those that they extend.
    files: Arc<ComposeFiles>,
    /// The build context, with links resolved.
    root: PathBuf,
    name: String,
    scratch: BlockingDrop<TempDir>,
    open: bool,
    /// Services that keep the networks they name when it is not open.
    named: BTreeSet<String>,
}

fn refused(file: &ComposeFile, why: impl std::fmt::Display) -> Failure {
    Failure::new(FailureKind::Refused, format!("{}: {why}", file.name()))
}

/// The file asks for something that environments with services do not support.
fn unsupported(file: &ComposeFile, why: impl std::fmt::Display) -> Failure {
    Failure { kind: FailureKind::Unsupported, ..refused(file, why) }
}

fn no_scratch(error: io::Error) -> Failure {
    Failure::local(FailureKind::Bug, "a directory for the files of services", error)
}

impl ComposeRunner {
    pub(super) fn new(
        client: Arc<DockerClient>,
        images: Arc<ImageManager>,
        named: Option<PathBuf>,
    ) -> Self {
        let program_path = named.or_else(|| std::env::var_os(program::VARIABLE).map(PathBuf::from));
        Self { client, images, program_path, program: OnceCell::new() }
    }

    /// Creates an environment with its services. On failure nothing is left.
    pub(super) async fn create(
        &self,
        leftovers: &DeferredRemovals,
        settings: &DockerSettings,
        request: CreateRequest,
        file: &ComposeFile,
    ) -> Result<StartedContainer, Failure> {
        let creation = self.creation(settings, &request, file).await?;
        let model = creation.resolve().await?;
        let needs = creation.needs(&model)?;
        let images = creation.images(&needs).await?;
        // An earlier attempt of this execution may have been cancelled halfway.
        project::remove(&self.client, &creation.name).await?;
        match creation.bring_up(model, &needs, &images).await {
            Ok(up) => Ok(up),
            Err(failure) => {
                leftovers.remove_or_defer(DeferredRemoval::Project(creation.name)).await;
                Err(failure)
            }
        }
    }

    /// Makes the images of all services present. May be interrupted.
    pub(super) async fn prepare_images(
        &self,
        settings: &DockerSettings,
        request: &CreateRequest,
        file: &ComposeFile,
    ) -> Result<(), Failure> {
        let creation = self.creation(settings, request, file).await?;
        let needs = creation.needs(&creation.resolve().await?)?;
        creation.images(&needs).await.map(drop)
    }

    /// Begins a creation: checks the file, and finds the program.
    async fn creation<'a>(
        &'a self,
        settings: &'a DockerSettings,
        request: &'a CreateRequest,
        file: &'a ComposeFile,
    ) -> Result<ComposeCreation<'a>, Failure> {
        let open = network::is_open_with_services(&request.network)?;
        let checked = file.clone();
        let read = move || {
            let scratch = BlockingDrop::new(tempfile::tempdir().map_err(no_scratch)?);
            let files = ComposeFiles::read(&checked, &scratch.path().join(PROJECT))?;
            let root = checked.dir.canonicalize().map_err(|error| refused(&checked, error))?;
            Ok::<_, Failure>((scratch, Arc::new(files), root))
        };
        let (scratch, files, root) = supervise::blocking(read).await?;
        let program = self
            .program
            .get_or_try_init(|| ComposeProgram::find(self.program_path.as_deref()))
            .await?;
        let is_denied = settings.network == DockerNetwork::None;
        let is_partly_open = !open && !is_denied;
        let named = if is_partly_open { own_networks::services(&files) } else { BTreeSet::new() };
        Ok(ComposeCreation {
            compose: self,
            program,
            settings,
            request,
            file,
            files,
            root,
            name: create::name(&request.labels, request.purpose).to_lowercase(),
            scratch,
            open: open && !is_denied,
            named,
        })
    }
}

impl ComposeCreation<'_> {
    /// Whether the environment's own image was prepared. Otherwise the compose file names it.
    fn is_prepared(&self) -> bool {
        !self.request.image.reference.starts_with(compose::SERVICES_REFERENCE_PREFIX)
    }

    /// The name of the environment's own image.
    fn own_image(&self) -> &str {
        if self.is_prepared() { &self.request.image.reference } else { "rollout/main" }
    }

    /// The base file that the task's own file is merged onto.
    fn base(&self) -> Value {
        let mut main = json!({
            "command": ["/bin/sh", "-c", KEEP_ALIVE.replace('$', "$$")],
        });
        if self.is_prepared() {
            match &self.request.source {
                ImageSource::Named(_) => main["image"] = json!("${PREBUILT_IMAGE_NAME}"),
                ImageSource::Context { .. } => {
                    main["build"] = json!({"context": format!("${{{}}}", compose::CONTEXT)});
                    main["image"] = json!("${MAIN_IMAGE_NAME}");
                }
            }
        }
        json!({"services": {MAIN: main}})
    }

    /// The variables that a file can refer to.
    fn variables(&self) -> BTreeMap<String, String> {
        let (request, image) = (self.request, self.own_image());
        let mut variables = request.env.clone();
        let mut set = |name: &str, value: String| variables.insert(name.to_owned(), value);
        set(compose::CONTEXT, self.root.display().to_string());
        set("MAIN_IMAGE_NAME", image.to_owned());
        set("PREBUILT_IMAGE_NAME", image.to_owned());
        set("CPUS", request.resources.cpus.to_string());
        set("MEMORY", format!("{}M", request.resources.memory_mb));
        for (name, path) in HostPath::variables() {
            set(&name, path.to_owned());
        }
        // The task must not direct the program to another engine, for example.
        variables.retain(|name, _| !program::reads(name));
        variables.insert("DOCKER_CONFIG".to_owned(), NO_SETTINGS.to_owned());
        // Set, so that no file sets it, and empty, so that a compose file has its own default.
        variables.insert("DOCKER_HOST".to_owned(), String::new());
        variables
    }

    fn scratch(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    async fn write(&self, name: &str, value: &Value) -> Result<PathBuf, Failure> {
        let path = self.scratch(name);
        tokio::fs::write(&path, json_text(value)).await.map_err(no_scratch)?;
        Ok(path)
    }

    async fn run(
        &self,
        files: &[(&str, &Path)],
        words: &[&str],
        variables: &BTreeMap<String, String>,
        limit: Duration,
    ) -> Result<program::ProgramOutput, Failure> {
        let mut all: Vec<OsString> = vec!["--project-name".into(), self.name.clone().into()];
        all.extend(["--project-directory".into(), self.scratch(PROJECT).into()]);
        for (option, file) in files {
            all.extend([option.into(), file.into()]);
        }
        all.extend(words.iter().map(OsString::from));
        self.program.run(&all, variables, limit).await
    }

    /// The program's messages, with names of the task's files and without the directories of this host that
    /// it was given.
    fn said(&self, ended: &program::ProgramOutput) -> String {
        let (project, scratch) = (self.scratch(PROJECT), self.scratch.path());
        let known = [(self.root.as_path(), "."), (project.as_path(), "."), (scratch, "<scratch>")];
        let message = self.files.restore_names(ended.messages.trim());
        known
            .iter()
            .fold(message, |text, (path, word)| text.replace(&*path.to_string_lossy(), word))
    }

    /// A path in the task's directory, for texts.
    fn below<'p>(&self, path: &'p Path) -> ShownPath<'p> {
        shown(path.strip_prefix(&self.root).unwrap_or(path))
    }

    /// Resolves the task's file: replaced, merged and checked.
    async fn resolve(&self) -> Result<Value, Failure> {
        let base = self.write("base.json", &self.base()).await?;
        let files = Arc::clone(&self.files);
        let written = supervise::blocking(move || files.write()).await.map_err(no_scratch)?;
        let mut files = vec![("--file", base.as_path())];
        files.extend(written.tops.iter().map(|file| ("--file", file.as_path())));
        files.extend(written.variables.as_deref().map(|file| ("--env-file", file)));
        let words = ["config", "--format", "json"];
        let ended = self.run(&files, &words, &self.variables(), RESOLVED_WITHIN).await?;
        if !ended.success {
            // The reason comes first, and may be followed by the state of the program.
            let said = self.said(&ended);
            return Err(refused(self.file, &said[..said.floor_char_boundary(MESSAGE_BYTES)]));
        }
        for line in ended.messages.lines().filter(|line| line.contains("variable is not set")) {
            tracing::warn!(environment = self.name, "{}", line.trim());
        }
        let mut model: Value = serde_json::from_slice(&ended.output).map_err(|error| {
            refused(self.file, format!("cannot read the output of docker compose: {error}"))
        })?;
        self.files.restore(&mut model, &self.root);
        let root = self.root.clone();
        let check = move || rules::check(&model, &root).map(|()| model);
        let checked = supervise::blocking(check).await;
        let mut model = checked.map_err(|why| unsupported(self.file, why))?;
        if self.settings.guards_builds {
            rules::check_addresses(&model).map_err(|why| unsupported(self.file, why))?;
            let (access, own) = (ImageAccess::of_docker(self.settings), self.own_image());
            let checked = guard::check(model, access, own.to_owned(), self.root.clone()).await;
            model = checked.map_err(|why| Failure { kind: why.kind, ..refused(self.file, why) })?;
        }
        Ok(model)
    }

    fn needs(&self, model: &Value) -> Result<BTreeMap<String, ServiceRequirements>, Failure> {
        let image = self.request.image.reference.as_str();
        let root = self.root.to_str();
        let from = root.filter(|_| matches!(self.request.source, ImageSource::Context { .. }));
        let prepared = self.is_prepared().then_some((image, from));
        render::needs(model, prepared).map_err(|why| refused(self.file, why))
    }

    /// Makes every image present; returns their names by service.
    async fn images(
        &self,
        needs: &BTreeMap<String, ServiceRequirements>,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let mut images = BTreeMap::new();
        for (service, need) in needs {
            let image = self.image(&need.image).await.map_err(|mut failure| {
                failure.message = format!("the image of service `{service}`: {}", failure.message);
                failure
            })?;
            images.insert(service.clone(), image);
        }
        Ok(images)
    }

    async fn image(&self, need: &ServiceImage) -> Result<String, Failure> {
        let platform = self.settings.platform.clone();
        let request = |source| ImageRequest {
            source,
            force_build: false,
            timeout: IMAGES_WITHIN,
            log: None,
            proxies: BuildProxies::of(&self.request.env),
            settings: ProviderSpec::Docker(self.settings.clone()),
            labels: self.request.labels.clone(),
        };
        match need {
            ServiceImage::Prepared => Ok(self.request.image.reference.clone()),
            ServiceImage::Named(name) => {
                let request = request(ImageSource::Named(name.clone()));
                Ok(self.compose.images.prepare(request, platform).await?.reference)
            }
            ServiceImage::Built { context, dockerfile, args, target } => {
                let (dir, always) = (context.clone(), dockerfile.clone());
                let digest = supervise::blocking(move || build::digest(&dir, &always));
                let digest = digest.await.map_err(|error| {
                    let text = format!("cannot read the build context {}", self.below(context));
                    Failure::new(FailureKind::Refused, text).with_source(error)
                })?;
                let build = BuildSpec {
                    dockerfile: dockerfile.clone(),
                    args: args.clone(),
                    target: target.clone(),
                    ..BuildSpec::plain(context.clone(), digest, platform)
                };
                let source = ImageSource::Context { digest, dir: context.clone() };
                let made = self.compose.images.prepare_build(build, &request(source)).await?;
                Ok(made.reference)
            }
        }
    }

    async fn bring_up(
        &self,
        model: Value,
        needs: &BTreeMap<String, ServiceRequirements>,
        images: &BTreeMap<String, String>,
    ) -> Result<StartedContainer, Failure> {
        let mut labels = labels::for_container(&self.request.labels);
        labels.insert(labels::PROJECT.to_owned(), self.name.clone());
        let named = own_networks::apart(&model, &self.named);
        let hosts = service_hosts::of(&model);
        let last = RenderContext {
            name: &self.name,
            labels,
            request: self.request,
            settings: self.settings,
            open: self.open,
            named: &named,
            hosts: &hosts,
            images,
            shares: shares::for_services(&model, &self.request.resources)
                .map_err(|why| unsupported(self.file, why))?,
            has_ca_bundle: self.compose.images.ca_bundle().is_some(),
        };
        let used = host_paths::used(&model);
        let file = self.write("project.json", &last.render(model)).await?;
        let words = ["create", "--no-build", "--pull", "never"];
        if let Err(failure) = self.run_step(&file, &words, CREATED_WITHIN).await {
            project::remove_late(&self.compose.client, &self.name).await;
            return Err(failure);
        }
        let members = project::members(&self.compose.client, &self.name).await?;
        for member in &members {
            let own = if member.service == MAIN { used.as_slice() } else { &[] };
            self.place_files(member, needs.get(&member.service), own).await?;
        }
        let (limit, began) = (HEALTHY_WITHIN.as_secs().to_string(), Instant::now());
        let words = ["up", "--detach", "--wait", "--wait-timeout", &limit, "--no-recreate"];
        let words = [words.as_slice(), &["--no-build", "--pull", "never"]].concat();
        if let Err(mut failure) =
            self.run_step(&file, &words, HEALTHY_WITHIN + RESOLVED_WITHIN).await
        {
            failure.message.push_str(&self.failed_container_output(&members).await);
            return Err(failure);
        }
        self.collect_containers(members, &hosts, began.elapsed()).await
    }

    async fn run_step(&self, file: &Path, words: &[&str], limit: Duration) -> Result<(), Failure> {
        // The program must not read the user's settings.
        let variables = [
            ("DOCKER_HOST", self.compose.client.host().to_owned()),
            ("DOCKER_CONFIG", self.scratch.path().display().to_string()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value)).into();
        let ended = self.run(&[("--file", file)], words, &variables, limit).await?;
        if ended.success {
            return Ok(());
        }
        let said = self.said(&ended);
        let from = said.ceil_char_boundary(said.len().saturating_sub(MESSAGE_BYTES));
        let end = &said[from..];
        let text = format!("docker compose {} failed for {}", words[0], self.name);
        Err(Failure::new(failure::kind_for_services(&said), with_words(text, end)))
    }

    /// The output of the containers that are not running or are unhealthy.
    async fn failed_container_output(&self, members: &[ProjectContainer]) -> String {
        let mut text = String::new();
        for member in members {
            let container = self.container(member);
            let Ok(found) = container.inspect().await else { continue };
            let state = found.state.unwrap_or_default();
            let healthy = state
                .health
                .and_then(|health| health.status)
                .is_none_or(|status| status != bollard::models::HealthStatusEnum::UNHEALTHY);
            if state.running == Some(true) && healthy {
                continue;
            }
            let said = container.output().await;
            if !said.is_empty() {
                text.push_str(&format!("\nservice `{}` printed:\n{said}", member.service));
            }
        }
        text
    }

    fn container(&self, member: &ProjectContainer) -> Container {
        member.container(&self.compose.client, ContainerNetwork::shared(self.settings, self.open))
    }

    /// Places files into a container that has not started yet.
    async fn place_files(
        &self,
        member: &ProjectContainer,
        needs: Option<&ServiceRequirements>,
        used: &[&HostPath],
    ) -> Result<(), Failure> {
        // A new volume belongs to root only.
        let open = |path: &&HostPath| Upload::Dir { path: path.inside.to_owned() };
        let bundle = self.compose.images.ca_bundle();
        let bundle = bundle.filter(|_| needs.is_some_and(|needs| needs.takes_files));
        let mut uploads: Vec<_> = bundle.map(CaBundle::upload).into_iter().collect();
        uploads.extend(used.iter().map(open));
        for placed in needs.map(|needs| needs.files.as_slice()).unwrap_or_default() {
            let number = uploads.len();
            uploads.push(self.upload(placed, number, member).await?);
        }
        if member.service == MAIN {
            uploads.extend(self.request.uploads.iter().cloned());
        }
        if uploads.is_empty() { Ok(()) } else { self.container(member).copy_to(uploads).await }
    }

    async fn upload(
        &self,
        placed: &PlacedFile,
        number: usize,
        member: &ProjectContainer,
    ) -> Result<Upload, Failure> {
        let target = placed.target.clone();
        let from = match &placed.content {
            PlacedContent::Text(text) => {
                let bytes = Bytes::copy_from_slice(text.as_bytes());
                return Ok(Upload::File { path: target, bytes, executable: false });
            }
            PlacedContent::Path(path) => path.clone(),
        };
        let tar = self.scratch(&format!("{}-{number}.tar", member.id));
        let shown = self.below(&from).to_string();
        let upload = supervise::blocking(move || uploads::of_path(&from, target, tar)).await;
        upload.map_err(|error| {
            Failure::new(FailureKind::Refused, format!("cannot place {shown}")).with_source(error)
        })
    }

    /// The environment and its services, which are up after this time.
    async fn collect_containers(
        &self,
        members: Vec<ProjectContainer>,
        hosts: &ServiceHosts,
        waited: Duration,
    ) -> Result<StartedContainer, Failure> {
        let (mut main, mut services) = (None, ComposeServiceMap::new());
        let mut beside = Vec::new();
        for member in members {
            let mut container = self.container(&member);
            container.service_hosts = hosts.clone();
            if member.service == MAIN {
                main.get_or_insert(container);
                continue;
            }
            beside.push(member.id);
            if let Entry::Vacant(entry) = services.entry(member.service) {
                let config = container.inspect().await?.config.unwrap_or_default();
                container.own_lists = create::own_lists(config.env.as_deref());
                let workdir = create::workdir(config.working_dir);
                entry.insert(ComposeService { container, workdir });
            }
        }
        let Some(mut container) = main else {
            let text = format!("{} has no container of the service `{MAIN}`", self.name);
            return Err(Failure::new(FailureKind::NotStarted, text));
        };
        let limits = create::enforced_limits(&[], &self.request.resources, false);
        let RunningState { workdir, limits, has_own_programs, is_healthy, own_lists, .. } =
            create::check_running(&container, limits).await?;
        container.own_lists = own_lists;
        let own_healthcheck = is_healthy.then_some(OwnHealthcheck::Awaited(waited));
        let storage = StorageLimit::for_container(&container, beside, limits).await;
        let project = ComposeProject { name: self.name.clone(), services };
        Ok(StartedContainer {
            container,
            workdir,
            has_own_programs,
            own_healthcheck,
            limits,
            storage,
            project: Some(project),
        })
    }
}
