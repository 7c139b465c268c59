//! Disks that lose their power at random moments while programs use them.
//!
//! `ROLLOUT_TEST_POWER_CUTS` is the number of cuts of each kind, `ROLLOUT_TEST_POWER_SEED` the seed of the
//! first disk. A test that fails prints the seed of its disk.

mod ablation;
mod cluster;
mod disk;
mod exports;
mod runs;
mod searches;
mod serving;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rollout_protocol::digest::Digest;
use rollout_protocol::event::EventKind;
use rollout_tests::leak_check::directory_entries;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::power_disk::{DiskOptions, PowerCut, PowerCuts, PowerDisk};
use rollout_tests::print_notice;
use rollout_tests::program::{ProgramExit, RunningProgram};

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_rollout-under-test");

/// Longest duration of a run on a busy machine.
const DEADLINE: Duration = rollout_tests::wait::RUN_DEADLINE;

/// Cuts of each kind, unless the environment asks for more.
const CUTS: usize = 2;

/// Most cuts of one disk: later ones find less to do.
const CUTS_PER_DISK: usize = 3;

/// Every this many disks, one is mounted as hosts do.
const DISKS_PER_DEFAULT: u64 = 3;

fn number(variable: &str) -> Option<u64> {
    let wanted = std::env::var(variable).ok()?;
    Some(wanted.parse().unwrap_or_else(|error| panic!("{variable}: {error}")))
}

/// Calls `scene` with new cuts until as many have been made as the environment asks for, up to
/// `CUTS_PER_DISK` for each call. Each is due within `longest` after the former. `None` ends it: the test is
/// ignored.
fn each_disk(longest: Duration, scene: impl FnMut(DiskOptions, &mut PowerCuts) -> Option<()>) {
    each_disk_of(CUTS_PER_DISK, longest, scene);
}

/// The same with up to `cuts_per_disk` cuts for each call.
fn each_disk_of(
    cuts_per_disk: usize,
    longest: Duration,
    mut scene: impl FnMut(DiskOptions, &mut PowerCuts) -> Option<()>,
) {
    let wanted = number("ROLLOUT_TEST_POWER_CUTS").map(usize::try_from);
    let mut left = wanted.map_or(CUTS, |cuts| cuts.expect("few"));
    let mut seed = number("ROLLOUT_TEST_POWER_SEED").unwrap_or(1);
    let (began, all) = (Instant::now(), left);
    while left > 0 {
        let count = left.min(cuts_per_disk);
        let mut cuts = PowerCuts::new(seed, count, longest);
        if scene(options(seed), &mut cuts).is_none() {
            return;
        }
        left -= count;
        seed += 1;
    }
    print_notice(&format!("{all} power cuts in {:.0?}", began.elapsed()));
}

fn options(seed: u64) -> DiskOptions {
    match seed % DISKS_PER_DEFAULT {
        0 => DiskOptions::Defaults,
        _ => DiskOptions::Lazy,
    }
}

/// Cuts the power of the disk under a program, and gives it back.
fn cut_under(disk: &mut PowerDisk, cut: &PowerCut, mut run: RunningProgram) -> ProgramExit {
    let pid = run.pid();
    disk.cut(cut, &[pid], || run.has_ended());
    let ended = run.wait(DEADLINE);
    disk.restart(cut.late);
    ended
}

/// Trials whose results cannot get lost any more, by the moment at which that was known.
#[derive(Debug, Default)]
struct SettledTrials(Vec<(Instant, BTreeSet<String>)>);

impl SettledTrials {
    /// Reads what a program that was started with `--json` has printed until the cut that ended it.
    fn read(&mut self, printed: &str) {
        let mut tasks = BTreeSet::new();
        // The last line may be incomplete.
        let events = printed.lines().filter_map(|line| serde_json::from_str(line).ok());
        for event in events {
            if let EventKind::TrialSettled { settlement, replayed: false, .. } = event
                && let Some(trial) = settlement.trial()
            {
                tasks.insert(trial.task.clone());
            }
        }
        self.add(tasks);
    }

    /// Adds what is known from now on.
    fn add(&mut self, tasks: BTreeSet<String>) {
        self.0.push((Instant::now(), tasks));
    }

    /// Executions that began although the trial had its result.
    fn repeated(&self, counter: &LiveCounter) -> Vec<String> {
        let is_repeated = |task: &str, began: Instant| {
            self.0.iter().any(|(known, tasks)| began > *known && tasks.contains(task))
        };
        let observed = counter.observed().into_iter();
        let repeated = observed.filter(|one| is_repeated(&one.task, one.began));
        repeated.map(|one| format!("{} had a result and ran again", one.task)).collect()
    }
}

/// Blobs of a store whose content is not that of their name.
fn damaged_blobs(store: &Path) -> Vec<String> {
    let fan_outs = directory_entries(&store.join("blobs"));
    let blobs = fan_outs.iter().flat_map(|fan_out| directory_entries(fan_out));
    let is_damaged = |blob: &Path| {
        let name = blob.strip_prefix(store.join("blobs")).expect("below").to_string_lossy();
        Digest::sha256(&fs::read(blob).expect("a blob")).hex() != name.replace('/', "")
    };
    let damaged = blobs.filter(|blob| is_damaged(blob));
    damaged.map(|blob| format!("damaged blob: {}", blob.display())).collect()
}

/// How a program ended, unless with success.
fn failure(ended: &ProgramExit) -> Option<String> {
    let failed = !ended.status.success();
    failed.then(|| format!("{}\n{}\n{}", ended.status, ended.stdout, ended.stderr))
}
