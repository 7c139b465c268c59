//! `rollout gc`.

use std::time::SystemTime;

use jiff::Timestamp;
use rollout_protocol::exit::ExitCode;
use rollout_worker::removal_limits::RemovalLimits;
use serde_json::json;

use super::args::GcArgs;
use super::error::CliError;
#[cfg(feature = "docker")]
use super::gc_docker;
#[cfg(feature = "nats")]
use super::gc_queue;
#[cfg(feature = "serve")]
use super::gc_uploads;
use super::output::Printer;
use super::{gc_datasets, gc_store};

/// Removed objects; in a dry run, those that would be removed.
#[derive(Debug)]
pub(super) struct Removal {
    /// Lines for people.
    pub(super) text: String,
    /// The same as JSON.
    pub(super) document: serde_json::Value,
    /// Names of what could not be removed, with the reason.
    pub(super) failed: Vec<(String, String)>,
}

/// Runs the command.
pub(super) async fn run(args: &GcArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    if let Some(store) = &args.store {
        return gc_store::run(store, args, printer).await;
    }
    let mut done = Removal {
        text: String::new(),
        document: json!({"dry_run": args.dry_run}),
        failed: Vec::new(),
    };
    let ended = remove(args, &mut done).await;
    let Removal { text, document, failed } = done;
    printer.data(&if args.json { format!("{document:#}\n") } else { text })?;
    for (name, reason) in &failed {
        printer.warning(&format!("cannot remove {name}: {reason}"));
    }
    ended?;
    Ok(if failed.is_empty() { ExitCode::Success } else { ExitCode::Failure })
}

/// Removes all that was asked for; `done` is right after an error, too.
async fn remove(args: &GcArgs, done: &mut Removal) -> Result<(), CliError> {
    #[cfg(feature = "docker")]
    if args.containers || args.images {
        gc_docker::remove(args, done).await?;
    }
    if args.datasets {
        gc_datasets::remove(args, done).await?;
    }
    #[cfg(feature = "serve")]
    if let Some(directory) = &args.uploads {
        gc_uploads::remove(directory, args, done).await?;
    }
    #[cfg(feature = "nats")]
    if args.queue {
        gc_queue::remove(args, done).await?;
    }
    Ok(())
}

/// The limits of a removal.
pub(super) fn limits(args: &GcArgs) -> RemovalLimits {
    RemovalLimits {
        older_than: args.older_than,
        max_bytes: args.max_size.map(|mebibytes| mebibytes.saturating_mul(1 << 20)),
        dry_run: args.dry_run,
    }
}

pub(super) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

pub(super) fn time(time: SystemTime) -> String {
    let stamp = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{stamp:.0}")
}
