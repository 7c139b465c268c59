//! `rollout gc`.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rollout_protocol::exit::ExitCode;
use rollout_worker::environment::docker::{DockerOptions, DockerProvider};
use rollout_worker::environment::{DeadOwners, Owner, Provider as _};
use rollout_worker::owner::HostOwners;

use super::args::GcArgs;
use super::error::CliError;
use super::output::Printer;
use crate::report::escape;

/// Runs the command.
pub(super) async fn run(args: &GcArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    // No images are built here, so no locks of builds are taken either.
    let provider = DockerProvider::new(DockerOptions::new(std::env::temp_dir()));
    let owners = HostOwners::new(Owner::current(PathBuf::new()));
    let judge = Judge { owners, only_look: args.dry_run, dead: Mutex::default() };
    let reaped =
        provider.reap(&judge).await.map_err(|failure| CliError::of_environment(&failure))?;
    let mut text = String::new();
    for owner in judge.dead.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let line = format!("would remove a container of process {} on {}", owner.pid, owner.host);
        text.push_str(&escape::line(&line));
        text.push('\n');
    }
    for name in &reaped.removed {
        text.push_str(&format!("removed container {}\n", escape::line(name)));
    }
    printer.data(&text)?;
    for (name, reason) in &reaped.failed {
        printer.warning(&format!("container {name} could not be removed: {reason}"));
    }
    Ok(if reaped.failed.is_empty() { ExitCode::Success } else { ExitCode::Failure })
}

/// Judges owners; when it only looks, it notes the dead ones and lets them keep what they left.
#[derive(Debug)]
struct Judge {
    owners: HostOwners,
    only_look: bool,
    dead: Mutex<Vec<Owner>>,
}

impl DeadOwners for Judge {
    fn is_dead(&self, owner: &Owner) -> bool {
        let dead = self.owners.is_dead(owner);
        if dead && self.only_look {
            self.dead.lock().unwrap_or_else(PoisonError::into_inner).push(owner.clone());
        }
        dead && !self.only_look
    }
}
