//! The figures as a table.

use rollout_coordinator::events::sinks::terminal::table;

use crate::queue_overhead::comparison::{CpuPerTrial, QueueComparison};

/// A table of all windows, and the sizes of the messages.
pub(crate) fn render(all: &[QueueComparison]) -> String {
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
    let table = table::aligned(&header, rows.collect(), 2, None);
    format!("{table}\n{sizes}; processor time in us per trial\n")
}
