//! `rollout gc`.

#[cfg(feature = "serve")]
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::Args;
use jiff::Timestamp;
use rollout_base::removal_limits::RemovalLimits;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::id::RunId;
use serde_json::json;

use super::error::CliError;
#[cfg(feature = "docker")]
use super::gc_docker;
#[cfg(feature = "nats")]
use super::gc_queue;
#[cfg(feature = "serve")]
use super::gc_uploads;
use super::output::Printer;
use super::{gc_datasets, gc_store, value_parsers};

/// Kinds of objects that `rollout gc` removes; the command line must name at least one.
const REMOVABLE: &[&str] = &[
    #[cfg(feature = "docker")]
    "containers",
    #[cfg(feature = "docker")]
    "images",
    "datasets",
    #[cfg(feature = "nats")]
    "queue",
    "store",
    #[cfg(feature = "serve")]
    "uploads",
];

/// Parts of [`REMOVABLE`] that `--grace` protects.
const GRACED: &[&str] = &[
    "store",
    #[cfg(feature = "serve")]
    "uploads",
];

/// Parts of [`REMOVABLE`] that `--older-than` and `--max-size` limit.
#[cfg(feature = "docker")]
const LIMITED: [&str; 2] = ["images", "datasets"];
#[cfg(not(feature = "docker"))]
const LIMITED: [&str; 1] = ["datasets"];

/// Remove leftovers of dead runs on this host, unused caches, or blobs that no run needs
///
/// Of leftovers, only objects of dead owners are removed: the owner's process has ended, or the host was
/// restarted since. Preserved environments and those of other users stay. Every run does the same
/// when it starts.
///
/// Task images and fetched datasets are removed only by age or size, each by itself, and never within
/// an hour of their last use; an image stays while a container uses it. A run that needs a removed one
/// builds or fetches it again.
///
/// `--store` removes the blobs that no run needs and that are older than `--grace`. Runs whose
/// directories were removed by hand have to be confirmed with `--force`.
///
/// `--queue` removes the messages of runs that have completed or were removed, and the lock entries
/// of runs that no process has owned for `--lock-age`, with their messages. A stopped run that is
/// resumed later runs again what its entry and its messages would have told.
///
/// A build without Docker removes fetched datasets, blobs and what is on a server only.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(REMOVABLE))]
#[command(group = clap::ArgGroup::new("limited").multiple(true).args(LIMITED))]
#[command(group = clap::ArgGroup::new("graced").multiple(true).args(GRACED))]
#[command(group = clap::ArgGroup::new("limits").multiple(true).args(["older_than", "max_size"]))]
pub(super) struct GcArgs {
    /// Remove containers
    #[cfg(feature = "docker")]
    #[arg(long)]
    pub(super) containers: bool,

    /// Remove images built for tasks, by `--older-than` or `--max-size`
    #[cfg(feature = "docker")]
    #[arg(long, requires = "limits")]
    pub(super) images: bool,

    /// Remove datasets that were fetched from repositories, by `--older-than` or `--max-size`
    #[arg(long, requires = "limits")]
    pub(super) datasets: bool,

    /// Remove what no run of this user on this host has used for this long
    #[arg(long, value_name = "TIME", requires = "limited", value_parser = value_parsers::age)]
    pub(super) older_than: Option<Duration>,

    /// Remove the least recently used until the rest have at most this total size
    #[arg(long, value_name = "SIZE", requires = "limited", value_parser = value_parsers::size)]
    pub(super) max_size: Option<u64>,

    /// Remove what runs have left on the NATS server: messages and lock entries
    #[cfg(feature = "nats")]
    #[arg(long, requires = "url", conflicts_with = "store")]
    pub(super) queue: bool,

    /// Remove lock entries that no owner has written for this long
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "TIME", requires = "queue", default_value = value_parsers::LOCK_AGE, value_parser = value_parsers::age)]
    pub(super) lock_age: Duration,

    /// Remove unneeded blobs of this store: a directory, or `s3://bucket/prefix?endpoint=URL`
    #[arg(long, value_name = "URL")]
    #[cfg_attr(feature = "docker", arg(conflicts_with_all = ["containers", "images", "datasets"]))]
    #[cfg_attr(not(feature = "docker"), arg(conflicts_with = "datasets"))]
    pub(super) store: Option<String>,

    /// Remove uploaded datasets that no open run or farm names from this state directory of
    /// `rollout serve`, which may use it
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "DIR", conflicts_with = "store")]
    pub(super) uploads: Option<PathBuf>,

    /// Keep unneeded blobs and uploads that were stored within this time: a run that is starting, or a
    /// worker, may not have named them yet
    #[arg(long, value_name = "TIME", requires = "graced", default_value = value_parsers::BLOB_GRACE, value_parser = value_parsers::age)]
    pub(super) grace: Duration,

    /// Also remove the store itself, if no run uses it and nothing is left in it
    ///
    /// Workers and servers that were started with the store need another one then.
    #[arg(long, requires = "store")]
    pub(super) remove_store: bool,

    /// Treat runs whose directories are missing on this host as removed (they may have moved)
    #[arg(long, requires = "store")]
    pub(super) force: bool,

    /// Treat this run as removed, although its directory was on another host; can be repeated
    #[arg(long, value_name = "RUN", requires = "store")]
    pub(super) forget: Vec<RunId>,

    /// Print what would be removed, and remove nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,

    #[cfg(feature = "nats")]
    #[command(flatten)]
    pub(super) nats: super::nats::NatsArgs,
}

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

/// A size in megabytes; a small one in kilobytes or bytes.
pub(super) fn megabytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..100_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

pub(super) fn time(time: SystemTime) -> String {
    let stamp = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{stamp:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_that_is_not_zero_is_not_shown_as_zero() {
        let shown = [0, 999, 1_234, 99_900, 100_000, 5_600_000].map(megabytes);
        assert_eq!(shown, ["0 bytes", "999 bytes", "1.2 kB", "99.9 kB", "0.1 MB", "5.6 MB"]);
    }
}
