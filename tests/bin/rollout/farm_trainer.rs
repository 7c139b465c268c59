//! A trainer with a farm in its process, which tests kill: it submits groups, notes every completion
//! that it reads and every acknowledgement that was answered, and ends when all are acknowledged.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rollout_coordinator::launch::farm::FarmSession;
use rollout_protocol::farm::GroupRequest;
use rollout_tests::farm;

/// Samples of each group.
const N: u32 = 3;

/// Trains until all groups are acknowledged.
pub(crate) fn run(arguments: &[OsString]) -> ExitCode {
    let words: Option<Vec<_>> = arguments.iter().map(|word| word.to_str()).collect();
    let Some([project, program, groups]) = words.as_deref() else {
        panic!("usage: PROJECT PROGRAM GROUPS");
    };
    let groups = groups.parse().expect("a number");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(train(Path::new(project), program, groups));
    ExitCode::SUCCESS
}

fn open(path: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(path).expect("a file")
}

async fn train(project: &Path, program: &str, groups: u32) {
    let mut seen = open(&project.join("seen.jsonl"));
    let mut acknowledged = open(&project.join("acknowledged.jsonl"));
    let farm = FarmSession::open(farm::request(project, program, None)).await.expect("a farm");
    for group in 0..groups {
        let id = format!("group-{group}").parse().expect("an id");
        farm.submit(GroupRequest::new(id, "t", N)).await.expect("admitted");
    }
    loop {
        let wait = Duration::from_millis(500);
        let page = farm.completions("train", 0, 4, wait).await.expect("an open farm");
        if page.completions.is_empty() {
            let status = farm.status();
            if status.open_groups == 0 && status.unacknowledged == 0 {
                break;
            }
            continue;
        }
        let mut cursors = Vec::new();
        for completion in page.completions {
            let line = serde_json::to_string(&*completion).expect("JSON");
            writeln!(seen, "{line}").expect("written");
            cursors.push(completion.cursor);
        }
        seen.sync_data().expect("synced");
        farm.acknowledge("train", cursors.clone()).await.expect("acknowledged");
        let line = serde_json::to_string(&cursors).expect("JSON");
        writeln!(acknowledged, "{line}").expect("written");
        // A line in `seen` after this one is of a later read.
        writeln!(seen, "{{\"acknowledged\":{line}}}").expect("written");
    }
    farm.close().await.expect("ended in order");
}
