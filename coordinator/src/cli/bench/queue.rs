//! `rollout bench dispatch --nats`.

use rollout_protocol::exit::ExitCode;

use super::{directory, json};
use crate::bench::queue::{self, CpuPerTrial, QueueBench, QueueBenchError, QueueComparison};
use crate::cli::args::DispatchArgs;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::events::sinks::terminal::table;
use crate::launch::signals;

pub(super) async fn dispatch(
    args: &DispatchArgs,
    url: &str,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let failed = |error: QueueBenchError| CliError::failure("the measurement failed", &error);
    let directory = directory(args)?;
    let queue = QueueBench {
        url: url.to_owned(),
        server: args.server_pid,
        items: args.items,
        rounds: args.rounds,
        directory: directory.path().to_owned(),
    };
    let (mut stops, _listening) = signals::listen()
        .map_err(|error| CliError::failure("cannot listen for signals", &error))?;
    let namespace = queue::namespace();
    let measured = tokio::select! {
        measured = measure(&queue, &namespace, args, printer) => measured.map(|()| ExitCode::Success),
        _ = stops.recv() => Ok(ExitCode::Cancelled),
    };
    // The error of the measurement takes precedence over that of the clean-up.
    let cleared = queue::clear(url, &namespace).await.map_err(failed);
    measured.and_then(|code| cleared.map(|()| code))
}

async fn measure(
    queue: &QueueBench,
    namespace: &str,
    args: &DispatchArgs,
    printer: &Printer,
) -> Result<(), CliError> {
    let mut all = Vec::new();
    for window in &args.window {
        let compared = queue::measure(queue, namespace, *window)
            .await
            .map_err(|error| CliError::failure("the measurement failed", &error))?;
        if args.json {
            printer.data(&(json(&compared)? + "\n"))?;
        }
        all.push(compared);
    }
    if args.json { Ok(()) } else { printer.data(&(render(&all) + "\n")) }
}

fn render(all: &[QueueComparison]) -> String {
    let header =
        ["at a time", "", "trials/s", "ratio", "of rounds", "coordinator", "worker", "server"];
    let rows = all.iter().flat_map(|one| {
        let rounds: Vec<String> = one.ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        let row = |window: String, what: &str, rate: f64, ratio: [String; 2], cpu: &CpuPerTrial| {
            let [ratio, rounds] = ratio;
            let server = cpu.server.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
            let (coordinator, worker) =
                (format!("{:.1}", cpu.coordinator), format!("{:.1}", cpu.worker));
            let rate = format!("{rate:.0}");
            vec![window, what.to_owned(), rate, ratio, rounds, coordinator, worker, server]
        };
        let ratio = [format!("{:.2}", one.ratio), rounds.join(" ")];
        let none = [String::new(), String::new()];
        let window = one.window.to_string();
        [
            row(window, "rollout", one.trials_per_second, ratio, &one.cpu_us_per_trial),
            row(String::new(), "floor", one.floor_per_second, none, &one.floor_cpu_us_per_trial),
        ]
    });
    let sizes = all.last().map_or_else(String::new, |one| {
        format!(
            "{} trials per measurement, {} measurements each; per trial an offer of {} bytes, a \
             report of {} bytes and {} bytes of journal",
            one.items,
            one.ratios.len(),
            one.offer_bytes,
            one.report_bytes,
            one.journal_bytes_per_trial,
        )
    });
    let table = table::aligned(&header, rows.collect(), 2);
    format!("{table}\n{sizes}; processor time in us per trial")
}
