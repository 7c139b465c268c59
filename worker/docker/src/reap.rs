//! Removal of what dead owners left behind: containers, and the networks and volumes of those with
//! services.

use std::collections::{HashMap, HashSet};

use bollard::models::ContainerSummary;
use bollard::query_parameters::ListContainersOptions;
use futures_util::StreamExt as _;
use rollout_environment::{DeadOwners, Failure, ReapReport};

use super::client::DockerClient;
use super::compose::project::{self, NamedLabels};
use super::container::{self, PREFIX, PRESERVED_PREFIX};
use super::labels;

/// Concurrent removals: each costs the engine 100 milliseconds of processor time.
const AT_ONCE: usize = 4;

/// Removes the containers, networks and volumes of dead owners.
pub(super) async fn reap(
    client: &DockerClient,
    dead: &dyn DeadOwners,
) -> Result<ReapReport, Failure> {
    let filters = HashMap::from([("label".to_owned(), vec![labels::OWNER.to_owned()])]);
    let options = ListContainersOptions { all: true, filters: Some(filters), ..Default::default() };
    let listed = client
        .docker()
        .await?
        .list_containers(Some(options))
        .await
        .map_err(|e| client.failure("cannot list containers that were left behind", e))?;
    let mut reaped = ReapReport::default();
    let (mut doomed, mut kept) = (Vec::new(), HashSet::new());
    for mut summary in listed {
        match abandoned(&summary, dead) {
            Some(found) => doomed.push(found),
            None => {
                reaped.kept += 1;
                kept.extend(summary.labels.as_mut().and_then(|l| l.remove(labels::PROJECT)));
            }
        }
    }
    let removals = doomed.into_iter().map(|(id, name)| async move {
        let result = container::remove(client, &id, &name).await;
        (name, result)
    });
    let mut removals = futures_util::stream::iter(removals).buffer_unordered(AT_ONCE);
    while let Some((name, result)) = removals.next().await {
        record_removal(&mut reaped, &name, result);
    }
    drop(removals);
    reap_networks_and_volumes(client, dead, &kept, &mut reaped).await?;
    reaped.removed.sort_unstable();
    Ok(reaped)
}

/// Removes networks and volumes whose containers no longer exist. Those of a project in `kept` are
/// still in use, or were preserved with it.
async fn reap_networks_and_volumes(
    client: &DockerClient,
    dead: &dyn DeadOwners,
    kept: &HashSet<String>,
    reaped: &mut ReapReport,
) -> Result<(), Failure> {
    let filters = HashMap::from([("label".to_owned(), vec![labels::PROJECT.to_owned()])]);
    let doomed = |(name, labels): &NamedLabels| {
        let project = labels.get(labels::PROJECT);
        name.starts_with(PREFIX)
            && project.is_some_and(|project| !kept.contains(project))
            && is_dead(labels, dead)
    };
    for found in project::networks(client, filters.clone()).await?.iter().filter(|n| doomed(n)) {
        record_removal(reaped, &found.0, project::remove_network(client, &found.0).await);
    }
    for found in project::volumes(client, filters).await?.iter().filter(|v| doomed(v)) {
        record_removal(reaped, &found.0, project::remove_volume(client, &found.0).await);
    }
    Ok(())
}

fn record_removal(reaped: &mut ReapReport, name: &str, removed: Result<(), Failure>) {
    match removed {
        Ok(()) => reaped.removed.push(name.to_owned()),
        Err(failure) => reaped.failed.push((name.to_owned(), failure.chain())),
    }
}

/// Whether the labels name an owner of this user who is proven dead.
fn is_dead(labels: &HashMap<String, String>, dead: &dyn DeadOwners) -> bool {
    labels::owner(labels).is_some_and(|owner| {
        owner.uid == rustix::process::getuid().as_raw() && dead.is_dead(&owner)
    })
}

/// Identifier and name of a container without a live owner.
fn abandoned(summary: &ContainerSummary, dead: &dyn DeadOwners) -> Option<(String, String)> {
    let names = summary.names.as_deref().unwrap_or_default();
    let name = names.first()?.trim_start_matches('/');
    if !name.starts_with(PREFIX) || name.starts_with(PRESERVED_PREFIX) {
        return None;
    }
    is_dead(summary.labels.as_ref()?, dead)
        .then(|| (summary.id.clone().unwrap_or_default(), name.to_owned()))
}
