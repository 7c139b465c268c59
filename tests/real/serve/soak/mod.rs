//! A server in daily use: runs, searches and farms on attached workers, kills, cancellations, deletions
//! and garbage collection, and counts of everything that could grow.
//!
//! `ROLLOUT_TEST_SOAK_SEC` is the duration in seconds; `tests/soak` sets it.

mod figures;
mod limits;
mod mix;
mod table;

use std::time::{Duration, Instant};

use rollout_tests::{print_notice, wait};

use crate::serve::farm_fleet::FarmFleet;
use crate::serve::soak::figures::Figures;
use crate::serve::soak::mix::{KILLS, Work};
use crate::serve::soak::table::Row;

/// Duration without the variable.
const DURATION: Duration = Duration::from_secs(40);

/// Time in which everything must be within its limits after the end of the work.
const SETTLE_DEADLINE: Duration = Duration::from_secs(120);

fn duration() -> Duration {
    let wanted = std::env::var("ROLLOUT_TEST_SOAK_SEC").ok();
    wanted.map_or(DURATION, |text| Duration::from_secs(text.parse().expect("seconds")))
}

/// Waits until figures are within their limits. Returns the last ones, and what exceeds its limit.
fn settled(
    fleet: &mut FarmFleet,
    problems: impl Fn(&Figures) -> Vec<String>,
) -> (Figures, Vec<String>) {
    let mut last = (Figures::of(fleet), Vec::new());
    wait::holds_within(SETTLE_DEADLINE, || {
        let figures = Figures::of(fleet);
        let found = problems(&figures);
        let holds = found.is_empty();
        last = (figures, found);
        holds
    });
    last
}

/// One round of all kinds of work, with one kill, and what it leaves. `rows` are the rounds before.
fn round(fleet: &mut FarmFleet, began: Instant, rows: &[Row]) -> (Row, Vec<String>) {
    let number = rows.len() + 1;
    let kill = KILLS[rows.len() % KILLS.len()];
    let removed_before: usize = rows.iter().map(|row| row.work.ended()).sum();
    let work = Work::run(fleet, number, kill);
    // Caches fill in the first rounds.
    let baseline = rows.get(1).map(|row| &row.deleted);
    let (ended, mut problems) = settled(fleet, |figures| limits::of_ended(figures, &work, kill));
    problems.extend(limits::of_files(&work));
    let seconds = began.elapsed().as_secs();
    if !problems.is_empty() {
        // It is kept with the files of the test.
        let deleted = ended.clone();
        return (Row { number, seconds, kill, work, ended, deleted }, problems);
    }
    work.delete(fleet);
    let removed = removed_before + work.ended();
    let (deleted, left) = settled(fleet, |figures| limits::of_deleted(figures, baseline, removed));
    problems.extend(left);
    problems.extend(limits::of_descriptors(rows, &deleted, work.ended()));
    (Row { number, seconds, kill, work, ended, deleted }, problems)
}

#[test]
fn mix_of_work_under_kills_leaves_nothing_behind() {
    let Some(mut fleet) = mix::fleet() else { return };
    let (began, length) = (Instant::now(), duration());
    let mut rows: Vec<Row> = Vec::new();
    let mut problems = Vec::new();
    // Every kind of kill comes at least once.
    while problems.is_empty() && (began.elapsed() < length || rows.len() < KILLS.len()) {
        let (row, found) = round(&mut fleet, began, &rows);
        rows.push(row);
        problems = found;
    }
    if problems.is_empty() {
        problems = settled(&mut fleet, limits::of_end).1;
    }
    print_notice(&format!("{} rounds\n{}", rows.len(), table::text(&rows)));
    assert_eq!(problems, Vec::<String>::new(), "round {}", rows.len());
    fleet.stop();
}

#[test]
fn server_and_worker_run_with_two_arenas() {
    let Some(mut fleet) = mix::fleet() else { return };
    for pid in [fleet.daemon.process.pid(), fleet.workers[0].process().pid()] {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("it runs");
        let mut variables = environment.split(|byte| *byte == 0);
        assert!(variables.any(|variable| variable == b"MALLOC_ARENA_MAX=2"), "process {pid}");
    }
    fleet.stop();
}
