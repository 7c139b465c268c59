//! The variables whose values a run masks, which its first line names.

use std::collections::BTreeSet;

use rollout_base::secrets::{MaskedVariables, TrialVariables};
use rollout_protocol::spec::gateway::{GatewaySpec, declared_secrets};

use super::host::environment;
use super::{local, search};
use crate::config::{Job, TreeFile};

/// The masked variables of a job. Of remote workers only names are known.
pub fn of_job(job: &Job, is_remote: bool) -> MaskedVariables {
    let (secrets, gateway) = (&job.settings.secrets, job.settings.gateway.as_ref());
    let known = (!is_remote).then(|| local::variables(job, environment()));
    masked(job.variables(), secrets, gateway, known)
}

/// The masked variables of a search. Of remote workers only names are known.
pub fn of_search(tree: &TreeFile, is_remote: bool) -> MaskedVariables {
    let gateway = tree.gateway.as_ref().map(|gateway| &gateway.spec);
    let known = (!is_remote).then(|| search::variables(tree, environment()));
    masked(tree.variable_names(), &tree.secrets, gateway, known)
}

fn masked(
    names: BTreeSet<String>,
    secrets: &BTreeSet<String>,
    gateway: Option<&GatewaySpec>,
    known: Option<TrialVariables>,
) -> MaskedVariables {
    let declared = declared_secrets(secrets, gateway);
    match known {
        Some(known) => known.masked(names, &declared),
        None => MaskedVariables::by_name(names, declared),
    }
}
