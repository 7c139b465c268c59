//! The disk itself.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rollout_tests::power_disk::{self, DiskOptions, LateWrites, PowerCut};

use crate::power::{DEADLINE, PROGRAM};

/// Pages of the file.
const PAGES: usize = 64;

const PAGE: usize = 4096;

/// Pages of a file that were written again before a cut, without a flush, and are on the disk after it.
fn pages_after_cut(late: LateWrites) -> Option<usize> {
    let (project, mut disk) = power_disk::project(PROGRAM, DiskOptions::Lazy)?;
    let path = |name: &str| project.path().join(name);
    fs::write(path("pages"), vec![b'a'; PAGES * PAGE]).expect("written");
    fs::write(path("new"), vec![b'b'; PAGES * PAGE]).expect("written");
    disk.sync();
    fs::write(path("cached"), "only in memory").expect("written");
    let mut write = Command::new("dd");
    write
        .args([format!("if={}", path("new").display()), format!("of={}", path("pages").display())]);
    write.args(["bs=4096", "conv=notrunc", "oflag=direct", "status=none"]);
    assert!(write.status().expect("dd runs").success());

    let user = project.start(project.command_of(Path::new("sleep"), &["86400"]));
    assert_eq!(disk.users(), [user.pid()]);
    let cut = PowerCut { after: Duration::ZERO, requests: 0, late };
    disk.cut(&cut, &[], || true);
    let killed = user.wait(DEADLINE);
    assert_eq!(killed.status.code(), None, "{}", killed.status);
    disk.restart(late);
    assert!(!path("cached").exists(), "a file that never reached the disk");
    let content = fs::read(path("pages")).expect("a file that was flushed");
    assert_eq!(content.len(), PAGES * PAGE);
    Some(content.chunks(PAGE).filter(|page| page.iter().all(|byte| *byte == b'b')).count())
}

#[test]
fn cut_keeps_what_is_flushed_and_a_part_of_the_later_pages() {
    let Some(lost) = pages_after_cut(LateWrites::Lost) else { return };
    assert_eq!(lost, 0);
    assert_eq!(pages_after_cut(LateWrites::Kept), Some(PAGES));
    let half = pages_after_cut(LateWrites::Half { seed: 1 });
    assert!(half > Some(PAGES / 4) && half < Some(PAGES * 3 / 4), "{half:?}");
    assert_eq!(pages_after_cut(LateWrites::Half { seed: 1 }), half, "a seed chooses the same");
}
