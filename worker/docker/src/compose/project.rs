//! Containers, networks and volumes of one project at the engine: found and removed by label,
//! without the program.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bollard::models::ContainerSummary;
use bollard::query_parameters::{
    ListContainersOptions, ListNetworksOptions, ListVolumesOptions, RemoveVolumeOptions,
};
use futures_util::StreamExt as _;
use rollout_environment::{Failure, FailureKind};

use super::super::client::DockerClient;
use super::super::container::{self, Container, PRESERVED_PREFIX};
use super::super::failure::has_status;
use super::super::labels;
use super::super::network::ContainerNetwork;

/// Containers of a project that are removed concurrently.
const AT_ONCE: usize = 4;

/// Attempts to remove a project completely: a cancelled creation may still be running in the
/// engine.
const MAX_REMOVE_ATTEMPTS: u32 = 20;
const REMOVE_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Looks at a project whose creation failed, besides the last one, and the time after each.
const LATE_LOOKS: u32 = 2;
const LATE_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A container of a project.
#[derive(Debug)]
pub(super) struct ProjectContainer {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) service: String,
}

impl ProjectContainer {
    pub(super) fn container(
        &self,
        client: &Arc<DockerClient>,
        network: ContainerNetwork,
    ) -> Container {
        Container::new(Arc::clone(client), self.id.clone(), self.name.clone(), network)
    }
}

fn filters(project: &str) -> HashMap<String, Vec<String>> {
    HashMap::from([("label".to_owned(), vec![format!("{}={project}", labels::PROJECT)])])
}

/// The containers of a project, in order of their names.
pub(super) async fn members(
    client: &DockerClient,
    project: &str,
) -> Result<Vec<ProjectContainer>, Failure> {
    let options =
        ListContainersOptions { all: true, filters: Some(filters(project)), ..Default::default() };
    let listed = client.docker().await?.list_containers(Some(options)).await;
    let listed = listed
        .map_err(|e| client.failure(&format!("cannot list the containers of {project}"), e))?;
    let mut members: Vec<_> = listed.into_iter().map(member).collect();
    members.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(members)
}

fn member(summary: ContainerSummary) -> ProjectContainer {
    let name = summary.names.and_then(|names| names.into_iter().next()).unwrap_or_default();
    let mut labels = summary.labels.unwrap_or_default();
    ProjectContainer {
        id: summary.id.unwrap_or_default(),
        name: name.trim_start_matches('/').to_owned(),
        service: labels.remove(labels::COMPOSE_SERVICE).unwrap_or_default(),
    }
}

/// Ends all processes of a project.
pub(in super::super) async fn stop(
    client: &Arc<DockerClient>,
    project: &str,
) -> Result<(), Failure> {
    let members = members(client, project).await?;
    let stops = members.into_iter().map(|member| {
        let container = member.container(client, ContainerNetwork::unmanaged());
        async move { container.stop().await }
    });
    let mut stops = futures_util::stream::iter(stops).buffer_unordered(AT_ONCE);
    while let Some(stopped) = stops.next().await {
        stopped?;
    }
    Ok(())
}

/// Gives every container of a project a name that reapers skip; returns the names.
pub(in super::super) async fn preserve(
    client: &Arc<DockerClient>,
    project: &str,
) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for member in members(client, project).await? {
        names.push(if member.name.starts_with(PRESERVED_PREFIX) {
            member.name
        } else {
            member.container(client, ContainerNetwork::unmanaged()).preserve().await?
        });
    }
    Ok(names)
}

/// Removes all objects of a project. Objects that no longer exist count as success.
pub(in super::super) async fn remove(client: &DockerClient, project: &str) -> Result<(), Failure> {
    let mut last = None;
    for look in 0..MAX_REMOVE_ATTEMPTS {
        if look > 1 {
            tokio::time::sleep(REMOVE_RETRY_INTERVAL).await;
        }
        match remove_once(client, project).await {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(failure) if failure.kind == FailureKind::Unreachable => return Err(failure),
            Err(failure) => last = Some(failure),
        }
    }
    let text = format!("cannot remove {project} completely");
    let left = Failure::new(FailureKind::LeftBehind, text);
    Err(match last {
        Some(why) => left.with_source(why),
        None => left,
    })
}

/// Removes the objects of a project whose creation failed, and waits a little for later ones: when one
/// service fails, the program gives up its requests for the others, and the engine still creates their
/// containers. The caller looks once more, and keeps what cannot be removed for later.
pub(super) async fn remove_late(client: &DockerClient, project: &str) {
    for _ in 0..LATE_LOOKS {
        if let Err(failure) = remove(client, project).await {
            tracing::debug!(error = failure.chain(), "cannot remove {project} yet");
            return;
        }
        tokio::time::sleep(LATE_LOOK_INTERVAL).await;
    }
}

/// Removes the objects that exist now; returns their number.
async fn remove_once(client: &DockerClient, project: &str) -> Result<usize, Failure> {
    let members = members(client, project).await?;
    let mut found = members.len();
    let removals = members
        .into_iter()
        .map(|member| async move { container::remove(client, &member.id, &member.name).await });
    let mut removals = futures_util::stream::iter(removals).buffer_unordered(AT_ONCE);
    while let Some(removed) = removals.next().await {
        removed?;
    }
    for network in networks(client, filters(project)).await? {
        found += 1;
        remove_network(client, &network.0).await?;
    }
    for volume in volumes(client, filters(project)).await? {
        found += 1;
        remove_volume(client, &volume.0).await?;
    }
    Ok(found)
}

/// Name and labels of an object.
pub(in super::super) type NamedLabels = (String, HashMap<String, String>);

pub(in super::super) async fn networks(
    client: &DockerClient,
    filters: HashMap<String, Vec<String>>,
) -> Result<Vec<NamedLabels>, Failure> {
    let options = ListNetworksOptions { filters: Some(filters) };
    let listed = client.docker().await?.list_networks(Some(options)).await;
    let listed = listed.map_err(|e| client.failure("cannot list networks", e))?;
    let named =
        |n: bollard::models::Network| (n.name.unwrap_or_default(), n.labels.unwrap_or_default());
    Ok(listed.into_iter().map(named).collect())
}

pub(in super::super) async fn volumes(
    client: &DockerClient,
    filters: HashMap<String, Vec<String>>,
) -> Result<Vec<NamedLabels>, Failure> {
    let options = ListVolumesOptions { filters: Some(filters) };
    let listed = client.docker().await?.list_volumes(Some(options)).await;
    let listed = listed.map_err(|e| client.failure("cannot list volumes", e))?;
    Ok(listed.volumes.unwrap_or_default().into_iter().map(|v| (v.name, v.labels)).collect())
}

pub(in super::super) async fn remove_network(
    client: &DockerClient,
    name: &str,
) -> Result<(), Failure> {
    match client.docker().await?.remove_network(name).await {
        Ok(()) => Ok(()),
        Err(error) if has_status(&error, 404) => Ok(()),
        Err(error) => Err(client.failure(&format!("cannot remove the network {name}"), error)),
    }
}

pub(in super::super) async fn remove_volume(
    client: &DockerClient,
    name: &str,
) -> Result<(), Failure> {
    match client.docker().await?.remove_volume(name, None::<RemoveVolumeOptions>).await {
        Ok(()) => Ok(()),
        Err(error) if has_status(&error, 404) => Ok(()),
        Err(error) => Err(client.failure(&format!("cannot remove the volume {name}"), error)),
    }
}
