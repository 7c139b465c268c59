//! Programs that do not sync a part of their files: power cuts show it.

use std::time::Duration;

use rollout_tests::ignored::or_ignored;
use rollout_tests::power_disk::{DiskOptions, PowerCuts, UnsyncedFiles};
use rollout_tests::print_notice;
use rollout_tests::project::Project;

use crate::power::cluster::{CUTS_OF_SPOOL, CutPart, LONGEST_OF_SPOOL, cluster_faults};
use crate::power::runs::run_faults;

/// Disks within which a cut has to show it. One shows it nearly always.
const DISKS: u64 = 8;

/// Cuts of each disk.
const CUTS: usize = 2;

/// Longest time between two cuts.
const LONGEST: Duration = Duration::from_secs(5);

/// What power cuts show first in a program that syncs no file whose path has this part; `None` if the
/// test is ignored.
fn first_fault(
    part: &str,
    disks: u64,
    (count, longest): (usize, Duration),
    scene: impl Fn(&mut PowerCuts, &dyn Fn(&Project)) -> Option<Vec<String>>,
) -> Option<Option<String>> {
    let unsynced = or_ignored(UnsyncedFiles::compile())?;
    for seed in 0..disks {
        let mut cuts = PowerCuts::new(seed, count, longest);
        let faults = scene(&mut cuts, &|project| unsynced.apply(project, part))?;
        if let Some(fault) = faults.into_iter().next() {
            return Some(Some(fault));
        }
    }
    Some(None)
}

/// Fails unless power cuts show that no file whose path has this part is synced.
fn assert_shown(
    part: &str,
    count: usize,
    longest: Duration,
    scene: impl Fn(&mut PowerCuts, &dyn Fn(&Project)) -> Option<Vec<String>>,
) {
    let Some(shown) = first_fault(part, DISKS, (count, longest), scene) else { return };
    let fault = shown.unwrap_or_else(|| panic!("nothing shows that {part} is not synced"));
    print_notice(&format!("{part} is not synced: {fault}"));
}

#[test]
fn power_cuts_show_nothing_if_every_part_is_synced() {
    let scene = |cuts: &mut PowerCuts, prepare: &dyn Fn(&Project)| {
        run_faults(DiskOptions::Lazy, cuts, prepare)
    };
    assert_eq!(first_fault("/no-such-part", 1, (CUTS, LONGEST), scene).flatten(), None);
}

#[test]
fn power_cuts_show_a_journal_that_is_not_synced() {
    assert_shown("/journal", CUTS, LONGEST, |cuts, prepare| {
        run_faults(DiskOptions::Lazy, cuts, prepare)
    });
}

#[test]
fn power_cuts_show_a_blob_store_that_is_not_synced() {
    assert_shown("/blobs", CUTS, LONGEST, |cuts, prepare| {
        run_faults(DiskOptions::Lazy, cuts, prepare)
    });
}

#[test]
fn power_cuts_show_a_spool_that_is_not_synced() {
    assert_shown("/spool", CUTS_OF_SPOOL, LONGEST_OF_SPOOL, |cuts, prepare| {
        let part = CutPart::Workers { is_store_away: true };
        let mut faults = cluster_faults(part, DiskOptions::Lazy, cuts, prepare)?;
        faults.retain(|fault| fault.contains("ran again"));
        Some(faults)
    });
}
