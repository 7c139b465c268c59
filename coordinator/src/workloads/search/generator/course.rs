//! One execution of the command, from its environment to its ideas.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use rollout_protocol::spec::task::TaskEnvironment;
use rollout_protocol::spec::timeout::seconds;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::environment::{
    Command, CreateRequest, Environment, Image, ImageRequest, ImageSource, Provider, Purpose,
    Upload,
};
use rollout_worker::executor::{
    self, Capture, End, ManagedEnvironment as Place, Normal, NotCreated as NotThere, Ran, cost,
};
use rollout_worker::fs_remove;
use rollout_worker::supervise::panic_message;
use tokio::sync::watch;

use super::variables::{self, REPOSITORY, SCRIPT, Variables};
use super::{Generator, IdeasFault, harvest, uploads};
use crate::workloads::search::driver::IdeasOrder;

/// One execution under way.
pub(super) struct Course<'a> {
    generator: &'a Generator,
    order: &'a IdeasOrder,
    stop: watch::Receiver<Option<StopLevel>>,
    /// A directory of this execution alone.
    work: PathBuf,
    variables: Variables,
    place: Place,
    capture: Option<Arc<Capture>>,
}

impl<'a> Course<'a> {
    pub(super) fn new(
        generator: &'a Generator,
        order: &'a IdeasOrder,
        stop: watch::Receiver<Option<StopLevel>>,
        work: PathBuf,
    ) -> Self {
        let (variables, place) = (Variables::default(), Place::default());
        Self { generator, order, stop, work, variables, place, capture: None }
    }

    pub(super) fn work(&self) -> &Path {
        &self.work
    }

    /// Goes through all steps, until a kill comes.
    pub(super) async fn guarded(&mut self) -> Result<f64, IdeasFault> {
        let stop = self.stop.clone();
        let ended = tokio::select! {
            biased;
            () = executor::killed(stop) => return Err(IdeasFault::Stopped),
            ended = AssertUnwindSafe(self.steps()).catch_unwind() => ended,
        };
        ended.unwrap_or_else(|panic| Err(self.defect(&panic_message(panic.as_ref()))))
    }

    /// Removes the environment, whatever happened.
    pub(super) async fn tear_down(&mut self) {
        if let Some(capture) = &self.capture
            && let Err(error) = capture.finish()
        {
            tracing::warn!(%error, "what the command for ideas printed is not whole");
        }
        let removed = self.place.remove().await;
        if let Some(failure) = removed.failure {
            let said = self.variables.redactor.text(&failure.chain());
            let node = self.order.node.node_id;
            tracing::warn!("the environment of the ideas of node {node} is left behind: {said}");
        }
    }

    async fn steps(&mut self) -> Result<f64, IdeasFault> {
        self.go_on()?;
        let (tree, order) = (&self.generator.tree, self.order);
        let templates = tree.commands.ideas.env.iter();
        let templates = templates.map(|(name, v)| (name.clone(), v.template.clone())).collect();
        let (known, paths) = (&self.generator.services.variables, uploads::context_paths(order));
        let expanded = variables::expand(known, &templates, &tree.name, order, &paths);
        self.variables = expanded.map_err(IdeasFault::Unset)?;
        let kind = tree.commands.ideas.place.provider.kind();
        let provider = self.generator.services.providers.get(&kind).cloned();
        let provider = provider.ok_or(IdeasFault::NoProvider(kind))?;
        self.make_room().await?;
        let uploads = uploads::all(self.generator, order, &self.work).await?;
        let source = uploads::source(self.generator, &self.work).await?;
        self.create(provider, source, uploads).await?;
        self.go_on()?;
        let ran = self.command().await;
        let cost = self.cost(&ran).await;
        let ended = self.ended(ran).await;
        self.logs().await;
        ended?;
        self.ideas().await?;
        Ok(cost)
    }

    /// Stops here when there shall be no more steps.
    fn go_on(&self) -> Result<(), IdeasFault> {
        if self.stop.borrow().is_some() { Err(IdeasFault::Stopped) } else { Ok(()) }
    }

    /// Begins with an empty directory for archives, and one for logs.
    async fn make_room(&self) -> Result<(), IdeasFault> {
        for dir in [&self.work, &self.logs_dir()] {
            fs_remove::remove(dir).await.map_err(IdeasFault::disk("remove", dir))?;
            let made = tokio::fs::create_dir_all(dir).await;
            made.map_err(IdeasFault::disk("create", dir))?;
        }
        Ok(())
    }

    async fn create(
        &mut self,
        provider: Arc<dyn Provider>,
        source: ImageSource,
        uploads: Vec<Upload>,
    ) -> Result<(), IdeasFault> {
        let environment = TaskEnvironment::default();
        let place = &self.generator.tree.commands.ideas.place;
        let (settings, resources) = (place.provider.clone(), place.resources);
        let labels = self.generator.labels(self.order.node.node_id);
        let asked = ImageRequest {
            source: source.clone(),
            force_build: false,
            timeout: seconds(environment.build_sec),
            log: Some(self.logs_dir().join("build.log")),
            settings: settings.clone(),
            labels: labels.clone(),
        };
        let prepared = executor::prepare_image(provider.as_ref(), asked).await;
        let redactor = &self.variables.redactor;
        let failed = |failure| IdeasFault::environment("preparing its image", &failure, redactor);
        let image: Image = prepared.map_err(failed)?;
        let request = CreateRequest {
            image,
            source,
            resources,
            env: BTreeMap::new(),
            workdir: None,
            network: environment.network,
            compose: None,
            uploads,
            settings,
            labels,
            purpose: Purpose::Agent,
        };
        self.place.create(provider, request).await.map_err(|why| match why {
            NotThere::Failed(failure) => {
                IdeasFault::environment("making its environment", &failure, redactor)
            }
            NotThere::Panicked(message) => self.defect(&message),
        })
    }

    async fn command(&mut self) -> Ran {
        let (dir, redactor) = (self.logs_dir(), &self.variables.redactor);
        let files = (dir.join("stdout.txt"), dir.join("stderr.txt"));
        let capture = Arc::new(Capture::new(files.0, files.1, redactor));
        self.capture = Some(Arc::clone(&capture));
        let command = Command {
            argv: vec!["bash".to_owned(), SCRIPT.to_owned()],
            env: self.variables.env.clone(),
            workdir: Some(REPOSITORY.to_owned()),
            user: None,
        };
        executor::run(self.up(), command, self.limit(), capture, Normal::Zero).await
    }

    fn limit(&self) -> Duration {
        seconds(self.generator.tree.commands.ideas.timeout_sec)
    }

    /// What the command reports that it cost.
    async fn cost(&self, ran: &Ran) -> f64 {
        if ran.left.is_some() || matches!(ran.end, End::Failed(_)) {
            return 0.0;
        }
        let node = self.order.node.node_id;
        match cost::reported(self.up()).await {
            Ok(cost) => cost.unwrap_or(0.0),
            Err(why) => {
                let why = self.variables.redactor.text(&why);
                tracing::warn!("what the ideas of node {node} cost is not known: {why}");
                0.0
            }
        }
    }

    /// Whether it ended well; nothing of it runs any more then.
    async fn ended(&self, ran: Ran) -> Result<(), IdeasFault> {
        let redactor = &self.variables.redactor;
        let left = match ran.end {
            End::Exited(exit) if exit.code == 0 => executor::kill(self.up()).await,
            End::Exited(exit) => {
                let oom_killed = exit.code == 137 && self.up().oom_killed().await;
                let last_words = self.last_words();
                return Err(IdeasFault::Exit { code: exit.code, oom_killed, last_words });
            }
            End::TimedOut => {
                let (limit, last_words) = (self.limit(), self.last_words());
                return Err(IdeasFault::TimedOut { limit, last_words });
            }
            End::Failed(failure) => {
                return Err(IdeasFault::environment("running it", &failure, redactor));
            }
        };
        match left.or(ran.left) {
            Some(left) => {
                Err(IdeasFault::environment("ending what it left running", &left, redactor))
            }
            None => Ok(()),
        }
    }

    async fn logs(&self) {
        let redactor = &self.variables.redactor;
        let kept = harvest::logs(self.up(), &self.work, &self.logs_dir(), redactor).await;
        if let Err(why) = kept {
            let (why, node) = (redactor.text(&why), self.order.node.node_id);
            tracing::warn!("the logs of the ideas of node {node} are not kept: {why}");
        }
    }

    async fn ideas(&self) -> Result<(), IdeasFault> {
        let (into, redactor) = (&self.order.into, &self.variables.redactor);
        let taken = harvest::ideas(self.up(), &self.work, into, redactor).await?;
        if !taken.left_out.is_empty() {
            let (path, text) = (self.logs_dir().join("left_out.txt"), taken.left_out.join("\n"));
            let written = tokio::fs::write(&path, text + "\n").await;
            written.map_err(IdeasFault::disk("write", &path))?;
            let (count, node) = (taken.left_out.len(), self.order.node.node_id);
            tracing::warn!("{count} things among the ideas of node {node} are left out");
        }
        match taken.ideas {
            0 => Err(IdeasFault::Nothing {
                left_out: taken.left_out.len(),
                last_words: self.last_words(),
            }),
            _ => Ok(()),
        }
    }

    fn up(&self) -> &dyn Environment {
        self.place.up().expect("it was created")
    }

    fn logs_dir(&self) -> PathBuf {
        self.generator.logs(self.order.node.node_id)
    }

    fn last_words(&self) -> String {
        self.capture.as_deref().map(executor::last_words).unwrap_or_default()
    }

    fn defect(&self, message: &str) -> IdeasFault {
        IdeasFault::Defect(self.variables.redactor.text(message))
    }
}
