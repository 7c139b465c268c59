//! Acceptance of job documents.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::Timestamp;
use rollout_worker::supervise;

use super::failure::{RunFailure, RunFault};
use super::hosted_run::HostedRun;
use super::id::HostedRunId;
use super::policy::DocumentPolicy;
use super::principal::{AllowedVariables, Principal};
use super::record::{HostedProgress, HostedRunRecord, RECORD_FORMAT, SubmissionKey, WantedState};
use super::state_dir::StoredId;
use super::{Daemon, DaemonError};
use crate::config::{Diagnostics, Job, JobOptions, read_job};

/// When to submit again after a refusal for lack of room.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Code of invalid documents, as that of the command line.
pub(super) const CONFIG_CODE: u8 = rollout_protocol::exit::ExitCode::Config as u8;

/// A job to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSubmission {
    /// The job document, YAML or JSON.
    pub document: String,
    /// Name for people, in place of the document's.
    pub name: Option<String>,
    /// Runs with a higher priority start first.
    pub priority: i32,
    /// Idempotency key.
    pub key: Option<String>,
    /// SHA-256 of the whole submission, in hexadecimal digits.
    pub sha256: String,
}

/// The result of a submission.
#[derive(Debug)]
pub enum SubmissionResult {
    /// A new run.
    New(Arc<HostedRun>),
    /// The run that was submitted before under the same key.
    Known(Arc<HostedRun>),
}

impl Daemon {
    /// Accepts a job: its record is durable when this returns.
    ///
    /// # Errors
    /// [`DaemonError`]; nothing was accepted.
    pub async fn submit(
        self: &Arc<Self>,
        principal: &Principal,
        submission: JobSubmission,
    ) -> Result<SubmissionResult, DaemonError> {
        let (daemon, principal) = (Arc::clone(self), principal.clone());
        self.finish(async move { daemon.accept(&principal, submission).await }).await
    }

    /// The run that a user submitted before under a key.
    ///
    /// # Errors
    /// [`DaemonError::KeyConflict`] if that submission was another one.
    pub fn known(
        &self,
        principal: &Principal,
        key: Option<&str>,
        sha256: &str,
    ) -> Result<Option<Arc<HostedRun>>, DaemonError> {
        let Some(key) = key else { return Ok(None) };
        let Some(known) = self.table().by_key(&principal.name, key) else { return Ok(None) };
        let former = known.view().record.submission;
        let is_same = former.is_some_and(|former| former.sha256 == sha256);
        if is_same { Ok(Some(known)) } else { Err(DaemonError::KeyConflict) }
    }

    async fn accept(
        &self,
        principal: &Principal,
        submission: JobSubmission,
    ) -> Result<SubmissionResult, DaemonError> {
        let _turn = self.submitting.lock().await;
        let user = &principal.name;
        if let Some(known) = self.known(principal, submission.key.as_deref(), &submission.sha256)? {
            return Ok(SubmissionResult::Known(known));
        }
        if self.stopping().is_some() {
            return Err(DaemonError::Stopping);
        }
        self.check_room()?;
        let now = Timestamp::now();
        let id = HostedRunId::new(now);
        let job = self.check(principal, &id, &submission.document).await?;
        // A document without a name gets one from the clock, which says nothing.
        let name = submission.name.unwrap_or(job.name);
        let record = HostedRunRecord {
            format: RECORD_FORMAT,
            id: id.clone(),
            user: user.clone(),
            name,
            variables: principal.variables.clone(),
            priority: submission.priority,
            created_at: now,
            submission: submission.key.map(|key| SubmissionKey { key, sha256: submission.sha256 }),
            wanted: WantedState::Running,
            end: None,
            failure: None,
            progress: HostedProgress::default(),
            is_deleted: false,
        };
        let (dir, written) = (Arc::clone(&self.dir), record.clone());
        supervise::blocking(move || dir.write_record(&written)).await?;
        let run = Arc::new(HostedRun::new(record, self.dir.run_dir(&id)));
        self.table().insert(Arc::clone(&run));
        self.wake.notify_one();
        Ok(SubmissionResult::New(run))
    }

    fn check_room(&self) -> Result<(), DaemonError> {
        let table = self.table();
        let (queued, running) = (table.queued(), table.live().count());
        let most = self.options.max_queued + self.options.max_running;
        if queued + running < most {
            return Ok(());
        }
        let reason = format!("{running} runs run and {queued} wait, of at most {most} together");
        Err(DaemonError::Busy { reason, retry_after: RETRY_AFTER })
    }

    /// Writes a document and checks it. Returns its job.
    pub(super) async fn check<I: StoredId + Clone + Send + 'static>(
        &self,
        principal: &Principal,
        id: &I,
        document: &str,
    ) -> Result<Job, DaemonError> {
        let (dir, id, document) = (Arc::clone(&self.dir), id.clone(), document.to_owned());
        let (policy, variables) = (self.options.policy.clone(), principal.variables.clone());
        let (explain, is_remote) = (self.options.explain, self.is_remote());
        supervise::blocking(move || {
            dir.write_document(&id, &document)?;
            let path = dir.document(&id);
            let checked = checked_job(&path, &policy, &variables, is_remote);
            let checked = checked.map_err(|fault| match fault {
                CheckFault::Config(fault) => explain(fault.without_path(&path)),
                CheckFault::Refused(failure) => failure,
            });
            checked.map_err(|failure| {
                dir.discard_document(&id);
                DaemonError::Invalid(failure)
            })
        })
        .await
    }
}

/// Why a document is refused.
pub(super) enum CheckFault {
    Config(RunFault),
    Refused(RunFailure),
}

/// Reads a document, without its datasets, and checks it against the operator's rules. Blocks.
pub(super) fn checked_job(
    path: &Path,
    policy: &DocumentPolicy,
    variables: &AllowedVariables,
    is_remote: bool,
) -> Result<Job, CheckFault> {
    let is_set = |name: &str| is_set(variables, name, is_remote);
    let options = JobOptions::new(&is_set);
    let mut problems = Diagnostics::default();
    let job = read_job(path, &options, &mut problems);
    if let Some(job) = &job {
        let details = policy.violations(job, variables);
        if !details.is_empty() {
            let message = "cannot accept the job: the operator's rules forbid parts of it";
            let hint = "ask the operator of the server to list what the job needs";
            return Err(CheckFault::Refused(RunFailure {
                code: CONFIG_CODE,
                message: message.to_owned(),
                details,
                hints: vec![hint.to_owned()],
            }));
        }
    }
    match problems.finish(job) {
        Ok((Some(job), _)) => Ok(job),
        // A document without structure has recorded an error.
        Ok((None, _)) => Err(CheckFault::Refused(RunFailure {
            code: CONFIG_CODE,
            message: "cannot read the job: it has no content".to_owned(),
            details: Vec::new(),
            hints: Vec::new(),
        })),
        Err(errors) => Err(CheckFault::Config(RunFault::Config(errors))),
    }
}

/// Whether a variable that a user may use is set where trials run. Workers of a server report which
/// ones they have.
pub(super) fn is_set(variables: &AllowedVariables, name: &str, is_remote: bool) -> bool {
    variables.contains(name) && (is_remote || std::env::var_os(name).is_some())
}
