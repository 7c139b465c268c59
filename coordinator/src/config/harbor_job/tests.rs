//! Tests of job files of Harbor.

use serde_json::{Value, json};

use super::super::value::{ConfigEntry, ConfigNode, ConfigValue};
use super::super::{Diagnostics, HostAccess, JobOptions, job_document, read_job, yaml};
use super::{string, translate};

/// The document of a job file with its warnings, or its errors.
fn read(name: &str, text: &str) -> (Option<Value>, Vec<String>, Vec<String>) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join(name);
    std::fs::write(&file, text).expect("written");
    let mut problems = Diagnostics::default();
    let job = read_job(&file, &JobOptions::for_command_line(&|_| true), &mut problems);
    let (errors, warnings) = problems.into_parts();
    let keys = |key: &String, text: String| if key.is_empty() { text } else { key.clone() };
    let errors = errors.iter().map(|error| keys(&error.key, error.to_string())).collect();
    let warnings = warnings.iter().map(|w| keys(&w.key, w.message.clone())).collect();
    (job.as_ref().map(job_document), errors, warnings)
}

const SAID: &str = "this is a job file of Harbor: it is read with Harbor's keys and defaults";

#[test]
fn job_file_of_harbor_is_read_with_its_defaults() {
    let text = "
job_name: nightly
n_attempts: 2
timeout_multiplier: 2.0
retry: {max_retries: 1, exclude_exceptions: [AgentTimeoutError], min_wait_sec: 2}
environment: {type: docker, force_build: false, delete: false, env: {A: b}}
verifier: {env: {BAR: baz}}
agents:
  - {name: oracle, env: {FOO: bar}, kwargs: {x: 1}}
datasets:
  - {path: tasks, task_names: ['*'], n_tasks: 1, overwrite: true}
metrics: [{type: mean, kwargs: {}}]
artifacts: [/app/x]
debug: true
";
    let (job, errors, warnings) = read("job.yaml", text);
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(warnings, [SAID, "agents[0].kwargs"]);
    let job = job.expect("a job");
    let tasks = std::path::absolute("tasks").expect("a path");
    for (pointer, expected) in [
        ("/name", json!("nightly")),
        ("/n_attempts", json!(2)),
        ("/n_concurrent_trials", json!(4)),
        ("/timeout_multiplier", json!(2.0)),
        ("/log_level", json!("debug")),
        ("/retry/max_attempts", json!(2)),
        ("/retry/initial_delay_ms", json!(2000)),
        ("/environment/type", json!("docker")),
        ("/environment/preserve_env", json!("always")),
        ("/environment/env", json!({"A": "b"})),
        ("/verifier/env", json!({"BAR": "baz"})),
        ("/agents/0/name", json!("oracle")),
        ("/agents/0/env", json!({"FOO": "bar"})),
        ("/datasets/0/path", json!(tasks)),
        ("/datasets/0/n_tasks", json!(1)),
        ("/artifacts/0/source", json!("/app/x")),
    ] {
        assert_eq!(job.pointer(pointer), Some(&expected), "{pointer}: {job:#}");
    }
}

/// What `harbor run --print-config` writes for a run of the oracle.
fn printed() -> Value {
    json!({
        "schema_version": 1, "job_name": "2026-11-30__01-02-03", "jobs_dir": "jobs", "n_attempts": 1,
        "install_only": false, "skip_credential_checks": false, "timeout_multiplier": 1.0,
        "agent_timeout_multiplier": null, "verifier_timeout_multiplier": null,
        "agent_setup_timeout_multiplier": null, "environment_build_timeout_multiplier": null,
        "debug": false, "n_concurrent_trials": 8, "quiet": false,
        "retry": {
            "max_retries": 0, "include_exceptions": null,
            "exclude_exceptions": ["AgentTimeoutError", "CancelledError", "VerifierTimeoutError"],
            "wait_multiplier": 1.0, "min_wait_sec": 1.0, "max_wait_sec": 60.0
        },
        "override_error_policy": {},
        "environment": {
            "type": "docker", "import_path": null, "force_build": false, "delete": true,
            "stream": false, "cpu_enforcement_policy": "auto", "memory_enforcement_policy": "auto",
            "override_cpus": null, "override_memory_mb": null, "override_storage_mb": null,
            "override_gpus": null, "override_tpu": null, "mounts": null,
            "extra_docker_compose": [], "kwargs": {}, "extra_allowed_hosts": []
        },
        "verifier": {
            "override_timeout_sec": null, "max_timeout_sec": null, "disable": false,
            "extra_allowed_hosts": []
        },
        "metrics": [],
        "agents": [{
            "name": "oracle", "import_path": null, "model_name": null, "base_url": null,
            "model_api_key_name": null, "model_api_format": null, "skip_model_parsing": false,
            "n_concurrent": null, "concurrency_group": null, "skills": [],
            "override_timeout_sec": null, "override_setup_timeout_sec": null,
            "max_timeout_sec": null, "resume_trajectory": false, "load_trajectory": null,
            "extra_allowed_hosts": [], "kwargs": {}, "mcp_servers": []
        }],
        "user_agent": null,
        "datasets": [{
            "path": "/tasks", "name": null, "version": null, "ref": null, "registry_url": null,
            "registry_path": null, "repo": null, "overwrite": false, "download_dir": null,
            "task_names": null, "exclude_task_names": null, "n_tasks": null
        }],
        "tasks": [], "artifacts": [], "extra_instruction_paths": [], "extra_instructions": [],
        "source_jobs": []
    })
}

#[test]
fn job_file_that_harbor_prints_is_read() {
    let (job, errors, warnings) = read("job.json", &printed().to_string());
    assert_eq!((errors, warnings), (Vec::new(), vec![SAID.to_owned()]));
    let job = job.expect("a job");
    assert_eq!(job["n_concurrent_trials"], 8);
    assert_eq!(job["retry"]["max_attempts"], 1);
    assert_eq!(job["datasets"][0]["path"], "/tasks");
}

#[test]
fn job_file_of_harbor_names_skills_and_compose_files_from_the_current_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let (skill, compose) = (dir.path().join("zebra"), dir.path().join("more.yaml"));
    std::fs::create_dir(&skill).expect("made");
    std::fs::write(skill.join("SKILL.md"), "").expect("written");
    std::fs::write(&compose, "services: {}\n").expect("written");
    let mut document = printed();
    document["install_only"] = json!(true);
    document["environment"]["extra_docker_compose"] = json!([compose]);
    let agent = json!({"name": "claude-code", "model_name": "anthropic/m", "skills": [skill]});
    document["agents"] = json!([agent]);
    let (job, errors, _) = read("job.json", &document.to_string());
    assert_eq!(errors, Vec::<String>::new());
    let job = job.expect("a job");
    assert_eq!(job["install_only"], true);
    assert_eq!(job["verifier"]["disable"], true);
    assert_eq!(job["environment"]["extra_docker_compose"], json!([compose]));
    assert_eq!(job["agents"][0]["skills"][0]["name"], "zebra");

    for (pointer, key) in [
        ("/environment/extra_docker_compose", "environment.extra_docker_compose[0]"),
        ("/agents/0/skills", "agents[0].skills[0]"),
    ] {
        let mut document = document.clone();
        *document.pointer_mut(pointer).expect("a key") = json!(["absent"]);
        assert_eq!(read("job.json", &document.to_string()).1, [key]);
    }
}

#[test]
fn job_file_of_harbor_with_key_without_counterpart_is_refused_by_name() {
    for (pointer, value, key) in [
        ("/schema_version", json!(2), "schema_version"),
        ("/retry/include_exceptions", json!(["AgentTimeoutError"]), "retry.include_exceptions"),
        ("/retry/exclude_exceptions", json!(["SSHAccessError"]), "retry.exclude_exceptions"),
        ("/environment/mounts", json!([{"type": "bind"}]), "environment.mounts"),
        (
            "/environment/memory_enforcement_policy",
            json!("request"),
            "environment.memory_enforcement_policy",
        ),
        ("/agents/0/import_path", json!("a:B"), "agents[0].import_path"),
        ("/agents/0/import_path", json!("auto"), "agents[0].import_path"),
        ("/agents/0/n_concurrent", json!(2), "agents[0].n_concurrent"),
        ("/user_agent", json!({"name": "x"}), "user_agent"),
        ("/metrics", json!([{"type": "mean", "kwargs": {"a": 1}}]), "metrics[0].kwargs"),
    ] {
        let mut document = printed();
        *document.pointer_mut(pointer).expect("a key") = value;
        let (_, errors, _) = read("job.json", &document.to_string());
        assert_eq!(errors, [key], "{pointer}");
    }
}

#[test]
fn options_of_catalogued_agent_are_translated() {
    let text = "
agents:
  - name: codex
    model_name: openai/gpt-5
    model_api_format: openai_responses
    base_url: http://models.example
    model_api_key_name: MY_KEY
    kwargs: {reasoning_effort: high}
  - {name: oracle, model_name: openai/x}
datasets: [{path: /tasks}]
";
    let (job, errors, warnings) = read("job.yaml", text);
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(warnings, [SAID, "agents[1].model_name"]);
    let agent = &job.expect("a job")["agents"][0];
    assert_eq!(agent["model"], "openai/gpt-5", "{agent:#}");
}

#[test]
fn waits_between_tries_are_those_of_harbor() {
    for (retry, waits) in [
        (json!(null), [1000, 60_000]),
        (json!({"max_retries": 2}), [1000, 60_000]),
        (json!({"max_retries": 2, "min_wait_sec": 4}), [4000, 60_000]),
        // Its longest wait is also that before the second try.
        (json!({"max_retries": 2, "min_wait_sec": 90.0}), [60_000, 60_000]),
        (json!({"max_retries": 2, "max_wait_sec": 0.5}), [500, 500]),
    ] {
        let mut document = printed();
        document["retry"] = retry.clone();
        let (job, errors, _) = read("job.json", &document.to_string());
        assert_eq!(errors, Vec::<String>::new(), "{retry}");
        let read = &job.expect("a job")["retry"];
        assert_eq!(read["multiplier"], json!(1.0), "{retry}");
        let found = (&read["initial_delay_ms"], &read["max_delay_ms"]);
        assert_eq!(found, (&json!(waits[0]), &json!(waits[1])), "{retry}");
    }
    let mut document = printed();
    document["retry"] = json!({"max_retries": 2, "wait_multiplier": 3});
    let (job, _, _) = read("job.json", &document.to_string());
    assert_eq!(job.expect("a job")["retry"]["multiplier"], json!(3.0));
}

#[test]
fn part_of_a_processor_is_refused_and_a_whole_number_read() {
    for (cpus, expected) in [
        (json!(1.5), Err("environment.override_cpus")),
        (json!("1.5"), Err("environment.override_cpus")),
        (json!(2.0), Ok(2)),
        (json!(3), Ok(3)),
    ] {
        let mut document = printed();
        document["environment"]["override_cpus"] = cpus.clone();
        let (job, errors, _) = read("job.json", &document.to_string());
        match expected {
            Err(key) => assert_eq!(errors, [key], "{cpus}"),
            Ok(number) => {
                assert_eq!(job.expect("a job")["environment"]["override_cpus"], number, "{cpus}");
            }
        }
    }
}

#[test]
fn arguments_of_claude_code_are_its_options() {
    let mut document = printed();
    let kwargs =
        json!({"reasoning_effort": "max", "max_turns": 5, "append_system_prompt": "be brief"});
    let agent = |kwargs: Value| json!([{"name": "claude-code", "model_name": "anthropic/m", "kwargs": kwargs}]);
    document["agents"] = agent(kwargs);
    let (job, errors, _) = read("job.json", &document.to_string());
    assert_eq!(errors, Vec::<String>::new());
    let env = &job.expect("a job")["agents"][0]["env"];
    for (name, value) in [
        ("ROLLOUT_EFFORT", "max"),
        ("ROLLOUT_MAX_TURNS", "5"),
        ("ROLLOUT_SYSTEM_PROMPT", "be brief"),
    ] {
        assert_eq!(env[name], value, "{env:#}");
    }
    let flags =
        json!({"allowed_tools": "Bash,Edit", "max_budget_usd": 2.5, "fallback_model": null});
    document["agents"] = agent(flags);
    let (job, errors, _) = read("job.json", &document.to_string());
    assert_eq!(errors, Vec::<String>::new());
    let job = job.expect("a job");
    let script = job["agents"][0]["execute"].as_str().expect("a script");
    let words = "set -- '--allowedTools' 'Bash,Edit' '--max-budget-usd' '2.5'\n";
    assert!(script.contains(words), "{script}");
    document["agents"] = agent(json!({"permission_mode": "plan"}));
    let (_, errors, _) = read("job.json", &document.to_string());
    assert_eq!(errors, ["agents[0].kwargs.permission_mode"]);
}

#[test]
fn argument_that_is_a_flag_and_no_text_is_told_from_an_unknown_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("job.json");
    for (value, found) in [(json!(["Bash", "Edit"]), "a list"), (json!(true), "true")] {
        let mut document = printed();
        document["agents"] = json!([{"name": "claude-code", "model_name": "anthropic/m",
            "kwargs": {"allowed_tools": value}}]);
        std::fs::write(&file, document.to_string()).expect("written");
        let mut problems = Diagnostics::default();
        let _job = read_job(&file, &JobOptions::for_command_line(&|_| true), &mut problems);
        let (errors, _) = problems.into_parts();
        let said: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert_eq!(errors[0].key, "agents[0].kwargs.allowed_tools");
        let expected = format!("found {found}, expected a text or a number");
        assert!(said[0].ends_with(&expected), "{said:?}");
    }
}

#[test]
fn agent_with_another_name_in_harbor_is_that_of_the_catalogue() {
    for (name, program) in [("cline-cli", "cline auth"), ("qwen-coder", "qwen ")] {
        let mut document = printed();
        document["agents"] = json!([{"name": name, "model_name": "openai/m"}]);
        let (job, errors, _) = read("job.json", &document.to_string());
        assert_eq!(errors, Vec::<String>::new());
        let job = job.expect("a job");
        assert_eq!(job["agents"][0]["name"], name);
        let script = job["agents"][0]["execute"].as_str().expect("a script");
        assert!(script.contains(program), "{script}");
    }
}

#[test]
fn job_file_with_keys_of_both_is_read_as_before() {
    let text = "name: x\ndebug: true\nagents: [{name: oracle}]\ndatasets: [{path: /tasks}]\n";
    let (_, errors, warnings) = read("job.yaml", text);
    assert_eq!((errors, warnings), (vec!["debug".to_owned()], Vec::new()));
}

#[test]
fn file_of_this_program_with_a_stray_key_is_not_taken_for_one_of_harbor() {
    for (keys, agent_key, expected) in [
        ("debug: true\n", "", &["debug"][..]),
        ("quiet: true\n", "", &["quiet"]),
        ("debug: true\nquiet: true\n", "", &["debug", "quiet"]),
        ("", ", model_name: openai/x", &["agents[0].model_name"]),
        ("retry: {max_retries: 2}\n", "", &["retry.max_retries"]),
        ("environment: {delete: true}\n", "", &["environment.delete"]),
    ] {
        let agents = format!("agents: [{{name: oracle{agent_key}}}]");
        let text = format!("{keys}{agents}\ndatasets: [{{path: /t}}]\n");
        let (_, errors, warnings) = read("job.yaml", &text);
        assert_eq!(errors, expected, "{text}");
        assert_eq!(warnings, Vec::<String>::new(), "{text}");
    }
}

#[test]
fn job_file_of_harbor_is_known_by_one_decisive_key_or_two_others() {
    for text in [
        "schema_version: 1\nagents: [{name: oracle}]\n",
        "orchestrator: {n_concurrent_trials: 2}\nagents: [{name: oracle}]\n",
        "retry: {max_retries: 2}\nenvironment: {delete: true}\nagents: [{name: oracle}]\n",
    ] {
        let (job, errors, warnings) =
            read("job.yaml", &format!("{text}datasets: [{{path: /t}}]\n"));
        assert_eq!((errors, warnings), (Vec::new(), vec![SAID.to_owned()]), "{text}");
        assert!(job.is_some(), "{text}");
    }
}

#[test]
fn table_of_older_files_has_three_keys_of_the_top_and_its_local_kind() {
    let rest = "agents: [{name: oracle}]\ndatasets: [{path: /t}]\n";
    let text = "orchestrator: {type: local, n_concurrent_trials: 2, quiet: false, kwargs: {}, \
                retry: {max_retries: 2}}\n";
    let (job, errors, warnings) = read("job.yaml", &format!("{text}{rest}"));
    assert_eq!((errors, warnings), (Vec::new(), vec![SAID.to_owned()]));
    let job = job.expect("a job");
    assert_eq!(
        (&job["n_concurrent_trials"], &job["retry"]["max_attempts"]),
        (&2.into(), &3.into())
    );
    let (job, errors, _) = read("job.yaml", &format!("{text}n_concurrent_trials: 3\n{rest}"));
    assert_eq!((job.expect("a job")["n_concurrent_trials"].as_u64(), errors.len()), (Some(3), 0));
    for (table, key) in [
        ("{type: cluster}", "orchestrator.type"),
        ("{kwargs: {a: 1}}", "orchestrator.kwargs"),
        ("{n_attempts: 3}", "orchestrator.n_attempts"),
        ("{orchestrator: {}}", "orchestrator.orchestrator"),
        ("local", "orchestrator"),
    ] {
        let (_, errors, _) = read("job.yaml", &format!("orchestrator: {table}\n{rest}"));
        assert_eq!(errors, [key], "{table}");
    }
}

#[test]
fn relative_path_is_one_of_the_current_directory_on_the_command_line_alone() {
    let path = |host: HostAccess<'_>| {
        let text = "job_name: x\ntasks: [{path: a/b}]\n";
        let (root, _) = yaml::parse(text).expect("valid YAML");
        let mut problems = Diagnostics::default();
        let root = translate(root, "job.yaml".as_ref(), host, &mut problems);
        let ConfigNode { value: ConfigValue::Mapping(entries), .. } = root else { return None };
        let is_tasks = |entry: &&ConfigEntry| entry.key == "tasks";
        let ConfigValue::Sequence(tasks) = &entries.iter().find(is_tasks)?.node.value else {
            return None;
        };
        string(tasks.first()?, "path")
    };
    let here = std::path::absolute("a/b").expect("a path");
    assert_eq!(path(HostAccess::Everything).as_deref(), here.to_str());
    assert_eq!(path(HostAccess::Nothing).as_deref(), Some("a/b"));
}
