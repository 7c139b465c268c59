//! Inputs and limits of phases: variables, users, time limits, tools, networks, health, rate
//! limits.

use std::time::Duration;

use rollout_base::secrets::TrialVariables;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_environment::{FailureKind, HostProxies, Upload, time_limit};
use rollout_protocol::error::ErrorType;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{ItemOutcome, StartWait, StartWaitEnd};
use rollout_protocol::spec::agent::{AgentKind, AgentLimits, AgentSkill};
use rollout_protocol::spec::task::{Healthcheck, McpServer, McpTransport, NetworkPolicy};
use rollout_protocol::template::Template;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::offer;

use super::super::testing::TrialFixture;
use super::{error, error_summary, output, outputs, run};

fn env(command: &rollout_environment::ExecCommand) -> Vec<String> {
    let shown = command.env.iter().filter(|(name, _)| !name.starts_with("ROLLOUT_"));
    shown.map(|(name, value)| format!("{name}={value}")).collect()
}

#[tokio::test]
async fn script_gets_env_and_user_of_its_phase() {
    let mut rig = TrialFixture::new().await;
    rig.use_harbor_format();
    rig.use_oracle("cat /solution/solve.sh; echo $KEY $ALL").await;
    rig.variables = TrialVariables::new([("SECRET".to_owned(), "hunter2hunter2".to_owned())]);
    let step = &mut rig.task.steps[0];
    step.agent.user = Some("nobody".into());
    step.verifier.user = Some("0".into());
    step.solution_env.insert("KEY".into(), Template::new("${SECRET}"));
    step.verifier.env.insert("A".into(), Template::new("step"));
    step.verifier.env.insert("B".into(), Template::new("step"));
    rig.task.environment.env.insert("ALL".into(), Template::new("x"));
    rig.task.environment.env.insert("A".into(), Template::new("x"));
    rig.task.environment.workdir = Some("/srv/work".into());
    rig.settings.verifier.env.insert("B".into(), Template::new("job"));
    rig.set_tests("pwd; echo $KEY; echo 1 > /logs/verifier/reward.txt").await;
    let finished = run(&rig).await;
    assert!(finished.record.verdict.passed());
    let shown = output(&finished, "command/stdout.txt");
    assert!(shown.ends_with("[redacted:SECRET] x\n") && !shown.contains("hunter2"), "{shown}");
    assert_eq!(output(&finished, "logs/verifier/stdout.txt"), "/srv/work\n\n");
    let commands = rig.provider.commands();
    let [agent, verifier] = &commands[..] else { panic!("{commands:?}") };
    let expected = ["A=x", "ALL=x", "DEBIAN_FRONTEND=noninteractive", "KEY=hunter2hunter2"];
    assert_eq!(
        (env(agent), agent.user.as_deref()),
        (expected.map(str::to_owned).to_vec(), Some("nobody"))
    );
    let expected = ["A=step", "ALL=x", "B=job"].map(str::to_owned).to_vec();
    assert_eq!((env(verifier), verifier.user.as_deref()), (expected, Some("0")));
    let (request, _) = &rig.provider.requests()[0];
    assert_eq!(request.env.len(), 2);
    let open =
        |path: &str| format!("{:?}", request.uploads).contains(&format!("Dir {{ path: {path:?}"));
    assert!(open("/logs/artifacts") && open("/logs/agent"));
}

#[tokio::test]
async fn variable_of_any_phase_not_exported_fails_before_calls() {
    for place in ["step", "job", "solution"] {
        let mut rig = TrialFixture::new().await;
        rig.use_oracle("echo").await;
        let env = match place {
            "step" => &mut rig.task.steps[0].verifier.env,
            "job" => &mut rig.settings.verifier.env,
            _ => &mut rig.task.steps[0].solution_env,
        };
        env.insert("A".into(), Template::new("${ABSENT}"));
        let finished = run(&rig).await;
        assert_eq!(error(&finished).code.as_str(), "variable_unset", "{place}");
        assert_eq!(rig.provider.calls(), []);
    }
    let mut rig = TrialFixture::new().await;
    rig.task.steps[0].solution_env.insert("A".into(), Template::new("${ABSENT}"));
    assert!(run(&rig).await.record.verdict.passed(), "nobody runs the solution");
}

#[tokio::test]
async fn script_agent_gets_mcp_config_and_skills_dir() {
    let mut rig = TrialFixture::new().await;
    rig.variables = TrialVariables::new([("TOKEN".to_owned(), "t0ken-t0ken".to_owned())]);
    let server = |name: &str, transport| McpServer { name: name.to_owned(), transport };
    let headers = [("Authorization".to_owned(), Template::new("Bearer ${TOKEN}"))].into();
    rig.task.mcp_servers = vec![
        server("files", McpTransport::Stdio { command: "mcp".into(), args: vec!["-x".into()] }),
        server("web", McpTransport::StreamableHttp { url: "http://x/".into(), headers }),
    ];
    rig.task.skills_dir = Some("/skills".into());
    rig.set_scripts(None, Some("cat $ROLLOUT_MCP_CONFIG; echo $ROLLOUT_SKILLS_DIR"));
    let finished = run(&rig).await;
    let shown = output(&finished, "command/stdout.txt");
    let expected = "{\"mcpServers\":{\"files\":{\"args\":[\"-x\"],\"command\":\"mcp\",\
        \"type\":\"stdio\"},\"web\":{\"headers\":{\"Authorization\":\"Bearer [redacted:TOKEN]\"},\
        \"type\":\"http\",\"url\":\"http://x/\"}}}/skills\n";
    assert_eq!(shown, expected);
    rig.use_oracle("test -e /rollout/mcp.json").await;
    assert_eq!(error(&run(&rig).await).kind, ErrorType::AgentExecutionFailed);
}

#[tokio::test]
async fn proxies_of_host_reach_scripts_unless_named_and_their_logins_are_masked() {
    let mut rig = TrialFixture::new().await;
    let login = "http://me:hunter2@proxy.corp:3128";
    let proxies = [("HTTP_PROXY", login), ("HTTPS_PROXY", "http://proxy.corp:3128")];
    let proxies = proxies.map(|(name, value)| (name, value.to_owned()));
    rig.provider.set_proxies(HostProxies::new(proxies));
    let of_job = Template::new("http://of.job:1");
    rig.task.environment.env.insert("https_proxy".to_owned(), of_job);
    rig.set_scripts(None, Some("echo $HTTP_PROXY\necho $https_proxy\necho $NO_PROXY"));
    rig.settings.verifier.env.insert("NO_PROXY".into(), Template::new("of.verifier"));
    rig.set_tests("echo $NO_PROXY; echo 1 > /logs/verifier/reward.txt").await;
    let finished = run(&rig).await;
    let exempt = output(&finished, "logs/verifier/stdout.txt");
    assert_eq!(exempt, "of.verifier,localhost,127.0.0.1,::1\n");
    let shown = output(&finished, "command/stdout.txt");
    let expected = "http://[redacted:HTTP_PROXY]@proxy.corp:3128\nhttp://of.job:1\n\
                    localhost,127.0.0.1,::1\n";
    assert_eq!(shown, expected);
    let (request, _) = &rig.provider.requests()[0];
    assert_eq!(request.env["http_proxy"], login);
    assert!(!request.env.contains_key("HTTPS_PROXY"), "the job names one: {:?}", request.env);
}

#[tokio::test]
async fn skills_of_job_are_placed_beside_those_of_task() {
    let mut rig = TrialFixture::new().await;
    let archive = rig.store_archive("SKILL.md", "count stripes\n").await;
    rig.agent.task_options.skills = vec![AgentSkill { name: "zebra".to_owned(), archive }];
    for (of_task, directory) in [(None, "/rollout/skills"), (Some("/own/"), "/own")] {
        rig.task.skills_dir = of_task.map(str::to_owned);
        let script = format!("cat {directory}/zebra/SKILL.md; echo $ROLLOUT_SKILLS_DIR");
        rig.set_scripts(None, Some(&script));
        let finished = run(&rig).await;
        let shown = output(&finished, "command/stdout.txt");
        assert_eq!(shown, format!("count stripes\n{}\n", of_task.unwrap_or(directory)));
    }
}

#[tokio::test]
async fn trial_of_install_only_ends_after_its_install_script() {
    let mut rig = TrialFixture::new().await;
    rig.settings.install_only = true;
    rig.settings.verifier.disable = true;
    rig.set_scripts(Some("echo installed"), Some("exit 3"));
    let finished = run(&rig).await;
    let record = &finished.record;
    assert_eq!((record.verdict.outcome, &record.verdict.error), (ItemOutcome::Unverified, &None));
    assert_eq!(outputs(&finished), ["setup/stdout.txt", "setup/stderr.txt"]);
    let durations = (record.durations.agent_execution_sec, record.durations.verifier_sec);
    assert_eq!(durations, (None, None));

    rig.set_scripts(Some("exit 3"), None);
    assert_eq!(error(&run(&rig).await).kind, ErrorType::AgentInstallFailed);

    // Nothing runs the solution that the task lacks.
    rig.agent.kind = AgentKind::Oracle;
    rig.task.steps[0].files.solution = None;
    assert_eq!(run(&rig).await.record.verdict.outcome, ItemOutcome::Unverified);
}

#[tokio::test(start_paused = true)]
async fn agent_timeout_overrides_task_timeout() {
    let mut rig = TrialFixture::new().await;
    rig.agent.limits = AgentLimits { install_sec: Some(5.0), ..AgentLimits::default() };
    rig.set_scripts(Some("sleep 6"), None);
    assert_eq!(error(&run(&rig).await).kind, ErrorType::AgentInstallTimeout);
    rig.agent.limits = AgentLimits { execute_max_sec: Some(30.0), ..AgentLimits::default() };
    rig.set_scripts(None, Some("sleep 31"));
    assert!(error(&run(&rig).await).message.contains("30s"));
    rig.agent.limits = AgentLimits { execute_sec: Some(90.0), ..AgentLimits::default() };
    rig.set_scripts(None, Some("sleep 80"));
    assert!(run(&rig).await.record.verdict.passed());
    rig.agent.limits = AgentLimits::default();
    rig.task.steps[0].agent.timeout_sec = None;
    rig.set_scripts(None, Some("sleep 1000000"));
    assert!(run(&rig).await.record.verdict.passed());
}

/// The wait for the environment of a trial that must pass, and the number of its commands.
async fn start_wait(rig: &TrialFixture) -> (Option<StartWait>, usize) {
    let finished = run(rig).await;
    assert!(finished.record.verdict.passed(), "{:?}", finished.record.verdict);
    let environment = finished.record.environment.expect("one was created");
    (environment.start_wait, rig.provider.commands().len())
}

#[tokio::test(start_paused = true)]
async fn start_of_own_programs_is_waited_for_and_recorded() {
    let rig = TrialFixture::new().await;
    let (without, commands) = start_wait(&rig).await;
    assert_eq!(without, None);
    let mut rig = TrialFixture::new().await;
    rig.provider.run_own_programs("until=settled waited=120 processes=2 sockets=1");
    let waited = StartWait {
        until: StartWaitEnd::Settled,
        waited_sec: 1.2,
        processes: Some(2),
        sockets: Some(1),
    };
    assert_eq!(start_wait(&rig).await, (Some(waited), commands));

    rig.task.environment.start_grace_sec = Some(2.5);
    let (grace, _) = start_wait(&rig).await;
    let grace = grace.expect("a wait");
    assert_eq!((grace.until, grace.processes, grace.sockets), (StartWaitEnd::Grace, None, None));
    assert!((2.5..2.6).contains(&grace.waited_sec), "{grace:?}");
    rig.task.environment.start_grace_sec = Some(0.0);
    assert_eq!(start_wait(&rig).await.0, None);
    rig.task.environment.healthcheck = Some(check("echo"));
    rig.task.environment.start_grace_sec = Some(99.0);
    let (checked, _) = start_wait(&rig).await;
    assert_eq!(checked.map(|wait| wait.until), Some(StartWaitEnd::Healthcheck));
}

#[tokio::test(start_paused = true)]
async fn start_that_cannot_be_observed_is_not_waited_for() {
    let rig = TrialFixture::new().await;
    rig.provider.run_own_programs("sh: syntax error");
    assert_eq!(start_wait(&rig).await.0, None);
}

#[tokio::test(start_paused = true)]
async fn environment_that_its_own_programs_end_has_not_started() {
    for grace in [None, Some(2.5)] {
        let mut rig = TrialFixture::new().await;
        rig.provider.end_by_own_programs();
        rig.task.environment.start_grace_sec = grace;
        let summary = error_summary(error(&run(&rig).await));
        assert_eq!(summary, "environment_start_failed exec_not_started infrastructure transient");
    }
}

fn check(command: &str) -> Healthcheck {
    Healthcheck {
        command: command.to_owned(),
        interval_sec: 5.0,
        timeout_sec: 30.0,
        start_period_sec: 0.0,
        start_interval_sec: 1.0,
        retries: 3,
    }
}

#[tokio::test(start_paused = true)]
async fn healthcheck_failed_is_environment_start_error() {
    for (command, period, seconds) in [
        ("echo no >&2; exit 7", 0.0, 10),
        ("exit 7", 20.0, 30),
        ("sleep 1000", 0.0, 100),
        ("test -e /ready", 0.0, 10),
    ] {
        let mut rig = TrialFixture::new().await;
        let check = Healthcheck { start_period_sec: period, ..check(command) };
        rig.task.environment.healthcheck = Some(check);
        let finished = run(&rig).await;
        assert_eq!(
            error_summary(error(&finished)),
            "environment_start_failed unhealthy task permanent"
        );
        let message = &error(&finished).message;
        assert!(message.contains("healthcheck failed 3 times"), "{message}");
        assert_eq!(message.ends_with("code 7: no"), command.contains("no"), "{message}");
        let took = finished.record.durations.total_sec;
        assert!((f64::from(seconds)..f64::from(seconds) + 1.5).contains(&took), "{command} {took}");
        assert_eq!(finished.record.durations.agent_setup_sec, None);
    }
    let mut rig = TrialFixture::new().await;
    rig.provider.image_file("/ready", "");
    rig.task.environment.healthcheck = Some(check("test -e /ready"));
    assert!(run(&rig).await.record.verdict.passed());
    let command = ["bash", "-c", "test -e /ready"].map(str::to_owned);
    let limited = time_limit::limited(&command, Duration::from_secs(30));
    assert_eq!(rig.provider.commands()[0].argv, limited);
    rig.task.environment.healthcheck = Some(check("vanish"));
    assert!(error(&run(&rig).await).is_retryable());
}

#[tokio::test]
async fn network_policy_is_set_per_phase() {
    use NetworkPolicy::{NoNetwork, Public};
    for (base, agent, verifier, expected) in [
        (Public, None, None, vec![]),
        (Public, Some(Public), Some(Public), vec![]),
        (Public, Some(NoNetwork), None, vec![NoNetwork, Public]),
        (NoNetwork, Some(Public), None, vec![Public, NoNetwork]),
        (NoNetwork, None, Some(Public), vec![Public]),
    ] {
        let mut rig = TrialFixture::new().await;
        rig.task.environment.network = base.clone();
        rig.task.steps[0].agent.network = agent;
        rig.task.steps[0].verifier.network = verifier;
        let verdict = run(&rig).await.record.verdict;
        assert!(verdict.passed(), "{:?}", verdict.error);
        let (request, networks) = rig.provider.requests().remove(0);
        assert_eq!((request.network, networks), (base, expected));
    }
}

#[tokio::test]
async fn allowlist_leads_scripts_of_its_phase_to_the_proxy() {
    let mut rig = TrialFixture::new().await;
    let list = |hosts: &[&str]| {
        NetworkPolicy::Allowlist(hosts.iter().map(|host| (*host).to_owned()).collect())
    };
    rig.task.steps[0].agent.network = Some(list(&["a.example"]));
    rig.agent.task_options.extra_allowed_hosts = vec!["b.example".to_owned()];
    let verdict = run(&rig).await.record.verdict;
    assert!(verdict.passed(), "{:?}", verdict.error);
    let (_, networks) = rig.provider.requests().remove(0);
    assert_eq!(networks, [list(&["a.example", "b.example"]), NetworkPolicy::Public]);
    let proxies: Vec<_> =
        rig.provider.commands().iter().map(|c| c.env.get("HTTP_PROXY").cloned()).collect();
    let [install, execute, verify] = &proxies[..] else { panic!("{proxies:?}") };
    assert!(install.is_none() && verify.is_none(), "{proxies:?}");
    assert!(
        execute.as_ref().is_some_and(|url| url.starts_with("http://127.0.0.1:")),
        "{proxies:?}"
    );
}

#[tokio::test]
async fn job_without_network_denies_the_hosts_of_allowlist() {
    use rollout_protocol::spec::environment::{DockerNetwork, DockerSettings, ProviderSpec};
    let mut rig = TrialFixture::new().await;
    let network = DockerNetwork::None;
    rig.settings.environment.provider =
        ProviderSpec::Docker(DockerSettings { network, ..DockerSettings::default() });
    rig.task.environment.network = NetworkPolicy::Allowlist(vec!["a.example".to_owned()]);
    assert!(run(&rig).await.record.verdict.passed());
    assert!(rig.provider.commands().iter().all(|command| !command.env.contains_key("HTTP_PROXY")));
}

#[tokio::test]
async fn task_with_features_that_agent_cannot_use_is_unsupported() {
    use rollout_protocol::spec::agent::TaskFeature;
    let mut rig = TrialFixture::new().await;
    rig.task.skills_dir = Some("/skills".to_owned());
    assert!(run(&rig).await.record.verdict.passed());
    rig.agent.task_options.unsupported = vec![TaskFeature::Mcp, TaskFeature::Skills];
    let finished = run(&rig).await;
    let error = error(&finished);
    assert!(error.is_unsupported(), "{error:?}");
    assert!(error.message.contains("has skills, which the agent"), "{}", error.message);
    assert_eq!(rig.provider.requests().len(), 1, "there is no second environment");
}

#[tokio::test]
async fn servers_with_sse_are_unsupported_by_agent_without_them() {
    use std::collections::BTreeMap;

    use rollout_protocol::spec::agent::{AgentKind, ShellSpec, TaskFeature};
    use rollout_protocol::spec::task::{McpServer, McpTransport};
    let mut rig = TrialFixture::new().await;
    let url = "http://127.0.0.1/x".to_owned();
    let server = |transport| McpServer { name: "m".to_owned(), transport };
    rig.agent.task_options.unsupported = vec![TaskFeature::McpSse];
    let http = McpTransport::StreamableHttp { url: url.clone(), headers: BTreeMap::new() };
    rig.task.mcp_servers = vec![server(http)];
    assert!(run(&rig).await.record.verdict.passed());
    rig.task.mcp_servers.push(server(McpTransport::Sse { url, headers: BTreeMap::new() }));
    let finished = run(&rig).await;
    let error = error(&finished);
    assert!(error.is_unsupported(), "{error:?}");
    assert!(error.message.contains("has MCP servers with SSE, which"), "{}", error.message);
    rig.agent.kind = AgentKind::Shell(ShellSpec::default());
    assert!(!rig.agent.can_use(TaskFeature::McpSse) && rig.agent.can_use(TaskFeature::Skills));
}

#[tokio::test]
async fn extra_instructions_follow_the_instruction() {
    let mut rig = TrialFixture::new().await;
    rig.settings.extra_instructions = vec!["Be brief.\n".to_owned(), "Be kind.".to_owned()];
    assert!(run(&rig).await.record.verdict.passed());
    let (request, _) = rig.provider.requests().remove(0);
    let path = &rig.settings.instruction_path;
    let text = request.uploads.iter().find_map(|upload| match upload {
        Upload::File { path: at, bytes, .. } if at == path => Some(bytes.clone()),
        _ => None,
    });
    let text = text.expect("the instruction");
    let text = std::str::from_utf8(&text).expect("text");
    assert!(text.ends_with("\n\nBe brief.\n\nBe kind.\n"), "{text:?}");
}

#[tokio::test]
async fn network_policy_unsupported_is_task_error_of_phase() {
    let phases = [Phase::AgentExecution, Phase::Verification];
    for (nth, phase) in phases.into_iter().enumerate() {
        let mut rig = TrialFixture::new().await;
        rig.task.steps[0].agent.network = Some(NetworkPolicy::NoNetwork);
        let effect = FaultEffect::Fail(FailureKind::Unsupported);
        rig.provider.fault(FaultTrigger::Nth(FakeCall::SetNetwork, nth), effect);
        let finished = run(&rig).await;
        let error = error(&finished);
        assert_eq!(error_summary(error), "task_invalid unsupported_by_environment task permanent");
        assert_eq!((error.is_unsupported(), error.phase), (true, phase));
    }
}

#[tokio::test]
async fn network_policy_failure_fails_phase_and_runs_nothing() {
    for (kind, reason) in [
        (FailureKind::Refused, "refused task permanent"),
        (FailureKind::Service, "provider_error infrastructure transient"),
        // An earlier command has removed the programs by which the change is checked.
        (FailureKind::Unusable, "refused agent permanent"),
    ] {
        for (nth, expected) in [(0, "agent_execution_failed"), (1, "verifier_failed")] {
            let mut rig = TrialFixture::new().await;
            rig.use_harbor_format();
            rig.task.steps[0].agent.network = Some(NetworkPolicy::NoNetwork);
            rig.provider
                .fault(FaultTrigger::Nth(FakeCall::SetNetwork, nth), FaultEffect::Fail(kind));
            let finished = run(&rig).await;
            assert_eq!(error_summary(error(&finished)), format!("{expected} {reason}"));
            assert_eq!(finished.record.verdict.outcome, ItemOutcome::Failed);
            let ran = rig.provider.commands().len();
            assert_eq!(ran, 1 + nth, "nothing runs with more than it may have");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn rate_limit_wait_is_not_timed_and_can_be_stopped() {
    let limits = offer::RunRateLimits {
        starts_per_minute: Some(1),
        agents_at_once: Some(1),
        ..offer::RunRateLimits::default()
    };
    let mut rig = TrialFixture::new().await;
    rig.rate_limits = Some(limits);
    rig.set_scripts(None, Some("sleep 50"));
    let services = rig.services();
    let context = |scratch: &str| {
        let mut context = rig.context();
        context.execution.scratch = rig.dir.path().join(scratch);
        context
    };
    // The second environment comes a minute later, long after the agent's 50 seconds.
    let (first, mut second) = (context("one"), context("two"));
    second.rate_limiter.clone_from(&first.rate_limiter);
    let holder = first.rate_limiter.clone().expect("limited");
    let turn = holder.acquire_agent().await;
    let both = async {
        tokio::join!(super::super::run(first, &services), super::super::run(second, &services))
    };
    let release = async {
        tokio::time::sleep(Duration::from_secs(300)).await;
        drop(turn);
    };
    let ((one, two), ()) = tokio::join!(both, release);
    for finished in [one, two] {
        let record = super::verdict(finished).record;
        assert!(record.verdict.passed(), "{:?}", record.verdict.error);
        let executed = record.durations.agent_execution_sec.expect("it ran");
        assert!((50.0..51.0).contains(&executed), "{executed}");
        assert!(record.durations.total_sec > 300.0);
    }
    for level in [StopLevel::Drain, StopLevel::Kill] {
        let turn = holder.acquire_agent().await;
        let mut waiting = context("three");
        waiting.rate_limiter = Some(holder.clone());
        let stop = async {
            for _ in 0..1000 {
                if rig.phases.entered().last() == Some(&Phase::AgentSetup) {
                    break;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            rig.stop.send_replace(Some(level));
        };
        let (finished, ()) = tokio::join!(super::super::run(waiting, &services), stop);
        assert!(finished.stopped.is_some());
        rig.stop.send_replace(None);
        drop(turn);
    }
    assert_eq!(rig.provider.existing(), Vec::<String>::new());
}
