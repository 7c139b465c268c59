//! `rollout control`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rollout_engine::host_name;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::harness::{ControlAction, HarnessControl};
use rollout_protocol::id::ItemId;
#[cfg(feature = "nats")]
use rollout_protocol::id::RunId;
#[cfg(feature = "nats")]
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_protocol::wire::trial_control::{
    TrialControlReceipt, TrialControlRequest, TrialControlResult,
};

use super::{LiveRun, ServerArgs};
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::cli::run_place::RunPlace;
use crate::cli::search_dir;
use crate::cli::value_parsers::duration;
use crate::config::local_time;
use crate::results::escape;
use crate::results::view::{TrialState, find_trial};

/// Hint for the directory of a search.
const SEARCH_HINT: &str = "only trials of jobs have agents with a harness";

/// How much longer than the harness the worker may take: to write the control and to read the
/// events.
const WORKER_MARGIN: Duration = Duration::from_secs(60);

/// Longest wait for an acknowledgement. Servers let a worker reply for an hour
/// (`examples/nats/roles`).
const MAX_TIMEOUT: Duration = Duration::from_secs(50 * 60);

/// Ask the harness of a running trial to stop or to save a checkpoint
///
/// The worker of the trial writes a control for the harness and waits until the harness acknowledges
/// it. A harness that acknowledges `stop` ends by itself; one that ignores it is ended as at its time
/// limit.
#[derive(Debug, Args)]
pub(in crate::cli) struct ControlArgs {
    /// Run directory; a run on a server: `nats://host:4222#RUN`; or in a catalog:
    /// `s3://bucket/prefix#RUN`
    run_dir: PathBuf,

    /// The trial: `agent/dataset/task__attempt`, its item, or a part of its name that no other has
    trial: String,

    /// The action
    action: ActionArg,

    /// Name of the checkpoint, or another label; at most 128 bytes
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// Longest wait for the acknowledgement; at most 50m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    timeout: Duration,

    /// How long after this wait a command that ignored `stop` may still run
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    grace: Duration,

    /// Print the receipt as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

/// An action for a harness.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ActionArg {
    /// End after the current step
    Stop,
    /// Save a checkpoint after the current step, then go on
    Checkpoint,
}

/// Runs the command.
pub(in crate::cli) async fn control(
    args: &ControlArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    if args.timeout > MAX_TIMEOUT {
        return Err(CliError::usage(format!("`--timeout` must be at most {MAX_TIMEOUT:?}")));
    }
    let action = "control trials of";
    let text = args.run_dir.to_string_lossy();
    let live = LiveRun::require(&text, &args.server, action, SEARCH_HINT).await?;
    let place = RunPlace::open(&args.run_dir).await?;
    search_dir::refuse(action, place.directory(), SEARCH_HINT)?;
    let directory = place.read()?;
    let trial = find_trial(directory.plan()?, &args.trial)?;
    let name = trial.name.to_string();
    let (run, item) = (live.run(), trial.item);
    let view = directory.view(Some(item), None)?;
    let state = view.detail().map_or("unknown", |detail| detail.row.state.as_str());
    if !is_running(&live, item, state).await? {
        return Err(CliError::refused(format!(
            "cannot control {name}: no worker runs it; its state is {state}"
        )));
    }
    let request = TrialControlRequest {
        run,
        item,
        action: match args.action {
            ActionArg::Stop => ControlAction::Stop,
            ActionArg::Checkpoint => ControlAction::Checkpoint,
        },
        label: args.label.clone(),
        requested_by: format!("user@{}", host_name()),
        timeout_ms: milliseconds(args.timeout),
        grace_ms: milliseconds(args.grace),
    };
    let wait = args.timeout.saturating_add(WORKER_MARGIN);
    let receipt = live.control().trial_control(&request, wait).await;
    let Some(receipt) = receipt.map_err(|error| live.error(error))? else {
        return Err(CliError::new(
            ExitCode::Failure,
            format!("cannot control {name}: its worker did not answer; it may have ended"),
        ));
    };
    match args.json {
        true => printer.json(&receipt)?,
        false => {
            printer.warn_of_unknown_zone();
            printer.data(&render(&receipt))?;
        }
    }
    result_code(&name, &receipt)
}

/// Whether a worker runs an execution of the trial, whose state the journal shows.
#[cfg_attr(not(feature = "nats"), expect(clippy::unused_async, reason = "as with servers"))]
async fn is_running(live: &LiveRun, item: ItemId, state: &str) -> Result<bool, CliError> {
    #[cfg(feature = "nats")]
    if let Some(nats) = live.server() {
        return Ok(is_shown(&nats.heartbeats().await?, live.run(), item));
    }
    let _on_this_host = (live, item);
    Ok(state == TrialState::Running.as_str())
}

/// Whether a worker shows an execution of the trial.
#[cfg(feature = "nats")]
fn is_shown(seen: &[ReceivedHeartbeat], run: RunId, item: ItemId) -> bool {
    let of_workers = seen.iter().filter(|seen| !seen.heartbeat.gone);
    let mut executions = of_workers.flat_map(|seen| &seen.heartbeat.executions);
    executions.any(|active| (active.run, active.item, active.claiming) == (run, item, false))
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The receipt as lines; empty if nothing was written.
fn render(receipt: &TrialControlReceipt) -> String {
    let (control, end) = match &receipt.result {
        TrialControlResult::Acknowledged { control } => (control, acknowledgement(control)),
        TrialControlResult::Unacknowledged { control, command_ended } => {
            let ended = if *command_ended { "; the agent's command ended" } else { "" };
            (control, format!("unacknowledged{ended}"))
        }
        TrialControlResult::UnsupportedForIntegrationLevel { .. }
        | TrialControlResult::NotInCommand { .. }
        | TrialControlResult::Refused { .. } => return String::new(),
    };
    let delivered = control.delivered_at.map_or_else(|| "-".to_owned(), local_time::shown);
    let facts = [
        ("item", receipt.item.to_string()),
        ("execution", receipt.exec.to_string()),
        ("worker", receipt.worker.to_string()),
        ("action", receipt.action.to_string()),
        ("control version", control.control_version.to_string()),
        ("delivered", delivered),
        ("result", end),
    ];
    let line = |(key, value): &(&str, String)| format!("{key:<17}{}\n", escape::line(value));
    facts.iter().map(line).collect()
}

fn acknowledgement(control: &HarnessControl) -> String {
    let Some(ack) = &control.acknowledgement else { return "unacknowledged".to_owned() };
    let step = ack.step_index.map_or_else(String::new, |step| format!(" after step {step}"));
    format!("acknowledged{step}; action taken: {}", ack.action_taken)
}

/// The exit code of a receipt, or the error that it states.
fn result_code(name: &str, receipt: &TrialControlReceipt) -> Result<ExitCode, CliError> {
    let reason = match &receipt.result {
        TrialControlResult::Acknowledged { .. } => return Ok(ExitCode::Success),
        TrialControlResult::Unacknowledged { .. } => return Ok(ExitCode::Failure),
        TrialControlResult::UnsupportedForIntegrationLevel { level: Some(level) } => {
            format!("unsupported_for_integration_level: its harness has the level {level}")
        }
        TrialControlResult::UnsupportedForIntegrationLevel { level: None } => {
            "unsupported_for_integration_level: its agent has no harness".to_owned()
        }
        TrialControlResult::NotInCommand { phase } => {
            format!("its agent's command does not run; its phase is {phase}")
        }
        TrialControlResult::Refused { reason } => escape::line(reason).into_owned(),
    };
    Err(CliError::refused(format!("cannot control {name}: {reason}")))
}

#[cfg(test)]
mod tests {
    use rollout_protocol::harness::{ControlAcknowledgement, IntegrationLevel};
    use rollout_protocol::phase::Phase;
    use rollout_protocol::{Timestamp, digest::Digest, id::ExecId};

    use super::*;

    fn receipt(result: TrialControlResult) -> TrialControlReceipt {
        TrialControlReceipt {
            item: ItemId::from_bytes([1; 16]),
            exec: ExecId::from_bytes([2; 16]),
            worker: "w".parse().expect("a token"),
            action: ControlAction::Stop,
            result,
        }
    }

    fn written(acknowledgement: Option<ControlAcknowledgement>) -> HarnessControl {
        HarnessControl {
            control_version: Digest::sha256(b"control"),
            seq: 1,
            action: ControlAction::Stop,
            label: None,
            requested_at: Timestamp::UNIX_EPOCH,
            requested_by: "user".to_owned(),
            delivered_at: Some(Timestamp::UNIX_EPOCH),
            acknowledgement,
            ended_command: false,
        }
    }

    #[test]
    fn receipt_states_acknowledgement_or_its_absence() {
        let action_taken = ControlAction::Stop;
        let ack = ControlAcknowledgement { action_taken, step_index: Some(4) };
        let good = receipt(TrialControlResult::Acknowledged { control: written(Some(ack)) });
        assert!(render(&good).ends_with("acknowledged after step 4; action taken: stop\n"));
        assert_eq!(result_code("t", &good).expect("acknowledged"), ExitCode::Success);
        let control = written(None);
        let silent = receipt(TrialControlResult::Unacknowledged { control, command_ended: false });
        assert!(render(&silent).ends_with("unacknowledged\n"), "{}", render(&silent));
        assert_eq!(result_code("t", &silent).expect("a receipt"), ExitCode::Failure);
    }

    #[test]
    fn receipt_without_control_is_an_error_with_its_reason() {
        let level = Some(IntegrationLevel::CliBasic);
        for (result, reason) in [
            (
                TrialControlResult::UnsupportedForIntegrationLevel { level },
                "unsupported_for_integration_level: its harness has the level cli_basic",
            ),
            (
                TrialControlResult::UnsupportedForIntegrationLevel { level: None },
                "unsupported_for_integration_level: its agent has no harness",
            ),
            (
                TrialControlResult::NotInCommand { phase: Phase::Verification },
                "its agent's command does not run; its phase is verification",
            ),
            (TrialControlResult::Refused { reason: "too many".to_owned() }, "too many"),
        ] {
            let receipt = receipt(result);
            assert_eq!(render(&receipt), "");
            let error = result_code("t", &receipt).expect_err("an error");
            assert_eq!(error.message, format!("cannot control t: {reason}"));
            assert_eq!(error.code, ExitCode::Config);
        }
    }
}
