//! Hook events that are read while their trial runs and when it has ended.

use rollout_protocol::exit::ExitCode;
use rollout_tests::gate::Gate;
use rollout_tests::hook_events::{EventfulJob, assert_gapless, executions, parse};
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::Value;

use crate::e2e::{DEADLINE, project};

const JOB: EventfulJob = EventfulJob { name: "live", bursts: 10, steps: 250, pause: 0.2 };

#[test]
fn many_events_are_read_gaplessly_from_any_number_during_trial_and_after() {
    assert_eq!(JOB.events(), 10_000);
    let (project, gate) = (project(), Gate::closed());
    JOB.write_held(&project, &gate);
    let mut run = project.rollout(&["run", "job.yaml", "-q"]);
    let plan = project.results("live").path().join("plan.json");
    wait::until(DEADLINE, "the plan", || plan.exists());
    let follower = JOB.start_reading(&project, &["--follow"]);
    let late = JOB.start_reading(&project, &["--follow", "--from", "7001"]);
    let mut seen = 0;
    wait::until(DEADLINE, "2,000 events", || {
        let lines = JOB.read(&project, &[]);
        let next = assert_gapless(&lines, 0);
        assert!(next >= seen, "events that were read stay: {next} of {seen}");
        seen = next;
        seen >= 2000
    });
    assert!(!run.has_ended(), "read while it runs");
    for from in [0, 1, 999, 1000, 1500, seen - 1] {
        let lines = JOB.read(&project, &["--from", &from.to_string()]);
        assert!(assert_gapless(&lines, from) >= seen, "from {from}");
    }
    assert!(!run.has_ended(), "read while it runs");
    let first = executions(&JOB.read(&project, &[]));
    drop(gate);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);

    for from in [0, 1, 5000, 9999, 10_000] {
        let lines = JOB.read(&project, &["--from", &from.to_string()]);
        assert_eq!(assert_gapless(&lines, from), JOB.events(), "from {from}");
    }
    let followed = follower.wait(DEADLINE).expect_code(ExitCode::Success);
    let lines = parse(&followed.stdout);
    assert_eq!((assert_gapless(&lines, 0), executions(&lines)), (JOB.events(), first));
    let late = parse(&late.wait(DEADLINE).expect_code(ExitCode::Success).stdout);
    assert_eq!(assert_gapless(&late, 7001), JOB.events());
    let trial = project.results("live").trial("eventful", "t");
    let events = &trial.result["harness"]["events"];
    assert_eq!((&events["total"], &events["violations"]["total"]), (&10_000.into(), &0.into()));
    assert_collected(&project);
}

/// Fails unless the collection of unneeded blobs removes the chunks and leaves the log.
fn assert_collected(project: &rollout_tests::project::Project) {
    let store = project.path().join("jobs/.rollout/blobs").display().to_string();
    let collect = ["gc", "--store", &store, "--grace", "0s", "--json"];
    let ended = project.rollout(&collect).wait(DEADLINE).expect_code(ExitCode::Success);
    let report: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert!(report["removed"]["blobs"].as_u64() >= Some(3), "the chunks: {report:#}");
    let lines = JOB.read(project, &[]);
    assert_eq!(assert_gapless(&lines, 0), JOB.events());
}

#[test]
fn events_of_killed_run_stay_beside_those_of_its_next_session() {
    let job = EventfulJob { name: "killed", bursts: 12, steps: 5, pause: 0.5 };
    let project = project();
    job.write(&project);
    let mut run = project.rollout(&["run", "job.yaml", "-q"]);
    let plan = project.results("killed").path().join("plan.json");
    wait::until(DEADLINE, "the plan", || plan.exists());
    wait::until(DEADLINE, "events", || job.read(&project, &[]).len() >= 40);
    let before = job.read(&project, &[]);
    run.signal(Signal::KILL);
    let _killed = run.wait(DEADLINE);
    let after = job.read(&project, &[]);
    assert_eq!(after[..before.len()], before, "what was read stays");
    assert_gapless(&after, 0);

    let _ended =
        project.rollout(&["run", "job.yaml", "-q"]).wait(DEADLINE).expect_code(ExitCode::Success);
    let again = job.read(&project, &[]);
    assert_eq!(assert_gapless(&again, 0), job.events());
    let (dead, settled) = (executions(&before), executions(&again));
    assert_ne!(dead, settled, "the next session runs the trial again");
    assert_eq!(job.read(&project, &["--exec", &dead[0]]), after);
    assert_eq!(job.read(&project, &["--exec", &settled[0], "--from", "200"]), again[200..]);
}
