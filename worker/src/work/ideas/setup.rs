//! Inputs and environment of a command that writes ideas.

use rollout_environment::{BuildProxies, CreateRequest, EnvironmentPurpose, Provider, Upload};
use rollout_protocol::error::TrialError;
use rollout_protocol::limits::NAME_BYTES;
use rollout_protocol::name;

use super::failure;
use super::run::IdeasRun;
use super::variables::{self, IDEAS, LOGS, PACK, REPOSITORY};
use crate::executor::errors::SetupError;
use crate::executor::{FilesError, RequestedImage, TaskPart, cost};
use crate::work::eval;
use crate::work::readiness::{self, DeclaredStart};

impl IdeasRun<'_> {
    /// Fetches all inputs to this host, creates the environment, and waits until it is ready.
    pub(super) async fn setup(&mut self) -> Result<(), TrialError> {
        let (ctx, services) = (self.ctx, self.services);
        let ideas = &ctx.ideas;
        let typed = |error: SetupError, run: &Self| error.into_error(&run.attempt.redactor);
        let expanded = variables::expand(&services.variables, ideas);
        (self.variables, self.attempt.redactor) =
            expanded.map_err(|unset| typed(SetupError::Unset(unset), self))?;
        let provider = services.provider(ideas.settings.provider.kind(), ctx.execution.labels.run);
        let provider = provider.map_err(|error| typed(error, self))?;
        let made = ctx.execution.create_scratch().await;
        made.map_err(|error| typed(SetupError::Disk(error), self))?;
        // The parts must live as long as the request that names them.
        let mut parts = Vec::new();
        let uploads = self.uploads(&mut parts).await?;
        let request = self.create_request(provider.as_ref(), uploads, &mut parts).await;
        let request = request.map_err(|error| typed(error, self))?;
        let created = self.attempt.environment.create(provider, request).await;
        created.map_err(|why| why.into_error(&self.attempt.redactor))?;
        let declared = DeclaredStart::Search(&ideas.environment);
        let capture = || self.attempt.unrecorded.start(&self.attempt.redactor);
        let ready = readiness::wait_until_ready(&mut self.attempt.environment, declared, capture);
        let ready = Box::pin(ready).await;
        ready.map_err(|error| typed(error, self))
    }

    /// Everything placed in the environment before the command begins.
    async fn uploads(&mut self, parts: &mut Vec<TaskPart>) -> Result<Vec<Upload>, TrialError> {
        let (ideas, files) = (&self.ctx.ideas, &self.services.files);
        let mut uploads =
            vec![Upload::Dir { path: LOGS.to_owned() }, self.checkout_upload().await?];
        for earlier in &ideas.earlier {
            // The coordinator names the directories; nothing may be placed outside their parent.
            name::check_component(&earlier.name, NAME_BYTES)
                .map_err(|why| failure::invalid_directory_name(&why))?;
            let part = files.archive("earlier ideas", &earlier.archive).await;
            let part = part.map_err(|error| self.files_error(error))?;
            let path = variables::earlier_ideas_dir(&earlier.name);
            uploads.push(Upload::Archive { path, tar: part.path().to_owned() });
            parts.push(part);
        }
        let pack = files.archive("the files that describe the node", &ideas.pack).await;
        let pack = pack.map_err(|error| self.files_error(error))?;
        uploads.push(Upload::Archive { path: PACK.to_owned(), tar: pack.path().to_owned() });
        parts.push(pack);
        uploads.extend([Upload::FreshDir { path: IDEAS.to_owned() }, cost::fresh_directory()]);
        Ok(uploads)
    }

    /// The error of a file that is not available.
    fn files_error(&self, error: FilesError) -> TrialError {
        SetupError::Files(error).into_error(&self.attempt.redactor)
    }

    /// The files of the node's commit, without a repository.
    async fn checkout_upload(&mut self) -> Result<Upload, TrialError> {
        let (repositories, commits) = (self.repositories, &self.ctx.ideas.repository);
        let work = async {
            let mirror = repositories.mirrors.get(commits).await?;
            let slot = &mut self.slot;
            repositories.check_out(&mirror, commits.commit(), slot, REPOSITORY).await
        };
        let checkout = work.await;
        let (_checkout, uploads) =
            checkout.map_err(|error| eval::failure::files_error(&error, &self.attempt.redactor))?;
        let files = uploads.into_iter().next().expect("a checkout has files");
        Ok(files)
    }

    async fn create_request(
        &mut self,
        provider: &dyn Provider,
        uploads: Vec<Upload>,
        parts: &mut Vec<TaskPart>,
    ) -> Result<CreateRequest, SetupError> {
        let ctx = self.ctx;
        let (environment, settings) = (&ctx.ideas.environment, &ctx.ideas.settings);
        let requested = RequestedImage { environment, settings };
        let (source, part) = requested.source(&self.services.files).await?;
        parts.extend(part);
        let (proxies, labels) =
            (BuildProxies::of(&self.variables.environment), &ctx.execution.labels);
        let log = &mut self.build_log;
        let prepared = requested.prepare(provider, &source, proxies, labels, log).await;
        let image = self.install_in_image(provider, prepared?).await;
        Ok(CreateRequest {
            image,
            source,
            resources: environment.resources,
            env: self.variables.environment.clone(),
            workdir: environment.workdir.clone(),
            network: environment.network.clone(),
            compose: None,
            uploads,
            settings: settings.provider.clone(),
            labels: ctx.execution.labels.clone(),
            purpose: EnvironmentPurpose::Agent,
        })
    }
}
