//! Tests of files for the working directory of a named image.

use super::*;

#[test]
fn environment_files_of_named_image_are_for_its_working_directory() {
    let named = "[environment]\ndocker_image = 'some/image'\n";
    for (what, text, files, placed) in [
        ("named", named, &["environment/data/x.txt"][..], true),
        (
            "named, with services",
            named,
            &["environment/docker-compose.yaml", "environment/db/passwords.txt"],
            false,
        ),
        ("named, with a Dockerfile", named, &["environment/Dockerfile", "environment/x"], false),
        ("built", "version = '1.0'\n", &["environment/Dockerfile", "environment/x"], false),
        ("named, nothing", named, &[], false),
    ] {
        let project = DatasetProject::new(&job("{path: ./set}"));
        project.task("set/a");
        fs::remove_dir_all(project.path("set/a/environment")).expect("removed");
        fs::create_dir(project.path("set/a/environment")).expect("made");
        files.iter().for_each(|file| project.write(&format!("set/a/{file}"), "services: {}\n"));
        project.write("set/a/task.toml", text);
        let (_, datasets, _) = project.load(false).expect("no faults of the run");
        let found = &datasets[0].tasks[0].parts.workdir_files;
        assert_eq!(found.as_deref(), placed.then_some(Path::new("environment")), "{what}");
    }
}

#[test]
fn forced_build_of_named_image_needs_a_dockerfile() {
    let forced = format!("environment: {{force_build: true}}\n{}", job("{path: ./set}"));
    let project = DatasetProject::new(&forced);
    for (task, file) in [("a", "environment/x"), ("b", "environment/Dockerfile")] {
        project.task(&format!("set/{task}"));
        fs::remove_dir_all(project.path(&format!("set/{task}/environment"))).expect("removed");
        project.write(&format!("set/{task}/{file}"), "FROM scratch\n");
        let text = "[environment]\ndocker_image = 'some/image'\n";
        project.write(&format!("set/{task}/task.toml"), text);
    }
    let (_, datasets, _) = project.load(false).expect("no faults of the run");
    let parts = datasets[0].tasks.iter().map(|task| {
        assert!(task.fault.is_none(), "{:?}", task.fault);
        (task.parts.workdir_files.is_some(), task.parts.context.is_some())
    });
    assert_eq!(parts.collect::<Vec<_>>(), [(true, false), (false, true)]);
}

#[tokio::test]
async fn environment_files_of_named_image_are_bundled_for_agent_and_verifier() {
    let project = DatasetProject::new(&job("{path: ./set}"));
    project.task("set/a");
    fs::remove_file(project.path("set/a/environment/Dockerfile")).expect("removed");
    let text = "[environment]\ndocker_image = 'some/image'\n[verifier.environment]\ncpus = 1\n";
    project.write("set/a/task.toml", text);
    project.write("set/a/environment/.dockerignore", "data\n");
    project.write("set/a/environment/data/x.txt", "one");
    let (job, datasets, _) = project.load(true).expect("no faults");
    let store: Arc<dyn BlobStore> =
        Arc::new(FsStore::open(project.path("blobs")).await.expect("a store"));
    let sink = project.sink("first", Some(Arc::clone(&store)));
    let bundled = bundle(&job, datasets.clone(), &sink).await.expect("bundled");
    let spec = &bundled[0].spec;
    let placed = spec.environment.workdir_files.as_ref().expect("packed");
    let bytes = store.get_bytes(&placed.digest, 1 << 20).await.expect("stored");
    // Rules for builds do not count: nothing is built.
    assert!(String::from_utf8_lossy(&bytes).contains("data/x.txt"));
    assert_eq!(spec.environment.context, None);
    let own = spec.steps[0].verifier.environment.as_ref().expect("its own");
    assert_eq!(own.docker_image.as_deref(), Some("some/image"));
    assert_eq!(own.workdir_files.as_ref(), Some(placed));

    project.write("set/a/environment/data/x.txt", "two");
    let changed = bundle(&job, datasets, &project.sink("second", None)).await.expect("bundled");
    assert_ne!(changed[0].files, bundled[0].files);
}
