//! Users of the daemon and their permissions.

use std::collections::BTreeSet;

use rollout_base::shared_limit::LimitUser;
use serde::{Deserialize, Serialize};

/// A role. Each one includes those before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads its own runs.
    Read,
    /// Submits and controls its own runs.
    #[default]
    Submit,
    /// Reads and controls the runs of all users.
    Admin,
}

/// The user of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Name. Runs belong to names: several tokens may have the same one.
    pub name: String,
    /// Role.
    pub role: Role,
    /// Variables of the daemon's process that its jobs may use.
    pub variables: AllowedVariables,
}

/// Variables that jobs of a user may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllowedVariables {
    /// All of them.
    All,
    /// These.
    Named(BTreeSet<String>),
}

impl Principal {
    /// Whether the user may read and control the runs of a user.
    pub fn may_see(&self, user: &str) -> bool {
        self.role == Role::Admin || self.name == user
    }

    /// The user of limits that all users share.
    pub fn limit_user(&self) -> LimitUser {
        limit_user(&self.name, self.role)
    }
}

/// The user of limits with a name and a role.
pub(super) fn limit_user(name: &str, role: Role) -> LimitUser {
    LimitUser { name: name.to_owned(), is_admin: role == Role::Admin }
}

impl AllowedVariables {
    /// Whether a variable may be used.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(name),
        }
    }
}
