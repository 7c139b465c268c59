//! The farms of a daemon in memory.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::error::FarmError;
use super::hosted_farm::{HostedFarm, HostedFarmState, HostedFarmView};
use crate::daemon::id::HostedFarmId;
use crate::daemon::principal::{Principal, Role};
use crate::daemon::schedule::UserCounts;
use crate::daemon::{Daemon, DaemonError};

/// Most farms of a page.
const MAX_PAGE: usize = 500;

/// The farms of a daemon.
#[derive(Debug, Default)]
pub(super) struct FarmTable {
    farms: BTreeMap<HostedFarmId, Arc<HostedFarm>>,
    /// Farms by user and idempotency key.
    keys: HashMap<(String, String), HostedFarmId>,
    /// Farms whose record cannot be read, and why.
    unreadable: BTreeMap<HostedFarmId, String>,
}

/// Which farms to list, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FarmQuery {
    /// Only farms in this state.
    pub state: Option<HostedFarmState>,
    /// Only farms of this user.
    pub user: Option<String>,
    /// Only farms with this name.
    pub name: Option<String>,
    /// Only farms that are older than this one.
    pub before: Option<HostedFarmId>,
    /// Most farms.
    pub limit: usize,
}

/// A page of a list.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FarmPage {
    /// Farms, newest first.
    pub farms: Vec<HostedFarmView>,
    /// Farms that cannot be read, and why, on an administrator's first page.
    pub unreadable: Vec<(HostedFarmId, String)>,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<HostedFarmId>,
}

impl FarmTable {
    pub(super) fn insert(&mut self, farm: Arc<HostedFarm>) {
        // Deleting a farm frees its key.
        let submission = {
            let record = farm.record();
            record.submission.clone().filter(|_| !record.is_deleted)
        };
        if let Some(submission) = submission {
            self.keys.insert((farm.user().to_owned(), submission.key), farm.id().clone());
        }
        self.farms.insert(farm.id().clone(), farm);
    }

    pub(super) fn insert_unreadable(&mut self, id: HostedFarmId, reason: String) {
        self.unreadable.insert(id, reason);
    }

    pub(super) fn remove(&mut self, farm: &HostedFarm) {
        self.farms.remove(farm.id());
        self.release_key(farm);
    }

    /// Frees the key of a farm.
    pub(super) fn release_key(&mut self, farm: &HostedFarm) {
        self.keys.retain(|_, id| id != farm.id());
    }

    /// Farms that were deleted, and are not removed yet.
    pub(super) fn deleted(&self) -> Vec<Arc<HostedFarm>> {
        self.farms.values().filter(|farm| farm.is_deleted()).cloned().collect()
    }

    /// Farms that were not deleted.
    fn kept(&self) -> impl Iterator<Item = &Arc<HostedFarm>> {
        self.farms.values().filter(|farm| !farm.is_deleted())
    }

    /// The farm that a user opened under a key.
    pub(super) fn by_key(&self, user: &str, key: &str) -> Option<Arc<HostedFarm>> {
        let id = self.keys.get(&(user.to_owned(), key.to_owned()))?;
        self.farms.get(id).cloned()
    }

    /// The farms that are to be opened.
    pub(super) fn due(&self, is_remote: bool) -> Vec<Arc<HostedFarm>> {
        self.farms.values().filter(|farm| farm.is_due(is_remote)).cloned().collect()
    }

    /// The farms whose session left something that could not be noted, or is to be tried again.
    pub(super) fn unwritten(&self) -> Vec<Arc<HostedFarm>> {
        self.farms.values().filter(|farm| farm.is_unwritten()).cloned().collect()
    }

    /// Numbers of farms that have not ended.
    pub(super) fn open_by_user(&self) -> UserCounts {
        let open = self.kept().filter(|farm| farm.record().end.is_none());
        open.map(|farm| farm.user()).collect()
    }

    /// All farms, also those that were deleted and are not removed yet.
    pub(super) fn all(&self) -> Vec<Arc<HostedFarm>> {
        self.farms.values().cloned().collect()
    }

    fn page(&self, principal: &Principal, query: &FarmQuery) -> FarmPage {
        let limit = query.limit.clamp(1, MAX_PAGE);
        let end = query.before.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut page = FarmPage::default();
        for (_, farm) in self.farms.range((Bound::Unbounded, end)).rev() {
            let is_user = query.user.as_ref().is_none_or(|user| user == farm.user());
            if !principal.may_see(farm.user()) || !is_user || farm.is_deleted() {
                continue;
            }
            let view = farm.view();
            let is_named =
                query.name.as_ref().is_none_or(|name| *name == view.record.settings.name);
            if !is_named || query.state.is_some_and(|state| state != view.state) {
                continue;
            }
            if page.farms.len() == limit {
                page.next = page.farms.last().map(|last| last.record.id.clone());
                break;
            }
            page.farms.push(view);
        }
        if principal.role == Role::Admin && query.before.is_none() {
            let unreadable = self.unreadable.iter();
            page.unreadable = unreadable.map(|(id, reason)| (id.clone(), reason.clone())).collect();
        }
        page
    }
}

impl Daemon {
    /// Lists the farms that a user may see.
    pub fn list_farms(&self, principal: &Principal, query: &FarmQuery) -> FarmPage {
        self.farms.table().page(principal, query)
    }

    /// Finds a farm that a user may see.
    ///
    /// # Errors
    /// [`FarmError::NotFound`], also for a farm of another user; for an administrator,
    /// [`DaemonError::Unreadable`].
    pub fn find_farm(
        &self,
        principal: &Principal,
        id: &HostedFarmId,
    ) -> Result<Arc<HostedFarm>, FarmError> {
        let table = self.farms.table();
        match table.farms.get(id) {
            Some(farm) if principal.may_see(farm.user()) && !farm.is_deleted() => {
                Ok(Arc::clone(farm))
            }
            Some(_) => Err(FarmError::NotFound),
            None => match table.unreadable.get(id).filter(|_| principal.role == Role::Admin) {
                Some(reason) => Err(DaemonError::Unreadable { reason: reason.clone() }.into()),
                None => Err(FarmError::NotFound),
            },
        }
    }

    /// Counts its farms by state.
    pub fn farm_totals(&self) -> Vec<(HostedFarmState, u64)> {
        let mut totals = HashMap::new();
        for farm in self.farms.table().kept() {
            *totals.entry(farm.view().state).or_default() += 1;
        }
        totals.into_iter().collect()
    }
}
