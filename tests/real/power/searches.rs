//! Searches whose disk loses its power, also after their end.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::power_disk::{self, LateWrites, PowerCut};
use rollout_tests::project::Project;
use rollout_tests::search::{self, ExampleSearch};

use crate::power::{DEADLINE, PROGRAM, cut_under, damaged_blobs, each_disk, failure};

/// Longest time between two cuts.
const LONGEST: Duration = Duration::from_secs(8);

/// A cut after the end of the search: nothing of it may be in the cache only.
const AT_THE_END: PowerCut =
    PowerCut { after: Duration::ZERO, requests: 0, late: LateWrites::Lost };

/// The example with short evals.
fn example() -> ExampleSearch {
    ExampleSearch::example("tree.yaml")
        .with_replacement("max_depth: 3", "max_depth: 2")
        .with_replacement("eval_timeout_seconds: 8", "eval_timeout_seconds: 5")
        .with_replacement("k < 2000", "k < 300")
}

#[test]
fn search_after_power_cuts_is_sound_and_unchanged() {
    let search = example();
    let words = ["tree", "run", &search.file, "--runs-root", "runs"];
    let undisturbed = search.write(Project::new(PROGRAM));
    let _ended = undisturbed.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Success);
    let expected = search.directory(&undisturbed, "runs");
    each_disk(LONGEST, |options, cuts| {
        let (project, mut disk) = power_disk::project(PROGRAM, options)?;
        let project = search.write(project);
        disk.sync();
        let mut run = project.rollout(&words);
        for cut in cuts {
            let _ended = cut_under(&mut disk, &cut, run);
            run = project.rollout(&words);
        }
        let ended = run.wait(DEADLINE);
        assert_eq!(failure(&ended), None);
        // It has ended, so it is whole without another word.
        let idle = project.rollout(&["--version"]);
        let _ended = cut_under(&mut disk, &AT_THE_END, idle);

        let directory = search.directory(&project, "runs");
        let shown = directory.display().to_string();
        let again = project.rollout(&words).wait(DEADLINE);
        assert_eq!(failure(&again), None);
        assert_eq!(search::differences(&expected, &directory), Vec::<String>::new());
        assert_eq!(search::leaked_files(&directory), Vec::<String>::new());
        let validated = project.rollout(&["tree", "validate", &shown]).wait(DEADLINE);
        assert_eq!(failure(&validated), None);
        assert_eq!(damaged_blobs(&directory.join("store")), Vec::<String>::new());
        Some(())
    });
}
