//! Tests of whole files: every error of a bad one, every value of a good one, no panic on any text.

use std::path::{Path, PathBuf};

use jiff::civil::date;
use proptest::prelude::*;
use rollout_protocol::limits;
use rollout_protocol::spec::environment::{DockerNetwork, PreservePolicy, ProviderSpec};
use rollout_protocol::spec::metric::MetricKind;
use serde_json::json;

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/config").join(name)
}

fn is_set(name: &str) -> bool {
    name == "API_KEY"
}

fn options() -> JobOptions<'static> {
    let now = date(2026, 1, 2).at(3, 4, 5, 0).to_zoned(jiff::tz::TimeZone::UTC);
    JobOptions { now: now.expect("a valid time"), ..JobOptions::for_command_line(&is_set) }
}

/// A job file with this text, and its directory.
fn job_file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("job.yaml");
    std::fs::write(&file, text).expect("written");
    (directory, file)
}

fn job_faults(name: &str) -> Vec<(String, ErrorKind)> {
    let mut problems = Diagnostics::default();
    read_job(&fixture(name), &options(), &mut problems);
    faults(problems)
}

fn task_faults(name: &str) -> Vec<(String, ErrorKind)> {
    let mut problems = Diagnostics::default();
    read_task(&fixture(name), FormatHints::default(), &mut problems);
    faults(problems)
}

fn faults(problems: Diagnostics) -> Vec<(String, ErrorKind)> {
    let errors = problems.finish(()).expect_err("faults").errors;
    assert!(errors.iter().all(|e| e.line.is_some()), "{errors:#?}");
    errors.into_iter().map(|e| (e.key, e.kind)).collect()
}

fn assert_faults(found: &[(String, ErrorKind)], expected: &[(&str, ErrorKind)]) {
    let found: Vec<_> = found.iter().map(|(key, kind)| (key.as_str(), *kind)).collect();
    assert_eq!(found, expected);
}

#[test]
fn job_file_scalar_errors_are_all_reported() {
    use ErrorKind::{BadValue, MissingKey, UnknownKey, WrongType};
    assert_faults(
        &job_faults("bad_scalars.yaml"),
        &[
            ("name", BadValue),
            ("jobs_dir", BadValue),
            ("n_attempts", BadValue),
            ("n_concurrent_trials", WrongType),
            ("timeout_multiplier", BadValue),
            ("log_level", BadValue),
            ("instruction_path", BadValue),
            ("retry.max_attempts", BadValue),
            ("retry.multiplier", BadValue),
            ("verifier.override_timeout_sec", WrongType),
            ("verifier.disabled", UnknownKey),
            ("metrics[0].type", BadValue),
            ("metrics[1].type", MissingKey),
            ("metrics[1].kind", UnknownKey),
            ("pool", BadValue),
            ("task_env[1]", BadValue),
        ],
    );
}

#[test]
fn job_file_agent_errors_are_all_reported() {
    use ErrorKind::{BadValue, Conflict, DuplicateName, MissingKey};
    assert_faults(
        &job_faults("bad_agents.json"),
        &[
            ("n_atempts", ErrorKind::UnknownKey),
            ("agents[0].execute", Conflict),
            ("agents[1].env.1X", BadValue),
            ("agents[1].env.OPEN", BadValue),
            ("agents[1].env.LIST", ErrorKind::WrongType),
            ("agents[2].name", DuplicateName),
            ("agents[2].env.ROLLOUT_TASK_INSTRUCTION", BadValue),
            ("agents[2].env.KEY", ErrorKind::UnsetVariable),
            ("agents[3]", MissingKey),
            ("agents[4].name", MissingKey),
            ("datasets", BadValue),
        ],
    );
}

#[test]
fn job_file_environment_errors_are_all_reported() {
    use ErrorKind::{BadValue, Conflict, DuplicateKey, UnknownKey, WrongType};
    assert_faults(
        &job_faults("bad_environment.yaml"),
        &[
            ("environment.force_build", WrongType),
            ("environment.preserve_env", BadValue),
            ("environment.preserveEnv", Conflict),
            ("environment.override_cpus", BadValue),
            ("environment.override_memory", Conflict),
            ("environment.override_storage", BadValue),
            ("environment.provider_config.network", BadValue),
            ("environment.provider_config.privileged", UnknownKey),
            ("environment.provider_config.cpu_hour", BadValue),
            ("agents[1].name", ErrorKind::DuplicateName),
            ("datasets[1].registry", Conflict),
            ("datasets[2].path", ErrorKind::MissingKey),
            ("environment", DuplicateKey),
        ],
    );
}

#[test]
fn task_file_errors_are_all_reported() {
    use ErrorKind::{BadValue, Syntax, WrongType};
    assert_faults(
        &task_faults("bad_values.toml"),
        &[
            ("verifier.timeout_sec", BadValue),
            ("agent.timeout_sec", WrongType),
            ("agent.install_timeout_sec", BadValue),
            ("environment.build_timeout_sec", BadValue),
            ("environment.docker_image", BadValue),
            ("environment.cpus", BadValue),
            ("environment.memory", BadValue),
            ("environment.storage_mb", BadValue),
            ("environment.env.1X", BadValue),
            ("environment.env.OPEN", BadValue),
        ],
    );
    assert_faults(
        &task_faults("bad_types.toml"),
        &[
            ("version", WrongType),
            ("source", WrongType),
            ("metadata", WrongType),
            ("verifier", WrongType),
            ("agent.timeout_sec", WrongType),
            ("environment.cpus", BadValue),
            ("environment.memory_mb", WrongType),
            ("environment.storage", BadValue),
            ("environment.docker_image", BadValue),
            ("environment.env", WrongType),
        ],
    );
    let mut problems = Diagnostics::default();
    read_task(&fixture("bad_syntax.toml"), FormatHints::default(), &mut problems);
    let errors = problems.finish(()).expect_err("faults").errors;
    let found: Vec<_> = errors.iter().map(|e| (e.line, e.kind)).collect();
    assert_eq!(found, [(Some(2), Syntax), (Some(4), Syntax), (Some(8), Syntax)], "{errors:#?}");
}

#[test]
fn config_error_message_names_file_line_key_and_hint() {
    let file = fixture("bad_agents.json");
    let mut problems = Diagnostics::default();
    read_job(&file, &options(), &mut problems);
    let lines = problems.finish(()).expect_err("faults").lines();
    let start = format!("{}:2: n_atempts: found an unknown key, expected one of ", file.display());
    assert!(lines[0].starts_with(&start), "{}", lines[0]);
    assert_eq!(lines[1], "    hint: did you mean `n_attempts`?");
}

#[test]
fn misplaced_job_key_hint_names_its_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("job.yaml");
    let text = "execute: 'true'\nenvironment: {n_attempts: 3, force_biuld: true}\n\
                agents: [{name: nop, timeout_sec: 60}]\ndatasets: [{path: d}]\n";
    std::fs::write(&file, text).expect("written");
    let mut problems = Diagnostics::default();
    read_job(&file, &options(), &mut problems);
    let errors = problems.finish(()).expect_err("faults").errors;
    let hints: Vec<_> = errors.iter().map(|e| (e.key.as_str(), e.hint.as_deref())).collect();
    assert_eq!(
        hints,
        [
            ("execute", Some("`execute` belongs in `agents[]`")),
            ("environment.n_attempts", Some("`n_attempts` belongs at the top level")),
            ("environment.force_biuld", Some("did you mean `force_build`?")),
            ("agents[0].timeout_sec", Some("did you mean `override_timeout_sec`?")),
        ]
    );
}

#[test]
fn format_of_a_job_is_a_key_of_its_datasets() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("job.yaml");
    let text = "format: harbor\nagents: [{name: nop}]\ndatasets: [{path: d}]\n";
    std::fs::write(&file, text).expect("written");
    let mut problems = Diagnostics::default();
    read_job(&file, &options(), &mut problems);
    let errors = problems.finish(()).expect_err("a fault").errors;
    let hint = errors[0].hint.as_deref().unwrap_or_default();
    assert!(hint.starts_with("`format` belongs in `datasets[]`"), "{hint}");
}

#[test]
fn config_file_that_cannot_be_parsed_is_told_in_one_sentence() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("job.yaml");
    std::fs::write(&file, "name: a\n---\nname: b\n").expect("written");
    let mut problems = Diagnostics::default();
    read_job(&file, &options(), &mut problems);
    let lines = problems.finish(()).expect_err("a fault").lines();
    let said = "cannot parse the file as YAML or JSON: a second document begins here";
    assert!(lines[0].ends_with(&format!(": {said}")), "{lines:?}");
}

#[test]
fn job_file_with_all_keys_is_parsed() {
    let mut problems = Diagnostics::default();
    let job = read_job(&fixture("full.yaml"), &options(), &mut problems).expect("a job");
    let (job, warnings) = problems.finish(job).expect("no faults");
    assert_eq!(warnings, []);
    assert_eq!(job.run_dir(), Path::new("out/full"));
    assert_eq!((job.n_attempts, job.n_concurrent_trials), (3, 8));
    assert_eq!(job.retry.max_attempts, 5);
    assert_eq!(job.log_level, LogLevel::Debug);
    assert_eq!(job.metrics, [MetricKind::Mean, MetricKind::Max]);
    assert_eq!(job.timeout_rules.verifier_override_sec, None);
    assert_eq!(job.timeout_rules.verifier_max_sec, Some(90.0));
    assert_eq!(job.resource_overrides.cpus, Some(2));
    assert_eq!(job.resource_overrides.memory_mb, Some(2048));
    let environment = &job.settings.environment;
    assert_eq!(environment.preserve_env, PreservePolicy::Always);
    let ProviderSpec::Docker(docker) = &environment.provider else { panic!("docker") };
    assert_eq!(docker.network, DockerNetwork::None);
    let env = |agent: usize, name: &str| job.agents[agent].spec.env[name].as_str().to_owned();
    assert_eq!(env(0, "LIMIT"), "1.10");
    assert_eq!((env(1, "LIMIT"), env(1, "API_KEY")), ("2".to_owned(), "${API_KEY}".to_owned()));
}

#[test]
fn job_document_reads_back_as_same_job() {
    let mut problems = Diagnostics::default();
    let job = read_job(&fixture("full.yaml"), &options(), &mut problems).expect("a job");
    let document = job_document(&job);
    assert_eq!(document["agents"][0]["env"]["API_KEY"], json!("${API_KEY}"));
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("config.json");
    std::fs::write(&file, document.to_string()).expect("written");
    let again = read_job(&file, &options(), &mut problems).expect("a job");
    let (mut again, _) = problems.finish(again).expect("no faults");
    again.file.clone_from(&job.file);
    again.provenance.clone_from(&job.provenance);
    for (new, old) in again.datasets.iter_mut().zip(&job.datasets) {
        new.location = old.location.clone();
        new.pattern_locations = old.pattern_locations.clone();
    }
    for (new, old) in again.tasks.iter_mut().zip(&job.tasks) {
        new.location = old.location.clone();
    }
    assert_eq!(again, job);
}

#[test]
fn job_file_with_required_keys_only_uses_defaults() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("job.yaml");
    std::fs::write(&file, "agents: [{name: nop}]\ndatasets: [{path: x}]\n").expect("written");
    let mut problems = Diagnostics::default();
    let job = read_job(&file, &options(), &mut problems).expect("a job");
    let (job, _) = problems.finish(job).expect("no faults");
    assert_eq!(job.run_dir(), Path::new("jobs/2026-01-02__03-04-05"));
    assert_eq!((job.n_attempts, job.n_concurrent_trials), (1, 1));
    assert_eq!(job.settings.instruction_path, "/tmp/instruction.md");
    assert_eq!(job.log_level, LogLevel::Info);
    assert_eq!(job.retry, rollout_protocol::retry::RetryPolicy::default());
    assert_eq!(job.base_dir(), dir.path());
}

#[test]
fn task_file_with_all_keys_is_parsed() {
    let mut problems = Diagnostics::default();
    let task =
        read_task(&fixture("full.toml"), FormatHints::default(), &mut problems).expect("a task");
    let (task, warnings) = problems.finish(task).expect("no faults");
    let environment = &task.environment;
    assert_eq!(environment.docker_image.as_deref(), Some("some-org/some-name:some-tag"));
    assert_eq!(task.steps[0].agent.timeout_sec, Some(0.5));
    assert_eq!(environment.resources, rollout_protocol::spec::resources::Resources::default());
    assert_eq!(environment.env["TOKEN"].as_str(), "${TOKEN}");
    let keys: Vec<&str> = warnings.iter().map(|w| w.key.as_str()).collect();
    for key in ["environment.memory", "environment.storage"] {
        assert!(keys.contains(&key), "{key}");
    }
    assert!(!keys.contains(&"environment.cpus"), "a text of digits is a number");
}

#[test]
fn config_file_missing_malformed_or_too_large_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str, bytes: &[u8]| {
        let file = dir.path().join(name);
        std::fs::write(&file, bytes).expect("written");
        file
    };
    let huge = vec![b' '; rollout_protocol::limits::CONFIG_FILE_BYTES as usize + 1];
    for (file, kind) in [
        (dir.path().join("none.yaml"), ErrorKind::NotFound),
        (dir.path().to_owned(), ErrorKind::Unreadable),
        (write("latin.yaml", b"name: \xe4"), ErrorKind::Syntax),
        (write("open.yaml", b"name: [1"), ErrorKind::Syntax),
        (write("two.yaml", b"a: 1\n---\nb: 2\n"), ErrorKind::Syntax),
        (write("list.yaml", b"- 1"), ErrorKind::WrongType),
        (write("empty.yaml", b""), ErrorKind::WrongType),
        (write("huge.yaml", &huge), ErrorKind::TooLarge),
    ] {
        let mut problems = Diagnostics::default();
        assert!(read_job(&file, &options(), &mut problems).is_none(), "{}", file.display());
        let errors = problems.finish(()).expect_err("a fault").errors;
        assert_eq!(errors.iter().map(|e| e.kind).collect::<Vec<_>>(), [kind], "{}", file.display());
    }
}

#[test]
fn yaml_alias_expansion_too_large_is_refused() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for n in 1..12 {
        let items = vec![format!("*a{}", n - 1); 9].join(", ");
        text.push_str(&format!("a{n}: &a{n} [{items}]\n"));
    }
    let fault = yaml::parse(&text).expect_err("too large");
    assert!(fault.message.contains("too large"), "{fault:?}");
    assert!(yaml::parse("a: &a [*a]").is_err());
    assert!(yaml::parse("a: !custom x").is_err());
}

#[test]
fn yaml_document_beyond_a_limit_is_refused_where_it_exceeds_it() {
    let zeros = format!("a: [{}]", vec!["0"; limits::DOCUMENT_VALUES].join(","));
    let depth = limits::DOCUMENT_DEPTH;
    let nested = |depth: usize| format!("a: {}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(yaml::parse(&nested(depth - 1)).is_ok());
    let text = format!("[{}]", vec!["x"; 40_000].join(","));
    let anchors: String = (0..40).map(|n| format!("&a{n} [")).collect();
    let anchors = format!("a: {anchors}{text}{}", "]".repeat(40));
    for (text, word) in [
        (zeros, "more than 262144 values"),
        (nested(depth), "more than 64 lists and mappings inside each other"),
        (anchors, "too large"),
    ] {
        let fault = yaml::parse(&text).expect_err("refused");
        assert_eq!(fault.kind, yaml::YamlErrorKind::Syntax);
        assert!(fault.message.contains(word), "{fault:?}");
    }
}

#[test]
fn list_of_too_many_agents_is_refused_before_its_rest_is_read() {
    let agents = vec!["{name: oracle}"; limits::AGENTS_PER_JOB].join(",");
    assert!(yaml::parse(&format!("agents: [{agents}]")).is_ok());
    // The rest is no YAML.
    let (_directory, file) = job_file(&format!("agents: [{agents}, {{name: nop}}, }}"));
    let mut problems = Diagnostics::default();
    assert!(read_job(&file, &options(), &mut problems).is_none());
    let errors = problems.finish(()).expect_err("refused").errors;
    assert_eq!(errors[0].key, "agents");
    assert!(errors[0].to_string().contains("found more than 4096 agents, expected at most 4096"));
    assert_eq!(errors.len(), 1);
}

#[test]
fn errors_of_a_file_beyond_a_limit_are_counted() {
    let keys: String = (0..1000).map(|n| format!("key{n}: 1\n")).collect();
    let duplicates = "name: x\n".repeat(1000);
    for (text, more) in [(keys, Some("802 more errors are not shown")), (duplicates, None)] {
        let (_directory, file) = job_file(&text);
        let mut problems = Diagnostics::default();
        let _job = read_job(&file, &options(), &mut problems);
        let errors = problems.finish(()).expect_err("refused").errors;
        assert!(errors.len() <= limits::CONFIG_ERRORS + 3, "{}", errors.len());
        let told = errors.iter().find(|error| error.found.contains("more errors"));
        assert_eq!(told.map(|error| error.found.as_str()), more);
    }
}

#[test]
fn json_string_with_escapes_is_decoded() {
    let (root, _) = yaml::parse("{\"a\": \"\\ud83d\\ude00 \\/ \\u00e4\"}").expect("valid JSON");
    let value::ConfigValue::Mapping(entries) = root.value else { panic!("a mapping") };
    assert_eq!(entries[0].node.value, value::ConfigValue::String("😀 / ä".to_owned()));
}

proptest! {
    #[test]
    fn config_parse_of_arbitrary_text_never_panics(text in "[\\PC\n\t]{0,200}") {
        drop(yaml::parse(&text));
        drop(task::toml::parse(&text));
    }

    #[test]
    fn config_read_of_arbitrary_value_never_panics(
        key in prop::sample::select(vec![
            "name", "agents", "datasets", "environment", "retry", "verifier", "metrics",
            "n_attempts", "instruction_path", "task_env", "log_level",
        ]),
        value in "[-a-z0-9:\\[\\]{}, '\"&*!|>%@.$]{0,60}",
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        std::fs::write(&file, format!("{key}: {value}")).expect("written");
        read_job(&file, &options(), &mut Diagnostics::default());
        std::fs::write(&file, format!("[environment]\nmemory = {value}\n[{key}]\nx = 1"))
            .expect("written");
        read_task(&file, FormatHints::default(), &mut Diagnostics::default());
    }
}

/// The job of a text, and its errors.
fn job_of(text: &str, options: &JobOptions<'_>) -> (Option<Job>, Vec<String>) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("job.yaml");
    std::fs::write(&path, text).expect("written");
    let mut problems = Diagnostics::default();
    let job = read_job(&path, options, &mut problems);
    (job, problems.finish(()).err().map(|errors| errors.lines()).unwrap_or_default())
}

#[test]
fn document_of_job_with_models_reads_back_as_the_same_job() {
    let text = "name: j
gateway:
  upstreams:
    - {name: local, url: 'http://h:1/v1', capture: tokens, max_concurrent: 3, prices: {input: 2}}
agents:
  - {name: shell, model: local/m, max_turns: 7, system_prompt: p}
  - {name: codex, model: openai/gpt, effort: high, args: [--x, 'a b']}
  - {name: both, agent: claude-code@1.0, model: fake/m, base_url: 'http://h:2', key_env: API_KEY}
  - {name: own, execute: 'true', model: local/m}
datasets: [{path: /d}]
";
    let options = JobOptions { is_set: &|_| true, ..options() };
    let (job, faults) = job_of(text, &options);
    assert_eq!(faults, [] as [&str; 0]);
    let job = job.expect("a job");
    let names = |job: &Job| {
        let gateway = job.settings.gateway.clone().expect("a gateway");
        gateway.upstreams.into_iter().map(|upstream| upstream.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&job), ["local", "openai", "fake"]);
    assert!(job.agents[1].spec.install_once && !job.agents[3].spec.install_once);

    let document = job_document(&job);
    let (again, faults) = job_of(&document.to_string(), &options);
    assert_eq!(faults, [] as [&str; 0], "{document:#}");
    let again = again.expect("a job");
    assert_eq!(again.settings.gateway, job.settings.gateway);
    assert_eq!(again.agents, job.agents);
}

#[test]
fn agents_of_a_directory_are_found_unless_they_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let entry = "name = 'mine'\nsummary = 's'\nexecute = 'run'\n";
    std::fs::write(directory.path().join("mine.toml"), entry).expect("written");
    let text = format!(
        "agents_dir: {}\nagents: [{{name: mine}}]\ndatasets: [{{path: /d}}]\n",
        directory.path().display()
    );
    let (job, faults) = job_of(&text, &options());
    assert_eq!(faults, [] as [&str; 0]);
    let kind = &job.expect("a job").agents[0].spec.kind;
    let rollout_protocol::spec::agent::AgentKind::Script { execute: Some(script), .. } = kind
    else {
        panic!("{kind:?}");
    };
    assert!(script.ends_with("run\n"), "{script}");

    let refusing = JobOptions { host: HostAccess::Nothing, ..options() };
    let (_, faults) = job_of(&text, &refusing);
    assert!(
        faults[0].contains("agents_dir: a server reads no file that a document names"),
        "{faults:?}"
    );
    std::fs::write(directory.path().join("mine.toml"), "name = 'mine'").expect("written");
    let (_, faults) = job_of(&text, &options());
    assert!(faults[0].contains("mine.toml: missing field"), "{faults:?}");
}

#[test]
fn refused_address_of_a_repository_is_shown_without_its_login() {
    for repo in ["https://me:word@h/a b", "ext::https://me:word@h/r", "https://me:word@h/a::b@v1"] {
        let text = format!("agents: [{{name: oracle}}]\ndatasets: [{{repo: '{repo}'}}]\n");
        let (_, faults) = job_of(&text, &options());
        assert!(faults[0].contains("datasets[0].repo"), "{faults:?}");
        assert!(!faults.join("\n").contains("word"), "{faults:?}");
        let refusing = JobOptions { host: HostAccess::Nothing, ..options() };
        let (_, faults) = job_of(&text, &refusing);
        assert!(!faults.join("\n").contains("word"), "{faults:?}");
    }
}

#[test]
fn odd_address_of_a_repository_is_not_split_in_its_login() {
    let kept = ["https:/me:word@h/r", "me:word@h:r", "https://me:wo/word@host/r"];
    for repo in kept.into_iter().chain(["https://me:word@h/r@a~1", "https:///me:word@h/r"]) {
        let text = format!("agents: [{{name: oracle}}]\ndatasets: [{{repo: '{repo}'}}]\n");
        let (job, faults) = job_of(&text, &options());
        assert_eq!(job.is_some() && faults.is_empty(), !repo.ends_with("@a~1"), "{faults:?}");
        let document = job.map(|job| job_document(&job).to_string()).unwrap_or_default();
        assert!(!document.contains("word"), "{document}");
        assert!(!faults.join("\n").contains("word"), "{faults:?}");
        let refusing = JobOptions { host: HostAccess::Nothing, ..options() };
        let (_, faults) = job_of(&text, &refusing);
        assert!(!faults.join("\n").contains("word"), "{faults:?}");
    }
}
