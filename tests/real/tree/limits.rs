//! Limits of a search whose process is killed, counted by a server to which every command connects.

use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::project::Project;
use rollout_tests::search::ExampleSearch;
use rollout_tests::wait;
use rustix::process::Signal;

use crate::tree::{DEADLINE, project};

/// Runs a search to its end. For each of `kills`, kills its process once that counter sees a new
/// command.
fn run(search: &ExampleSearch, project: &Project, kills: &[&LiveCounter]) {
    let words = ["tree", "run", &search.file, "--runs-root", "runs"];
    for counter in kills {
        let before = counter.observed().len();
        let mut killed = project.rollout(&words);
        wait::until(DEADLINE, "a command", || {
            assert!(!killed.has_ended(), "{}", killed.stderr());
            counter.running() > 0 && counter.observed().len() > before
        });
        killed.signal(Signal::KILL);
    }
    let _ended = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Success);
}

#[test]
fn sweep_max_parallel_limits_only_sweeps() {
    let (llm, sweeps) = (LiveCounter::start(), LiveCounter::start());
    let search =
        ExampleSearch::with_command_counters(&llm, &sweeps).with_limits("{sweep_max_parallel: 1}");
    let project = search.write(project());
    run(&search, &project, &[&sweeps, &sweeps]);
    assert_eq!(sweeps.peak(), 1, "{:#?}", sweeps.observed());
    assert!(llm.peak() > 1, "{:#?}", llm.observed());
}

#[test]
fn llm_limits_bound_inflight_and_rate() {
    let (llm, sweeps) = (LiveCounter::start(), LiveCounter::start());
    let search = ExampleSearch::with_command_counters(&llm, &sweeps)
        .with_replacement("max_depth: 2", "max_depth: 1")
        .with_limits("{llm_max_inflight: 1, llm_rate_limit: 40}");
    let project = search.write(project());
    // While ideas are written, while the first is implemented, and while one is measured.
    run(&search, &project, &[&llm, &llm, &sweeps]);
    assert_eq!(llm.peak(), 1, "{:#?}", llm.observed());
    let began: Vec<Instant> = llm.observed().iter().map(|one| one.began).collect();
    assert!(began.len() >= 5, "one for ideas, four for evals: {began:?}");
    for few in began.windows(4) {
        // Three intervals of 1.5 seconds, less the delay of the first.
        assert!(few[3] - few[0] > Duration::from_millis(3500), "{began:?}");
    }
}
