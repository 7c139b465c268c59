//! `rollout gc --containers` and `--images`: removal of leftovers of dead runs from the Docker
//! engine.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rollout_docker::{DockerOptions, DockerProvider, PrunedImages, TaskImage};
use rollout_environment::{DeadOwners, Failure, Owner, Provider as _, ReapReport};
use rollout_protocol::exit::ExitCode;
use rollout_store::host::HostOwners;
use serde_json::{Value, json};

use super::error::CliError;
use super::gc::{self, GcArgs, Removal, megabytes, time};
use crate::launch::host::image_locks;
use crate::results::escape;

/// Removes containers and images.
pub(super) async fn remove(args: &GcArgs, done: &mut Removal) -> Result<(), CliError> {
    let locks = image_locks(|name| std::env::var_os(name), std::env::temp_dir());
    let provider = DockerProvider::new(DockerOptions::new(locks));
    provider.check().await.map_err(|failure| CliError::from_docker(&failure))?;
    if args.containers {
        let owners = HostOwners::new(Owner::current(PathBuf::new()));
        let check = DeadOwnerCheck { owners, dry_run: args.dry_run, dead: Mutex::default() };
        let reaped = provider.reap(&check).await.map_err(|failure| engine_failure(&failure))?;
        let dead = check.dead.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.document["containers"] = containers(&dead, &reaped, &mut done.text);
        done.failed.extend(
            reaped.failed.into_iter().map(|(name, why)| (format!("container {name}"), why)),
        );
    }
    if args.images {
        let pruned = provider.prune_images(&gc::limits(args)).await;
        let pruned = pruned.map_err(|failure| engine_failure(&failure))?;
        done.document["images"] = images(&pruned, args.dry_run, &mut done.text);
        done.failed
            .extend(pruned.failed.into_iter().map(|(name, why)| (format!("image {name}"), why)));
    }
    Ok(())
}

/// A failure of an engine that answered at the start. Objects may have been removed before it.
fn engine_failure(failure: &Failure) -> CliError {
    CliError::new(ExitCode::Failure, failure.chain())
}

fn containers(dead: &[Owner], reaped: &ReapReport, text: &mut String) -> Value {
    for owner in dead {
        let line = format!("would remove a container of process {} on {}", owner.pid, owner.host);
        text.push_str(&escape::line(&line));
        text.push('\n');
    }
    for name in &reaped.removed {
        text.push_str(&format!("removed container {}\n", escape::line(name)));
    }
    let owners: Vec<_> =
        dead.iter().map(|owner| json!({"pid": owner.pid, "host": owner.host})).collect();
    json!({
        "removed": reaped.removed,
        "would_remove_of": owners,
        "failed": reaped.failed.iter().map(|(name, _)| name).collect::<Vec<_>>(),
    })
}

fn images(pruned: &PrunedImages, dry_run: bool, text: &mut String) -> Value {
    let verb = if dry_run { "would remove" } else { "removed" };
    for image in &pruned.removed {
        let (name, size) = (escape::line(&image.reference), megabytes(image.bytes));
        text.push_str(&format!("{verb} image {name}, {size}, last used {}\n", time(image.used)));
    }
    let total = |images: &[TaskImage]| images.iter().map(|image| image.bytes).sum::<u64>();
    text.push_str(&format!(
        "{verb} {} images, {}; {} kept, {} (shared layers count in each image)\n",
        pruned.removed.len(),
        megabytes(total(&pruned.removed)),
        pruned.kept.len(),
        megabytes(total(&pruned.kept)),
    ));
    let shown = |images: &[TaskImage]| -> Vec<Value> {
        let each = images.iter().map(|image| {
            json!({
                "reference": image.reference,
                "bytes": image.bytes,
                "last_used": time(image.used),
                "in_use": image.in_use,
            })
        });
        each.collect()
    };
    json!({
        "removed": shown(&pruned.removed),
        "kept": shown(&pruned.kept),
        "failed": pruned.failed.iter().map(|(name, _)| name).collect::<Vec<_>>(),
    })
}

/// Liveness of owners. A dry run records the dead ones and reports none, so nothing is removed.
#[derive(Debug)]
struct DeadOwnerCheck {
    owners: HostOwners,
    dry_run: bool,
    dead: Mutex<Vec<Owner>>,
}

impl DeadOwners for DeadOwnerCheck {
    fn is_dead(&self, owner: &Owner) -> bool {
        let dead = self.owners.is_dead(owner);
        if dead && self.dry_run {
            self.dead.lock().unwrap_or_else(PoisonError::into_inner).push(owner.clone());
        }
        dead && !self.dry_run
    }
}

#[cfg(test)]
mod tests {
    use rollout_environment::FailureKind;

    use super::*;

    #[test]
    fn gc_without_docker_engine_hints_remedy() {
        let error = CliError::from_docker(&Failure::new(FailureKind::Unreachable, "no answer"));
        assert_eq!((error.code, error.message.as_str()), (ExitCode::Config, "no answer"));
        assert_eq!(error.hints, ["start the engine, or name another one in `DOCKER_HOST`"]);
        let error = CliError::from_docker(&Failure::new(FailureKind::Refused, "no"));
        assert_eq!((error.code, error.hints.len()), (ExitCode::Failure, 0));
    }

    #[test]
    fn gc_with_slow_docker_engine_is_failure_without_hint() {
        let error = engine_failure(&Failure::new(FailureKind::Unreachable, "timeout"));
        assert_eq!((error.code, error.message.as_str()), (ExitCode::Failure, "timeout"));
        assert_eq!(error.hints.len(), 0);
    }
}
