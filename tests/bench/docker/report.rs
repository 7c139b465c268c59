//! Benchmark results as a table and as JSON.

use std::fmt::Write as _;

use serde_json::json;

use crate::product::CallCounts;

/// A batch of trials of one side.
pub(crate) struct BenchBatch {
    /// Duration in seconds.
    pub(crate) wall: f64,
    /// Processor time of the client, in seconds.
    pub(crate) cpu: f64,
    pub(crate) trials: u32,
}

/// All measurements at one concurrency.
pub(crate) struct BenchRow {
    concurrency: u32,
    pub(crate) floor: Vec<BenchBatch>,
    pub(crate) none: Vec<BenchBatch>,
    pub(crate) full: Vec<BenchBatch>,
}

impl BenchRow {
    /// A row without measurements.
    pub(crate) fn new(concurrency: u32) -> Self {
        Self { concurrency, floor: Vec::new(), none: Vec::new(), full: Vec::new() }
    }

    /// All sides, the floor first.
    fn sides(&self) -> [(&'static str, &[BenchBatch]); 3] {
        [("floor", &self.floor), ("none", &self.none), ("full", &self.full)]
    }

    /// Lowest and highest ratio to the floor over the rounds.
    fn spread(&self, side: &[BenchBatch]) -> (f64, f64) {
        let ratios = side.iter().zip(&self.floor).map(|(batch, floor)| batch.wall / floor.wall);
        ratios.fold((f64::MAX, 0.0), |(low, high), ratio| (low.min(ratio), high.max(ratio)))
    }
}

/// Number of trials and rounds.
pub(crate) struct BenchFigures {
    pub(crate) trials: u32,
    pub(crate) rounds: u32,
}

/// The whole result.
pub(crate) struct BenchReport {
    pub(crate) figures: BenchFigures,
    pub(crate) rows: Vec<BenchRow>,
    pub(crate) calls: Option<CallCounts>,
    pub(crate) floor_calls: u32,
    /// Load average of the last minute, before and after.
    pub(crate) load: [String; 2],
}

impl BenchReport {
    /// Table for people.
    pub(crate) fn table(&self) -> String {
        let BenchFigures { trials, rounds } = self.figures;
        let mut text = format!(
            "{trials} trials per side and round, {rounds} rounds; load {} to {}\n\n\
             {:>10}  {:<13}{:>12}{:>8}{:>16}{:>12}\n",
            self.load[0],
            self.load[1],
            "concurrent",
            "side",
            "wall/trial",
            "ratio",
            "range",
            "CPU/trial",
        );
        for row in &self.rows {
            let floor = per_trial(&row.floor, |batch| batch.wall);
            for (side, batches) in row.sides() {
                let wall = per_trial(batches, |batch| batch.wall);
                let cpu = per_trial(batches, |batch| batch.cpu);
                let (low, high) = row.spread(batches);
                let side =
                    if side == "floor" { side.to_owned() } else { format!("rollout {side}") };
                // Writing to a string cannot fail.
                _ = writeln!(
                    text,
                    "{:>10}  {side:<13}{:>9.1} ms{:>8.3}{:>16}{:>9.1} ms",
                    row.concurrency,
                    wall * 1e3,
                    wall / floor,
                    format!("{low:.2} - {high:.2}"),
                    cpu * 1e3,
                );
            }
        }
        let calls = self.calls.map_or_else(
            || "not counted".to_owned(),
            |calls| format!("{:.1} per trial and {:.0} per run", calls.per_trial, calls.per_run),
        );
        _ = writeln!(text, "\ncalls: floor {} per trial, rollout {calls}", self.floor_calls);
        text
    }

    /// JSON for programs.
    pub(crate) fn json(&self) -> String {
        let rows: Vec<_> = self.rows.iter().map(|row| {
            let floor = per_trial(&row.floor, |batch| batch.wall);
            let sides = row.sides().map(|(side, batches)| {
                let wall = per_trial(batches, |batch| batch.wall);
                let cpu = per_trial(batches, |batch| batch.cpu);
                let (low, high) = row.spread(batches);
                let side_figures = json!({
                    "wall_seconds_per_trial": wall,
                    "ratio": wall / floor,
                    "ratio_of_rounds": [low, high],
                    "client_cpu_seconds_per_trial": cpu,
                });
                (side.to_owned(), side_figures)
            });
            json!({ "concurrency": row.concurrency, "sides": serde_json::Map::from_iter(sides) })
        }).collect();
        let document = json!({
            "trials": self.figures.trials,
            "rounds": self.figures.rounds,
            "load": self.load,
            "rows": rows,
            "calls": { "floor_per_trial": self.floor_calls, "rollout": self.calls },
        });
        format!("{document:#}\n")
    }
}

fn per_trial(batches: &[BenchBatch], value: impl Fn(&BenchBatch) -> f64) -> f64 {
    let trials: u32 = batches.iter().map(|batch| batch.trials).sum();
    batches.iter().map(value).sum::<f64>() / f64::from(trials)
}

/// Load average of the last minute.
pub(crate) fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
