//! Limits on counts: of ended runs, after their deletion, and of descriptors.

use crate::serve::soak::figures::Figures;
use crate::serve::soak::mix::{Kill, TRIALS, Work};
use crate::serve::soak::table::Row;

/// Most files of a run of [`TRIALS`] trials.
const RUN_FILES: usize = 40;

/// Runs, searches and farms of a round.
const ENDED: u64 = 5;

/// Most space of such a run, in KiB.
const RUN_KIB: u64 = 350;

/// Figures that exceed their limits when the runs of a round have ended. After a kill, messages may stay until a
/// coordinator starts, and so may what workers report of a run after its cancellation.
pub(super) fn of_ended(figures: &Figures, work: &Work, kill: Kill) -> Vec<String> {
    let mut found = Vec::new();
    if kill == Kill::Nothing {
        let others = figures.queue.subjects.iter().filter(|of| !of.contains(&work.cancelled));
        found.extend(others.map(|subject| format!("messages of an ended run: {subject}")));
    }
    exact(&mut found, "keys of ended runs", figures.queue.keys, work.ended() as u64);
    found
}

/// Figures that exceed their limits in the files of an ended run.
pub(super) fn of_files(work: &Work) -> Vec<String> {
    let mut found = Vec::new();
    at_most(
        &mut found,
        &format!("files of {TRIALS} trials"),
        work.run.files as u64,
        RUN_FILES as u64,
    );
    at_most(&mut found, &format!("KiB of {TRIALS} trials"), work.run.kib, RUN_KIB);
    found
}

/// Figures that exceed their limits when everything was removed: `removed` runs, searches and farms so far.
/// `baseline` is what the second round left.
pub(super) fn of_deleted(
    figures: &Figures,
    baseline: Option<&Figures>,
    removed: usize,
) -> Vec<String> {
    let mut found = Vec::new();
    exact(&mut found, "messages", figures.queue.messages, 0);
    exact(&mut found, "keys of runs", figures.queue.keys, 0);
    // The marker of a removed key may stay for an hour.
    at_most(&mut found, "markers of keys", figures.queue.markers, removed as u64);
    // Each session has one, which the NATS server removes some time after its end.
    at_most(&mut found, "consumers", figures.queue.consumers, 4 * ENDED);
    let Some(baseline) = baseline else { return found };
    let counts = |figures: &Figures| {
        [
            ("files of the server", figures.state_files),
            ("files of the store", figures.store_files),
            ("files of the workers", figures.host_files),
        ]
    };
    for ((name, value), (_, limit)) in counts(figures).into_iter().zip(counts(baseline)) {
        at_most(&mut found, name, value as u64, limit as u64);
    }
    found
}

/// Figures that exceed their limits some time after the end of all rounds.
pub(super) fn of_end(figures: &Figures) -> Vec<String> {
    let mut found = Vec::new();
    exact(&mut found, "consumers of ended runs", figures.queue.consumers, 0);
    found
}

/// Processes that have at least one more descriptor for each run that has ended since they were first
/// seen, if they live since then.
pub(super) fn of_descriptors(rows: &[Row], now: &Figures, ended_now: usize) -> Vec<String> {
    let mut found = Vec::new();
    for process in &now.processes {
        let seen = rows
            .iter()
            .position(|row| row.deleted.processes.iter().any(|former| former.pid == process.pid));
        let Some(seen) = seen else { continue };
        let former = rows[seen].deleted.processes.iter().find(|former| former.pid == process.pid);
        let former = former.map_or(0, |former| former.descriptors);
        let ended: usize = rows[seen + 1..].iter().map(|row| row.work.ended()).sum();
        let limit = former + ended + ended_now - 1;
        let name = format!("descriptors of {}", process.name);
        at_most(&mut found, &name, process.descriptors as u64, limit as u64);
    }
    found
}

fn exact(found: &mut Vec<String>, name: &str, value: u64, wanted: u64) {
    if value != wanted {
        found.push(format!("{name}: {value}, not {wanted}"));
    }
}

fn at_most(found: &mut Vec<String>, name: &str, value: u64, limit: u64) {
    if value > limit {
        found.push(format!("{name}: {value}, at most {limit}"));
    }
}

/// Makes a figure larger.
type Grow = fn(&mut Figures);

#[test]
fn every_figure_that_grows_with_runs_exceeds_its_limit() {
    let baseline = Figures { state_files: 5, store_files: 1, host_files: 9, ..Figures::default() };
    assert_eq!(of_deleted(&baseline, Some(&baseline), 5), Vec::<String>::new());
    let grows: [(&str, Grow); 7] = [
        ("messages: 1, not 0", |figures| figures.queue.messages += 1),
        ("keys of runs: 1, not 0", |figures| figures.queue.keys += 1),
        ("markers of keys: 6, at most 5", |figures| figures.queue.markers += 6),
        ("consumers: 21, at most 20", |figures| figures.queue.consumers += 21),
        ("files of the server: 6, at most 5", |figures| figures.state_files += 1),
        ("files of the store: 2, at most 1", |figures| figures.store_files += 1),
        ("files of the workers: 10, at most 9", |figures| figures.host_files += 1),
    ];
    for (problem, grow) in grows {
        let mut figures = baseline.clone();
        grow(&mut figures);
        assert_eq!(of_deleted(&figures, Some(&baseline), 5), [problem]);
    }
    assert_eq!(of_end(&baseline), Vec::<String>::new());
    let mut figures = baseline;
    figures.queue.consumers += 1;
    assert_eq!(of_end(&figures), ["consumers of ended runs: 1, not 0"]);
}
