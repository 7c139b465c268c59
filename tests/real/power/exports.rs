//! Exports whose disk loses its power.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::leak_check::directory_entries;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::power_disk;
use rollout_tests::project::Project;

use crate::power::runs::load;
use crate::power::{DEADLINE, PROGRAM, cut_under, each_disk, failure};

/// Longest time until a cut: an export is short.
const LONGEST: Duration = Duration::from_millis(300);

/// Formats, one for each cut in turn.
const FORMATS: [&str; 4] = ["jsonl", "tables", "parquet", "csv"];

/// Every file of an export, by name.
fn content(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut next = vec![path.to_owned()];
    while let Some(path) = next.pop() {
        match path.is_dir() {
            true => next.extend(directory_entries(&path)),
            false => {
                let bytes = fs::read(&path).expect("a file");
                files.insert(path.file_name().expect("a name").to_string_lossy().into(), bytes);
            }
        }
    }
    files
}

fn export(project: &Project, format: &str, out: &str) -> Vec<String> {
    let results = project.results(&load().name).path().display().to_string();
    ["export", &results, "--format", format, "--out", out].map(str::to_owned).to_vec()
}

#[test]
fn export_after_power_cuts_is_whole_or_made_again() {
    each_disk(LONGEST, |options, cuts| {
        let (project, mut disk) = power_disk::project(PROGRAM, options)?;
        let (counter, load) = (LiveCounter::start(), load());
        load.write(&project, &counter);
        let ended = project.rollout(&["run", &load.file()]).wait(DEADLINE);
        assert_eq!(failure(&ended), None);
        disk.sync();
        for (number, cut) in cuts.enumerate() {
            let format = FORMATS[number % FORMATS.len()];
            let start = |out: &str| {
                let words = export(&project, format, out);
                project.rollout(&words.iter().map(String::as_str).collect::<Vec<_>>())
            };
            let name = format!("export-{number}.{format}");
            let ended = cut_under(&mut disk, &cut, start(&name));
            let path = project.path().join(&name);
            let is_whole = path.exists();
            assert!(is_whole || !ended.status.success(), "an export that had ended is lost");
            if !is_whole {
                let _again = start(&name).wait(DEADLINE).expect_code(ExitCode::Success);
            }
            let other = format!("expected-{number}.{format}");
            let _ended = start(&other).wait(DEADLINE).expect_code(ExitCode::Success);
            let expected = content(&project.path().join(&other));
            let renamed =
                expected.into_iter().map(|(file, bytes)| (file.replace(&other, &name), bytes));
            assert_eq!(content(&path), renamed.collect::<BTreeMap<_, _>>(), "{format}");
        }
        Some(())
    });
}
