use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rollout_base::dependency::{Dependency, Probe};
use rollout_base::secrets::TrialVariables;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_environment::{FailureKind, HostProxies};
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType};
use rollout_protocol::id::ExecId;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{EvalEnd, EvalRecord};
use rollout_protocol::spec::eval::{EvalCommand, EvalCommands, EvalOrigin, RESULTS_FILE};
use rollout_protocol::spec::task::TaskEnvironment;
use rollout_protocol::wire::control::StopLevel;

use super::*;
use crate::work::eval::testing::{PermitEvent, PermitRecorder};
use crate::work::trial::testing::{PhaseRecorder, TrialFixture, settings};

/// An eval over the scripted provider.
pub(super) struct EvalFixture {
    pub(super) world: MirrorFixture,
    pub(super) rig: TrialFixture,
    pub(super) spec: EvalSpec,
    execution: u8,
    tickets: Arc<dyn StagePermits>,
}

pub(super) fn command(script: &str) -> EvalCommand {
    EvalCommand {
        script: script.to_owned(),
        agent: None,
        timeout_sec: Some(60.0),
        env: BTreeMap::new(),
    }
}

impl EvalFixture {
    pub(super) async fn new() -> Self {
        let world = MirrorFixture::new();
        world.user.write("value", "1\n");
        world.user.write(".gitignore", "*.log\n");
        let repository = world.root_spec(&world.user.commit("root")).await;
        let mut rig = TrialFixture::new().await;
        rig.store = world.store.clone();
        let idea = rig.store.put_bytes("- make it two\n".into(), MediaType::Text).await;
        let commands = EvalCommands {
            implement: command("cat $ROLLOUT_IDEA_FILE; echo 2 > value; echo done > /logs/note"),
            tests: Some(command("test -f value; echo x > tests.log")),
            review: Some(command("test -s value")),
            sweep: command(
                "echo config_id,score >> $AGENTIC_RESULTS_CSV; cat value >> $ROLLOUT_RESULTS_CSV\n\
                 echo $ROLLOUT_SWEEP_CONFIG_LIMIT > $AGENTIC_OUTPUT_DIR/limit",
            ),
        };
        let environment =
            TaskEnvironment { docker_image: Some("image".into()), ..TaskEnvironment::default() };
        let spec = EvalSpec {
            name: EvalOrigin { tree: "run".into(), node: "0000".into(), eval: "0003".into() },
            repository,
            idea: idea.expect("stored"),
            message: "Make it two".into(),
            commands,
            timeout_sec: None,
            environment,
            settings: settings().environment,
            sweep_environment: None,
            user: None,
            results_file: RESULTS_FILE.into(),
            sweep_config_limit: Some(100),
            env: BTreeMap::new(),
            gateway: None,
            secrets: BTreeSet::new(),
        };
        Self { world, rig, spec, execution: 0, tickets: Arc::new(()) }
    }

    /// Runs one execution and stores its files.
    pub(super) async fn run(&mut self) -> EvalRecord {
        self.execution += 1;
        let scratch = self.world.dir.path().join(format!("scratch-{}", self.execution));
        let mut execution = self.rig.execution(scratch);
        execution.labels.exec = ExecId::from_bytes([self.execution; 16]);
        let eval = Arc::new(self.spec.clone());
        let ctx = EvalContext { execution, eval, permits: self.tickets.clone() };
        let finished = super::super::run(ctx, &self.rig.services(), &self.world.repositories).await;
        assert_eq!(self.rig.provider.busy(), Vec::<String>::new());
        finished.store(self.world.store.as_ref()).await.expect("stored")
    }

    pub(super) async fn text(&self, blob: &rollout_protocol::blob::BlobRef) -> String {
        let bytes = self.world.store.get_bytes(&blob.digest, 1 << 20).await.expect("stored");
        String::from_utf8(bytes.to_vec()).expect("text")
    }
}

pub(super) fn failed(record: &EvalRecord) -> (ErrorType, &ErrorCode, &str) {
    assert_eq!(record.end, EvalEnd::Failed);
    let error = record.error.as_ref().expect("an error");
    (error.kind, &error.code, &error.message)
}

#[tokio::test]
async fn eval_completed_gives_commit_and_results_of_own_try() {
    let mut eval = EvalFixture::new().await;
    let (one, two) = (eval.run().await, eval.run().await);
    for record in [&one, &two] {
        assert_eq!((record.end, &record.error), (EvalEnd::Completed, &None));
        assert_eq!(record.secondary_errors, []);
        let results = eval.text(record.results.as_ref().expect("results")).await;
        assert_eq!(results, "config_id,score\n2\n", "one try's rows and no other's");
        let stages: Vec<_> =
            record.commands.iter().map(|c| (c.stage.as_str(), c.exit_code)).collect();
        let all = ["implement", "tests", "review", "sweep"].map(|stage| (stage, Some(0)));
        assert_eq!(stages, all);
        let changes = record.changes.expect("compared");
        assert_eq!((changes.written, changes.removed, changes.ignored), (1, 0, 1));
        assert!(record.logs.is_some() && record.sweep_output.is_some());
        assert_eq!(record.verdict().reward, None);
    }
    assert_eq!(one.candidate, two.candidate, "equal trees are equal commits and bundles");
    let printed = one.outputs.iter().find(|output| output.path == "implement/stdout.txt");
    assert_eq!(eval.text(&printed.expect("kept").blob).await, "- make it two\n");
    let output = |exec: &EvalRecord| format!("/output/{}", exec.exec);
    let used: Vec<_> =
        eval.rig.provider.commands().iter().map(|c| c.env["AGENTIC_OUTPUT_DIR"].clone()).collect();
    assert_eq!((&used[0], &used[4]), (&output(&one), &output(&two)));
    assert_eq!(eval.rig.provider.existing(), Vec::<String>::new());
    let mut repository = eval.spec.repository.clone();
    repository.chain.push(one.candidate.expect("a candidate"));
    assert_eq!(eval.world.listing(&repository).await, ["100644 .gitignore", "100644 value"]);
    // Only the checkout stays, for the next eval of its commit.
    let slots = eval.world.dir.path().join("slots");
    let left = walk(&slots);
    assert!(left.iter().any(|path| path.ends_with("slot-0/work/base/value")), "{left:?}");
    let added = |path: &Path| {
        path.components().any(|part| {
            super::super::checkout_slots::ADDED_NAMES.iter().any(|added| part.as_os_str() == *added)
        })
    };
    assert!(!left.iter().any(|path| added(path) || path.ends_with("dirty")), "{left:?}");
    assert!(!left.iter().any(|path| path.to_string_lossy().contains("slot-1")), "{left:?}");
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries =
        std::fs::read_dir(dir).expect("listed").map(|entry| entry.expect("listed").path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn eval_without_changes_runs_no_sweep() {
    let mut eval = EvalFixture::new().await;
    eval.spec.commands.implement =
        command("echo evil > .git/config; rm -rf .git/hooks; echo x > a.log; echo 1 > value");
    let record = eval.run().await;
    assert_eq!((record.end, &record.error), (EvalEnd::NoChanges, &None));
    assert_eq!((record.commands.len(), record.candidate, record.results), (3, None, None));
    assert!(record.sweep_output.is_none() && record.logs.is_some());
}

#[tokio::test]
async fn eval_command_failed_ends_eval_and_skips_rest() {
    use ErrorType::{AgentExecutionFailed, AgentExecutionTimeout, VerifierFailed};
    let bad = || command("echo no >&2; exit 3");
    let slow = EvalCommand { timeout_sec: Some(0.3), ..command("sleep 1000") };
    type Change = Box<dyn Fn(&mut EvalSpec)>;
    let slow_alone = slow.clone();
    let cases: [(Change, ErrorType, usize); 6] = [
        (Box::new(move |s| s.commands.implement = bad()), AgentExecutionFailed, 1),
        (Box::new(move |s| s.commands.implement = slow_alone.clone()), AgentExecutionTimeout, 1),
        (
            Box::new(|s| {
                s.commands.implement = command("sleep 1000");
                s.timeout_sec = Some(0.3);
            }),
            AgentExecutionTimeout,
            1,
        ),
        (Box::new(move |s| s.commands.tests = Some(bad())), VerifierFailed, 2),
        (Box::new(move |s| s.commands.review = Some(bad())), VerifierFailed, 3),
        (Box::new(move |s| s.commands.sweep = bad()), VerifierFailed, 4),
    ];
    for (change, kind, ran) in cases {
        let mut eval = EvalFixture::new().await;
        change(&mut eval.spec);
        let record = eval.run().await;
        let (found, _, message) = failed(&record);
        assert_eq!((found, record.commands.len()), (kind, ran), "{message}");
        assert_eq!(record.candidate.is_some(), ran == 4, "approved changes only become commits");
        assert_eq!((record.results, record.logs.is_some()), (None, true));
        assert_eq!(eval.rig.provider.existing(), Vec::<String>::new());
        assert_ne!(record.error.expect("an error").class, ErrorClass::Infrastructure);
    }
}

#[tokio::test]
async fn eval_results_not_written_by_sweep_are_refused() {
    let mut eval = EvalFixture::new().await;
    // Written too early: the output directory is recreated for the sweep.
    eval.spec.commands.implement =
        command("mkdir -p $AGENTIC_OUTPUT_DIR; echo 9 > $AGENTIC_RESULTS_CSV; echo 2 > value");
    eval.spec.commands.sweep = command("echo nothing");
    let record = eval.run().await;
    let (kind, code, _) = failed(&record);
    assert_eq!((kind, code), (ErrorType::VerifierRewardMissing, &ErrorCode::REWARD_MISSING));
    assert!(record.candidate.is_some() && record.results.is_none());
    eval.spec.commands.sweep = command("ln -s /etc/passwd $AGENTIC_RESULTS_CSV");
    assert_eq!(failed(&eval.run().await).0, ErrorType::VerifierRewardInvalid);
}

#[tokio::test]
async fn eval_reported_costs_are_summed_and_invalid_ignored() {
    let mut eval = EvalFixture::new().await;
    assert_eq!(eval.run().await.reported_cost, None);
    eval.spec.commands.implement = command("echo 2 > value; echo 0.25 > $ROLLOUT_COST_FILE");
    // The report of the previous command is removed.
    eval.spec.commands.tests = Some(command("test -d /cost; cat $ROLLOUT_COST_FILE"));
    assert_eq!(eval.run().await.reported_cost, Some(0.25), "of a command that succeeded");
    eval.spec.commands.tests = Some(command("echo -1 > $ROLLOUT_COST_FILE"));
    eval.spec.commands.review = Some(command("ln -s /idea/idea.md $ROLLOUT_COST_FILE"));
    let sweep = eval.spec.commands.sweep.script.clone();
    eval.spec.commands.sweep = command(&format!("{sweep}\necho 1e2 > $ROLLOUT_COST_FILE"));
    let record = eval.run().await;
    assert_eq!((record.end, record.reported_cost), (EvalEnd::Completed, Some(100.25)));
    let told: Vec<_> = record.secondary_errors.iter().map(|e| e.message.as_str()).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("tests") && told[1].contains("review"), "{told:?}");
    // The cost was spent, even by a command that times out.
    let slow = command("echo 7 > $ROLLOUT_COST_FILE; sleep 1000");
    eval.spec.commands.implement = EvalCommand { timeout_sec: Some(0.3), ..slow };
    assert_eq!(eval.run().await.reported_cost, Some(7.0));
}

#[tokio::test]
async fn eval_commands_find_their_limits() {
    let mut eval = EvalFixture::new().await;
    eval.spec.commands.implement = command("echo 2 > value; cat $ROLLOUT_LIMITS");
    eval.spec.commands.tests = Some(EvalCommand { timeout_sec: None, ..command("echo") });
    let record = eval.run().await;
    assert_eq!(record.end, EvalEnd::Completed, "{:?}", record.error);
    let commands = eval.rig.provider.commands();
    let limit = |at: usize| commands[at].env.get("ROLLOUT_TIMEOUT_SEC").map(String::as_str);
    assert_eq!([0, 1, 2, 3].map(limit), [Some("60"), None, Some("60"), Some("60")]);
    let deadline = &commands[0].env["ROLLOUT_DEADLINE"];
    let printed = record.outputs.iter().find(|output| output.path == "implement/stdout.txt");
    let printed = eval.text(&printed.expect("kept").blob).await;
    assert_eq!(printed, format!("{{\"timeout_sec\":60.0,\"deadline\":{deadline}}}\n"));
    let names = |at: usize| commands[at].env.contains_key("ROLLOUT_LIMITS");
    assert_eq!([0, 1, 2, 3].map(names), [true, false, true, true]);
}

#[tokio::test]
async fn eval_secrets_are_redacted_in_outputs_and_commit() {
    let mut eval = EvalFixture::new().await;
    eval.rig.variables = TrialVariables::new([("KEY".into(), "hunter2-hunter2".into())]);
    eval.spec.secrets.insert("KEY".to_owned());
    let key = rollout_protocol::template::Template::new("${KEY}");
    eval.spec.commands.implement = EvalCommand {
        env: [("KEY".to_owned(), key)].into(),
        ..command("echo $KEY; echo $KEY > value; echo $KEY > /logs/key")
    };
    let record = eval.run().await;
    assert_eq!(record.end, EvalEnd::Completed, "{:?}", record.error);
    assert!(!eval.rig.provider.commands()[3].env.contains_key("KEY"), "it was implement's alone");
    let mut kept: Vec<_> = record.outputs.iter().map(|output| output.blob.clone()).collect();
    kept.extend(record.results.clone());
    kept.extend([record.logs, record.sweep_output].into_iter().flatten().map(|logs| logs.archive));
    for blob in kept {
        let bytes = eval.world.store.get_bytes(&blob.digest, 1 << 20).await.expect("stored");
        assert!(!String::from_utf8_lossy(&bytes).contains("hunter2"), "{blob:?}");
    }
    let mut repository = eval.spec.repository.clone();
    repository.chain.push(record.candidate.expect("a candidate"));
    let mirror = eval.world.repositories.mirrors.get(&repository).await.expect("a mirror");
    let shown = format!("{}:value", repository.commit());
    let value = mirror.bare().git().call(["show", &shown]).run_line().await.expect("shown");
    assert!(!value.contains("hunter2"), "{value}");
}

#[tokio::test]
async fn likely_secrets_of_an_eval_are_kept_and_flagged() {
    let script = "echo config_id,score > $ROLLOUT_RESULTS_CSV; echo 2 >> $ROLLOUT_RESULTS_CSV";
    for (is_printed, expected) in [(false, Vec::<&str>::new()), (true, vec!["SWEEP_KEY"])] {
        let mut eval = EvalFixture::new().await;
        eval.rig.variables = TrialVariables::new([("SWEEP_KEY".into(), "hunter2-hunter2".into())]);
        let key = rollout_protocol::template::Template::new("${SWEEP_KEY}");
        let printed = if is_printed { "; echo $SWEEP_KEY > $AGENTIC_OUTPUT_DIR/note" } else { "" };
        eval.spec.commands.sweep = EvalCommand {
            env: [("SWEEP_KEY".to_owned(), key)].into(),
            ..command(&format!("{script}{printed}"))
        };
        let record = eval.run().await;
        assert_eq!(record.end, EvalEnd::Completed, "{:?}", record.error);
        assert_eq!(record.possible_secrets, expected);
        let output = record.sweep_output.expect("kept").archive;
        let bytes = eval.world.store.get_bytes(&output.digest, 1 << 20).await.expect("stored");
        assert_eq!(String::from_utf8_lossy(&bytes).contains("hunter2"), is_printed);
    }
}

#[tokio::test]
async fn eval_has_proxies_of_its_environment_and_of_host_with_masked_logins() {
    let mut eval = EvalFixture::new().await;
    let of_host = [("HTTP_PROXY", "http://me:hunter2@h:1"), ("HTTPS_PROXY", "http://h:1")];
    let of_host = of_host.map(|(name, value)| (name, value.to_owned()));
    eval.rig.provider.set_proxies(HostProxies::new(of_host));
    eval.rig.variables = TrialVariables::new([("LOGIN".into(), "you:swordfish".into())]);
    let own = rollout_protocol::template::Template::new("http://${LOGIN}@p:2");
    eval.spec.environment.env = [("https_proxy".to_owned(), own)].into();
    eval.spec.commands.implement =
        command("echo $HTTP_PROXY $https_proxy $no_proxy; echo 2 > value");
    let record = eval.run().await;
    assert_eq!(record.end, EvalEnd::Completed, "{:?}", record.error);
    let mut printed = String::new();
    for output in &record.outputs {
        printed += &eval.text(&output.blob).await;
    }
    let expected = "http://[redacted:HTTP_PROXY]@h:1 http://[redacted:https_proxy]@p:2 \
                    localhost,127.0.0.1,::1\n";
    assert!(printed.contains(expected), "{printed}");
    let (request, _) = &eval.rig.provider.requests()[0];
    assert_eq!(request.env["https_proxy"], "http://you:swordfish@p:2");
    assert!(!request.env.contains_key("HTTPS_PROXY"), "{:?}", request.env);
}

#[tokio::test]
async fn eval_with_any_failed_call_leaves_no_environment() {
    for is_apart in [false, true] {
        let eval = async || {
            if is_apart {
                super::sweep_environment::sweep_environment_fixture().await
            } else {
                EvalFixture::new().await
            }
        };
        let calls = {
            let mut eval = eval().await;
            eval.run().await;
            eval.rig.provider.calls()
        };
        let effects = [FaultEffect::Fail(FailureKind::Unreachable), FaultEffect::Panic];
        for (at, call) in calls.iter().enumerate() {
            let effect = effects[at % 2];
            let mut eval = eval().await;
            eval.rig.provider.fault(FaultTrigger::Any(at), effect);
            let record = eval.run().await;
            let what = format!("call {at}, {call:?}: {effect:?}: {:?}", record.error);
            assert_eq!(eval.rig.provider.leaked(), Vec::<String>::new(), "{what}");
            if record.end == EvalEnd::Failed {
                let error = record.error.as_ref().expect("an error");
                assert_eq!(error.class, ErrorClass::Infrastructure, "{what}");
            } else {
                assert_eq!(record.end, EvalEnd::Completed, "{what}");
                let late = matches!(call, FakeCall::CopyFrom | FakeCall::Destroy | FakeCall::Kill);
                assert!(late, "{what}");
            }
        }
    }
}

#[tokio::test]
async fn eval_stopped_leaves_no_environment() {
    for (phase, level) in [
        (Phase::EnvironmentSetup, StopLevel::Kill),
        (Phase::AgentExecution, StopLevel::Kill),
        (Phase::AgentExecution, StopLevel::Drain),
        (Phase::Verification, StopLevel::Kill),
    ] {
        let mut eval = EvalFixture::new().await;
        eval.spec.commands.sweep = command("sleep 1000");
        eval.rig.stop_in(phase, level);
        let record = eval.run().await;
        assert_eq!(record.end, EvalEnd::Stopped, "{phase} {level:?}: {:?}", record.error);
        assert_eq!(eval.rig.provider.existing(), Vec::<String>::new());
    }
}

/// Grants permits after a while, or never.
#[derive(Debug)]
struct SlowPermits {
    wait: Duration,
    phases: Arc<PhaseRecorder>,
    told: Mutex<Vec<(EvalStage, bool, Option<Phase>)>>,
}

#[async_trait]
impl StagePermits for SlowPermits {
    async fn acquire(&self, stage: EvalStage) {
        self.record_event(stage, true);
        tokio::time::sleep(self.wait).await;
    }

    fn release(&self, stage: EvalStage) {
        self.record_event(stage, false);
    }
}

impl SlowPermits {
    fn for_eval(eval: &mut EvalFixture, wait: Duration) -> Arc<Self> {
        let (phases, told) = (eval.rig.phases.clone(), Mutex::default());
        let slow = Arc::new(Self { wait, phases, told });
        eval.tickets = slow.clone();
        slow
    }

    fn record_event(&self, stage: EvalStage, begins: bool) {
        let phase = self.phases.entered().last().copied();
        self.told.lock().expect("not poisoned").push((stage, begins, phase));
    }

    fn recorded_events(&self) -> Vec<(EvalStage, bool, Option<Phase>)> {
        self.told.lock().expect("not poisoned").clone()
    }
}

#[tokio::test]
async fn eval_timeout_excludes_wait_for_stage_permit() {
    let mut eval = EvalFixture::new().await;
    eval.spec.timeout_sec = Some(3.0);
    let slow = SlowPermits::for_eval(&mut eval, Duration::from_secs(1));
    let record = eval.run().await;
    assert_eq!(record.end, EvalEnd::Completed, "{:?}", record.error);
    assert!(record.durations.total_sec > 4.0, "{:?}", record.durations);
    assert!(record.durations.verifier_sec.is_some_and(|seconds| seconds < 1.0));
    let (setup, agent) = (Some(Phase::EnvironmentSetup), Some(Phase::AgentExecution));
    let sweeps = Some(Phase::Verification);
    let expected = [
        (EvalStage::Implement, setup, agent),
        (EvalStage::Tests, agent, agent),
        (EvalStage::Review, agent, agent),
        (EvalStage::Sweep, agent, sweeps),
    ];
    let expected =
        expected.map(|(stage, began, ended)| [(stage, true, began), (stage, false, ended)]);
    assert_eq!(slow.recorded_events(), expected.concat());
}

#[tokio::test]
async fn eval_timeout_excludes_placing_of_commands_and_reading_of_the_checkout() {
    let mut eval = EvalFixture::new().await;
    eval.spec.timeout_sec = Some(3.0);
    for call in [FakeCall::CopyTo, FakeCall::CopyFrom] {
        let effect = FaultEffect::Delay(Duration::from_secs(1));
        eval.rig.provider.fault(FaultTrigger::Every(call), effect);
    }
    let record = eval.run().await;
    assert_eq!(record.end, EvalEnd::Completed, "{:?}", record.error);
    assert!(record.durations.total_sec > 5.0, "{:?}", record.durations);
}

#[tokio::test]
async fn eval_waiting_for_stage_permit_stops_at_once() {
    for level in [StopLevel::Drain, StopLevel::Kill] {
        let mut eval = EvalFixture::new().await;
        let slow = SlowPermits::for_eval(&mut eval, Duration::from_secs(3600));
        let stop = eval.rig.stop.clone();
        let stopping = async {
            while slow.recorded_events().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stop.send_replace(Some(level));
        };
        let (record, ()) = tokio::join!(eval.run(), stopping);
        assert_eq!((record.end, record.commands.len()), (EvalEnd::Stopped, 0), "{level:?}");
        assert_eq!(eval.rig.provider.existing(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn stage_permit_of_command_with_unknown_end_is_not_returned() {
    let mut eval = EvalFixture::new().await;
    let slow = SlowPermits::for_eval(&mut eval, Duration::ZERO);
    eval.spec.commands.implement = command("exit 1");
    eval.run().await;
    assert_eq!(slow.recorded_events().len(), 2, "it began and ended");
    let slow = SlowPermits::for_eval(&mut eval, Duration::ZERO);
    let effect = FaultEffect::Fail(FailureKind::Unreachable);
    eval.rig.provider.fault(FaultTrigger::Nth(FakeCall::Exec, 1), effect);
    eval.run().await;
    assert_eq!(slow.recorded_events().len(), 1, "how it ended is not known");
}

#[tokio::test]
async fn eval_with_unreachable_registry_parks_and_restarts() {
    let mut eval = EvalFixture::new().await;
    eval.rig.max_park = Duration::from_secs(900);
    eval.rig.provider.fault(
        FaultTrigger::Nth(FakeCall::Prepare, 0),
        FaultEffect::Fail(FailureKind::Unreachable),
    );
    let record = eval.run().await;
    assert_eq!((record.end, record.error), (EvalEnd::Completed, None));
    let registry = rollout_protocol::dependency::Dependency::ImageRegistry;
    assert_eq!(eval.rig.phases.parked(), [Some(registry), None]);
}

#[tokio::test]
async fn eval_that_loses_its_sweep_in_an_outage_starts_over_with_new_permits() {
    use EvalStage::{Implement, Review, Sweep, Tests};
    let mut eval = EvalFixture::new().await;
    eval.rig.max_park = Duration::from_secs(900);
    let permits = Arc::new(PermitRecorder::default());
    eval.tickets = permits.clone();
    let (sweep, effect) = (3, FaultEffect::Fail(FailureKind::Unreachable));
    eval.rig.provider.fault(FaultTrigger::Nth(FakeCall::Exec, sweep), effect);
    let record = eval.run().await;
    assert_eq!((record.end, record.error), (EvalEnd::Completed, None));
    let whole = |stage| [PermitEvent::Acquired(stage), PermitEvent::Released(stage)];
    let mut expected = [Implement, Tests, Review].map(whole).concat();
    expected.extend([PermitEvent::Acquired(Sweep), PermitEvent::StartedOver]);
    expected.extend([Implement, Tests, Review, Sweep].map(whole).concat());
    assert_eq!(permits.events(), expected);
}

/// An engine that a test takes down.
#[derive(Debug, Clone, Default)]
struct EvalEngineProbe {
    away: Arc<AtomicBool>,
}

#[async_trait::async_trait]
impl Probe for EvalEngineProbe {
    async fn probe(&self) -> Result<(), String> {
        if self.away.load(Ordering::Relaxed) { Err("it is away".into()) } else { Ok(()) }
    }
}

#[tokio::test]
async fn eval_timeout_during_engine_outage_is_paused() {
    let mut eval = EvalFixture::new().await;
    let engine = EvalEngineProbe::default();
    let dependency = Dependency::new("the engine", Box::new(engine.clone()));
    eval.rig.provider = eval.rig.provider.clone().with_engine(Arc::new(dependency));
    eval.spec.commands.implement = command("sleep 4; echo 2 > value");
    eval.spec.timeout_sec = Some(3.0);
    let phases = eval.rig.phases.clone();
    let outage = async {
        while !phases.entered().contains(&Phase::AgentExecution) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        engine.away.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(3500)).await;
        engine.away.store(false, Ordering::Relaxed);
    };
    let (record, ()) = tokio::join!(eval.run(), outage);
    assert_eq!((record.end, record.commands.len()), (EvalEnd::Completed, 4), "{:?}", record.error);
}
