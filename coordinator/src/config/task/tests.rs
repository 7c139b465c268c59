//! Tests of task files: every key with its value, its default in each format, and invalid values.

use std::collections::{BTreeMap, BTreeSet};

use rollout_protocol::spec::resources::{ResourceCeilings, Resources};
use rollout_protocol::spec::task::{
    AgentPhase, Artifact, CollectHook, Healthcheck, McpTransport, NetworkPolicy, StepStrategy,
    TaskFormat,
};

use super::*;

/// The file, its errors as key and kind, and the keys of its warnings.
fn read(
    text: &str,
    requested: Option<TaskFormat>,
) -> (Option<TaskFile>, Vec<(String, ErrorKind)>, Vec<String>) {
    read_with(text, FormatHints { requested, ..FormatHints::default() }, None)
}

/// Reads with hints, and with a file beside `task.toml`.
fn read_with(
    text: &str,
    hints: FormatHints,
    beside: Option<&str>,
) -> (Option<TaskFile>, Vec<(String, ErrorKind)>, Vec<String>) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("task.toml");
    std::fs::write(&file, text).expect("written");
    if let Some(name) = beside {
        std::fs::write(dir.path().join(name), "").expect("written");
    }
    let mut problems = Diagnostics::default();
    let task = read_task(&file, hints, &mut problems);
    let (errors, warnings) = match problems.finish(()) {
        Ok(((), warnings)) => (Vec::new(), warnings),
        Err(all) => (all.errors, all.warnings),
    };
    let faults = errors.into_iter().map(|error| (error.key, error.kind)).collect();
    (task, faults, warnings.into_iter().map(|warning| warning.key).collect())
}

fn read_valid(text: &str) -> TaskFile {
    let (task, faults, warnings) = read(text, None);
    assert_eq!((faults, warnings), (Vec::new(), Vec::new()), "{text}");
    task.expect("a task")
}

fn read_valid_harbor(text: &str) -> TaskFile {
    read_valid(&format!("schema_version = \"1.4\"\n{text}"))
}

#[test]
fn task_format_is_as_requested_or_as_own_keys_say() {
    use TaskFormat::{Harbor, Rollout};
    let own = |key: &str| FormatReason::SpecificKey(key.to_owned());
    let install = "agent.install_timeout_sec";
    for (text, asked, format, reason) in [
        ("version = '1.0'", None, Rollout, FormatReason::NoEvidence),
        ("version = '1.0'", Some(Harbor), Harbor, FormatReason::Requested),
        ("schema_version = '1.4'", None, Harbor, own("schema_version")),
        ("schema_version = '1.4'", Some(Rollout), Rollout, FormatReason::Requested),
        ("format = 'rollout'\nschema_version = '1.4'", None, Rollout, own("format")),
        ("format = 'harbor'", None, Harbor, own("format")),
        ("format = 'rollout'", Some(Harbor), Harbor, FormatReason::Requested),
        ("[environment]\nworkdir = '/x'", None, Harbor, own("environment.workdir")),
        ("[environment]\ncpus = 2\nenv = {workdir = 'x'}", None, Rollout, FormatReason::NoEvidence),
        ("[metadata]\nsteps = 1\ntask = {}", None, Rollout, FormatReason::NoEvidence),
        ("[[steps]]\nname = 'a'", None, Harbor, own("steps[].name")),
        ("[agent]\ninstall_timeout_sec = 1\nuser = 'root'", None, Rollout, own(install)),
        (
            "schema_version = '1.0'\n[agent]\ninstall_timeout_sec = 1",
            None,
            Harbor,
            own("schema_version"),
        ),
    ] {
        let task = read(text, asked).0.expect("a task");
        assert_eq!(task.format, FormatChoice { format, reason }, "{text}");
    }
    let (_, faults, _) = read("format = 'other'", None);
    assert_eq!(faults, [("format".to_owned(), ErrorKind::BadValue)]);
}

#[test]
fn task_format_without_own_keys_is_guessed_unless_planned() {
    use TaskFormat::{Harbor, Rollout};
    let text = "version = '1.0'\n[metadata]\ndifficulty = 'hard'\n[agent]\ntimeout_sec = 900.0\n\
                [verifier]\ntimeout_sec = 900.0\n[environment]\ncpus = 1\nmemory = '2G'\n";
    let sign = || FormatReason::HarborEvidence("the task has `trajectory.json`".to_owned());
    let none = FormatHints::default();
    let planned = |planned| FormatHints { planned, ..none };
    let install = "[agent]\ninstall_timeout_sec = 1";
    let beside = Some("trajectory.json");
    for (text, hints, beside, format, reason) in [
        (text, none, None, Rollout, FormatReason::NoEvidence),
        (text, none, beside, Harbor, sign()),
        (
            text,
            FormatHints { requested: Some(Rollout), ..none },
            beside,
            Rollout,
            FormatReason::Requested,
        ),
        (
            install,
            none,
            beside,
            Rollout,
            FormatReason::SpecificKey("agent.install_timeout_sec".to_owned()),
        ),
        (text, planned(PlannedFormat::Recorded(Rollout)), beside, Rollout, FormatReason::Planned),
        (text, planned(PlannedFormat::Recorded(Harbor)), None, Harbor, FormatReason::Planned),
        (text, planned(PlannedFormat::Guessed(Harbor)), None, Harbor, FormatReason::PlannedGuess),
        (text, planned(PlannedFormat::ByKeys), beside, Rollout, FormatReason::NoEvidence),
    ] {
        let task = read_with(text, hints, beside).0.expect("a task");
        let guess = matches!(reason, FormatReason::NoEvidence | FormatReason::PlannedGuess)
            || reason == sign();
        assert_eq!(reason.is_guess(), guess);
        assert_eq!(task.format, FormatChoice { format, reason }, "{hints:?}");
    }
}

#[test]
fn task_metadata_is_read_from_task_file() {
    let about = read_valid_harbor(
        "source = 'somewhere'\n[metadata]\ntags = ['a', 1]\nscore = 0.5\nnested = { when = 2026-01-02 }\n\
         [task]\nname = 'org/name'\nversion = '1.2'\ndescription = 'What.'\nkeywords = ['k']\n",
    )
    .metadata;
    let name = "org/name".to_owned();
    assert_eq!((about.name, about.source.as_deref()), (Some(name), Some("somewhere")));
    assert_eq!(
        (about.version.as_deref(), about.description.as_deref()),
        (Some("1.2"), Some("What."))
    );
    assert_eq!(about.keywords, ["k"]);
    let metadata =
        serde_json::json!({"tags": ["a", 1], "score": 0.5, "nested": {"when": "2026-01-02"}});
    assert_eq!(serde_json::Value::Object(about.metadata), metadata);
}

#[test]
fn task_hardware_unavailable_is_demand_not_error() {
    let kinds = |text: &str| {
        let task = read_valid_harbor(&format!("[environment]\n{text}"));
        task.demands.into_iter().map(|demand| demand.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds("os = 'windows'"), [DemandKind::Windows]);
    assert_eq!(kinds("tpu = { type = 'v4', topology = '2x2' }"), [DemandKind::Tpu]);
    let types = DemandKind::GpuTypes(vec!["H100".to_owned()]);
    assert_eq!(kinds("gpus = 1\ngpu_types = ['H100']"), [DemandKind::Gpus, types]);
    assert_eq!(kinds("gpu_types = ['H100']"), [], "types of none");
    assert_eq!(kinds("gpus = 0\ngpu_types = []"), []);
}

#[test]
fn docker_image_empty_is_none_and_one_that_is_no_reference_is_refused() {
    assert_eq!(
        read_valid("version = '1.0'\n[environment]\ndocker_image = ''\n").environment.docker_image,
        None
    );
    for image in [" ", "-a", "a/../127.0.0.1:18901/x", "a/../../events?x=1#b", "a/../../info#"] {
        let (_, faults, _) = read(&format!("[environment]\ndocker_image = '{image}'\n"), None);
        let expected = ("environment.docker_image".to_owned(), ErrorKind::BadValue);
        assert_eq!(faults, [expected], "{image}");
    }
    let named = "version = '1.0'\n[environment]\ndocker_image = 'localhost:5000/a/b:1@sha256:00'\n";
    let image = read_valid(named).environment.docker_image;
    assert_eq!(image.as_deref(), Some("localhost:5000/a/b:1@sha256:00"));
}

#[test]
fn task_defaults_depend_on_format() {
    let rollout = read_valid("version = '1.0'");
    assert_eq!(rollout.steps[0].agent.timeout_sec, Some(600.0));
    assert!((rollout.install_sec - 300.0).abs() < 1e-9);
    assert_eq!(rollout.environment, TaskEnvironment::default());
    let task = read_valid_harbor("");
    assert_eq!(task.steps[0].agent, AgentPhase::default(), "no limit, no user, no network");
    assert!((task.install_sec - 360.0).abs() < 1e-9);
    assert!((task.steps[0].verifier.timeout_sec - 600.0).abs() < 1e-9);
    assert!((task.environment.build_sec - 600.0).abs() < 1e-9);
    assert_eq!(task.environment.resources.ceilings, ResourceCeilings::NONE);
    let limited = read_valid_harbor("[environment]\nmemory_mb = 512\n").environment.resources;
    assert_eq!(limited.ceilings, ResourceCeilings { memory: true, ..ResourceCeilings::NONE });
    assert_eq!(
        limited,
        Resources { memory_mb: 512, ceilings: limited.ceilings, ..Resources::default() }
    );
    let rounded = read("schema_version = '1.4'\nenvironment.cpus = 1.5", None);
    assert_eq!(rounded.0.expect("a task").environment.resources.cpus, 2);
    assert_eq!(rounded.2, ["environment.cpus"]);
}

#[test]
fn task_keys_deprecated_are_read_with_warning() {
    let text =
        "version = '1.0'\n[environment]\nmemory = '512M'\nstorage = '1G'\nallow_internet = false\n";
    let (task, faults, warnings) = read(text, None);
    let task = task.expect("a task");
    assert_eq!(faults, []);
    let older =
        ["environment.allow_internet", "environment.memory", "environment.storage", "version"];
    assert_eq!(warnings.into_iter().collect::<BTreeSet<_>>(), older.map(str::to_owned).into());
    assert_eq!(task.format.format, TaskFormat::Harbor);
    assert_eq!(task.environment.resources.memory_mb, 512);
    assert_eq!(task.environment.network, NetworkPolicy::NoNetwork);
    let public = read("[environment]\nallow_internet = true\n", None).0.expect("a task");
    assert_eq!(public.environment.network, NetworkPolicy::Public);
    let newer = "[environment]\nallow_internet = false\nnetwork_mode = 'public'\n";
    assert_eq!(read(newer, None).0.expect("a task").environment.network, NetworkPolicy::Public);
}

#[test]
fn harbor_environment_section_in_full_is_parsed() {
    let task = read_valid_harbor(
        "[environment]\nos = 'linux'\ngpus = 2\ngpu_types = []\nworkdir = '/srv'\nskills_dir = '/skills'\n\
         network_mode = 'no-network'\nenv = { A = '${B:-c}', N = 1 }\n\
         [environment.healthcheck]\ncommand = 'true'\ninterval_sec = 0\nretries = 9\n\
         [[environment.mcp_servers]]\nname = 'a'\nurl = 'http://x'\n\
         headers = { Authorization = 'Bearer ${TOKEN}', Accept = 'text/plain' }\n\
         [[environment.mcp_servers]]\nname = 'b'\ntransport = 'http'\nurl = 'http://y'\n\
         [[environment.mcp_servers]]\nname = 'c'\ntransport = 'stdio'\ncommand = 'tool'\nargs = ['-v']\n",
    );
    let environment = &task.environment;
    assert_eq!(environment.resources.gpus, 2);
    assert_eq!(environment.workdir.as_deref(), Some("/srv"));
    assert_eq!(environment.network, NetworkPolicy::NoNetwork);
    assert_eq!(environment.env["N"].as_str(), "1");
    let check = Healthcheck {
        command: "true".into(),
        interval_sec: 0.0,
        timeout_sec: 30.0,
        start_period_sec: 0.0,
        start_interval_sec: 5.0,
        retries: 9,
    };
    assert_eq!(environment.healthcheck, Some(check));
    assert_eq!(task.skills_dir.as_deref(), Some("/skills"));
    let kinds: Vec<_> = task.mcp_servers.iter().map(|server| &server.transport).collect();
    assert!(matches!(kinds[0], McpTransport::Sse { headers, .. } if headers.len() == 2));
    assert!(matches!(kinds[1], McpTransport::StreamableHttp { .. }));
    assert!(matches!(kinds[2], McpTransport::Stdio { args, .. } if args == &["-v"]));
    let variables: Vec<_> =
        task.variables.iter().flat_map(|variable| variable.template.variables()).collect();
    assert_eq!(variables, [("B".to_owned(), true), ("TOKEN".to_owned(), false)]);
    assert_eq!(task.demands.iter().map(|d| &d.kind).collect::<Vec<_>>(), [&DemandKind::Gpus]);
}

#[test]
fn harbor_agent_and_verifier_sections_in_full_are_parsed() {
    let task = read_valid_harbor(
        "artifacts = ['/a', { source = '/b', destination = 'c', exclude = ['*.o'], service = 'main' }]\n\
         [agent]\ntimeout_sec = 5\nuser = 1000\nnetwork_mode = 'no-network'\n\
         [verifier]\ntimeout_sec = 7\nuser = 'root'\nnetwork_mode = 'public'\nenv = { K = 'v' }\n\
         [[verifier.collect]]\ncommand = 'dump'\nservice = 'db'\n\
         [solution.env]\nS = '${SECRET}'\n",
    );
    let step = &task.steps[0];
    assert_eq!(step.agent.timeout_sec, Some(5.0));
    assert_eq!(step.agent.user.as_deref(), Some("1000"));
    assert_eq!(step.agent.network, Some(NetworkPolicy::NoNetwork));
    assert_eq!(step.verifier.network, None, "as the environment's");
    assert_eq!(step.verifier.user.as_deref(), Some("root"));
    let hook = CollectHook {
        command: "dump".into(),
        service: Some("db".into()),
        timeout_sec: 60.0,
        user: None,
    };
    assert_eq!(step.verifier.collect, [hook]);
    let artifact_type = rollout_protocol::artifact::ArtifactType::default();
    let plain = Artifact {
        source: "/a".into(),
        destination: None,
        exclude: Vec::new(),
        service: None,
        changes: false,
        artifact_type,
    };
    let full = Artifact {
        source: "/b".into(),
        destination: Some("c".into()),
        exclude: vec!["*.o".into()],
        service: None,
        changes: false,
        artifact_type,
    };
    assert_eq!(step.artifacts, [plain, full]);
    assert_eq!(step.solution_env["S"].as_str(), "${SECRET}");
    assert_eq!(task.solution_variables.len(), 1);
    assert_eq!(task.variables.len(), 1, "what only the oracle needs is not among them");
    let kinds: Vec<_> = task.demands.iter().map(|demand| demand.kind.clone()).collect();
    let service = DemandKind::Service("db".into());
    let user = DemandKind::User("1000".into());
    assert_eq!(kinds, [user, DemandKind::NetworkOfPhase, service]);
}

#[test]
fn verifier_environment_mode_selects_shared_or_separate() {
    let own = |text: &str| read_valid_harbor(text).steps[0].verifier.environment.clone();
    assert_eq!(own(""), None);
    assert_eq!(own("verifier.environment_mode = 'shared'"), None);
    let copied = own("verifier.environment_mode = 'separate'\n[environment]\ndocker_image = 'x'\n");
    assert_eq!(copied.expect("its own").docker_image.as_deref(), Some("x"));
    let table = own(
        "[verifier.environment]\ndocker_image = 'y'\n[environment]\ndocker_image = 'x'\nworkdir = '/w'\n",
    );
    let table = table.expect("its own");
    assert_eq!((table.docker_image.as_deref(), table.workdir), (Some("y"), None));
    let conflict = "verifier.environment_mode = 'shared'\n[verifier.environment]\n";
    let faults = read(conflict, None).1;
    assert_eq!(faults, [("verifier.environment_mode".to_owned(), ErrorKind::Conflict)]);
}

#[test]
fn step_settings_inherit_from_task_unless_overridden() {
    let task = read_valid_harbor(
        "multi_step_reward_strategy = 'final'\nartifacts = ['/a']\n\
         [agent]\ntimeout_sec = 5\nuser = 'root'\n\
         [verifier]\ntimeout_sec = 7\nenv = { A = '1', B = '1' }\n\
         [[steps]]\nname = 'one'\nmin_reward = 0.5\nartifacts = ['/b']\n\
         [[steps]]\nname = 'two'\nmin_reward = { speed = 1, style = 0.25 }\n\
         agent = { timeout_sec = 9 }\n\
         [steps.verifier]\ntimeout_sec = 8\nenv = { B = '2' }\nenvironment_mode = 'separate'\n\
         [steps.healthcheck]\ncommand = 'true'\n",
    );
    assert_eq!(task.strategy, StepStrategy::Final);
    let [one, two] = task.steps.as_slice() else { panic!("two steps") };
    assert_eq!((one.name.as_deref(), two.name.as_deref()), (Some("one"), Some("two")));
    assert_eq!((one.agent.timeout_sec, two.agent.timeout_sec), (Some(5.0), Some(9.0)));
    assert_eq!(two.agent.user.as_deref(), Some("root"));
    assert!((one.verifier.timeout_sec - 7.0).abs() < 1e-9);
    assert!((two.verifier.timeout_sec - 8.0).abs() < 1e-9);
    let value = |step: &StepSpec, name: &str| step.verifier.env[name].as_str().to_owned();
    assert_eq!(
        (value(one, "B"), value(two, "A"), value(two, "B")),
        ("1".into(), "1".into(), "2".into())
    );
    assert_eq!(one.artifacts.len(), 2);
    assert_eq!(two.artifacts.len(), 1);
    assert_eq!(one.min_reward, BTreeMap::from([("reward".to_owned(), 0.5)]));
    assert_eq!(two.min_reward.len(), 2);
    assert!(one.verifier.environment.is_none() && two.verifier.environment.is_some());
    assert!(one.healthcheck.is_none() && two.healthcheck.is_some());
}

#[test]
fn task_values_in_other_spellings_of_harbor_are_parsed() {
    let (task, faults, warnings) = read(
        "artifacts = ['out.txt', './a//b/', '/c']\n[agent]\ntimeout_sec = '90'\n[environment]\n\
         os = 'Linux'\nmemory_mb = 2048.0\nstorage_mb = '512'\ngpus = 1.0\nallow_internet = \
         'False'\n[environment.healthcheck]\ncommand = 'true'\nretries = 0\n",
        None,
    );
    assert_eq!(faults, []);
    assert!(
        ["artifacts[0]", "artifacts[1]"].iter().all(|key| warnings.contains(&(*key).to_owned()))
    );
    let task = task.expect("a task");
    let environment = &task.environment;
    let resources = environment.resources;
    assert_eq!((resources.memory_mb, resources.storage_mb, resources.gpus), (2048, 512, 1));
    assert_eq!(environment.network, NetworkPolicy::NoNetwork);
    assert_eq!(environment.healthcheck.as_ref().map(|check| check.retries), Some(0));
    assert_eq!(task.steps[0].agent.timeout_sec, Some(90.0));
    let sources: Vec<_> = task.steps[0].artifacts.iter().map(|a| a.source.as_str()).collect();
    assert_eq!(sources, ["/out.txt", "/a/b", "/c"]);
    assert_eq!(task.demands.len(), 1, "GPUs alone: {:?}", task.demands);
}

#[test]
fn task_of_windows_with_its_paths_is_unsupported_only() {
    let task = read_valid(
        "artifacts = ['C:/out']\n[environment]\nos = 'Windows'\nworkdir = 'C:\\app'\nskills_dir = \
         'D:/skills'\n",
    );
    assert_eq!(task.environment.workdir.as_deref(), Some("C:\\app"));
    assert_eq!(task.demands.len(), 1);
    assert_eq!(task.demands[0].kind, DemandKind::Windows);
}

#[test]
fn task_file_with_invalid_value_is_refused() {
    use ErrorKind::{BadValue, Conflict, DuplicateName, MissingKey, WrongType};
    let steps = |first: &str, second: &str| {
        format!("[[steps]]\nname = '{first}'\n[[steps]]\nname = '{second}'\n")
    };
    let server = |keys: &str| format!("[[environment.mcp_servers]]\nname = 'a'\n{keys}\n");
    for (text, key, kind) in [
        ("environment.os = 'plan9'", "environment.os", BadValue),
        ("environment.gpus = -1", "environment.gpus", BadValue),
        ("environment.workdir = 'app'", "environment.workdir", BadValue),
        ("environment.network_mode = 'none'", "environment.network_mode", BadValue),
        ("environment.allowed_hosts = ['a.b']", "environment.allowed_hosts", Conflict),
        ("agent.user = '-u'", "agent.user", BadValue),
        ("agent.user = ['a']", "agent.user", WrongType),
        ("agent.timeout_sec = 0", "agent.timeout_sec", BadValue),
        ("artifacts = ['relative/../up']", "artifacts[0]", BadValue),
        ("artifacts = ['./']", "artifacts[0]", BadValue),
        ("artifacts = ['C:\\out']", "artifacts[0]", BadValue),
        ("environment.workdir = 'C:\\app'", "environment.workdir", BadValue),
        ("environment.memory_mb = 2048.5", "environment.memory_mb", WrongType),
        ("environment.memory_mb = '2G'", "environment.memory_mb", WrongType),
        ("environment.allow_internet = 'maybe'", "environment.allow_internet", WrongType),
        (
            "[environment.healthcheck]\ncommand = 'true'\nretries = -1",
            "environment.healthcheck.retries",
            BadValue,
        ),
        (
            "artifacts = [{ source = '/a', destination = '../b' }]",
            "artifacts[0].destination",
            BadValue,
        ),
        ("artifacts = [{ source = '/a', destination = 'manifest.json' }]", "artifacts", BadValue),
        (
            "multi_step_reward_strategy = 'max'\n[[steps]]\nname='a'",
            "multi_step_reward_strategy",
            BadValue,
        ),
        ("[[steps]]\nmin_reward = 1", "steps[0].name", MissingKey),
        ("[[steps]]\nname = 'a'\nmin_reward = 'x'", "steps[0].min_reward", WrongType),
        (&steps("a", "A"), "steps[1].name", DuplicateName),
        (&steps("a", "b/c"), "steps[1].name", BadValue),
        (&steps("a", ".."), "steps[1].name", BadValue),
        ("[environment.healthcheck]\nretries = 1", "environment.healthcheck.command", MissingKey),
        ("[[verifier.collect]]\nservice = 'x'", "verifier.collect[0].command", MissingKey),
        (&server(""), "environment.mcp_servers[0].url", MissingKey),
        (&server("transport = 'stdio'"), "environment.mcp_servers[0].command", MissingKey),
        (&server("transport = 'ws'"), "environment.mcp_servers[0].transport", BadValue),
        (
            &server("url = 'x'\nheaders = { X-Api-Key = 'abc' }"),
            "environment.mcp_servers[0].headers.X-Api-Key",
            BadValue,
        ),
    ] {
        assert_eq!(read(text, None).1, [(key.to_owned(), kind)], "{text}");
    }
}

#[test]
fn allowed_hosts_entry_not_host_or_network_is_refused() {
    let hosts = "['a.example', '*.b.example', '10.0.0.1', '10.0.0.0/8', '::1', 'fe80::/10', 'a_b']";
    let text = format!("[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = {hosts}\n");
    let task = read_valid(&text);
    assert!(
        matches!(&task.environment.network, NetworkPolicy::Allowlist(hosts) if hosts.len() == 7)
    );
    assert_eq!(task.demands[0].kind, DemandKind::Allowlist);
    for bad in ["http://a", "a b", "-a", "a..b", "10.0.0.0/33", "a/8", "*", ""] {
        let text =
            format!("[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['{bad}']\n");
        let faults = read(&text, None).1;
        assert_eq!(faults.len(), 1, "{bad:?}: {faults:?}");
    }
}

#[test]
fn task_keys_unknown_or_without_effect_are_warned_of() {
    let text = "schema_version = '1.4'\nmulti_step_reward_strategy = 'mean'\ntask = {}\n\
                [environment]\nworkdri = '/x'\n[verifier.environment]\nskills_dir = '/s'\n";
    let (_, faults, mut warnings) = read(text, None);
    warnings.sort();
    assert_eq!(faults, []);
    assert_eq!(
        warnings,
        [
            "environment.workdri",
            "multi_step_reward_strategy",
            "task.name",
            "verifier.environment.skills_dir",
        ]
    );
}
