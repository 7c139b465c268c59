//! Removal of unused task images.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bollard::query_parameters::{ListContainersOptions, ListImagesOptions, RemoveImageOptions};

use super::client::DockerClient;
use super::failure::has_status;
use super::{labels, lock};
use crate::environment::Failure;

/// Images used within this time stay: a run may be about to start a container of one.
const RECENT_USE: Duration = Duration::from_secs(3600);

/// Limits that select the task images to remove.
#[derive(Debug, Clone, Copy, Default)]
pub struct ImageLimits {
    /// Remove the images not used for longer than this.
    pub older_than: Option<Duration>,
    /// Remove the least recently used images until the total size is at most this.
    pub max_bytes: Option<u64>,
    /// Remove nothing, only report.
    pub dry_run: bool,
}

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
    limits: &ImageLimits,
) -> Result<PrunedImages, Failure> {
    let images = list(client, locks).await?;
    let unwanted = choose(&images, limits, SystemTime::now());
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

/// For each of the images (least recently used first), whether to remove it.
fn choose(images: &[TaskImage], limits: &ImageLimits, now: SystemTime) -> Vec<bool> {
    let mut total: u64 = images.iter().map(|image| image.bytes).sum();
    let mut chosen = Vec::new();
    for image in images {
        let age = now.duration_since(image.used).unwrap_or_default();
        let old = limits.older_than.is_some_and(|limit| age > limit);
        let much = limits.max_bytes.is_some_and(|limit| total > limit);
        let unwanted = (old || much) && age > RECENT_USE && !image.in_use;
        if unwanted {
            total -= image.bytes;
        }
        chosen.push(unwanted);
    }
    chosen
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

#[cfg(test)]
mod tests {
    use super::*;

    fn image(hours: u64, bytes: u64, in_use: bool) -> TaskImage {
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * (1000 - hours));
        TaskImage { reference: format!("image-{hours}"), bytes, used, in_use }
    }

    #[test]
    fn image_prune_removes_oldest_and_keeps_used() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * 1000);
        let images = [
            image(50, 10, false),
            image(40, 10, true),
            image(30, 10, false),
            image(2, 10, false),
            image(0, 10, false),
        ];
        let hours = |n: u64| Some(Duration::from_secs(3600 * n));
        for (older_than, max_bytes, expected) in [
            (None, None, [false; 5]),
            (hours(35), None, [true, false, false, false, false]),
            (hours(1), None, [true, false, true, true, false]),
            (hours(0), None, [true, false, true, true, false]),
            (None, Some(40), [true, false, false, false, false]),
            (None, Some(25), [true, false, true, true, false]),
            (None, Some(0), [true, false, true, true, false]),
            (hours(45), Some(30), [true, false, true, false, false]),
        ] {
            let limits = ImageLimits { older_than, max_bytes, dry_run: false };
            assert_eq!(choose(&images, &limits, now), expected, "{older_than:?} {max_bytes:?}");
        }
    }
}
