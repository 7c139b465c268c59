use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_protocol::dependency::Dependency;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, TrialError};
use rollout_protocol::event::{EventKind, TakeoverReason};
use rollout_protocol::id::{ExecId, TryId};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{FormatDoubt, Verdict};
use rollout_protocol::spec::metric::MetricKind;
use rollout_protocol::wire::control::StopLevel;

use super::job_view::JobView;
use super::{ProgressView as _, REDRAW_INTERVAL, Style, frame, summary, wait_for_redraw};
use crate::events::{RunReport, UnwrittenTrials};
use crate::results::metrics::{AgentTotal, Tally};
use crate::results::report::{JobResult, Ledger, RunOverview};
use crate::results::testing::{
    at, ended, error, event, failed, passed, phase, run, settled, settlement, started, trial,
};

fn agents(total: u64) -> Vec<AgentTotal> {
    vec![AgentTotal { name: "cpe".into(), total }]
}

fn timeout() -> Verdict {
    failed(error(ErrorType::AgentExecutionTimeout, ErrorClass::Agent, "600 s\x1b[2J exceeded"))
}

/// A view of ten trials: two settled, one running, after 30 seconds.
fn view(now: Instant) -> JobView {
    let mut view = JobView::new(&agents(10), &[MetricKind::Mean], Style::PLAIN, Vec::new());
    view.apply(&started(10), now);
    view.apply(&event(0, EventKind::RunOpened), now);
    view.apply(&settled(0, settlement(trial("cpe", "one", 1), 1, passed(1.0))), now);
    view.apply(&settled(1, settlement(trial("cpe", "two", 1), 2, timeout())), now);
    view.apply(&phase(trial("cpe", "th\x1bree", 1), Phase::AgentExecution), now);
    view
}

#[test]
fn live_view_shows_counts_totals_and_running_trials() {
    let now = Instant::now();
    let lines = frame::live(&view(now), now + Duration::from_secs(30), 100, 24);
    assert_eq!(
        lines,
        [
            "a job ████░░░░░░░░░░░░░░░░░░░░ 2/10  1 completed, 1 failed, 1 running",
            "  passed 1 of 2 (50%) · mean 0.5 · 4.0/min · 30s · about 2m 00s left",
            "  agent_execution       30s  cpe/data/th\\x1bree__1",
        ]
    );
    let narrow = frame::live(&view(now), now, 20, 24);
    assert!(narrow.iter().all(|line| console::measure_text_width(line) <= 20), "{narrow:?}");
    assert_eq!(
        frame::plain(&view(now), now + Duration::from_secs(30)),
        "2/10 trials: 1 completed, 1 failed, 1 running; passed 1 of 2 (50%); mean 0.5; 4.0/min; \
         30s; about 2m 00s left"
    );
}

#[test]
fn live_view_with_many_running_trials_is_shortened() {
    let now = Instant::now();
    let mut view = JobView::new(&agents(100), &[], Style::PLAIN, Vec::new());
    view.apply(&started(100), now);
    view.apply(&event(0, EventKind::RunOpened), now);
    for n in 1..=30 {
        view.apply(&phase(trial("cpe", "t", n), Phase::Verification), now);
    }
    let tall = frame::live(&view, now, 100, 50);
    assert_eq!((tall.len(), tall.last().map(String::as_str)), (15, Some("  and 18 more")));
    assert_eq!(frame::live(&view, now, 100, 10).len(), 9);
    assert_eq!(frame::live(&view, now, 100, 3).len(), 2);
}

#[test]
fn event_lines_with_control_characters_are_escaped() {
    let now = Instant::now();
    let mut view = view(now);
    view.apply(&event(6, EventKind::RunStopping { level: StopLevel::Drain }), now);
    view.apply(&event(6, EventKind::Warning { message: "disk\nfull".into() }), now);
    let lines = view.take_lines();
    assert_eq!(
        lines[..3],
        [
            "a job: 10 trials",
            "completed  cpe/data/one__1  reward 1 (2.5s)",
            "failed     cpe/data/two__1  agent_execution_timeout: 600 s\\x1b[2J exceeded (2.5s)",
        ]
    );
    assert!(lines[3].starts_with("stopping: "), "{}", lines[3]);
    assert!(lines[3].ends_with("a second Ctrl-C or SIGTERM kills them at once"), "{}", lines[3]);
    assert_eq!(lines[4], "warning: disk\\nfull");
    assert_eq!(view.take_lines(), [""; 0]);
}

#[test]
fn failed_trial_with_text_of_several_lines_has_them_below_each_other() {
    let now = Instant::now();
    let mut view = view(now);
    let text = "exit code 1\nThe last lines:\ncompleted  \x1b[2J\nERROR: no match";
    let verdict = failed(error(ErrorType::EnvironmentBuildFailed, ErrorClass::Task, text));
    view.apply(&settled(2, settlement(trial("cpe", "four", 1), 1, verdict)), now);
    let lines = view.take_lines();
    let shown = lines.last().expect("a line");
    assert_eq!(
        *shown,
        "failed     cpe/data/four__1  environment_build_failed: exit code 1\n  The last lines:\n  \
         completed  \\x1b[2J\n  ERROR: no match (2.5s)"
    );
}

/// A view of a resumed run after the replay.
fn resumed_view(now: Instant) -> JobView {
    let header = vec!["dataset data: 10 tasks".to_owned()];
    let mut view = JobView::new(&agents(10), &[], Style::PLAIN, header);
    let (run, job, started_at) = (run(), "a job".to_owned(), at(0));
    let start = EventKind::RunStarted { run, job, epoch: 2, total: 10, started_at };
    view.apply(&event(0, start), now);
    let settlement = Arc::new(settlement(trial("cpe", "one", 1), 1, passed(1.0)));
    let settled = EventKind::TrialSettled { ordinal: 0, replayed: true, settlement };
    view.apply(&event(5, settled), now);
    view
}

#[test]
fn header_of_resumed_run_is_held_back_until_run_is_open() {
    let now = Instant::now();
    let header = ["a job: 10 trials, resumed", "dataset data: 10 tasks"];
    let mut refused = resumed_view(now);
    assert_eq!(refused.take_lines(), [""; 0]);
    assert!(!refused.has_begun());
    let mut open = resumed_view(now);
    open.apply(&event(6, EventKind::RunOpened), now);
    let (former, reason) = ("process 1 on a host".to_owned(), TakeoverReason::Forced);
    open.apply(&event(6, EventKind::LockTakeover { former, reason }), now);
    let takeover = "took over the run from process 1 on a host (--force)";
    assert_eq!(open.take_lines(), [header[0], header[1], takeover]);
    assert!(open.has_begun());
}

#[test]
fn outage_lines_name_service_at_begin_and_end() {
    let now = Instant::now();
    let mut view = JobView::new(&agents(10), &[], Style::PLAIN, Vec::new());
    let (trial, dependency) = (trial("cpe", "one", 1), Dependency::ImageRegistry);
    let (item, name) = (trial.item(), ItemName::from(trial));
    let (try_id, exec) = (TryId::first(1), ExecId::from_bytes([1; 16]));
    let parked = EventKind::TrialParked { item, name: name.clone(), try_id, exec, dependency };
    view.apply(&event(1, parked), now);
    view.apply(&event(2, EventKind::TrialUnparked { item, name, try_id, exec }), now);
    assert_eq!(
        view.take_lines(),
        [
            "parked     the image registry does not respond; trials that need it wait, and their \
             timeouts are paused",
            "unparked   no trials wait for the image registry any more",
        ]
    );
}

#[test]
fn event_lines_of_large_job_are_limited_to_some_failures() {
    let now = Instant::now();
    let mut view = JobView::new(&agents(10_000), &[], Style::PLAIN, Vec::new());
    view.apply(&started(10_000), now);
    view.apply(&event(0, EventKind::RunOpened), now);
    for n in 1..=300 {
        let verdict = if n % 2 == 0 { passed(1.0) } else { timeout() };
        view.apply(&settled(n, settlement(trial("cpe", "t", n as u32), 1, verdict)), now);
    }
    let lines = view.take_lines();
    assert_eq!(lines.len(), 1 + 50 + 1);
    assert!(lines[1..51].iter().all(|line| line.starts_with("failed")));
}

#[test]
fn live_view_drops_trial_that_settled() {
    let now = Instant::now();
    let mut view = view(now);
    view.apply(&settled(2, settlement(trial("cpe", "th\x1bree", 1), 1, passed(0.0))), now);
    assert!(view.run.running.len() == 0);
    view.apply(&ended(60, 7), now);
    assert_eq!(view.stats.pending(), 7);
}

#[test]
fn summary_shows_agents_metrics_and_failures() {
    let mut ledger = Ledger::default();
    let cancelled = Verdict::cancelled(0.25);
    let verdicts = [
        ("oracle", "one", passed(1.0)),
        ("oracle", "two", passed(0.5)),
        ("cpe", "one", timeout()),
        ("cpe", "two", timeout()),
        ("cpe", "three", cancelled),
    ];
    for (ordinal, (agent, task, verdict)) in verdicts.into_iter().enumerate() {
        ledger.add(ordinal as u64, &settlement(trial(agent, task, 1), 1, verdict));
    }
    let agents =
        [("oracle", 2), ("cpe", 4)].map(|(name, total)| AgentTotal { name: name.into(), total });
    let frame = RunOverview {
        run: run(),
        job: "a\x1bjob".into(),
        started_at: at(0),
        ended_at: at(90),
        cancelled: true,
    };
    let result = JobResult::new(frame, &agents, &[MetricKind::Mean, MetricKind::Max], &ledger);
    let report = RunReport {
        result: None,
        tally: Tally::default(),
        failures: ledger.failures(),
        has_trial_files: true,
        unwritten: UnwrittenTrials::default(),
    };
    let text = summary::render(&report, &result, Path::new("jobs/j"), Style::PLAIN);
    let expected = "\
a\\x1bjob: stopped after 1m 30s: 6 trials: 2 completed, 2 failed, 1 cancelled, 1 skipped
passed 1 of 4 (25%), mean reward 0.375
of the 2 completed: 50% passed, mean reward 0.75
not counted, of 6 trials: 1 cancelled, 1 skipped

agent   trials  completed  failed  cancelled  skipped  passed  pass rate  mean reward  completed: pass rate  mean  cost
oracle       2          2       0          0        0     1/2        50%         0.75                   50%  0.75     0
cpe          4          0       2          1        1     0/2         0%            0                     -     -  0.25

reward of completed  mean  max
oracle               0.75    1
cpe                     -    -
all agents           0.75    1

Failures
2  agent_execution_timeout  agent  jobs/j/cpe/data/one__1/error.txt

Results: jobs/j/result.json
";
    assert_eq!(text, expected);
    let coloured = summary::render(
        &report,
        &result,
        Path::new("jobs/j"),
        Style { colours: true, ..Style::PLAIN },
    );
    assert!(coloured.contains("\x1b[1ma\\x1bjob"), "{coloured}");
}

fn summary_of(kinds: &[MetricKind], verdicts: Vec<Verdict>) -> String {
    summary_in(Path::new("jobs/j"), kinds, verdicts, Style::PLAIN)
}

fn summary_in(
    run_dir: &Path,
    kinds: &[MetricKind],
    verdicts: Vec<Verdict>,
    style: Style,
) -> String {
    let mut ledger = Ledger::default();
    let total = verdicts.len() as u64;
    for (ordinal, verdict) in verdicts.into_iter().enumerate() {
        let name = trial("cpe", "t", ordinal as u32 + 1);
        ledger.add(ordinal as u64, &settlement(name, 1, verdict));
    }
    let frame = RunOverview {
        run: run(),
        job: "j".into(),
        started_at: at(0),
        ended_at: at(3),
        cancelled: false,
    };
    let result = JobResult::new(frame, &agents(total), kinds, &ledger);
    let report = RunReport {
        result: None,
        tally: Tally::default(),
        failures: ledger.failures(),
        has_trial_files: false,
        unwritten: UnwrittenTrials::default(),
    };
    summary::render(&report, &result, run_dir, style)
}

#[test]
fn summary_of_narrow_terminal_keeps_places_whole() {
    let run_dir = Path::new("jobs/a-run-with-a-name-of-its-own");
    let style = Style { width: Some(40), ..Style::PLAIN };
    let text = summary_in(run_dir, &[], vec![passed(1.0), timeout()], style);
    let end = "\nFailures\n1  agent_execution_timeout  agent\n  cpe/data/t__2\n\n\
               Results:\n  jobs/a-run-with-a-name-of-its-own/result.json\n";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn summary_with_failures_never_says_that_everything_passed() {
    let broken = error(ErrorType::InternalError, ErrorClass::Infrastructure, "no disk");
    let mut verdicts = vec![passed(1.0); 14];
    verdicts.extend([timeout(), timeout(), failed(broken), Verdict::cancelled(0.0)]);
    let text = summary_of(&[], verdicts);
    let expected = "\
j: done in 3.0s: 18 trials: 14 completed, 3 failed (1 infrastructure), 1 cancelled
passed 14 of 16 (87.5%), 82.4% to 88.2% with the failures that do not count, mean reward 0.875
of the 14 completed: 100% passed, mean reward 1
not counted, of 18 trials: 1 infrastructure failure, 1 cancelled

agent  trials  completed  failed  infrastructure  cancelled  passed  pass rate  mean reward  completed: pass rate  mean
cpe        18         14       3               1          1   14/16      87.5%        0.875                  100%     1

Failures
2  agent_execution_timeout  agent           cpe/data/t__15
1  internal_error           infrastructure  cpe/data/t__17

Results: jobs/j/result.json
";
    assert_eq!(text, expected);
}

#[test]
fn summary_with_task_failures_before_agent_has_bounds_of_pass_rate() {
    let error = error(ErrorType::TaskInvalid, ErrorClass::Task, "no tests");
    let early = failed(TrialError { before_agent: true, ..error.clone() });
    let text = summary_of(&[], vec![passed(1.0), failed(error), early.clone(), early]);
    let expected = "\
j: done in 3.0s: 4 trials: 1 completed, 3 failed (2 task before the agent)
passed 1 of 2 (50%), 25% to 75% with the failures that do not count, mean reward 0.5
of the 1 completed: 100% passed, mean reward 1
not counted, of 4 trials: 2 task failures before the agent began

agent  trials  completed  failed  task before agent  passed  pass rate  mean reward  completed: pass rate  mean
cpe         4          1       3                  2     1/2        50%          0.5                  100%     1

Failures
3  task_invalid  task  cpe/data/t__2

Results: jobs/j/result.json
";
    assert_eq!(text, expected);
}

#[test]
fn summary_marks_verdicts_that_guessed_format_decides() {
    let doubtful = Verdict { format_doubt: Some(FormatDoubt::TestExit), ..passed(1.0) };
    let text = summary_of(&[], vec![passed(1.0), doubtful]);
    let line = "\n1 trial could have another verdict in the other format of their task, which is a \
                guess: run `rollout check` for the reason, and write `format` in task.toml\n";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("  format in doubt  "), "{text}");
    assert!(!summary_of(&[], vec![passed(1.0)]).contains("format"));
}

#[test]
fn summary_names_key_of_job_for_trials_with_numbers_and_no_reward() {
    let numbers = [("speed", 0.5), ("accuracy", 1.0)];
    let rewards = numbers.map(|(key, reward)| (key.to_owned(), reward)).into();
    let several = Verdict { reward: None, rewards, ..passed(0.0) };
    let text = summary_of(&[], vec![passed(1.0), several]);
    let line = "\nno reward in 1 trial: its verifier gave accuracy, speed; `verifier.reward_key` or \
                `--reward-key` has to name one of these, the number that counts\n";
    assert!(text.contains(line), "{text}");
    assert!(!summary_of(&[], vec![passed(1.0)]).contains("reward_key"));
}

#[test]
fn summary_names_agent_that_often_gets_no_answer_of_model_server() {
    let unreachable = |message: &str| {
        let (kind, code) = (ErrorType::AgentExecutionFailed, ErrorCode::MODEL_UNREACHABLE);
        failed(TrialError::transient(kind, code, message))
    };
    let mut verdicts = vec![passed(1.0); 18];
    verdicts.extend([unreachable("one"), unreachable("two")]);
    let text = summary_of(&[], verdicts.clone());
    let line = "\na model server did not answer `cpe` in 2 of 20 trials: check the server, and whether \
                the agent provokes its errors\n";
    assert!(text.contains(line), "{text}");
    verdicts.push(passed(1.0));
    assert!(!summary_of(&[], verdicts).contains("did not answer `"), "it is rare");
}

#[test]
fn summary_names_agent_that_could_not_be_installed() {
    let (kind, code) = (ErrorType::AgentInstallFailed, ErrorCode::NON_ZERO_EXIT);
    let refused = TrialError::transient(kind, code, "curl: (60)");
    let image = TrialError::unsupported("no shell").in_phase(Phase::AgentSetup);
    let other = TrialError::unsupported("no graphics processors");
    let text = summary_of(&[], vec![passed(1.0), failed(refused), failed(image), failed(other)]);
    let line = "\n`cpe` could not be installed in 2 of 4 trials: check its registry, the images, and \
                whether its packages end the installation\n";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("passed 1 of 1 (100%), 50% to 100% with"), "{text}");
}

#[test]
fn summary_without_failures_has_one_pass_rate() {
    let text = summary_of(&[], vec![passed(1.0), passed(0.0)]);
    assert!(text.contains("passed 1 of 2 (50%), mean reward 0.5\n\nagent"), "{text}");
    assert!(!text.contains("completed:"), "{text}");
}

#[test]
fn summary_without_completed_trial_has_one_pass_rate() {
    let text = summary_of(&[], vec![timeout()]);
    assert!(text.contains("passed 0 of 1 (0%), mean reward 0\n\nagent"), "{text}");
    assert!(!text.contains("completed:"), "{text}");
}

#[test]
fn summary_leaves_out_metrics_table_when_mean_is_the_only_metric() {
    let summary = |kinds: &[MetricKind]| summary_of(kinds, vec![passed(1.0), timeout()]);
    assert_eq!(summary(&[MetricKind::Mean]), summary(&[]));
    for kinds in [&[MetricKind::Max][..], &[MetricKind::Mean, MetricKind::Max]] {
        let text = summary(kinds);
        assert!(text.contains("\nreward of completed  "), "{text}");
    }
}

#[test]
fn trial_line_shows_all_rewards_and_unverified_step() {
    let now = Instant::now();
    let mut view = JobView::new(&agents(10), &[], Style::PLAIN, Vec::new());
    let rewards = [("speed", 0.5), ("\x1bsize", 1.0)];
    let rewards = rewards.map(|(key, reward)| (key.to_owned(), reward)).into();
    let several = Verdict { reward: None, rewards, ..passed(0.0) };
    view.apply(&settled(0, settlement(trial("cpe", "one", 1), 1, several)), now);
    let unverified = Verdict { unverified_steps: vec!["two".into()], ..passed(1.0) };
    view.apply(&settled(1, settlement(trial("cpe", "two", 1), 2, unverified)), now);
    assert_eq!(
        view.take_lines(),
        [
            "completed  cpe/data/one__1  rewards: \\x1bsize 1, speed 0.5 (2.5s)",
            "completed  cpe/data/two__1  reward 1; not passed: step not verified: two (2.5s)",
        ]
    );
    assert_eq!(view.stats.overall().score().passed, 0);
}

#[test]
fn redraw_waits_for_events_and_takes_those_of_a_moment_together() {
    let (changes, changed) = std::sync::mpsc::sync_channel(1);
    let long = Duration::from_secs(600);
    changes.send(()).expect("there is room");
    let began = Instant::now();
    assert!(!wait_for_redraw(&changed, long));
    assert!((REDRAW_INTERVAL..long).contains(&began.elapsed()));
    assert!(!wait_for_redraw(&changed, Duration::from_millis(1)), "nothing is new");
    drop(changes);
    assert!(wait_for_redraw(&changed, long), "the run has ended");
}
