//! Programs that do not sync a part of their files: power cuts show it.

use std::time::Duration;

use rollout_tests::ignored::or_ignored;
use rollout_tests::power_disk::{DiskOptions, PowerCuts, UnsyncedFiles};
use rollout_tests::project::Project;

use crate::power::cluster::{CutPart, cluster_faults};
use crate::power::runs::run_faults;

/// Disks within which a cut has to show it. One shows it nearly always.
const DISKS: u64 = 8;

/// Cuts of each disk.
const CUTS: usize = 2;

/// Longest time between two cuts.
const LONGEST: Duration = Duration::from_secs(5);

/// Fails unless cuts show a fault in a program that syncs no file whose path has this part.
fn assert_shown(
    part: &str,
    scene: impl Fn(&mut PowerCuts, &dyn Fn(&Project)) -> Option<Vec<String>>,
) {
    let Some(unsynced) = or_ignored(UnsyncedFiles::compile()) else { return };
    for seed in 0..DISKS {
        let mut cuts = PowerCuts::new(seed, CUTS, LONGEST);
        match scene(&mut cuts, &|project| unsynced.apply(project, part)) {
            Some(faults) if faults.is_empty() => {}
            // A fault, or a test that is ignored.
            _ => return,
        }
    }
    panic!("no cut showed that nothing below {part} is synced");
}

#[test]
fn power_cuts_show_a_journal_that_is_not_synced() {
    assert_shown("/journal", |cuts, prepare| run_faults(DiskOptions::Lazy, cuts, prepare));
}

#[test]
fn power_cuts_show_a_blob_store_that_is_not_synced() {
    assert_shown("/blobs", |cuts, prepare| run_faults(DiskOptions::Lazy, cuts, prepare));
}

#[test]
fn power_cuts_show_a_spool_that_is_not_synced() {
    assert_shown("/spool", |cuts, prepare| {
        let part = CutPart::Workers { is_server_away: true };
        cluster_faults(part, DiskOptions::Lazy, cuts, prepare)
    });
}
