//! Tests of tasks that an environment cannot run, and of task formats.

use rollout_protocol::blob::MediaType;
use rollout_protocol::error::TrialError;
use rollout_protocol::limits::TRAJECTORY_BYTES;

use super::*;
use crate::config::{FormatReason, PlannedFormat};
use crate::sources::datasets::specification;

/// Demands of the Harbor tasks that a process sandbox lacks, by task and key.
const UNSUPPORTED_DEMANDS: [(&str, &str); 6] = [
    ("agent-without-network", "agent.network_mode"),
    ("compose", ""),
    ("prebuilt-image", "environment.docker_image"),
    ("prebuilt-image-files", "environment.docker_image"),
    ("separate-verifier-image", "RUN"),
    ("users", "agent.user"),
];

#[test]
#[cfg_attr(not(feature = "process"), ignore = "needs the provider `process`")]
fn sandbox_unsupported_tasks_are_refused_in_strict_run() {
    let errors = formats("process", "harbor", true).expect_err("refused").errors;
    let unsupported = [ErrorKind::Unsupported, ErrorKind::UnsupportedInstruction];
    let found: BTreeSet<(String, String)> = errors
        .iter()
        .filter(|error| unsupported.contains(&error.kind))
        .map(|error| {
            let parts =
                error.file.components().rev().map(|part| part.as_os_str().to_string_lossy());
            let parts: Vec<String> = parts.map(Into::into).collect();
            let task = parts.iter().position(|part| part == "harbor").expect("below it");
            (parts[task - 1].clone(), error.key.clone())
        })
        .collect();
    for (task, key) in UNSUPPORTED_DEMANDS {
        assert!(found.contains(&(task.to_owned(), key.to_owned())), "{task} {key}: {found:#?}");
    }
    let refused: BTreeSet<&str> = found.iter().map(|(task, _)| task.as_str()).collect();
    assert_eq!(refused, UNSUPPORTED_DEMANDS.iter().map(|(task, _)| *task).collect());
}

#[test]
#[cfg_attr(not(feature = "process"), ignore = "needs the provider `process`")]
fn sandbox_unsupported_tasks_are_faulty_one_by_one() {
    let tasks = formats("process", "harbor", false).expect("the run goes on");
    let found: BTreeSet<&str> = (tasks.iter())
        .filter(|task| task.fault.as_ref().is_some_and(TrialError::is_unsupported))
        .map(|task| task.name.as_str())
        .collect();
    assert_eq!(found, UNSUPPORTED_DEMANDS.iter().map(|(task, _)| *task).collect());
}

#[test]
fn task_demand_no_provider_meets_is_refused_with_key() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.task("set/a");
    let text = "schema_version = \"1.4\"\n[environment]\nnetwork_mode = \"no-network\"\ngpus = 1\n\
                gpu_types = [\"H100\"]\nos = \"windows\"\n\
                [[verifier.collect]]\ncommand = \"true\"\nservice = \"db\"\n";
    project.write("set/a/task.toml", text);
    let kind = ErrorKind::Unsupported;
    let mut faults = project.faults(true);
    faults.sort();
    assert_eq!(
        faults,
        expected(&[
            ("set/a/task.toml", "environment.gpu_types", kind),
            ("set/a/task.toml", "environment.os", kind),
            ("set/a/task.toml", "verifier.collect[0].service", kind),
        ])
    );
    let said = project.unsupported();
    assert!(said.contains("of the type H100"), "{said}");
    // A Windows task has no `test.sh`; the missing file is not the reason.
    fs::remove_file(project.path("set/a/tests/test.sh")).expect("removed");
    assert_eq!(project.unsupported(), said);
}

#[test]
fn allowlist_is_unsupported_where_it_cannot_be_enforced() {
    let text = "schema_version = \"1.4\"\n[environment]\nnetwork_mode = \"allowlist\"\n\
                allowed_hosts = [\"a.example\"]\n";
    let expected =
        expected(&[("set/a/task.toml", "environment.network_mode", ErrorKind::Unsupported)]);
    for (provider, is_supported) in [("docker", true), ("kubernetes", false)] {
        let environment = format!("environment: {{type: {provider}}}\n");
        let project = DatasetProject::new(&(environment + &job("{path: ./set}")));
        project.task("set/a");
        project.write("set/a/task.toml", text);
        if is_supported {
            project.load(true).expect("it is supported");
            project.write("set/a/environment/docker-compose.yaml", "services: {}\n");
        }
        assert_eq!(project.faults(true), expected, "{provider}");
        let said = project.unsupported();
        let why = "task.toml:3 environment.network_mode: an allowlist of hosts; ";
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn features_that_agent_cannot_use_are_refused_in_strict_run() {
    let agents = "agents: [{name: mine, execute: 'true', unsupported: [mcp]}, {name: oracle}]\n";
    let project = DatasetProject::new(&format!("{agents}datasets: [{{path: ./set}}]\n"));
    project.task("set/a");
    let text = "[environment]\nskills_dir = \"/skills\"\n[[environment.mcp_servers]]\n\
                name = \"m\"\ntransport = \"stdio\"\ncommand = \"m\"\n";
    project.write("set/a/task.toml", text);
    let kind = ErrorKind::Unsupported;
    let faults = project.faults(true);
    assert_eq!(faults, expected(&[("set/a/task.toml", "environment.mcp_servers", kind)]));
}

#[test]
fn servers_of_job_are_unsupported_by_agents_without_them_in_strict_run() {
    let servers = "environment: {mcp_servers: [{name: m, url: 'http://m', transport: http}]}\n";
    for (unsupported, is_refused) in [("mcp", true), ("mcp_sse", false)] {
        let agents =
            format!("agents: [{{name: mine, execute: 'true', unsupported: [{unsupported}]}}]\n");
        let project =
            DatasetProject::new(&format!("{agents}{servers}datasets: [{{path: ./set}}]\n"));
        project.task("set/a");
        if is_refused {
            let fault = ("job.yaml", "environment.mcp_servers", ErrorKind::Unsupported);
            assert_eq!(project.faults(true), expected(&[fault]));
        } else {
            let (job, datasets, _) = project.load(true).expect("it is supported");
            let own = &datasets[0].tasks[0].file.mcp_servers;
            assert_eq!((own.len(), job.environment_changes.servers(own).len()), (0, 1));
        }
    }
}

#[test]
fn servers_with_sse_are_unsupported_by_agents_without_them_in_strict_run() {
    let agents = "agents: [{name: mine, execute: 'true', unsupported: [mcp_sse]}, \
                  {name: none, execute: 'true', unsupported: [mcp, mcp_sse]}, {name: s, execute: 'true'}]\n";
    let project = DatasetProject::new(&format!("{agents}datasets: [{{path: ./set}}]\n"));
    project.task("set/a");
    let server = |transport: &str| {
        let text = format!("transport = \"{transport}\"\nurl = \"http://127.0.0.1/x\"\n");
        let text = format!("[[environment.mcp_servers]]\nname = \"m\"\n{text}");
        project.write("set/a/task.toml", &text);
    };
    let unsupported = ("set/a/task.toml", "environment.mcp_servers", ErrorKind::Unsupported);
    server("streamable-http");
    assert_eq!(project.faults(true), expected(&[unsupported]), "of the agent `none`");
    server("sse");
    assert_eq!(project.faults(true), expected(&[unsupported; 2]), "one of each agent");
}

#[test]
fn trajectory_is_unsupported_by_agents_that_do_not_read_it() {
    let agents = "agents: [{name: oracle}, {name: mine, execute: 'true'}, \
                  {name: other, execute: 'true', unsupported: [trajectory]}]\n";
    let project = DatasetProject::new(&format!("{agents}datasets: [{{path: ./set}}]\n"));
    project.task("set/a");
    let text = r#"{"steps": [{"source": "user", "message": "hello"}]}"#;
    project.write("set/a/trajectory.json", text);
    let (_, datasets, _) = project.load(false).expect("no faults of the run");
    let task = &datasets[0].tasks[0];
    assert_eq!((&task.fault, &task.model_fault), (&None, &None));
    let kind = ErrorKind::Unsupported;
    assert_eq!(project.faults(true), expected(&[("set/a/trajectory.json", "", kind)]));
    project.write("job.yaml", &job("{path: ./set}"));
    project.load(true).expect("the oracle needs no conversation");
}

#[tokio::test]
async fn trajectory_of_a_step_is_packed_before_that_of_the_task_for_agents_that_call_models() {
    for (agent, is_packed) in [("{name: mine, execute: 'true'}", true), ("{name: oracle}", false)] {
        let text = format!("agents: [{agent}]\ndatasets: [{{path: ./set}}]\n");
        let project = DatasetProject::new(&text);
        project.steps("set/a");
        let conversation =
            |text: &str| format!(r#"{{"steps": [{{"source": "user", "message": "{text}"}}]}}"#);
        project.write("set/a/trajectory.json", &conversation("of the task"));
        project.write("set/a/steps/two/trajectory.json", &conversation("of the step"));
        let steps = &project.bundle("scratch").await[0].spec.steps;
        let packed = steps.iter().map(|step| step.files.trajectory.clone());
        let expected = ["of the task", "of the step"].map(|text| {
            let bytes = conversation(text).into_bytes();
            is_packed.then(|| BlobRef::for_bytes(&bytes, MediaType::Json))
        });
        assert_eq!(packed.collect::<Vec<_>>(), expected, "{agent}");
    }
}

#[tokio::test]
async fn trajectory_that_cannot_be_read_is_a_fault_for_agents_that_call_models_only() {
    let too_large = " ".repeat(usize::try_from(TRAJECTORY_BYTES).expect("small") + 1);
    for (content, why) in [("{}", "no list `steps`"), (too_large.as_str(), "more than")] {
        let agents = "agents: [{name: oracle}, {name: mine, execute: 'true'}]\n";
        let project = DatasetProject::new(&format!("{agents}datasets: [{{path: ./set}}]\n"));
        project.task("set/a");
        project.write("set/a/trajectory.json", content);
        let (_, datasets, _) = project.load(false).expect("no faults of the run");
        let task = &datasets[0].tasks[0];
        assert_eq!(task.fault, None);
        let fault = task.model_fault.as_ref().expect("a fault");
        assert!(!fault.is_unsupported() && fault.message.contains(why), "{fault}");
        assert_eq!(project.bundle("first").await[0].spec.steps[0].files.trajectory, None);
        project.write("job.yaml", &job("{path: ./set}"));
        assert_eq!(project.bundle("second").await.len(), 1, "the oracle needs no conversation");
    }
}

#[test]
fn trajectory_that_is_a_link_out_of_the_task_is_refused() {
    for file in ["set/a/trajectory.json", "set/a/steps/one/trajectory.json"] {
        let project = DatasetProject::new(&job("{path: ./set}"));
        project.steps("set/a");
        project.write("outside.json", "{}");
        let (target, at) = (project.path("outside.json"), project.path(file));
        symlink(target, at).expect("linked");
        let faults = project.faults(false);
        assert_eq!(faults[0], (file.to_owned(), String::new(), ErrorKind::BadFile));
    }
}

#[test]
fn compose_file_is_used_in_either_task_format() {
    for format in ["rollout", "harbor"] {
        let project = DatasetProject::new(&job(&format!("{{path: ./set, format: {format}}}")));
        project.task("set/a");
        project.write("set/a/environment/docker-compose.yaml", "services: {}\n");
        let (_, datasets, _) = project.load(true).expect("no faults");
        let parts = &datasets[0].tasks[0].parts;
        assert_eq!(parts.compose.as_deref(), Some("docker-compose.yaml"), "{format}");
    }
}

#[test]
#[cfg_attr(not(feature = "docker"), ignore = "needs the provider `docker`")]
fn compose_file_with_invalid_yaml_is_task_fault() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.task("set/a");
    project.write("set/a/environment/docker-compose.yaml", "services: {main: {image: [");
    let (_, datasets, _) = project.load(false).expect("no faults of the job");
    let fault = datasets[0].tasks[0].fault.as_ref().expect("a fault");
    assert_eq!((fault.kind, fault.is_unsupported()), (ErrorType::TaskInvalid, false), "{fault}");
    let file = project.faults(true);
    let name = "set/a/environment/docker-compose.yaml";
    assert_eq!(file, expected(&[(name, "", ErrorKind::Syntax)]));
}

#[test]
fn task_format_in_plan_is_used_and_not_guessed_again() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    for task in ["set/a", "set/b", "set/c", "set/d"] {
        project.task(task);
        project.write(&format!("{task}/tests/test.sh"), "cat /solution/x\n");
    }
    let planned = [
        ("a", PlannedFormat::Recorded(TaskFormat::Rollout)),
        ("b", PlannedFormat::ByKeys),
        ("d", PlannedFormat::Guessed(TaskFormat::Rollout)),
    ];
    let planned = planned.map(|(task, format)| (("set".to_owned(), task.to_owned()), format));
    let (loaded, datasets, _) = project.load_planned(true, &planned.into()).expect("no faults");
    let found: Vec<_> = (datasets[0].tasks.iter())
        .map(|task| (task.file.format.format, task.file.format.reason.clone()))
        .collect();
    let sign =
        FormatReason::HarborEvidence("a command of `tests/test.sh` uses `/solution`".to_owned());
    assert_eq!(
        found,
        [
            (TaskFormat::Rollout, FormatReason::Planned),
            (TaskFormat::Rollout, FormatReason::NoEvidence),
            (TaskFormat::Harbor, sign),
            (TaskFormat::Rollout, FormatReason::PlannedGuess),
        ]
    );
    let other: Vec<_> = (datasets[0].tasks.iter())
        .map(|task| specification(&loaded, "set".to_owned(), task).other_rules)
        .collect();
    let rules = |format| Some(ScriptRules::for_format(format));
    let harbor = rules(TaskFormat::Harbor);
    assert_eq!(other, [None, harbor, rules(TaskFormat::Rollout), harbor]);
}
