//! Limits of a search, as who sees every command counts them, while the process is killed.

use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use rollout_tests::search::Search;
use rollout_tests::wait;
use rollout_tests::witness::Witness;
use rustix::process::Signal;

use crate::{DEADLINE, project};

/// Runs a search to its end, whose process is killed whenever one of these sees another command.
fn run(search: &Search, project: &Project, kills: &[&Witness]) {
    let words = ["tree", "run", &search.file, "--runs-root", "runs"];
    for witness in kills {
        let before = witness.seen().len();
        let mut killed = project.rollout(&words);
        wait::until(DEADLINE, "a command", || {
            assert!(!killed.has_ended(), "{}", killed.stderr());
            witness.running() > 0 && witness.seen().len() > before
        });
        killed.signal(Signal::KILL);
    }
    let _ended = project.rollout(&words).wait(DEADLINE).expect(ExitCode::Success);
}

#[test]
fn sweep_max_parallel_limits_only_sweeps() {
    let (llm, sweeps) = (Witness::start(), Witness::start());
    let search = Search::counted(&llm, &sweeps).limited("{sweep_max_parallel: 1}");
    let project = search.write(project());
    run(&search, &project, &[&sweeps, &sweeps]);
    assert_eq!(sweeps.most(), 1, "{:#?}", sweeps.seen());
    assert!(llm.most() > 1, "{:#?}", llm.seen());
}

#[test]
fn llm_limits_bound_inflight_and_rate() {
    let (llm, sweeps) = (Witness::start(), Witness::start());
    let search = Search::counted(&llm, &sweeps)
        .with("max_depth: 2", "max_depth: 1")
        .limited("{llm_max_inflight: 1, llm_rate_limit: 40}");
    let project = search.write(project());
    // While ideas are written, while the first is implemented, and while one is measured.
    run(&search, &project, &[&llm, &llm, &sweeps]);
    assert_eq!(llm.most(), 1, "{:#?}", llm.seen());
    let began: Vec<Instant> = llm.seen().iter().map(|one| one.began).collect();
    assert!(began.len() >= 5, "one for ideas, four for evals: {began:?}");
    for few in began.windows(4) {
        // Three times a second and a half, less what the first may have come late.
        assert!(few[3] - few[0] > Duration::from_millis(3500), "{began:?}");
    }
}
