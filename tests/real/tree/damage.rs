//! Searches after a power failure: files that were not synced are empty or missing.

use std::fs;
use std::path::{Path, PathBuf};

use rollout_protocol::exit::ExitCode;
use rollout_tests::leak_check;
use rollout_tests::project::Project;
use rollout_tests::search;

use crate::tree::DEADLINE;
use crate::tree::small_search::SmallSearch;

/// A search of two depths that has ended.
fn ended_project() -> Project {
    let small = SmallSearch::default();
    let keys = "sweep_config_limit: 3\nmax_depth: 2\nbeam_width: 1".to_owned();
    let implement = format!("{}; echo made; echo log > \"$ROLLOUT_LOGS_DIR/log\"", small.implement);
    let project = SmallSearch { keys, implement, ..small }.write();
    let _ended =
        project.rollout(&SmallSearch::run(&[])).wait(DEADLINE).expect_code(ExitCode::Success);
    project
}

/// The regular files below a directory.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let (mut found, mut next) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = next.pop() {
        for path in leak_check::directory_entries(&directory) {
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                next.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found
}

/// Empties every file that git does not sync: all but packs.
fn empty_unsynced_files(search: &Path) {
    for place in ["repository/bare", "wt"] {
        let files = files_below(&search.join(place)).into_iter();
        for path in files.filter(|path| !path.components().any(|part| part.as_os_str() == "pack")) {
            fs::write(&path, "").unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
}

#[test]
fn ended_search_with_damaged_repository_is_resumed_and_repaired() {
    let project = ended_project();
    let directory = SmallSearch::directory(&project);
    let before = search::comparable_manifest(&directory);
    let sound = |says: &str| {
        let run = |args: &[&str]| project.rollout(args).wait(DEADLINE);
        let _sound = run(&["tree", "validate", "runs/small"]).expect_code(ExitCode::Success);
        let repair = run(&["repair", "runs/small"]).expect_code(ExitCode::Success);
        assert_eq!(repair.stdout, "nothing is damaged\n", "{says}");
        assert_eq!(search::leaked_files(&directory), Vec::<String>::new(), "{says}");
    };
    for command in [
        &["resume", "runs/small"][..],
        &["tree", "gc", "runs/small"],
        &["repair", "runs/small"],
        &SmallSearch::run(&["--rerun-evals"])[..],
    ] {
        empty_unsynced_files(&directory);
        let run = |args: &[&str]| project.rollout(args).wait(DEADLINE);
        let _faults = run(&["tree", "validate", "runs/small"]).expect_code(ExitCode::RunDamaged);
        let told = run(&["repair", "runs/small", "--dry-run"]).expect_code(ExitCode::Success);
        assert!(told.stdout.contains("would be made again"), "{}", told.stdout);
        let _made = run(command).expect_code(ExitCode::Success);
        sound(&command.join(" "));
    }
    fs::remove_dir_all(directory.join("repository")).expect("removed");
    let resume = project.rollout(&["resume", "runs/small"]).wait(DEADLINE);
    let _made = resume.expect_code(ExitCode::Success);
    sound("the directory was removed");
    let after = search::comparable_manifest(&directory);
    assert_eq!(
        (&after["nodes"], &after["evaluations"]),
        (&before["nodes"], &before["evaluations"])
    );
}

#[test]
fn emptied_outputs_of_evals_are_found_and_written_again() {
    let project = ended_project();
    let attempt = SmallSearch::directory(&project).join("eval/0000/experiment/attempt-1");
    let run = |args: &[&str]| project.rollout(args).wait(DEADLINE);
    let [log, output] = ["logs/log", "implement/stdout.txt"].map(|name| attempt.join(name));
    for path in [&log, &output] {
        fs::write(path, "").expect("emptied");
        let faults = run(&["tree", "validate", "runs/small"]).expect_code(ExitCode::RunDamaged);
        assert!(faults.stdout.contains("changed file: eval 0000"), "{}", faults.stdout);
        let told = run(&["repair", "runs/small", "--dry-run"]).expect_code(ExitCode::Success);
        assert!(told.stdout.contains("eval/0000/experiment/attempt-1/"), "{}", told.stdout);
        assert_eq!(fs::read(path).expect("a file"), b"", "nothing is changed");
        let _made = run(&["repair", "runs/small"]).expect_code(ExitCode::Success);
        let _sound = run(&["tree", "validate", "runs/small"]).expect_code(ExitCode::Success);
    }
    let texts = [&log, &output].map(|path| fs::read_to_string(path).expect("a file"));
    assert_eq!(texts, ["log\n", "made\n"]);
    fs::remove_dir_all(attempt.join("logs")).expect("removed");
    let _made = run(&["repair", "runs/small"]).expect_code(ExitCode::Success);
    assert!(log.is_file());
}
