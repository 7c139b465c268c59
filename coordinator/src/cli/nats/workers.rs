//! `rollout workers`.

use std::time::Duration;

use clap::Args;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::limits;
use rollout_protocol::wire::heartbeat::{Heartbeat, ReceivedHeartbeat};
use rollout_queue::nats::NatsName;
use serde_json::{Value, json};

use super::{NOT_SET_UP_HINT, RequiredNatsArgs};
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::events::sinks::terminal::table;
use crate::results::escape;

/// Show the workers of a NATS server and how much each of them runs
#[derive(Debug, Args)]
pub(in crate::cli) struct WorkersArgs {
    #[command(flatten)]
    nats: RequiredNatsArgs,

    /// Only workers of this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<NatsName>,

    /// Print one line of JSON per worker, with its last heartbeat
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(in crate::cli) async fn workers(
    args: &WorkersArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let nats = args.nats.connect().await?;
    let mut seen = nats.heartbeats().await?;
    let not_set_up = seen.is_empty() && matches!(nats.is_set_up().await, Ok(false));
    seen.retain(|seen| !seen.heartbeat.gone);
    if let Some(pool) = &args.pool {
        seen.retain(|seen| seen.heartbeat.pool == pool.as_str());
    }
    seen.sort_by(|a, b| {
        let key =
            |seen: &ReceivedHeartbeat| (seen.heartbeat.pool.clone(), seen.heartbeat.worker.clone());
        key(a).cmp(&key(b))
    });
    let silence = limits::worker_silence(args.nats.access.lease);
    let text = match args.json {
        true => render_json(&seen),
        false => render_table(&seen, silence, printer.out.width),
    };
    printer.data(&text)?;
    if not_set_up {
        printer.hint(NOT_SET_UP_HINT);
    }
    Ok(ExitCode::Success)
}

fn render_json(seen: &[ReceivedHeartbeat]) -> String {
    let line = |seen: &ReceivedHeartbeat| {
        let mut value = json!(seen.heartbeat);
        if let Value::Object(fields) = &mut value {
            fields.insert("silent_for_sec".to_owned(), json!(seen.age.as_secs_f64()));
        }
        format!("{value}\n")
    };
    seen.iter().map(line).collect()
}

/// The state of a worker that is heard of.
fn worker_state(heartbeat: &Heartbeat) -> &'static str {
    if heartbeat.draining {
        "draining"
    } else if heartbeat.disk_fault.is_some() {
        "disk failed"
    } else if heartbeat.low_disk {
        "disk nearly full"
    } else {
        "working"
    }
}

fn render_table(
    seen: &[ReceivedHeartbeat],
    silence_limit: Duration,
    width: Option<usize>,
) -> String {
    if seen.is_empty() {
        return "no workers\n".to_owned();
    }
    let header = ["worker", "host", "pool", "providers", "version", "state", "slots", "running"];
    let mut rows = Vec::with_capacity(seen.len());
    for ReceivedHeartbeat { heartbeat, age } in seen {
        let running = heartbeat.executions.iter().filter(|running| !running.claiming).count();
        let providers: Vec<String> = heartbeat.providers.keys().map(ToString::to_string).collect();
        let state = if *age >= silence_limit {
            format!("silent for {} s", age.as_secs())
        } else {
            worker_state(heartbeat).to_owned()
        };
        let row = [
            heartbeat.worker.to_string(),
            heartbeat.host.clone(),
            heartbeat.pool.clone(),
            providers.join(","),
            heartbeat.version.clone(),
            state,
            heartbeat.slots.to_string(),
            running.to_string(),
        ];
        // Every sender of heartbeats chooses these texts.
        rows.push(row.iter().map(|text| escape::line(text).into_owned()).collect());
    }
    format!("{}\n", table::aligned(&header, rows, 6, width))
}
