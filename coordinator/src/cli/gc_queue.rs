//! `rollout gc --queue`: removal of what runs have left on a NATS server.

use serde_json::json;

use super::error::CliError;
use super::gc::{GcArgs, Removal};
use crate::launch::nats::{QueueSweep, sweep_old};

/// Removes messages and lock entries.
pub(super) async fn remove(args: &GcArgs, done: &mut Removal) -> Result<(), CliError> {
    // The command line has a server: the option requires it.
    let Some(url) = &args.nats.url else { return Ok(()) };
    let nats = args.nats.access.connect(url).await?;
    let sweep = match nats.is_set_up().await? {
        true => sweep_old(&nats, &nats.kv_store(), args.lock_age, args.dry_run).await?,
        false => QueueSweep::default(),
    };
    let verb = if args.dry_run { "would remove" } else { "removed" };
    let QueueSweep { runs, messages, entries } = &sweep;
    done.text.push_str(&format!(
        "{verb} {messages} messages of {} runs and {} lock entries from {}\n",
        runs.len(),
        entries.len(),
        nats.options().address()
    ));
    done.document["queue"] = json!({"messages": messages, "runs": runs, "lock_entries": entries});
    Ok(())
}
