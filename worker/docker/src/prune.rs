//! Removal of unused task images.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bollard::query_parameters::{ListContainersOptions, ListImagesOptions, RemoveImageOptions};
use rollout_base::removal_limits::{EntryUse, RECENT_USE, RemovalLimits};
use rollout_environment::Failure;

use super::client::DockerClient;
use super::failure::has_status;
use super::{labels, lock};

/// An image that was built for a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskImage {
    /// Its name.
    pub reference: String,
    /// Its size. Layers shared with other images do not count if the engine reports them
    /// separately.
    pub bytes: u64,
    /// When a run of this host and user last used it; if none has, when it was built.
    pub used: SystemTime,
    /// Whether a container, running or not, uses it.
    pub in_use: bool,
}

/// Outcome of a removal of images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrunedImages {
    /// The images that were removed, or would be.
    pub removed: Vec<TaskImage>,
    /// The images that could not be removed, with the reason.
    pub failed: Vec<(String, String)>,
    /// The images that stay.
    pub kept: Vec<TaskImage>,
}

/// Removes task images. `locks` is the directory of build locks, whose times record uses.
pub(super) async fn prune(
    client: &DockerClient,
    locks: &Path,
    limits: &RemovalLimits,
) -> Result<PrunedImages, Failure> {
    let images = list(client, locks).await?;
    let uses = images.iter().map(|image| EntryUse {
        bytes: image.bytes,
        used: image.used,
        in_use: image.in_use,
    });
    let unwanted = limits.choose(uses, SystemTime::now());
    let mut pruned = PrunedImages::default();
    for (image, unwanted) in images.into_iter().zip(unwanted) {
        if !unwanted {
            pruned.kept.push(image);
        } else if limits.dry_run {
            pruned.removed.push(image);
        } else {
            match remove(client, locks, &image).await {
                Ok(true) => pruned.removed.push(image),
                Ok(false) => pruned.kept.push(image),
                Err(failure) => pruned.failed.push((image.reference, failure.chain())),
            }
        }
    }
    Ok(pruned)
}

/// The task images, least recently used first.
async fn list(client: &DockerClient, locks: &Path) -> Result<Vec<TaskImage>, Failure> {
    let docker = client.slow().await?;
    let options = ListContainersOptions { all: true, ..Default::default() };
    let containers = docker.list_containers(Some(options)).await;
    let containers = containers.map_err(|e| client.failure("cannot list containers", e))?;
    let in_use: HashSet<String> = containers.into_iter().filter_map(|one| one.image_id).collect();
    let options = ListImagesOptions {
        filters: Some([("label".to_owned(), vec![labels::CONTEXT.to_owned()])].into()),
        shared_size: true,
        ..Default::default()
    };
    let listed = docker.list_images(Some(options)).await;
    let listed = listed.map_err(|e| client.failure("cannot list images", e))?;
    let mut images = Vec::new();
    for image in listed {
        let built = Duration::from_secs(u64::try_from(image.created).unwrap_or_default());
        let bytes = image.size - image.shared_size.max(0);
        for reference in image.repo_tags {
            let noted =
                lock::lock_path(locks, &reference).metadata().and_then(|meta| meta.modified());
            images.push(TaskImage {
                bytes: u64::try_from(bytes).unwrap_or_default(),
                used: noted.unwrap_or(SystemTime::UNIX_EPOCH + built),
                in_use: in_use.contains(&image.id),
                reference,
            });
        }
    }
    images.sort_by(|a, b| (a.used, &a.reference).cmp(&(b.used, &b.reference)));
    Ok(images)
}

/// Removes an image; returns whether it was removed. One that is being built or used meanwhile
/// stays.
async fn remove(client: &DockerClient, locks: &Path, image: &TaskImage) -> Result<bool, Failure> {
    let path = lock::lock_path(locks, &image.reference);
    let Ok(Some(held)) = lock::try_exclusive(&path) else { return Ok(false) };
    let noted = path.metadata().and_then(|meta| meta.modified());
    if noted
        .is_ok_and(|noted| noted > image.used && noted.elapsed().is_ok_and(|age| age < RECENT_USE))
    {
        return Ok(false);
    }
    let docker = client.slow().await?;
    let options = RemoveImageOptions::default();
    let removed = docker.remove_image(&image.reference, Some(options), None).await;
    drop(held);
    match removed {
        Ok(_) => Ok(true),
        Err(error) if has_status(&error, 404) => Ok(true),
        Err(error) if has_status(&error, 409) => Ok(false),
        Err(error) => {
            Err(client.failure(&format!("cannot remove the image {}", image.reference), error))
        }
    }
}
