//! Hook events of trials on workers that are killed.

use rollout_protocol::exit::ExitCode;
use rollout_tests::gate::Gate;
use rollout_tests::hook_events::{EventfulJob, assert_gapless, executions, parse};
use rollout_tests::{print_notice, wait};

use crate::cluster::{DEADLINE, assert_no_leaks, cluster};

const JOB: EventfulJob = EventfulJob { name: "eventful", bursts: 20, steps: 125, pause: 0.1 };

#[test]
fn kill_of_worker_loses_no_acknowledged_event() {
    let Some(cluster) = cluster() else { return };
    assert_eq!(JOB.events(), 10_000);
    let (project, gate) = (&cluster.project, Gate::closed());
    JOB.write_held(project, &gate);
    let mut dead = cluster.worker("a", 1).started();
    let mut coordinator = cluster.coordinator("job.yaml").started();
    let plan = project.results("eventful").path().join("plan.json");
    wait::until(DEADLINE, "the plan", || plan.exists());
    let follower = JOB.start_reading(project, &["--follow"]);
    wait::until(DEADLINE, "events", || JOB.read(project, &[]).len() >= 2000);
    wait::until(DEADLINE, "the follower", || !follower.stdout().is_empty());
    let before = JOB.read(project, &[]);
    let _killed = dead.kill();
    drop(gate);
    let next = assert_gapless(&before, 0);
    print_notice(&format!("killed the worker after {next} acknowledged events"));
    assert!(next < JOB.events(), "killed in the middle");
    let first = executions(&before);
    // Events that were announced between the reading and the kill follow.
    let kept = JOB.read(project, &["--exec", &first[0]]);
    assert_eq!(kept[..before.len()], before);

    let other = cluster.worker("b", 1).started();
    let second = || executions(&JOB.read(project, &[]));
    wait::until(DEADLINE, "events of the second execution", || {
        let now = second();
        !now.is_empty() && now != first
    });
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    let settled = JOB.read(project, &[]);
    assert_eq!(assert_gapless(&settled, 0), JOB.events());
    assert_eq!(executions(&settled), second());
    let kept = JOB.read(project, &["--exec", &first[0]]);
    assert_eq!(kept[..before.len()], before, "they stay after the trial has ended");
    assert_gapless(&kept, 0);
    for from in [1, 2500, 9_999] {
        let lines = JOB.read(project, &["--from", &from.to_string()]);
        assert_eq!(assert_gapless(&lines, from), JOB.events(), "from {from}");
    }
    assert_followed(&parse(&follower.wait(DEADLINE).stdout), [&first, &second()]);
    assert_no_leaks(&cluster, &["eventful"], [other]);
}

/// Fails unless a follower printed the events of both executions, one after the other.
#[track_caller]
fn assert_followed(lines: &[serde_json::Value], [first, second]: [&Vec<String>; 2]) {
    assert_eq!(executions(lines), [first.clone(), second.clone()].concat());
    let split = lines.iter().position(|line| line["exec"] == second[0]).expect("both");
    assert_gapless(&lines[..split], 0);
    assert_eq!(assert_gapless(&lines[split..], 0), JOB.events());
}
