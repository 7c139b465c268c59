//! Tests of tasks that cannot be read while others run.

use super::*;

/// Tasks with a fault each, and one without.
fn project() -> DatasetProject {
    let project = DatasetProject::new(&job("{path: ./set}"));
    for (task, text) in [
        ("good", "version = '1.0'\n"),
        ("syntax", "schema_version = '1.4'\nnot toml\n"),
        ("twice", "version = '1.0'\nversion = '1.0'\n"),
        ("value", "version = '1.0'\n[agent]\ntimeout_sec = 0\n[environment]\ncpus = 0\n"),
    ] {
        project.task(&format!("set/{task}"));
        project.write(&format!("set/{task}/task.toml"), text);
    }
    project
}

#[tokio::test]
async fn invalid_task_settles_with_file_line_and_key_and_others_run() {
    let project = project();
    let (_, datasets, warnings) = project.load(false).expect("no faults of the run");
    assert_eq!(warnings, 4, "one of each error");
    let said = |name: &str| {
        let task = datasets[0].tasks.iter().find(|task| task.name == name).expect("it is there");
        task.fault.as_ref().map(|fault| (fault.kind, fault.message.clone()))
    };
    assert_eq!(said("good"), None);
    for (name, texts) in [
        ("syntax", &["the task set/syntax cannot be read: task.toml:2: cannot parse"][..]),
        ("twice", &["task.toml:2: cannot parse"]),
        ("value", &["task.toml:3: agent.timeout_sec: found ", "task.toml:5: environment.cpus: "]),
    ] {
        let (kind, message) = said(name).expect("a fault");
        assert_eq!(kind, ErrorType::TaskInvalid);
        assert!(texts.iter().all(|text| message.contains(text)), "{message}");
    }
    // What can be read of the file decides the format, which the plan keeps.
    let syntax = datasets[0].tasks.iter().find(|task| task.name == "syntax").expect("it is there");
    assert_eq!(syntax.file.format.format, TaskFormat::Harbor);
    let bundled = project.bundle("scratch").await;
    let faults = bundled.iter().filter(|task| task.spec.fault.is_some());
    assert_eq!((faults.count(), bundled.len()), (3, 4));
}

#[test]
fn unset_variable_of_a_step_concerns_its_task_alone() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.task("set/good");
    project.task("set/steps");
    let text =
        "schema_version = '1.4'\n[[steps]]\nname = 'one'\n[steps.verifier.env]\nA = \"${UNSET}\"\n";
    project.write("set/steps/task.toml", text);
    let (_, datasets, warnings) = project.load(false).expect("no faults of the run");
    assert_eq!(warnings, 1);
    let fault = |name: &str| {
        let task = datasets[0].tasks.iter().find(|task| task.name == name).expect("it is there");
        task.fault.as_ref().map(|fault| fault.message.clone())
    };
    assert_eq!(fault("good"), None);
    let message = fault("steps").expect("a fault");
    for text in ["task.toml:5: steps[0].verifier.env.A: ", "`${UNSET}`, which is not set"] {
        assert!(message.contains(text), "{message}");
    }
}

#[test]
fn unlisted_variable_that_is_not_set_concerns_its_task_alone_and_a_set_one_the_run() {
    let project = DatasetProject::new("agents: [{name: oracle}]\ndatasets: [{path: ./set}]\n");
    project.task("set/good");
    for (task, value) in [("a", "${UNSET}"), ("b", "${UNSET:-x}")] {
        project.task(&format!("set/{task}"));
        let text = format!("version = '1.0'\n[environment.env]\nA = \"{value}\"\n");
        project.write(&format!("set/{task}/task.toml"), &text);
    }
    let (_, datasets, warnings) = project.load(false).expect("no faults of the run");
    assert_eq!(warnings, 2);
    let faults: Vec<_> = datasets[0].tasks.iter().map(|task| task.fault.as_ref()).collect();
    for (fault, why) in faults.iter().zip(["which is not set", "which the job does not allow"]) {
        let fault = fault.expect("a fault");
        assert_eq!(fault.kind, ErrorType::TaskInvalid);
        assert!(fault.message.contains(why) && fault.message.contains("`-y`"), "{fault}");
    }
    assert_eq!(faults[2], None);
    project.write("set/good/task.toml", "version = '1.0'\n[environment.env]\nA = \"${SET}\"\n");
    let fault = ("set/good/task.toml", "environment.env.A", ErrorKind::VariableNotListed);
    assert_eq!(project.faults(false), super::expected(&[fault]));
}

#[test]
fn run_of_invalid_tasks_alone_and_strict_run_are_refused() {
    let project = project();
    let kinds = |faults: Vec<(String, String, ErrorKind)>| {
        faults.into_iter().map(|(file, _, kind)| (file, kind)).collect::<Vec<_>>()
    };
    let expected = [
        ("set/syntax/task.toml", ErrorKind::Syntax),
        ("set/twice/task.toml", ErrorKind::Syntax),
        ("set/value/task.toml", ErrorKind::BadValue),
        ("set/value/task.toml", ErrorKind::BadValue),
    ];
    let expected = expected.map(|(file, kind)| (file.to_owned(), kind));
    assert_eq!(kinds(project.faults(true)), expected);
    fs::remove_dir_all(project.path("set/good")).expect("removed");
    assert_eq!(kinds(project.faults(false)), expected);
}

#[test]
fn link_out_of_a_task_fails_it_and_others_run_unless_strict() {
    for entry in ["task.toml", "tests", "steps/one"] {
        let project = DatasetProject::new(&job("{path: ./set}"));
        project.task("set/good");
        project.steps("set/linked");
        let link = project.path(&format!("set/linked/{entry}"));
        let _absent = fs::remove_file(&link).or_else(|_| fs::remove_dir_all(&link));
        symlink("/etc", &link).expect("linked");
        let (_, datasets, _) = project.load(false).expect("no faults of the run");
        let faults: Vec<_> = datasets[0].tasks.iter().map(|task| task.fault.as_ref()).collect();
        assert_eq!(faults[0], None, "{entry}");
        let fault = faults[1].expect("a fault");
        assert_eq!(fault.kind, ErrorType::TaskInvalid);
        let why = format!("{entry}: found a symlink out of the task's directory");
        assert!(fault.message.contains(&why), "{}", fault.message);
        let file = format!("set/linked/{entry}");
        assert_eq!(
            project.faults(true),
            super::expected(&[(file.as_str(), "", ErrorKind::BadFile)])
        );
        // It refuses a run that has no other task.
        fs::remove_dir_all(project.path("set/good")).expect("removed");
        assert_eq!(
            project.faults(false),
            super::expected(&[(file.as_str(), "", ErrorKind::BadFile)])
        );
    }
}

#[tokio::test]
async fn task_with_instruction_too_large_settles_and_others_run() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.task("set/good");
    project.task("set/large");
    let large = "x".repeat(usize::try_from(INSTRUCTION_BYTES).expect("it fits") + 1);
    project.write("set/large/instruction.md", &large);
    let bundled = project.bundle("scratch").await;
    let fault = bundled[1].spec.fault.as_ref().expect("a fault");
    assert!(fault.message.contains("cannot be read: instruction.md: found "), "{fault}");
    assert_eq!(bundled[0].spec.fault, None);
}
