//! Acceptance of job documents.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollout_base::shared_limit::{LimitShares, SharedPlace};
use rollout_base::supervise;
use rollout_protocol::Timestamp;
use tokio::time::{Instant, timeout_at};

use super::datasets::SubmittedDocument;
use super::failure::{Explain, RunFailure, RunFault};
use super::hosted_run::HostedRun;
use super::id::HostedRunId;
use super::policy::DocumentPolicy;
use super::principal::{AllowedVariables, Principal, Role};
use super::record::{HostedKind, HostedProgress, HostedRunRecord, SubmissionKey, WantedState};
use super::search::checked_tree;
use super::state_dir::StoredId;
use super::{Daemon, DaemonError, run_size};
use crate::config::{Diagnostics, HostAccess, Job, JobOptions, read_job};

/// When to submit again after a refusal for lack of room.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Documents that are checked at the same time.
pub(super) const CONCURRENT_CHECKS: u64 = 4;

/// Longest check of a document, with the wait for its turn: its paths may be on a file system that
/// does not answer.
const CHECK_DEADLINE: Duration = Duration::from_secs(30);

/// Code of invalid documents, as that of the command line.
pub(super) const CONFIG_CODE: u8 = rollout_protocol::exit::ExitCode::Config as u8;

/// A job to run, or another kind of run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSubmission {
    /// Kind of the run.
    pub kind: HostedKind,
    /// The document.
    pub document: SubmittedDocument,
    /// Name for people, in place of the document's.
    pub name: Option<String>,
    /// Runs of the user with a higher priority start first.
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
        if let Some(known) = self.admit(principal, &submission)? {
            return Ok(SubmissionResult::Known(known));
        }
        let turn = self.check_turn(principal).await?;
        let (daemon, principal) = (Arc::clone(self), principal.clone());
        self.finish(async move { daemon.accept(&principal, submission, turn).await }).await
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
        turn: CheckTurn,
    ) -> Result<SubmissionResult, DaemonError> {
        let now = Timestamp::now();
        let id = HostedRunId::new(now);
        let kind = submission.kind;
        // Others need not wait for the check, which may accept a submission with the same key.
        let named = self.checked_name(principal, &id, (kind, &submission.document), turn).await?;
        let _turn = self.submitting.lock().await;
        let admitted = self.admit(principal, &submission);
        if !matches!(admitted, Ok(None)) {
            self.dir.discard_document(&id);
        }
        if let Some(known) = admitted? {
            return Ok(SubmissionResult::Known(known));
        }
        let user = &principal.name;
        let name = submission.name.unwrap_or(named);
        let record = HostedRunRecord {
            format: kind.format(),
            id: id.clone(),
            kind,
            user: user.clone(),
            name,
            role: principal.role,
            variables: principal.variables.clone(),
            priority: submission.priority,
            created_at: now,
            submission: submission.key.map(|key| SubmissionKey { key, sha256: submission.sha256 }),
            wanted: WantedState::Running,
            is_closed: false,
            end: None,
            failure: None,
            progress: HostedProgress::default(),
            is_deleted: false,
        };
        let (dir, written) = (Arc::clone(&self.dir), record.clone());
        supervise::blocking(move || dir.write_record(&written)).await?;
        let run = self.dir.hosted(record);
        self.table().insert(Arc::clone(&run));
        self.wake.notify_one();
        Ok(SubmissionResult::New(run))
    }

    /// The run that was submitted before under the same key; an error if no run can be accepted.
    fn admit(
        &self,
        principal: &Principal,
        submission: &JobSubmission,
    ) -> Result<Option<Arc<HostedRun>>, DaemonError> {
        let known = self.known(principal, submission.key.as_deref(), &submission.sha256)?;
        if known.is_some() {
            return Ok(known);
        }
        if self.stopping().is_some() {
            return Err(DaemonError::Stopping);
        }
        self.check_room(principal)?;
        Ok(None)
    }

    /// Writes a document and checks it. Returns its name: one from the clock, which says nothing, if it
    /// has none.
    async fn checked_name(
        &self,
        principal: &Principal,
        id: &HostedRunId,
        (kind, document): (HostedKind, &SubmittedDocument),
        turn: CheckTurn,
    ) -> Result<String, DaemonError> {
        match kind {
            HostedKind::Job | HostedKind::Executor => {
                let most = self.options.max_trials;
                let check = move |path: &_, policy: &_, variables: &_, is_remote| {
                    let job = checked_job(path, policy, variables, is_remote)?;
                    match run_size::excess(&job, None, most) {
                        Some(failure) => Err(CheckFault::Refused { failure, is_final: false }),
                        None => Ok(job.name),
                    }
                };
                self.check_with(principal, id, (document, turn), check).await
            }
            HostedKind::Tree => {
                let check = |path: &_, policy: &_, variables: &_, is_remote| {
                    checked_tree(path, policy, variables, is_remote, None)
                };
                Ok(self.check_with(principal, id, (document, turn), check).await?.name)
            }
        }
    }

    /// Refuses a run if as many run and wait as may, or as many of this user.
    fn check_room(&self, principal: &Principal) -> Result<(), DaemonError> {
        let open = self.table().open_by_user();
        let most = (self.options.max_queued + self.options.max_running) as u64;
        let (own, all) = (open.of(&principal.name), open.total());
        if LimitShares::new(most).allows(principal.role == Role::Admin, [own, all], 1) {
            return Ok(());
        }
        // How many others have is not told.
        let reason = format!(
            "the server has as many as it can; {own} of at most {most} that have not ended are yours"
        );
        Err(DaemonError::Busy { reason, retry_after: RETRY_AFTER })
    }

    /// Writes a job document and checks it. Returns its job.
    pub(super) async fn check<I: StoredId + Clone + Send + 'static>(
        &self,
        principal: &Principal,
        id: &I,
        document: &SubmittedDocument,
        turn: CheckTurn,
    ) -> Result<Job, DaemonError> {
        self.check_with(principal, id, (document, turn), checked_job).await
    }

    /// A turn of a user to have a document checked. The request waits for it: one that goes meanwhile
    /// leaves no work behind.
    ///
    /// # Errors
    /// [`DaemonError::Busy`] when it takes too long.
    pub(super) async fn check_turn(&self, principal: &Principal) -> Result<CheckTurn, DaemonError> {
        let (user, deadline) = (principal.limit_user(), Instant::now() + CHECK_DEADLINE);
        let place =
            timeout_at(deadline, self.checks.acquire(&user, 0, 1)).await.map_err(|_| late())?;
        Ok(CheckTurn { place, deadline })
    }

    /// Writes a document and reads it with `check`, until the deadline of its turn.
    async fn check_with<I: StoredId + Clone + Send + 'static, T: Send + 'static>(
        &self,
        principal: &Principal,
        id: &I,
        (document, turn): (&SubmittedDocument, CheckTurn),
        check: impl FnOnce(&Path, &DocumentPolicy, &AllowedVariables, bool) -> Result<T, CheckFault>
        + Send
        + 'static,
    ) -> Result<T, DaemonError> {
        let policy = self.policy_of_submission(document);
        let (dir, id, document) = (Arc::clone(&self.dir), id.clone(), document.text.clone());
        let variables = principal.variables.clone();
        let (explain, is_remote) = (self.options.explain, self.is_remote());
        let CheckTurn { place, deadline } = turn;
        let work = move || {
            // A check that goes on after the deadline keeps its turn.
            let _turn = place;
            dir.write_document(&id, &document)?;
            let path = dir.document(&id);
            let checked = check(&path, &policy, &variables, is_remote);
            checked.map_err(|fault| {
                dir.discard_document(&id);
                DaemonError::Invalid(fault.explain(explain, &path))
            })
        };
        timeout_at(deadline, supervise::blocking(work)).await.map_err(|_| late())?
    }
}

fn late() -> DaemonError {
    let reason = format!("its check took longer than {} s", CHECK_DEADLINE.as_secs());
    DaemonError::Busy { reason, retry_after: RETRY_AFTER }
}

/// A turn to have a document checked.
#[derive(Debug)]
pub(super) struct CheckTurn {
    place: SharedPlace,
    /// End of the check, with the wait for the turn.
    deadline: Instant,
}

/// Why a document is refused.
pub(super) enum CheckFault {
    Config(RunFault),
    Refused {
        failure: RunFailure,
        /// Whether no rule of the operator can allow the document.
        is_final: bool,
    },
}

impl CheckFault {
    /// The fault of a document with parts that the operator's rules forbid, or with files of the
    /// server, which no rule can allow.
    pub(super) fn refused(noun: &str, details: Vec<String>, names_host_file: bool) -> Self {
        let (reason, hint) = if names_host_file {
            let hint = format!("submit the {noun} again without the keys that name these files");
            ("it names files of the server, and no document may", hint)
        } else {
            let hint =
                "the operator of the server allows them with the named options; `rollout run \
                        JOB --remote-endpoint URL` sends directories of tasks with a job"
                    .to_owned();
            ("the operator's rules forbid parts of it", hint)
        };
        let message = format!("cannot accept the {noun}: {reason}");
        let (hints, is_temporary) = (vec![hint], false);
        let failure = RunFailure { code: CONFIG_CODE, message, details, hints, is_temporary };
        Self::Refused { failure, is_final: names_host_file }
    }

    /// The fault of a document without content.
    pub(super) fn empty(noun: &str) -> Self {
        let failure = RunFailure {
            code: CONFIG_CODE,
            message: format!("cannot read the {noun}: it has no content"),
            details: Vec::new(),
            hints: Vec::new(),
            is_temporary: false,
        };
        Self::Refused { failure, is_final: false }
    }

    /// Whether neither the host nor an option of the server can make the document valid.
    pub(super) const fn is_final(&self) -> bool {
        matches!(self, Self::Refused { is_final: true, .. })
    }

    /// Whether files are its cause.
    pub(super) fn is_of_files(&self) -> bool {
        matches!(self, Self::Config(fault) if fault.is_of_files())
    }

    /// The failure in words, without the path of the document.
    pub(super) fn explain(self, explain: Explain, document: &Path) -> RunFailure {
        match self {
            Self::Config(fault) => fault.without_path(document).in_words(explain),
            Self::Refused { failure, .. } => failure,
        }
    }
}

/// Reads a document, without its datasets, and checks it against the operator's rules. Blocks.
pub(super) fn checked_job(
    path: &Path,
    policy: &DocumentPolicy,
    variables: &AllowedVariables,
    is_remote: bool,
) -> Result<Job, CheckFault> {
    let is_set = |name: &str| is_set(variables, name, is_remote);
    let options = JobOptions { host: HostAccess::Listed(policy), ..JobOptions::new(&is_set) };
    let mut problems = Diagnostics::default();
    let job = read_job(path, &options, &mut problems);
    let mut details = problems.refusals();
    details.extend(job.iter().flat_map(|job| policy.violations(job, variables)));
    if is_remote {
        details.extend(job.iter().filter_map(|job| policy.pool(job.pool.as_deref())));
    }
    if !details.is_empty() {
        return Err(CheckFault::refused("job", details, problems.names_host_file()));
    }
    match problems.finish(job) {
        Ok((Some(job), _)) => Ok(job),
        // A document without structure has recorded an error.
        Ok((None, _)) => Err(CheckFault::empty("job")),
        Err(errors) => Err(CheckFault::Config(RunFault::Config(errors))),
    }
}

/// Whether a variable that a user may use is set where trials run. Workers of a server report which
/// ones they have.
pub(super) fn is_set(variables: &AllowedVariables, name: &str, is_remote: bool) -> bool {
    variables.contains(name) && (is_remote || std::env::var_os(name).is_some())
}
