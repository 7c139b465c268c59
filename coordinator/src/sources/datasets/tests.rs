//! Tests of datasets on a real file system: discovery, refusals, packing.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_base::supervise;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::error::ErrorType;
use rollout_protocol::limits::INSTRUCTION_BYTES;
use rollout_protocol::spec::task::{ScriptRules, TaskFormat, TaskSpec};
use rollout_store::BlobStore;
use rollout_store::fs::FsStore;
use rollout_store::testing::{FaultyStore, StoreCall};

use super::*;
use crate::config::{ConfigErrors, Diagnostics, ErrorKind, FetchAccess, Job, JobOptions, read_job};

mod demands;
mod faulty_tasks;
mod job_environment;
mod line_ends;
mod names;
mod workdir_files;

/// A directory with a job file and datasets.
struct DatasetProject(tempfile::TempDir);

impl DatasetProject {
    fn new(job: &str) -> Self {
        let project = Self(tempfile::tempdir().expect("a directory"));
        project.write("job.yaml", job);
        project
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let file = self.path(path);
        fs::create_dir_all(file.parent().expect("a parent")).expect("made");
        fs::write(file, text).expect("written");
    }

    /// Creates a complete task.
    fn task(&self, dir: &str) {
        self.write(&format!("{dir}/task.toml"), "version = \"1.0\"\n");
        self.write(&format!("{dir}/instruction.md"), "Do it.\n");
        self.write(&format!("{dir}/environment/Dockerfile"), "FROM scratch\n");
        self.write(&format!("{dir}/solution/solve.sh"), "true\n");
        self.write(&format!("{dir}/tests/test.sh"), "true\n");
    }

    async fn bundle(&self, scratch: &str) -> Vec<TaskBundle> {
        let (job, datasets, _) = self.load(false).expect("no faults of the run");
        bundle(&job, datasets, &self.sink(scratch, None)).await.expect("bundled")
    }

    fn load(&self, strict: bool) -> Result<(Job, Vec<Dataset>, usize), ConfigErrors> {
        self.load_planned(strict, &PlannedFormats::new())
    }

    fn load_planned(
        &self,
        strict: bool,
        planned: &PlannedFormats,
    ) -> Result<(Job, Vec<Dataset>, usize), ConfigErrors> {
        let is_set = |name: &str| name == "SET";
        let options = JobOptions { strict, ..JobOptions::for_command_line(&is_set) };
        let mut problems = Diagnostics::default();
        let job = read_job(&self.path("job.yaml"), &options, &mut problems).expect("a job");
        let datasets = load(&job, &options, planned, &mut problems);
        problems.finish(datasets).map(|(datasets, warnings)| (job, datasets, warnings.len()))
    }

    fn faults(&self, strict: bool) -> Vec<(String, String, ErrorKind)> {
        let errors = self.load(strict).expect_err("faults").errors;
        let root = fs::canonicalize(self.0.path()).expect("exists");
        let relative = |file: &Path| {
            let file = file.strip_prefix(&root).or_else(|_| file.strip_prefix(self.0.path()));
            file.expect("inside the project").display().to_string()
        };
        errors.into_iter().map(|e| (relative(&e.file), e.key, e.kind)).collect()
    }

    /// The error of the project's only task, which is unsupported in a run that is not strict.
    fn unsupported(&self) -> String {
        let (_, datasets, _) = self.load(false).expect("no faults of the run");
        let fault = datasets[0].tasks[0].fault.clone().expect("a fault of the task");
        assert!(fault.is_unsupported(), "{fault:?}");
        fault.message
    }

    fn sink(&self, name: &str, store: Option<Arc<dyn BlobStore>>) -> BundleSink {
        let scratch = self.path(name);
        fs::create_dir(&scratch).expect("made");
        BundleSink { store, scratch, holder: None, pack_cache: None }
    }
}

fn job(datasets: &str) -> String {
    format!("agents: [{{name: oracle}}]\ntask_env: [SET, UNSET]\ndatasets: [{datasets}]\n")
}

fn expected(faults: &[(&str, &str, ErrorKind)]) -> Vec<(String, String, ErrorKind)> {
    faults.iter().map(|(file, key, kind)| ((*file).to_owned(), (*key).to_owned(), *kind)).collect()
}

#[test]
fn loading_that_is_cancelled_reads_no_more_tasks() {
    let project = DatasetProject::new(&job("{path: many}"));
    project.task("many/a");
    project.task("many/b");
    let (working, cancelled) = tokio::sync::watch::channel(());
    let is_set = |_: &str| true;
    let fetch = FetchAccess { cancelled: Some(cancelled), ..FetchAccess::default() };
    let options = JobOptions { fetch, ..JobOptions::for_command_line(&is_set) };
    let tasks = || {
        let mut problems = Diagnostics::default();
        let job = read_job(&project.path("job.yaml"), &options, &mut problems).expect("a job");
        let datasets = load(&job, &options, &PlannedFormats::new(), &mut problems);
        let tasks: usize = datasets.iter().map(|dataset| dataset.tasks.len()).sum();
        (tasks, problems.finish(()).is_ok())
    };
    assert_eq!(tasks(), (2, true));
    drop(working);
    assert_eq!(tasks(), (0, false));
}

#[test]
fn address_given_as_a_path_is_shown_without_its_login() {
    let project = DatasetProject::new(&job("{path: 'https://me:word@h/r'}"));
    let lines = project.load(false).expect_err("no directory").lines().join("\n");
    assert!(lines.contains("https://h/r") && !lines.contains("word"), "{lines}");
}

#[test]
fn dataset_path_to_many_tasks_or_one_task_is_loaded() {
    let project =
        DatasetProject::new(&job("{path: ./many}, {path: ./group/only}, {path: many, name: x}"));
    project.task("many/b");
    project.task("many/a");
    project.task("many/.hidden");
    project.write("many/notes/readme.txt", "no task");
    project.write("many/file.txt", "no directory");
    project.task("group/only");
    project.task("group/other");
    let (_, datasets, warnings) = project.load(true).expect("no faults");
    let names: Vec<_> = datasets
        .iter()
        .map(|d| (d.name.as_str(), d.tasks.iter().map(|t| t.name.as_str()).collect::<Vec<_>>()))
        .collect();
    let both = vec!["a", "b"];
    assert_eq!(names, [("many", both.clone()), ("group", vec!["only"]), ("x", both)]);
    assert_eq!(warnings, 2, "the directory that is no task, met twice");
}

#[test]
fn dataset_errors_are_all_reported() {
    let project = DatasetProject::new(&job(
        "{path: ./good}, {path: ./absent}, {path: ./empty}, {path: ./job.yaml}, {path: ./GOOD}",
    ));
    project.task("good/a");
    project.task("good/A");
    project.task("good/journal");
    project.task("GOOD/a");
    fs::create_dir(project.path("empty")).expect("made");
    assert_eq!(
        project.faults(false),
        expected(&[
            ("job.yaml", "datasets[1].path", ErrorKind::NotFound),
            ("job.yaml", "datasets[2].path", ErrorKind::NoTasks),
            ("job.yaml", "datasets[3].path", ErrorKind::Unreadable),
            ("job.yaml", "datasets[4].path", ErrorKind::DuplicateName),
            ("good/a", "", ErrorKind::DuplicateName),
            ("good/journal", "", ErrorKind::BadValue),
        ])
    );
}

#[test]
fn dataset_without_selected_task_is_refused_where_it_is_selected() {
    let project = DatasetProject::new(&job(
        "{path: ./set, task_names: [x, 'y*']}, {path: ./set, name: b, exclude_task_names: ['*']}",
    ));
    project.task("set/a");
    let errors = project.load(false).expect_err("no tasks").errors;
    let found: Vec<_> = errors.iter().map(|e| (e.key.as_str(), e.found.as_str())).collect();
    assert_eq!(
        found,
        [
            ("datasets[0].task_names", "no task of `set` matches `x` or `y*` (it has 1 task)"),
            ("datasets[1].exclude_task_names", "every selected task of `b` is excluded"),
        ]
    );
}

#[test]
fn task_file_errors_of_all_tasks_are_reported_together() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    for task in ["a", "b", "c", "d"] {
        project.task(&format!("set/{task}"));
    }
    project.write("set/a/task.toml", "[agent]\ntimeout_sec = 0\n[environment]\ncpus = 0\n");
    project.write("set/b/task.toml", "not toml");
    let env = "[environment.env]\nA = \"${SET}\"\nB = \"${UNSET}\"\nC = \"${SECRET:-x}\"\nD = \"${UNSET:-y}\"\n";
    project.write("set/c/task.toml", env);
    fs::remove_dir_all(project.path("set/d/tests")).expect("removed");
    symlink(project.path("set/a/tests"), project.path("set/d/tests")).expect("linked");
    assert_eq!(
        project.faults(true),
        expected(&[
            ("set/a/task.toml", "agent.timeout_sec", ErrorKind::BadValue),
            ("set/a/task.toml", "environment.cpus", ErrorKind::BadValue),
            ("set/b/task.toml", "", ErrorKind::Syntax),
            ("set/c/task.toml", "environment.env.B", ErrorKind::UnsetVariable),
            ("set/c/task.toml", "environment.env.C", ErrorKind::VariableNotListed),
            ("set/d/tests", "", ErrorKind::BadFile),
        ])
    );
}

#[test]
fn task_with_missing_files_is_faulty_or_refused_if_strict() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.task("set/a");
    for file in ["instruction.md", "tests/test.sh", "environment/Dockerfile", "solution/solve.sh"] {
        fs::remove_file(project.path("set/a").join(file)).expect("removed");
    }
    project.task("set/b");
    fs::remove_file(project.path("set/b/solution/solve.sh")).expect("removed");
    let (_, datasets, _) = project.load(false).expect("no faults of the run");
    let [a, b] = datasets[0].tasks.as_slice() else { panic!("two tasks") };
    let fault = a.fault.as_ref().expect("a fault");
    assert_eq!(fault.kind, ErrorType::TaskInvalid);
    let named = ["instruction.md", "tests/test.sh", "environment/Dockerfile"];
    assert!(named.iter().all(|file| fault.message.contains(file)), "{fault}");
    assert!(b.fault.is_none(), "without a solution the other agents still can");
    assert!(b.parts.steps[0].solution.is_none());
    let files: Vec<String> = project.faults(true).into_iter().map(|(file, ..)| file).collect();
    assert_eq!(
        files,
        [
            "set/a/instruction.md",
            "set/a/tests/test.sh",
            "set/a/environment/Dockerfile",
            "set/a/solution/solve.sh",
            "set/b/solution/solve.sh",
        ]
    );
}

#[test]
fn task_files_required_depend_on_job_settings() {
    let rest = "agents: [{name: nop}]\ndatasets: [{path: ./set}]\n";
    for (settings, image, environment, fault) in [
        ("", true, false, false),
        ("", false, false, true),
        ("environment: {force_build: true}\n", true, false, false),
        ("environment: {type: process}\n", false, false, false),
    ] {
        let project =
            DatasetProject::new(&format!("{settings}verifier: {{disable: true}}\n{rest}"));
        project.task("set/a");
        fs::remove_dir_all(project.path("set/a/tests")).expect("removed");
        fs::remove_dir_all(project.path("set/a/environment")).expect("removed");
        if image {
            project.write("set/a/task.toml", "[environment]\ndocker_image = \"some/image\"\n");
        }
        let (_, datasets, _) = project.load(false).expect("no faults of the run");
        let task = &datasets[0].tasks[0];
        assert_eq!(task.fault.is_some(), fault, "{settings:?} {image}");
        assert_eq!(task.parts.context.is_some(), environment);
    }
}

#[test]
#[cfg_attr(not(feature = "process"), ignore = "needs the provider `process`")]
fn dockerfile_unsupported_by_process_sandbox_is_refused() {
    let rest = "agents: [{name: nop}]\ndatasets: [{path: ./set}]\n";
    let process = "environment: {type: process}\n";
    let project = DatasetProject::new(&format!("{process}{rest}"));
    project.task("set/a");
    fs::remove_dir_all(project.path("set/a/environment")).expect("removed");
    project.write("set/a/task.toml", "[environment]\ndocker_image = \"some/image\"\n");
    let fault = ("set/a/task.toml", "environment.docker_image", ErrorKind::UnsupportedInstruction);
    assert_eq!(project.faults(true), expected(&[fault]));
    project.write("set/a/environment/Dockerfile", "FROM debian\nWORKDIR /app\nRUN true\nUSER me\n");
    let file = "set/a/environment/Dockerfile";
    let kind = ErrorKind::UnsupportedInstruction;
    assert_eq!(project.faults(true), expected(&[(file, "RUN", kind), (file, "USER", kind)]));
    let said = project.unsupported();
    assert!(said.starts_with("the environment `process` cannot run the task set/a: "), "{said}");
    assert!(said.contains("environment/Dockerfile:3 RUN: an unsupported instruction"), "{said}");
    assert!(said.contains("environment/Dockerfile:4 USER: "), "{said}");
    let ignoring = "environment: {type: process, provider_config: {ignore_dockerfile: true}}\n";
    project.write("job.yaml", &format!("{ignoring}{rest}"));
    project.load(false).expect("no faults");
}

#[tokio::test]
async fn task_bundle_is_stored_and_depends_on_content_only() {
    let text = "timeout_multiplier: 2\nenvironment: {override_cpus: 3}\n";
    let project = DatasetProject::new(&format!("{text}{}", job("{path: ./set}")));
    project.task("set/a");
    project.write("set/a/environment/.dockerignore", "*.log\n");
    project.write("set/a/environment/noise.log", "one");
    project.task("set/b");
    let (job, datasets, _) = project.load(true).expect("no faults");
    let store: Arc<dyn BlobStore> =
        Arc::new(FsStore::open(project.path("blobs")).await.expect("a store"));
    let sink = project.sink("first", Some(Arc::clone(&store)));
    let bundled = bundle(&job, datasets.clone(), &sink).await.expect("bundled");
    for task in &bundled {
        let bytes = store.get_bytes(&task.digest, 1 << 20).await.expect("stored");
        let spec: TaskSpec = serde_json::from_slice(&bytes).expect("a spec");
        assert_eq!(spec, task.spec);
        let (files, context) = (&spec.steps[0].files, &spec.environment.context);
        for blob in [&files.instruction, context, &files.solution, &files.tests] {
            let blob = blob.as_ref().expect("packed");
            assert!(store.contains(&blob.digest).await.expect("reachable"));
        }
    }
    assert_eq!(bundled[0].spec.environment.resources.cpus, 3);
    assert!((bundled[0].spec.install_sec - 600.0).abs() < 1e-9);
    assert_ne!(bundled[0].files, bundled[1].files);
    assert_eq!(fs::read_dir(&sink.scratch).expect("listed").count(), 0, "nothing is left over");

    project.write("set/a/environment/noise.log", "two");
    let again = bundle(&job, datasets.clone(), &project.sink("second", None)).await;
    assert_eq!(again.expect("bundled"), bundled, "digests alone are the same");

    project.write("set/b/tests/test.sh", "false\n");
    let changed = bundle(&job, datasets, &project.sink("third", None)).await.expect("bundled");
    assert_eq!(changed[0], bundled[0]);
    assert_eq!(changed[1].rules, bundled[1].rules);
    assert_ne!(changed[1].files, bundled[1].files);
}

#[tokio::test]
async fn symlink_out_of_task_part_fails_its_task_and_refuses_a_strict_run_or_one_without_others() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    for task in ["a", "b", "c"] {
        project.task(&format!("set/{task}"));
    }
    symlink("/etc/passwd", project.path("set/a/environment/passwd")).expect("linked");
    symlink("../../c", project.path("set/b/tests/up")).expect("linked");
    symlink("solve.sh", project.path("set/c/solution/same.sh")).expect("linked");
    let expected = ["set/a/environment/passwd", "set/b/tests/up"].map(|file| project.path(file));
    let refused = async |strict, scratch: &str| {
        let (job, datasets, _) = project.load(strict).expect("no faults");
        let sink = project.sink(scratch, None);
        let error = bundle(&job, datasets, &sink).await.expect_err("faults");
        let BundleError::Config(errors) = error else { panic!("faults of files: {error}") };
        assert!(errors.errors.iter().all(|error| error.kind == ErrorKind::BadFile), "{errors}");
        errors.errors.into_iter().map(|error| error.file).collect::<Vec<_>>()
    };
    assert_eq!(refused(true, "strict").await, expected);
    let bundled = project.bundle("scratch").await;
    for (task, entry) in bundled.iter().zip(["environment/passwd", "tests/up"]) {
        let fault = task.spec.fault.as_ref().expect("a fault");
        assert_eq!(fault.kind, ErrorType::TaskInvalid);
        assert!(fault.message.contains(&format!("cannot be read: {entry}: ")), "{fault}");
    }
    assert_eq!(bundled[2].spec.fault, None);
    fs::remove_dir_all(project.path("set/c")).expect("removed");
    assert_eq!(refused(false, "alone").await, expected);
}

#[test]
fn packing_that_outlives_its_caller_holds_the_scratch_directory() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.task("set/a");
    let (job, datasets, _) = project.load(true).expect("no faults");
    let holder = Arc::new(());
    let sink =
        BundleSink { holder: Some(Arc::clone(&holder) as _), ..project.sink("scratch", None) };
    // Its only thread for blocking work is busy.
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build();
    let (release, released) = std::sync::mpsc::channel::<()>();
    runtime.expect("a runtime").block_on(async {
        let mut busy = std::pin::pin!(supervise::blocking(move || released.recv().is_err()));
        assert!(futures_util::poll!(&mut busy).is_pending());
        {
            let mut bundling = std::pin::pin!(bundle(&job, datasets, &sink));
            assert!(futures_util::poll!(&mut bundling).is_pending());
        }
        drop(sink);
        assert_eq!(Arc::strong_count(&holder), 2, "packing waits for the thread");
        drop(release);
        busy.await;
        supervise::blocking(|| ()).await;
        assert_eq!(Arc::strong_count(&holder), 1, "it has ended");
    });
}

#[tokio::test]
async fn scratch_directory_unusable_is_no_fault_of_task() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.task("set/a");
    let (job, datasets, _) = project.load(true).expect("no faults");
    let scratch = project.path("absent");
    let (store, holder, pack_cache) = (None, None, None);
    let sink = BundleSink { store, scratch: scratch.clone(), holder, pack_cache };
    let error = bundle(&job, datasets, &sink).await.expect_err("no directory");
    let BundleError::Scratch(cause) = error else { panic!("of the scratch directory: {error}") };
    let start = format!("cannot create {}", scratch.display());
    assert!(cause.to_string().starts_with(&start), "{cause}");
}

#[tokio::test]
async fn task_directory_removed_is_fault_of_that_task_only() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.task("set/a");
    project.task("set/b");
    let (job, datasets, _) = project.load(true).expect("no faults");
    fs::remove_dir_all(project.path("set/a")).expect("removed");
    let bundled = bundle(&job, datasets, &project.sink("scratch", None)).await.expect("bundled");
    let kinds: Vec<_> = bundled.iter().map(|t| t.spec.fault.as_ref().map(|f| f.kind)).collect();
    assert_eq!(kinds, [Some(ErrorType::TaskNotFound), None]);
}

/// Loads the tasks of both formats that tests of all providers share.
fn formats(provider: &str, format: &str, strict: bool) -> Result<Vec<DatasetTask>, ConfigErrors> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/formats");
    let project = DatasetProject::new(&format!(
        "agents: [{{name: oracle}}]\nenvironment: {{type: {provider}}}\n\
         task_env: [ROLLOUT_FIXTURE_ABSENT]\n\
         datasets: [{{path: '{}', format: {format}}}]\n",
        fixtures.join(format).display()
    ));
    project.load(strict).map(|(_, mut datasets, _)| datasets.remove(0).tasks)
}

#[test]
fn fixture_tasks_of_both_formats_are_loaded() {
    for format in ["rollout", "harbor"] {
        let tasks = formats("docker", format, false).expect("no faults of the run");
        assert!(tasks.len() > 10);
        let faulty: Vec<&str> = tasks
            .iter()
            .filter(|task| task.fault.is_some())
            .map(|task| task.name.as_str())
            .collect();
        let expected: &[&str] = if format == "rollout" { &["no-tests"] } else { &[] };
        assert_eq!(faulty, expected);
    }
}

impl DatasetProject {
    /// Creates a Harbor task with two steps, shared tests and a separate verifier.
    fn steps(&self, dir: &str) {
        let text = "schema_version = \"1.4\"\n[environment]\ndocker_image = \"some/image:1\"\n\
                    [[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n\
                    [steps.verifier.environment]\n";
        self.write(&format!("{dir}/task.toml"), text);
        self.write(&format!("{dir}/environment/docker-compose.yaml"), "services: {}\n");
        self.write(&format!("{dir}/.harborignore"), "*.secret\n");
        self.write(&format!("{dir}/tests/helper.sh"), "shared\n");
        self.write(&format!("{dir}/tests/test.sh"), "shared\n");
        self.write(&format!("{dir}/solution/solve.sh"), "shared\n");
        self.write(&format!("{dir}/steps/one/instruction.md"), "# canary\n\nOne.\n");
        self.write(&format!("{dir}/steps/one/tests/test.sh"), "one\n");
        self.write(&format!("{dir}/steps/one/tests/x.secret"), "secret\n");
        self.write(&format!("{dir}/steps/one/workdir/setup.sh"), "true\n");
        self.write(&format!("{dir}/steps/two/instruction.md"), "Two.\n");
        self.write(&format!("{dir}/steps/two/tests/Dockerfile"), "FROM scratch\n");
        self.write(&format!("{dir}/steps/two/solution/solve.sh"), "two\n");
    }
}

#[tokio::test]
async fn task_with_steps_is_bundled_with_every_part() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.steps("set/a");
    let (job, datasets, _) = project.load(true).expect("no faults");
    let store: Arc<dyn BlobStore> =
        Arc::new(FsStore::open(project.path("blobs")).await.expect("a store"));
    let sink = project.sink("scratch", Some(Arc::clone(&store)));
    let bundled = bundle(&job, datasets, &sink).await.expect("bundled");
    assert_eq!(fs::read_dir(&sink.scratch).expect("listed").count(), 0, "nothing is left over");
    let spec = &bundled[0].spec;
    assert_eq!(spec.environment.compose.as_deref(), Some("docker-compose.yaml"));
    let [one, two] = spec.steps.as_slice() else { panic!("two steps") };
    let text = async |blob: &Option<BlobRef>| {
        let digest = blob.as_ref().expect("packed").digest;
        let bytes = store.get_bytes(&digest, 1 << 20).await.expect("stored");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    assert_eq!(text(&one.files.instruction).await, "One.\n");
    let tests = text(&one.files.tests).await;
    assert!(tests.contains("helper.sh") && tests.contains("one\n"), "laid over the shared ones");
    assert!(!tests.contains("secret"), "what is ignored stays here");
    assert!(text(&one.files.solution).await.contains("shared\n"));
    assert!(text(&one.files.workdir).await.contains("setup.sh"));
    assert!(text(&two.files.solution).await.contains("two\n"));
    assert_eq!(two.files.tests, None, "they are in the verifier's own image");
    let own = two.verifier.environment.as_ref().expect("its own");
    assert!(text(&own.context).await.contains("FROM scratch"));
    assert!(spec.environment.context.is_some(), "the file with services is in it");
    assert_eq!(spec.rules, ScriptRules::for_format(TaskFormat::Harbor));
}

#[test]
fn task_with_steps_lists_missing_files_of_each_step() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.steps("set/a");
    for file in [
        "steps/one/instruction.md",
        "steps/two/tests/Dockerfile",
        "tests/test.sh",
        "steps/one/tests/test.sh",
    ] {
        fs::remove_file(project.path("set/a").join(file)).expect("removed");
    }
    let (_, datasets, _) = project.load(false).expect("no faults of the run");
    let fault = datasets[0].tasks[0].fault.as_ref().expect("a fault");
    let lacks = "lacks steps/one/instruction.md, steps/one/tests/test.sh, steps/two/tests/test.sh";
    assert!(fault.message.contains(lacks), "{fault}");
}

#[test]
fn symlink_as_step_directory_is_refused() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.steps("set/a");
    fs::rename(project.path("set/a/steps/one"), project.path("elsewhere")).expect("moved");
    symlink(project.path("elsewhere"), project.path("set/a/steps/one")).expect("linked");
    let faults = project.faults(false);
    assert_eq!(faults[0], ("set/a/steps/one".to_owned(), String::new(), ErrorKind::BadFile));
}

#[tokio::test]
async fn unchanged_task_is_not_packed_or_stored_again() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.task("set/a");
    project.steps("set/b");
    // Older than the settle time: the change time cannot be set, so the test waits.
    let (job, datasets, _) = project.load(true).expect("no faults");
    let settled = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !["set/a", "set/b"].iter().all(|dir| {
        let parts = ["environment", "tests", "solution"].map(Path::new);
        let look = fingerprint::compute(&project.path(dir), parts, "");
        look.is_some_and(|look| look.settled)
    }) {
        assert!(std::time::Instant::now() < settled, "the files never settle");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let inner: Arc<dyn BlobStore> =
        Arc::new(FsStore::open(project.path("blobs")).await.expect("a store"));
    let store = Arc::new(FaultyStore::new(inner));
    let stored = || store.count(StoreCall::PutBytes) + store.count(StoreCall::PutFile);
    let mut digests = Vec::new();
    let mut puts = Vec::new();
    for round in ["first", "second", "third"] {
        if round == "third" {
            fs::remove_dir_all(project.path("blobs/blobs")).expect("removed");
            fs::create_dir(project.path("blobs/blobs")).expect("made");
        }
        let pack_cache = Some(Arc::new(PackCache::new(project.path("known"))));
        let sink = BundleSink { pack_cache, ..project.sink(round, Some(Arc::clone(&store) as _)) };
        let before = stored();
        let bundled = bundle(&job, datasets.clone(), &sink).await.expect("bundled");
        digests.push(bundled.iter().map(|task| task.digest).collect::<Vec<_>>());
        puts.push(stored() - before);
        assert_eq!(fs::read_dir(&sink.scratch).expect("listed").count(), 0, "nothing is left over");
    }
    assert!(puts[0] > 0);
    assert_eq!(puts[1], 0, "all of it is there");
    assert_eq!(puts[2], puts[0], "what is gone from the store is stored again");
    assert_eq!(digests[1], digests[0]);
    assert_eq!(digests[2], digests[0]);
}
