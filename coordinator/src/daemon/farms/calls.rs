//! Calls of trainers: groups, completions and acknowledgements. Answers are given when the records
//! behind them are durable; every call can be repeated.

use std::sync::Arc;
use std::time::Duration;

use rollout_base::shared_limit::LimitShares;
use rollout_protocol::farm::{
    AckReceipt, CancelReceipt, Completion, GroupEnd, GroupId, GroupRequest, GroupStatus,
    SubmitReceipt,
};
use rollout_protocol::limits;

use super::error::FarmError;
use super::hosted_farm::HostedFarm;
use crate::daemon::Daemon;
use crate::daemon::principal::{Principal, Role};
use crate::workloads::farm::CompletionPage;

/// The state of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupState {
    /// The farm holds it.
    Held(GroupStatus),
    /// It has ended, and the farm remembers its id only.
    Former(GroupEnd),
}

/// Completions of one read.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRead {
    /// The completions, in the order of their cursors.
    pub completions: Vec<Arc<Completion>>,
    /// Where the next read begins.
    pub next_after: u64,
    /// Length of their metadata as JSON.
    pub metadata_bytes: u64,
    /// Whether no more will come: the farm has ended.
    pub is_over: bool,
}

impl Daemon {
    /// Submits a group for a user. The same request again has no further effect.
    ///
    /// # Errors
    /// [`FarmError`].
    pub async fn submit_group(
        &self,
        principal: &Principal,
        farm: &HostedFarm,
        request: GroupRequest,
    ) -> Result<SubmitReceipt, FarmError> {
        let session = farm.session().await?;
        // The farm tells what became of a known group, and that it is closed, also when all are full.
        if session.handle().can_admit(&request.group) {
            self.check_held(principal, farm, request.held_bytes())?;
        }
        farm.submit(request).await
    }

    /// Whether the farms of all users may hold so much more, in one of these.
    fn check_held(
        &self,
        principal: &Principal,
        farm: &HostedFarm,
        more: u64,
    ) -> Result<(), FarmError> {
        let farms = self.farms.table().all();
        let (mut own, mut all) = (0, 0);
        for one in farms {
            let held = one.held_bytes();
            all += held;
            own += if one.user() == farm.user() { held } else { 0 };
        }
        let shares = LimitShares::new(limits::FARMS_HELD_BYTES);
        match shares.allows(principal.role == Role::Admin, [own, all], more) {
            true => Ok(()),
            false => Err(FarmError::Full { own, max: limits::FARMS_HELD_BYTES }),
        }
    }
}

impl HostedFarm {
    pub(super) async fn submit(&self, request: GroupRequest) -> Result<SubmitReceipt, FarmError> {
        let submitted = self.session().await?.submit(request).await;
        match submitted.map_err(FarmError::of_submission) {
            Ok(receipt) => Ok(receipt),
            Err(Some(error)) => Err(error),
            Err(None) => Err(self.gone().await),
        }
    }

    /// The state of a group.
    ///
    /// # Errors
    /// [`FarmError`].
    pub async fn group(&self, group: &GroupId) -> Result<GroupState, FarmError> {
        let session = self.session().await?;
        let handle = session.handle();
        let held = handle.group(group).map(GroupState::Held);
        let found = held.or_else(|| handle.former_group(group).map(GroupState::Former));
        found.ok_or(FarmError::NoGroup)
    }

    /// Cancels a group, also one that was not submitted yet.
    ///
    /// # Errors
    /// [`FarmError`].
    pub async fn cancel_group(&self, group: GroupId) -> Result<CancelReceipt, FarmError> {
        let cancelled = self.session().await?.cancel(group).await;
        match cancelled.map_err(FarmError::of_submission) {
            Ok(receipt) => Ok(receipt),
            Err(Some(error)) => Err(error),
            Err(None) => Err(self.gone().await),
        }
    }

    /// Reads the completions of a consumer, by default the first one, after a cursor. Waits up to
    /// `wait` for the first one.
    ///
    /// # Errors
    /// [`FarmError`].
    pub async fn completions(
        &self,
        consumer: Option<&str>,
        after: u64,
        limit: usize,
        wait: Duration,
    ) -> Result<CompletionRead, FarmError> {
        let consumer = self.consumer(consumer)?;
        let over = CompletionRead {
            completions: Vec::new(),
            next_after: after,
            metadata_bytes: 0,
            is_over: true,
        };
        let session = match self.session().await {
            Err(FarmError::Ended) => return Ok(over),
            session => session?,
        };
        match session.completions(&consumer, after, limit, wait).await {
            Ok(CompletionPage { completions, next_after, metadata_bytes }) => {
                Ok(CompletionRead { completions, next_after, metadata_bytes, is_over: false })
            }
            Err(_) => match self.gone().await {
                FarmError::Ended => Ok(over),
                error => Err(error),
            },
        }
    }

    /// Acknowledges completions of a consumer, by default the first one. A farm that has ended has no
    /// others.
    ///
    /// # Errors
    /// [`FarmError`].
    pub async fn acknowledge(
        &self,
        consumer: Option<&str>,
        cursors: Vec<u64>,
    ) -> Result<AckReceipt, FarmError> {
        let consumer = self.consumer(consumer)?;
        let repeated = AckReceipt { repeated: cursors.len() as u64, ..AckReceipt::default() };
        let session = match self.session().await {
            Err(FarmError::Ended) => return Ok(repeated),
            session => session?,
        };
        match session.acknowledge(&consumer, cursors).await {
            Ok(receipt) => Ok(receipt),
            Err(_) => match self.gone().await {
                FarmError::Ended => Ok(repeated),
                error => Err(error),
            },
        }
    }
}
