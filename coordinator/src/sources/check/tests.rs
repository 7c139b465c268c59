//! Tests of lints: tasks with common mistakes, and tasks without.

use std::fs;

use super::*;

struct CheckProject(tempfile::TempDir);

impl CheckProject {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn write(&self, path: &str, text: &str) {
        let file = self.0.path().join(path);
        fs::create_dir_all(file.parent().expect("a parent")).expect("made");
        fs::write(file, text).expect("written");
    }

    fn task(&self, dir: &str) {
        self.write(&format!("{dir}/task.toml"), "version = \"1.0\"\n");
        self.write(&format!("{dir}/instruction.md"), "Do it.\n");
        self.write(&format!("{dir}/environment/Dockerfile"), "FROM debian:12\n");
        self.write(&format!("{dir}/solution/solve.sh"), "true\n");
        self.write(&format!("{dir}/tests/test.sh"), "echo 1 > /logs/verifier/reward.txt\n");
    }

    fn check(&self, provider: ProviderKind) -> CheckReport {
        let path = self.0.path().to_owned();
        check(&CheckRequest { path, format: None, provider }).expect("checked")
    }

    /// Warnings as file in the task and message.
    fn warnings(&self) -> Vec<(String, String)> {
        let report = self.check(ProviderKind::Docker);
        assert_eq!(report.n_errors(), 0, "{report:#?}");
        let warnings = report.tasks.into_iter().flat_map(|task| {
            let dir = task.dir;
            task.warnings.into_iter().map(move |warning| {
                let file = warning.file.strip_prefix(&dir).expect("inside").display().to_string();
                (format!("{file}:{}", warning.key), warning.message)
            })
        });
        warnings.collect()
    }
}

#[test]
fn task_that_run_cannot_pack_has_error() {
    let project = CheckProject::new();
    project.task("a");
    project.task("b");
    let outside = project.0.path().join("a/environment/data");
    std::os::unix::fs::symlink("/etc/hostname", outside).expect("linked");
    let report = project.check(ProviderKind::Docker);
    assert_eq!(report.n_errors(), 1, "{report:#?}");
    let error = &report.tasks[0].errors[0];
    assert_eq!(error.kind, ErrorKind::BadFile);
    assert!(error.file.ends_with("a/environment/data"), "{error}");
}

#[test]
fn valid_task_has_no_findings_and_is_explained() {
    let project = CheckProject::new();
    project.task("a");
    let report = project.check(ProviderKind::Docker);
    assert_eq!((report.n_errors(), report.n_warnings()), (0, 0), "{report:#?}");
    let explained = report.tasks[0].explained.as_ref().expect("read");
    assert_eq!(explained.image, "built from environment/Dockerfile");
    assert_eq!(explained.format.name, TaskFormat::Rollout);
    assert_eq!(explained.timeouts.agent_sec, Some(600.0));
}

#[test]
fn task_with_common_mistake_is_warned_of() {
    let faults: &[(&str, &str, &str, &str)] = &[
        ("environment/Dockerfile", "FROM debian\n", "environment/Dockerfile:", "not pinned"),
        (
            "environment/Dockerfile",
            "FROM a:1\nCOPY tests /x\n",
            "environment/Dockerfile:",
            "copied into",
        ),
        (
            "environment/Dockerfile",
            "FROM a:1\nCOPY ../solution /x\n",
            "environment/Dockerfile:",
            "copied into",
        ),
        (
            "task.toml",
            "version='1'\nenvironment.docker_image='a:latest'\n",
            "task.toml:environment.docker_image",
            "not pinned",
        ),
        (
            "tests/test.sh",
            "pip install x\necho 1 > /logs/verifier/reward.txt\n",
            "tests/test.sh:",
            "needs the network",
        ),
        ("tests/test.sh", "exit 0\n", "tests/test.sh:", "cannot write a reward"),
        (
            "tests/test.sh",
            "true\necho 1 > /logs/verifier/reward.txt\r\n",
            "tests/test.sh:",
            "Windows",
        ),
        ("instruction.md", " \n", "instruction.md:", "is empty"),
    ];
    for (file, text, at, message) in faults {
        let project = CheckProject::new();
        project.task("a");
        project.write(&format!("a/{file}"), text);
        let warnings = project.warnings();
        let [(found_at, found)] = warnings.as_slice() else { panic!("{text}: {warnings:?}") };
        assert!(found_at == at && found.contains(message), "{text}: {warnings:?}");
    }
    let project = CheckProject::new();
    project.task("a");
    fs::remove_dir_all(project.0.path().join("a/solution")).expect("removed");
    for (version, outcome) in
        [("version = '1.0'\n", "oracle fail"), ("schema_version = '1.4'\n", "beside their reward")]
    {
        project.write("a/task.toml", version);
        let warnings = project.warnings();
        let [(at, message)] = warnings.as_slice() else { panic!("{version}: {warnings:?}") };
        assert!(at == "solution/solve.sh:" && message.contains(outcome), "{warnings:?}");
    }
}

#[test]
fn script_written_on_windows_is_error_of_its_task() {
    for script in ["solution/solve.sh", "tests/test.sh"] {
        let project = CheckProject::new();
        project.task("a");
        let text = "#!/bin/bash\r\necho 1 > /logs/verifier/reward.txt\r\n";
        project.write(&format!("a/{script}"), text);
        let report = project.check(ProviderKind::Docker);
        assert_eq!(report.n_errors(), 1, "{report:#?}");
        let error = &report.tasks[0].errors[0];
        assert_eq!((error.kind, error.line), (ErrorKind::BadFile, Some(1)));
        assert!(error.file.ends_with(format!("a/{script}")), "{error}");
        assert!(error.to_string().contains("lines that end with CR"), "{error}");
    }
}

#[test]
fn harbor_task_with_common_mistake_is_warned_of() {
    let project = CheckProject::new();
    project.task("a");
    let text = "schema_version = \"1.4\"\n[environment]\nnetwork_mode = \"no-network\"\n";
    project.write("a/task.toml", text);
    project.write("a/tests/test.sh", "curl -O https://x\npython /tests/check.py\n");
    project.write("a/tests/check.py", "open('/logs/verifier/reward.json', 'w')\n");
    let warnings = project.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].1.contains("does not have"), "{warnings:?}");

    let separate = "schema_version = \"1.4\"\n[verifier]\nenvironment_mode = \"separate\"\n\
                    env = { TOKEN = \"${TOKEN}\" }\n";
    project.write("a/task.toml", separate);
    project.write("a/tests/test.sh", "python /tests/check.py\n");
    project.write("a/tests/Dockerfile", "FROM debian:12\n");
    let warnings = project.warnings();
    let places: Vec<&str> = warnings.iter().map(|(at, _)| at.as_str()).collect();
    assert_eq!(places, ["task.toml:artifacts", "tests/Dockerfile:"]);
    let report = project.check(ProviderKind::Docker);
    let explained = report.tasks[0].explained.as_ref().expect("read");
    assert!(explained.separate_verifier && explained.variables.contains("TOKEN"));
}

#[test]
#[cfg_attr(not(feature = "process"), ignore = "needs the provider `process`")]
fn check_errors_are_listed_by_task() {
    let project = CheckProject::new();
    project.task("a");
    project.write("a/environment/Dockerfile", "FROM debian:12\nRUN true\n");
    project.task("b");
    project.write("b/task.toml", "not toml");
    project.task("c");
    fs::remove_file(project.0.path().join("c/tests/test.sh")).expect("removed");
    let report = project.check(ProviderKind::Process);
    let found: Vec<_> = report
        .tasks
        .iter()
        .map(|task| {
            let kinds: Vec<_> = task.errors.iter().map(|error| error.kind).collect();
            (task.task.as_str(), task.explained.is_some(), kinds)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("a", true, vec![ErrorKind::UnsupportedInstruction]),
            ("b", false, vec![ErrorKind::Syntax]),
            ("c", true, vec![ErrorKind::MissingFile]),
        ]
    );
    let nothing = CheckRequest {
        path: project.0.path().join("absent"),
        format: None,
        provider: ProviderKind::Docker,
    };
    let report = check(&nothing).expect("checked");
    assert_eq!(report.errors.len(), 1);
    assert_eq!(report.errors[0].file, nothing.path);
}

#[test]
fn check_of_job_file_hints_at_dry_run() {
    let project = CheckProject::new();
    project.write("job.yaml", "name: j\n");
    let path = project.0.path().join("job.yaml");
    let request = CheckRequest { path, format: None, provider: ProviderKind::Docker };
    let report = check(&request).expect("checked");
    let [error] = report.errors.as_slice() else { panic!("one error: {report:#?}") };
    assert_eq!((&error.file, error.line, error.key.as_str()), (&request.path, None, ""));
    assert!(error.found.ends_with("job.yaml`, which is a file"), "{error}");
    assert!(error.hint.as_ref().is_some_and(|hint| hint.contains("--dry-run")), "{error}");
}

#[test]
fn dockerfile_with_heredoc_and_escape_is_parsed_as_by_builder() {
    let project = CheckProject::new();
    project.task("a");
    let text = "# escape=`\nARG BASE=debian\nFROM ${BASE}:12 AS one\nRUN --mount=type=cache,target=/c <<END\n\
                COPY tests /tests\nFROM nowhere\nEND\nRUN echo `\n  # said\n  more\n";
    project.write("a/environment/Dockerfile", text);
    assert_eq!(project.warnings(), []);
    project.write("a/environment/Dockerfile", "FROM debian:12\nRUN <<END\necho\nCOPPY a b\n");
    let open = "does not build: the here-document `END` is not closed";
    let found = project.warnings();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].0.starts_with("environment/Dockerfile") && found[0].1 == open, "{found:?}");
}
