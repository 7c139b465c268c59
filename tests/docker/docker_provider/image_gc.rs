//! Removal of unused task images.

use std::fs::File;
use std::time::{Duration, SystemTime};

use rollout_base::removal_limits::RemovalLimits;
use rollout_docker::PrunedImages;
use rollout_environment::{Image, Provider as _};

use crate::docker_provider::fixture::{DockerFixture, destroy};

/// Longer than any image has existed on this engine.
const ONE_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Sets the last use of an image to 1970.
fn mark_unused(lab: &DockerFixture, image: &Image) {
    let tag = image.reference.rsplit(':').next().expect("a tag");
    let file = lab.scratch.path().join("locks").join(format!("{tag}.lock"));
    let file = File::options().write(true).open(file).expect("a note of its use");
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(24 * 3600);
    file.set_modified(then).expect("set");
}

#[tokio::test(flavor = "multi_thread")]
async fn image_gc_removes_unused_unless_container_exists() {
    let Some(lab) = DockerFixture::open().await else { return };
    let (old, busy, new) = (
        lab.build("ENV A=1").await,
        lab.build("ENV A=2").await,
        lab.build("RUN head -c 1000000 /dev/urandom > /x").await,
    );
    let environment = lab.create(busy.clone(), Vec::new()).await;
    for image in [&old, &busy] {
        mark_unused(&lab, image);
    }
    let limits = RemovalLimits { older_than: Some(ONE_YEAR), max_bytes: None, dry_run: true };
    let would = lab.provider.prune_images(&limits).await.expect("listed");
    let names = |pruned: &PrunedImages| -> Vec<String> {
        pruned.removed.iter().map(|image| image.reference.clone()).collect()
    };
    assert_eq!(names(&would), std::slice::from_ref(&old.reference));
    let kept = |image: &Image| would.kept.iter().find(|kept| kept.reference == image.reference);
    assert!(kept(&busy).is_some_and(|image| image.in_use), "{:?}", would.kept);
    assert!(kept(&new).is_some_and(|image| !image.in_use && image.bytes > 0), "{:?}", would.kept);
    assert!(lab.docker.inspect_image(&old.reference).await.is_ok(), "nothing was removed");

    let limits = RemovalLimits { dry_run: false, ..limits };
    let removed = lab.provider.prune_images(&limits).await.expect("listed");
    assert_eq!((names(&removed), removed.failed.len()), (vec![old.reference.clone()], 0));
    assert!(lab.docker.inspect_image(&old.reference).await.is_err(), "it is gone");
    destroy(environment).await;
    for image in [&busy, &new] {
        lab.remove_image(image).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn image_gc_counts_found_image_as_used() {
    let Some(lab) = DockerFixture::open().await else { return };
    let source = lab
        .context(&[("Dockerfile", &format!("FROM {}\n", crate::docker_provider::fixture::BASE))]);
    let image = lab.provider.prepare(lab.image_request(&source)).await.expect("built");
    mark_unused(&lab, &image);
    lab.provider.prepare(lab.image_request(&source)).await.expect("found");
    let limits = RemovalLimits { older_than: Some(ONE_YEAR), max_bytes: None, dry_run: false };
    let pruned = lab.provider.prune_images(&limits).await.expect("listed");
    assert!(!pruned.removed.iter().any(|gone| gone.reference == image.reference), "{pruned:?}");
    lab.remove_image(&image).await;
}
