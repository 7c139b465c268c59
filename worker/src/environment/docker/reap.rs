//! Removing what dead owners left behind.

use std::collections::HashMap;

use bollard::models::ContainerSummary;
use bollard::query_parameters::ListContainersOptions;
use futures_util::StreamExt as _;

use super::client::Client;
use super::container::{self, KEPT_PREFIX, PREFIX};
use super::labels;
use crate::environment::{DeadOwners, Failure, Reaped};

/// Removals at the same time: each costs the engine 100 milliseconds of processor time.
const AT_ONCE: usize = 4;

/// Removes the containers of dead owners.
pub(super) async fn reap(client: &Client, dead: &dyn DeadOwners) -> Result<Reaped, Failure> {
    let filters = HashMap::from([("label".to_owned(), vec![labels::OWNER.to_owned()])]);
    let options = ListContainersOptions { all: true, filters: Some(filters), ..Default::default() };
    let listed = client
        .docker()
        .await?
        .list_containers(Some(options))
        .await
        .map_err(|e| client.failure("listing containers that were left behind", e))?;
    let mut reaped = Reaped::default();
    let mut doomed = Vec::new();
    for summary in listed {
        match abandoned(&summary, dead) {
            Some(found) => doomed.push(found),
            None => reaped.kept += 1,
        }
    }
    let removals = doomed.into_iter().map(|(id, name)| async move {
        let result = container::remove(client, &id, &name).await;
        (name, result)
    });
    let mut removals = futures_util::stream::iter(removals).buffer_unordered(AT_ONCE);
    while let Some((name, result)) = removals.next().await {
        match result {
            Ok(()) => reaped.removed.push(name),
            Err(failure) => reaped.failed.push((name, failure.chain())),
        }
    }
    reaped.removed.sort_unstable();
    Ok(reaped)
}

/// Identifier and name of a container that nobody owns any more.
fn abandoned(summary: &ContainerSummary, dead: &dyn DeadOwners) -> Option<(String, String)> {
    let names = summary.names.as_deref().unwrap_or_default();
    let name = names.first()?.trim_start_matches('/');
    if !name.starts_with(PREFIX) || name.starts_with(KEPT_PREFIX) {
        return None;
    }
    let owner = labels::owner(summary.labels.as_ref()?)?;
    let ours = owner.uid == rustix::process::getuid().as_raw();
    (ours && dead.is_dead(&owner))
        .then(|| (summary.id.clone().unwrap_or_default(), name.to_owned()))
}
