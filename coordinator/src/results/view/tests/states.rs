//! States of runs and trials.

use super::*;

#[test]
fn live_run_counts_each_trial_in_its_state() {
    let mut journal = JournalFixture::new(&["a", "b", "c", "d", "e"], 3);
    journal.report(journal.item("a"), passed());
    journal.report(journal.item("b"), failed());
    journal.report(journal.item("c"), outage());
    let view = journal.view(true, None);
    assert_eq!(view.header.state, RunViewState::Running);
    let ItemCounts { total, settled, completed, failed, running, waiting, queued, .. } =
        view.counts;
    assert_eq!((total, settled, completed, failed), (5, 2, 1, 1));
    assert_eq!((running, waiting, queued), (2, 1, 0));
    assert_adds_up(&view.counts);
    assert_eq!((view.tally.pass_rate(), view.tally.failures.agent), (Some(1.0), 1));
    assert_eq!(view.errors[&ErrorType::AgentExecutionFailed], 1);

    let rows: Vec<_> = view.trials(&TrialFilter::default()).expect("no pattern").collect();
    let states: Vec<_> = rows.iter().map(|row| row.state.as_str()).collect();
    assert_eq!(states, ["completed", "failed", "waiting", "running", "running"]);
    assert_eq!((rows[0].reward, rows[0].worker.as_deref()), (Some(1.0), Some("worker-1")));
    assert!(rows[2].next_try_at > view.header.updated_at, "{:?}", rows[2]);
    assert_eq!(rows[3].tries, 1);
}

#[test]
fn killed_run_is_interrupted_and_runs_nothing() {
    let mut journal = JournalFixture::new(&["a", "b", "c"], 2);
    journal.report(journal.item("a"), passed());
    let view = journal.view(false, None);
    assert_eq!(view.header.state, RunViewState::Interrupted);
    assert_eq!((view.counts.settled, view.counts.running, view.counts.queued), (1, 0, 2));
    assert_adds_up(&view.counts);
}

#[test]
fn stopped_and_completed_runs_differ_by_pending_trials() {
    let mut journal = JournalFixture::new(&["a", "b"], 1);
    journal.report(journal.item("a"), passed());
    journal.handle(CoreInput::Stop(StopLevel::Drain));
    journal.close(true);
    assert_eq!(journal.view(false, None).header.state, RunViewState::Stopped);
    journal.open(1, Vec::new());
    assert_eq!(journal.view(true, None).header.state, RunViewState::Running);
    journal.report(journal.item("b"), passed());
    journal.close(false);
    // The owner of a closed session is about to release the lock.
    for is_live in [true, false] {
        assert_eq!(journal.view(is_live, None).header.state, RunViewState::Completed);
    }
}

#[test]
fn silent_owner_is_told_from_dead_one() {
    let now = Timestamp::UNIX_EPOCH;
    let owner = |heartbeat_age_sec, dead| OwnerView {
        host: "host".to_owned(),
        pid: 1,
        since: now,
        last_heartbeat_at: now,
        heartbeat_age_sec,
        dead,
    };
    let (alive, silent, dead) = (owner(29.0, false), owner(31.0, false), owner(1.0, true));
    let state = |owner| run::state(None, owner);
    assert_eq!(state(Some((&alive, 1))), RunViewState::Running);
    assert_eq!(state(Some((&silent, 1))), RunViewState::Silent);
    assert_eq!(state(Some((&dead, 1))), RunViewState::New);
    assert_eq!(state(None), RunViewState::New);
}

#[test]
fn trial_with_retries_shows_every_execution_and_why_it_does_not_count() {
    let mut journal = JournalFixture::new(&["a"], 1);
    let item = journal.item("a");
    journal.report(item, outage());
    let waiting = journal.view(true, Some(item)).detail().expect("watched");
    assert_eq!((waiting.row.state, waiting.executions.len()), (TrialState::Waiting, 1));
    journal.now_ms += 10_000_000;
    journal.handle(CoreInput::Tick);
    journal.report(item, ReportBody::Started);
    let running = journal.view(true, Some(item)).detail().expect("watched");
    assert_eq!(running.row.worker.as_deref(), Some("worker-2"));
    assert_eq!(running.executions[1].role, ExecutionRole::Open);
    let lost = ReportBody::Lost {
        reason: LostReason::WorkerDied,
        phase: None,
        record: None,
        cost: 0.5,
        model_use: Default::default(),
    };
    journal.report_again(item, lost);
    journal.report(item, failed());
    let detail = journal.view(true, Some(item)).detail().expect("watched");
    assert_eq!(detail.row.state, TrialState::Failed);
    assert_eq!(detail.task_git_commit_id.as_deref(), Some("c0ffee"));
    let reasons: Vec<_> = detail.executions.iter().map(|known| known.reason.as_deref()).collect();
    assert!(reasons.contains(&Some("it failed because of the infrastructure and was tried again")));
    assert!(reasons.contains(&Some("its worker died")), "{reasons:?}");
    assert_eq!(reasons.last(), Some(&None), "the last one settled the trial");
    let verdict = detail.verdict.expect("settled");
    assert_eq!(verdict.error.expect("an error").message, "exit 1");
}

#[test]
fn reopened_trial_is_queued_and_keeps_its_former_execution() {
    let mut journal = JournalFixture::new(&["a", "b"], 2);
    let item = journal.item("a");
    journal.report(item, failed());
    journal.report(journal.item("b"), passed());
    journal.close(false);
    let events = journal.fold(journal.records.len(), None).1;
    journal.open(1, vec![item]);
    let view = journal.view(true, Some(item));
    assert_eq!((view.counts.settled, view.counts.running), (1, 1));
    assert_eq!(view.tally.failed, 0, "the former result does not count");
    let detail = view.detail().expect("watched");
    assert_eq!(detail.executions[0].reason.as_deref(), Some("the trial was run again by request"));
    journal.report(item, passed());
    let detail = journal.view(true, Some(item)).detail().expect("watched");
    let roles: Vec<_> = detail.executions.iter().map(|known| known.role).collect();
    assert_eq!(roles, [ExecutionRole::Superseded, ExecutionRole::Settled]);
    let later = journal.fold(journal.records.len(), None).1;
    assert_eq!(later[..events.len()], events, "events that were read stay");
    assert_eq!(names(&later[events.len()..]), ["run_started", "run_opened", "trial_settled"]);
}

#[test]
fn trials_are_selected_by_patterns_and_outcome() {
    let mut journal = JournalFixture::new(&["alpha", "beta"], 2);
    journal.report(journal.item("beta"), failed());
    let view = journal.view(true, None);
    let select = |failed, agent: Option<&str>, task: Option<&str>| -> Vec<String> {
        let (agent, task) = (agent.map(str::to_owned), task.map(str::to_owned));
        let rows = view.trials(&TrialFilter { failed, agent, task }).expect("patterns");
        rows.map(|row| row.task_name).collect()
    };
    assert_eq!(select(false, Some("a*"), None), ["alpha", "beta"]);
    assert_eq!(select(true, None, None), ["beta"]);
    assert_eq!(select(false, None, Some("a*")), ["alpha"]);
    assert_eq!(select(false, None, Some("data/*")), ["alpha", "beta"]);
    assert_eq!(select(false, Some("other"), None), Vec::<String>::new());
}

#[test]
fn trial_is_found_by_name_item_and_unique_part() {
    let plan = plan(&["task", "task-two", "three"]);
    let find = |key: &str| find_trial(&plan, key).map(|trial| trial.name.task);
    assert_eq!(find("agent/data/task__1"), Ok("task".to_owned()));
    assert_eq!(find("agent/data/task__1/"), Ok("task".to_owned()));
    let item = plan.trial(1).expect("planned").item.to_string();
    assert_eq!(find(&item), Ok("task-two".to_owned()));
    assert_eq!(find("three"), Ok("three".to_owned()));
    assert_eq!(find("hree__1"), Ok("three".to_owned()));
    assert_eq!(find("four"), Err(TrialLookupError::None { key: "four".to_owned() }));
    let Err(TrialLookupError::Ambiguous { count, names, .. }) = find("task") else {
        panic!("two names contain it")
    };
    assert_eq!((count, names.len()), (2, 2));
}

#[test]
fn trial_whose_last_parts_are_given_is_preferred_to_longer_names() {
    let plan = plan(&["one", "second-one"]);
    for key in ["one__1", "data/one__1"] {
        assert_eq!(find_trial(&plan, key).map(|trial| trial.name.task), Ok("one".to_owned()));
    }
}

#[test]
fn events_are_those_that_were_emitted() {
    let mut journal = JournalFixture::new(&["a"], 1);
    let item = journal.item("a");
    journal.report(item, outage());
    let wait_ms = journal.effects.iter().find_map(|effect| match effect {
        CoreEffect::Retry(retry) => Some(retry.wait_ms),
        _ => None,
    });
    journal.now_ms += 10_000_000;
    journal.handle(CoreInput::Tick);
    journal.report(item, passed());
    journal.close(false);
    let (_, events) = journal.fold(journal.records.len(), None);
    let expected = ["run_started", "run_opened", "trial_retry", "trial_settled", "run_ended"];
    assert_eq!(names(&events), expected);
    let EventKind::TrialRetry { wait_ms: found, .. } = &events[2].event.kind else {
        panic!("{events:?}")
    };
    assert_eq!(Some(*found), wait_ms);
    let EventKind::TrialSettled { settlement, replayed: false, .. } = &events[3].event.kind else {
        panic!("{events:?}")
    };
    assert_eq!((settlement.item, settlement.superseded.len()), (item, 1));
}
