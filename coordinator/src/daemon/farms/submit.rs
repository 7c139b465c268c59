//! Acceptance of farms.

use std::sync::Arc;

use rollout_base::shared_limit::LimitShares;
use rollout_base::supervise;
use rollout_protocol::Timestamp;
use rollout_protocol::farm::FarmSettings;

use super::error::FarmError;
use super::hosted_farm::HostedFarm;
use super::record::HostedFarmRecord;
use crate::daemon::datasets::SubmittedDocument;
use crate::daemon::failure::RunFailure;
use crate::daemon::id::HostedFarmId;
use crate::daemon::principal::Principal;
use crate::daemon::record::{RECORD_FORMAT, SubmissionKey};
use crate::daemon::submit::{CONFIG_CODE, CheckTurn, RETRY_AFTER};
use crate::daemon::{Daemon, DaemonError, Role};

/// A farm to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarmSubmission {
    /// The job document.
    pub document: SubmittedDocument,
    /// Its settings.
    pub settings: FarmSettings,
    /// Its samples take free slots of the user before those of a lower priority.
    pub priority: i32,
    /// Idempotency key.
    pub key: Option<String>,
    /// SHA-256 of the whole submission, in hexadecimal digits.
    pub sha256: String,
}

/// The result of a submission.
#[derive(Debug)]
pub enum SubmittedFarm {
    /// A new farm.
    New(Arc<HostedFarm>),
    /// The farm that was opened before under the same key.
    Known(Arc<HostedFarm>),
}

impl Daemon {
    /// Accepts a farm: its record is durable when this returns.
    ///
    /// # Errors
    /// [`FarmError`]; nothing was accepted.
    pub async fn submit_farm(
        self: &Arc<Self>,
        principal: &Principal,
        submission: FarmSubmission,
    ) -> Result<SubmittedFarm, FarmError> {
        if let Some(known) = self.admit_farm(principal, &submission)? {
            return Ok(SubmittedFarm::Known(known));
        }
        let turn = self.check_turn(principal).await?;
        let (daemon, principal) = (Arc::clone(self), principal.clone());
        self.finish(async move { daemon.accept_farm(&principal, submission, turn).await }).await
    }

    /// The farm that a user opened before under a key.
    ///
    /// # Errors
    /// [`DaemonError::KeyConflict`] if that submission was another one.
    pub fn known_farm(
        &self,
        principal: &Principal,
        key: Option<&str>,
        sha256: &str,
    ) -> Result<Option<Arc<HostedFarm>>, FarmError> {
        let Some(key) = key else { return Ok(None) };
        let known = self.farms.table().by_key(&principal.name, key);
        let Some(known) = known else { return Ok(None) };
        let is_same = matches!(&known.record().submission, Some(one) if one.sha256 == sha256);
        if is_same { Ok(Some(known)) } else { Err(DaemonError::KeyConflict.into()) }
    }

    async fn accept_farm(
        &self,
        principal: &Principal,
        submission: FarmSubmission,
        turn: CheckTurn,
    ) -> Result<SubmittedFarm, FarmError> {
        let now = Timestamp::now();
        let id = HostedFarmId::new(now);
        let job = self.check(principal, &id, &submission.document, turn).await?;
        if job.agents.len() != 1 {
            self.dir.discard_document(&id);
            return Err(DaemonError::Invalid(wrong_agents(job.agents.len())).into());
        }
        // Others need not wait for the check, which may accept a submission with the same key.
        let _turn = self.submitting.lock().await;
        let admitted = self.admit_farm(principal, &submission);
        if !matches!(admitted, Ok(None)) {
            self.dir.discard_document(&id);
        }
        if let Some(known) = admitted? {
            return Ok(SubmittedFarm::Known(known));
        }
        let record = HostedFarmRecord {
            format: RECORD_FORMAT,
            id: id.clone(),
            user: principal.name.clone(),
            role: principal.role,
            variables: principal.variables.clone(),
            priority: submission.priority,
            created_at: now,
            submission: submission.key.map(|key| SubmissionKey { key, sha256: submission.sha256 }),
            settings: submission.settings,
            end: None,
            failure: None,
            is_deleted: false,
        };
        let (dir, written) = (Arc::clone(&self.dir), record.clone());
        supervise::blocking(move || dir.write_record(&written)).await?;
        let farm = Arc::new(HostedFarm::new(record, self.dir.run_dir(&id)));
        self.farms.table().insert(Arc::clone(&farm));
        self.wake.notify_one();
        Ok(SubmittedFarm::New(farm))
    }

    /// The farm that was opened before under the same key; an error if no farm can be accepted.
    fn admit_farm(
        &self,
        principal: &Principal,
        submission: &FarmSubmission,
    ) -> Result<Option<Arc<HostedFarm>>, FarmError> {
        let known = self.known_farm(principal, submission.key.as_deref(), &submission.sha256)?;
        if known.is_some() {
            return Ok(known);
        }
        if self.stopping().is_some() {
            return Err(DaemonError::Stopping.into());
        }
        submission.settings.check()?;
        if principal.role != Role::Admin {
            submission.settings.check_defaults()?;
        }
        let open = self.farms.table().open_by_user();
        let (own, all) = (open.of(&principal.name), open.total());
        let max = self.options.max_farms as u64;
        if LimitShares::new(max).allows(principal.role == Role::Admin, [own, all], 1) {
            return Ok(None);
        }
        Err(FarmError::TooMany { own, max, retry_after: RETRY_AFTER })
    }
}

fn wrong_agents(agents: usize) -> RunFailure {
    RunFailure {
        code: CONFIG_CODE,
        message: format!("cannot open the farm: its job has {agents} agents"),
        details: Vec::new(),
        hints: vec!["use a job with one agent".to_owned()],
        is_temporary: false,
    }
}
