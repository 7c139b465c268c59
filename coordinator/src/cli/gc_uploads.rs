//! `rollout gc --uploads`: removal of datasets that users uploaded to a server and no run needs any more.

use std::path::Path;

use rollout_base::supervise;
use serde_json::{Value, json};

use super::error::CliError;
use super::gc::{GcArgs, Removal, megabytes};
use crate::daemon::{UploadRemoval, remove_unused_uploads};
use crate::results::escape;

/// Removes datasets from the state directory of a server.
pub(super) async fn remove(
    directory: &Path,
    args: &GcArgs,
    done: &mut Removal,
) -> Result<(), CliError> {
    let (root, grace, dry_run) = (directory.to_owned(), args.grace, args.dry_run);
    let removed = supervise::blocking(move || remove_unused_uploads(&root, grace, dry_run)).await;
    let removed =
        removed.map_err(|error| CliError::failure("cannot remove uploaded datasets", &error))?;
    done.document["uploads"] = describe(&removed, dry_run, &mut done.text);
    Ok(())
}

fn describe(removal: &UploadRemoval, dry_run: bool, text: &mut String) -> Value {
    let verb = if dry_run { "would remove" } else { "removed" };
    for upload in &removal.removed {
        let line = format!("{verb} dataset {}, {}", upload.name, megabytes(upload.bytes));
        text.push_str(&escape::line(&line));
        text.push('\n');
    }
    let bytes = removal.removed.iter().map(|upload| upload.bytes).sum();
    text.push_str(&format!(
        "{verb} {} uploaded datasets, {}; {} kept\n",
        removal.removed.len(),
        megabytes(bytes),
        removal.kept
    ));
    let removed = removal.removed.iter();
    let removed: Vec<_> =
        removed.map(|upload| json!({"sha256": upload.name, "bytes": upload.bytes})).collect();
    json!({"removed": removed, "kept": removal.kept})
}
