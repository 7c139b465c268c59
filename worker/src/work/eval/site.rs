//! The environments of an eval: the one that its commands share, and the one that a sweep may have
//! for itself. There is never more than one of them.

use std::sync::Arc;

use rollout_protocol::error::TrialError;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::EnvironmentRecord;
use rollout_protocol::spec::environment::{EnvironmentSpec, ProviderKind};
use rollout_protocol::spec::eval::EvalSpec;
use rollout_protocol::spec::task::TaskEnvironment;
use rollout_protocol::spec::timeout::seconds;
use tokio::time::Instant;

use super::checkout::Checkout;
use super::place::Place;
use super::run::{Halt, Run};
use super::variables::{self, LOGS, REPOSITORY};
use super::{EvalFilesError, Mirror, failure, place};
use crate::environment::{CreateRequest, ImageRequest, ImageSource, Provider, Purpose, Upload};
use crate::executor::TaskPart;

/// Largest idea.
const IDEA_BYTES: u64 = rollout_protocol::limits::INSTRUCTION_BYTES;

/// Where an execution is on its way through its environments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// In the one that its commands share, or on the way to it.
    Shared,
    /// About to leave it: what is to be kept of it has been asked for.
    Leaving,
    /// It is gone. The sweep's own is there, or on its way.
    Apart,
}

/// An environment that is to be made.
#[derive(Clone, Copy)]
struct Site<'s> {
    environment: &'s TaskEnvironment,
    settings: &'s EnvironmentSpec,
    purpose: Purpose,
}

impl<'s> Site<'s> {
    fn shared(eval: &'s EvalSpec) -> Self {
        let (environment, settings) = (&eval.environment, &eval.settings);
        Self { environment, settings, purpose: Purpose::Agent }
    }

    /// The sweep's own.
    fn apart(eval: &'s EvalSpec) -> Option<Self> {
        let own = eval.sweep_environment.as_deref()?;
        let (environment, settings) = (&own.environment, &own.settings);
        Some(Self { environment, settings, purpose: Purpose::Verifier })
    }
}

impl<'a> Run<'a> {
    /// Makes the checkout and the environment that the commands share.
    pub(super) async fn setup(&mut self) -> Result<Checkout, Halt> {
        let (ctx, repositories): (&'a _, &'a _) = (self.ctx, self.repositories);
        let expanded = variables::expand(&self.services.variables, ctx);
        self.variables = expanded.map_err(|unset| failure::unset(&unset))?;
        let eval = &ctx.eval;
        failure::supported(eval)?;
        let (shared, apart) = (Site::shared(eval), Site::apart(eval));
        // Nothing is begun that cannot be brought to its end here.
        apart.map(|site| self.provider(site)).transpose()?;
        let provider = self.provider(shared)?;
        ctx.create_scratch().await.map_err(|error| failure::disk(&error))?;
        let mirror = repositories.mirrors.get(&eval.repository).await;
        let mirror = mirror.map_err(|error| failure::files(&error, &self.variables.redactor))?;
        let (checkout, uploads) = self.checkout(&mirror, eval.repository.commit()).await?;
        self.environment = Some(self.make(shared, provider, uploads).await?);
        Ok(checkout)
    }

    /// Leaves the shared environment for one of the sweep's own, if it is to have one. The files of
    /// the candidate's commit are all that it gets. Takes nothing of the eval's time.
    pub(super) async fn set_apart(&mut self, shared: Checkout) -> Result<(), Halt> {
        let ctx: &'a _ = self.ctx;
        let Some(site) = Site::apart(&ctx.eval) else { return Ok(()) };
        let began = Instant::now();
        self.go_on()?;
        self.leave().await?;
        self.go_on()?;
        self.enter(Phase::EnvironmentSetup);
        let mirror = shared.mirror.clone();
        drop(shared);
        self.give_back_slot().await;
        let candidate = self.candidate.as_ref().expect("the commit was made before");
        let commit = candidate.commit.clone();
        let (_checkout, uploads) = self.checkout(&mirror, &commit).await?;
        let provider = self.provider(site)?;
        self.sweep_environment = Some(self.make(site, provider, uploads).await?);
        self.deadline = self.deadline.and_then(|deadline| deadline.checked_add(began.elapsed()));
        Ok(())
    }

    /// Collects and removes the shared environment. When something of it may be left, no other one
    /// is made: there is room for one.
    async fn leave(&mut self) -> Result<(), TrialError> {
        self.enter(Phase::Collection);
        self.at = At::Leaving;
        self.collected.logs = self.logs("logs.tar").await;
        self.enter(Phase::Teardown);
        let removed = self.place.remove().await;
        if let Some(failure) = removed.failure {
            return Err(failure::in_the_way(&failure, &self.variables.redactor));
        }
        self.spent += self.cost_of_place();
        (self.place, self.at) = (Place::default(), At::Apart);
        Ok(())
    }

    /// What the present environment has cost so far.
    pub(super) fn cost_of_place(&self) -> f64 {
        let eval = &self.ctx.eval;
        let site = match self.at {
            At::Shared | At::Leaving => Site::shared(eval),
            At::Apart => Site::apart(eval).expect("only such evals come here"),
        };
        let lived = self.place.created().map(|created| created.elapsed().as_secs_f64());
        let cost = |seconds| site.settings.rates.cost(&site.environment.resources, seconds);
        lived.map_or(0.0, cost)
    }

    fn provider(&self, site: Site<'_>) -> Result<Arc<dyn Provider>, TrialError> {
        let kind: ProviderKind = site.settings.provider.kind();
        let provider = self.services.providers.get(&kind);
        provider.cloned().ok_or_else(|| failure::no_provider(kind))
    }

    async fn checkout(
        &mut self,
        mirror: &Mirror,
        commit: &str,
    ) -> Result<(Checkout, Vec<Upload>), TrialError> {
        let work = async {
            let slot = self.slot.insert(self.repositories.slots.take(commit).await?);
            let checkout = Checkout::new(mirror, commit, slot).await?;
            let uploads = checkout.uploads(REPOSITORY).await?;
            slot.has(commit);
            Ok::<_, EvalFilesError>((checkout, uploads))
        };
        work.await.map_err(|error| failure::files(&error, &self.variables.redactor))
    }

    /// Where the image comes from; the part must live as long as the source is used.
    async fn source(&self, site: Site<'_>) -> Result<(ImageSource, Option<TaskPart>), TrialError> {
        let files = &self.services.files;
        let sandbox = site.settings.provider.kind() == ProviderKind::Process;
        let context = site.environment.context.as_ref();
        let build = site.settings.force_build || (sandbox && context.is_some());
        if let Some(image) = site.environment.docker_image.as_ref().filter(|_| !build) {
            return Ok((ImageSource::Named(image.clone()), None));
        }
        let (digest, part) = match context {
            Some(blob) => (blob.digest, files.directory("the build context", blob).await),
            None => (rollout_protocol::digest::Digest::of(b""), files.empty_directory().await),
        };
        let part = part.map_err(|error| failure::task_files(&error))?;
        Ok((ImageSource::Context { digest, dir: part.path().to_owned() }, Some(part)))
    }

    /// Makes an environment with a checkout.
    async fn make(
        &mut self,
        site: Site<'_>,
        provider: Arc<dyn Provider>,
        checkout: Vec<Upload>,
    ) -> Result<EnvironmentRecord, TrialError> {
        let (source, _part) = self.source(site).await?;
        let request = self.request(site, provider.as_ref(), source, checkout).await?;
        let (image, kind) = (request.image.clone(), provider.kind());
        let created = self.place.create(provider, request).await;
        created.map_err(|why| failure::not_there(why, &self.variables.redactor))?;
        let environment = self.up();
        Ok(EnvironmentRecord {
            provider: kind.to_string(),
            id: environment.id().to_owned(),
            image: image.reference,
            image_made: image.made,
            image_build: image.build,
            limits: environment.limits(),
            preserved: None,
        })
    }

    async fn request(
        &self,
        site: Site<'_>,
        provider: &dyn Provider,
        source: ImageSource,
        checkout: Vec<Upload>,
    ) -> Result<CreateRequest, TrialError> {
        let (ctx, environment, settings) = (self.ctx, site.environment, site.settings);
        let asked = ImageRequest {
            source: source.clone(),
            force_build: settings.force_build,
            timeout: seconds(environment.build_sec),
            log: None,
            settings: settings.provider.clone(),
            labels: ctx.labels.clone(),
        };
        let run = ctx.labels.run;
        provider.keep_bases(run, self.services.files.base_digests(run));
        let image = place::prepare(provider, asked).await;
        let image = image.map_err(|error| failure::image(&error, &self.variables.redactor))?;
        let idea = self.services.files.bytes("the idea", &ctx.eval.idea, IDEA_BYTES).await;
        let bytes = idea.map_err(|error| failure::task_files(&error))?;
        let mut uploads = vec![Upload::Dir { path: LOGS.to_owned() }];
        uploads.extend(checkout);
        let path = variables::IDEA.to_owned();
        uploads.push(Upload::File { path, bytes, executable: false });
        let env = match self.at {
            At::Shared | At::Leaving => &self.variables.environment,
            At::Apart => &self.variables.sweep_environment,
        };
        Ok(CreateRequest {
            image,
            source,
            resources: environment.resources,
            env: env.clone(),
            workdir: environment.workdir.clone(),
            network: environment.network.clone(),
            compose: None,
            uploads,
            settings: settings.provider.clone(),
            labels: ctx.labels.clone(),
            purpose: site.purpose,
        })
    }
}
