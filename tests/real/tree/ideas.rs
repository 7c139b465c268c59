//! The command that writes ideas, in sandboxes and in containers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollout_base::secrets::TrialVariables;
use rollout_docker::{DockerOptions, DockerProvider};
use rollout_environment::{EnvironmentLabels, Provider};
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::record::{IdeasEnd, IdeasRecord, LogsRecord};
use rollout_protocol::spec::environment::{
    EnvironmentRates, EnvironmentSpec, PreservePolicy, ProviderSpec,
};
use rollout_protocol::spec::eval::{EvalCommand, RepositorySpec};
use rollout_protocol::spec::ideas::{EarlierIdeas, IdeasOrigin, IdeasSpec};
use rollout_protocol::spec::task::TaskEnvironment;
use rollout_protocol::wire::control::StopLevel;
use rollout_store::archive::{self, ArchiveLimits, FilterDecision};
use rollout_store::git::testing::UserRepository;
use rollout_store::{BlobStore as _, MemoryStore};
use rollout_tests::docker::DockerEngine;
use rollout_tests::{processes, sandbox, wait};
use rollout_worker::executor::{
    DedicatedSlot, ExecutionContext, ExecutionServices, NoEventLog, PhaseSink, ScratchWork,
    TaskFiles,
};
use rollout_worker::work::eval::Repositories;
use rollout_worker::work::ideas::{self, IdeasContext};
use tokio::sync::watch;

/// Longest wait for something that happens at once.
const WAIT_DEADLINE: Duration = Duration::from_secs(120);

/// A phase sink that ignores phases.
#[derive(Debug)]
struct IgnoredPhases;

impl PhaseSink for IgnoredPhases {
    fn entered(&self, _phase: rollout_protocol::phase::Phase) {}
}

/// A repository and a store, and sandboxes or containers for the command.
struct IdeasFixture {
    stop: watch::Sender<Option<StopLevel>>,
    store: Arc<MemoryStore>,
    user: UserRepository,
    /// The image of containers; `None` for sandboxes.
    image: Option<&'static str>,
    directory: tempfile::TempDir,
}

impl IdeasFixture {
    fn new() -> Self {
        let user = UserRepository::default();
        user.write("src/value", "1\n");
        Self {
            directory: tempfile::tempdir().expect("a directory"),
            stop: watch::Sender::new(None),
            store: Arc::default(),
            user,
            image: None,
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// A mark that no other process of this machine has.
    fn mark(&self) -> String {
        let name = self.directory.path().file_name().expect("a name");
        name.to_string_lossy().trim_start_matches('.').to_owned()
    }

    async fn packed(&self, name: &str, text: &str) -> BlobRef {
        let dir = tempfile::tempdir().expect("a directory");
        let (from, tar) = (dir.path().join("files"), dir.path().join("files.tar"));
        std::fs::create_dir(&from).expect("made");
        std::fs::write(from.join(name), text).expect("written");
        archive::pack(&from, &tar, ArchiveLimits::BUNDLE, &|_, _| FilterDecision::Include)
            .expect("packed");
        self.store.put_file(&tar, MediaType::Tar).await.expect("stored")
    }

    async fn spec(&self, script: &str, timeout_sec: f64) -> IdeasSpec {
        let root = self.user.stored(&self.user.commit("root"), self.store.as_ref()).await;
        let archive = self.packed("one.md", "- One\n").await;
        let provider = match self.image {
            Some(_) => ProviderSpec::Docker(Default::default()),
            None => ProviderSpec::Process(Default::default()),
        };
        IdeasSpec {
            name: IdeasOrigin { tree: "run".into(), node: "0000".into() },
            repository: RepositorySpec { root, chain: Vec::new() },
            command: EvalCommand {
                script: script.to_owned(),
                agent: None,
                timeout_sec: Some(timeout_sec),
                env: BTreeMap::new(),
            },
            environment: TaskEnvironment {
                docker_image: self.image.map(str::to_owned),
                ..TaskEnvironment::default()
            },
            settings: EnvironmentSpec {
                provider,
                force_build: false,
                preserve_env: PreservePolicy::default(),
                rates: EnvironmentRates::default(),
            },
            count: 4,
            earlier: vec![EarlierIdeas { name: "00-prior".into(), archive }],
            pack: self.packed("history.md", "# History\n").await,
            gateway: None,
            secrets: std::collections::BTreeSet::new(),
        }
    }

    fn provider(&self) -> Arc<dyn Provider> {
        if self.image.is_some() {
            let options = DockerOptions::new(self.path("locks"));
            return Arc::new(DockerProvider::new(options));
        }
        let helper = Path::new(env!("CARGO_BIN_EXE_rollout-under-test"));
        Arc::new(sandbox::provider(&self.path("sandboxes"), helper))
    }

    async fn run(&self, script: &str, timeout_sec: f64) -> IdeasRecord {
        let provider = self.provider();
        let files = TaskFiles::open(&self.path("files"), self.store.clone());
        let services = ExecutionServices {
            providers: [(provider.kind(), provider)].into(),
            files: files.expect("a directory"),
            variables: TrialVariables::default(),
            gateway: None,
            disks: Arc::default(),
            host: "host".to_owned(),
        };
        let scratch = tempfile::tempdir_in(self.directory.path()).expect("a directory");
        let repositories = Repositories::open(scratch.path(), self.store.clone(), 1 << 30);
        let labels: EnvironmentLabels = sandbox::labels();
        let context = IdeasContext {
            execution: ExecutionContext {
                labels,
                spec: Digest::sha256(b"spec"),
                scratch: scratch.path().join("scratch"),
                scratch_work: ScratchWork::default(),
                stop: self.stop.subscribe(),
                phases: Arc::new(IgnoredPhases),
                slot: Arc::new(DedicatedSlot),
                max_park: Duration::ZERO,
                has_model_leases: false,
                controls: Arc::default(),
                event_log: Arc::new(NoEventLog),
            },
            ideas: Arc::new(self.spec(script, timeout_sec).await),
            permits: Arc::new(()),
        };
        let finished = ideas::run(context, &services, &repositories.expect("opened")).await;
        let left = std::fs::read_dir(self.path("sandboxes")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "sandboxes after {finished:?}");
        // A sandbox that was killed during its creation may take a moment to end.
        let is_gone = async || processes::with_mark(&self.mark()).is_empty();
        wait::until_async(WAIT_DEADLINE, "no process is left", is_gone).await;
        finished.store(self.store.as_ref()).await.expect("stored")
    }

    /// Files of an archive of a record, by name.
    async fn files(&self, archive: Option<&LogsRecord>) -> Vec<(String, String)> {
        let Some(archive) = archive else { return Vec::new() };
        let dir = tempfile::tempdir().expect("a directory");
        let source = self.store.get(&archive.archive.digest).await.expect("stored");
        let into = dir.path().join("files");
        archive::extract(source, &into, ArchiveLimits::LOGS).await.expect("unpacked");
        let entries = std::fs::read_dir(&into).expect("listed");
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.expect("listed").path();
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            (path.file_name().expect("a name").to_string_lossy().into_owned(), text)
        };
        let mut found: Vec<_> = entries.map(read).collect();
        found.sort();
        found
    }

    async fn output(&self, record: &IdeasRecord, path: &str) -> String {
        let output = record.outputs.iter().find(|output| output.path == path).expect(path);
        let bytes = self.store.get_bytes(&output.blob.digest, 1 << 20).await.expect("stored");
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn message(record: &IdeasRecord) -> &str {
    assert_eq!(record.end, IdeasEnd::Failed, "{record:?}");
    &record.error.as_ref().expect("an error").message
}

#[tokio::test(flavor = "multi_thread")]
async fn ideas_command_reads_inputs_and_returns_ideas() {
    let fixture = IdeasFixture::new();
    let mark = fixture.mark();
    let script = format!(
        "set -eu\n\
         [ \"$PWD\" = \"$ROLLOUT_REPOSITORY\" ] && [ ! -e .git ] && cat src/value\n\
         (IFS=:; for dir in $ROLLOUT_CONTEXT_IDEAS_DIRS; do cat \"$dir\"/*.md; done)\n\
         cat \"$ROLLOUT_CONTEXT_PACK_DIR/history.md\"\n\
         for n in $(seq $ROLLOUT_IDEAS_COUNT); do\n\
           echo \"- Idea $n\" > \"$ROLLOUT_IDEAS_DIR/idea-$n.md\"\n\
         done\n\
         echo kept > \"$ROLLOUT_LOGS_DIR/note\"; echo 1.25 > \"$ROLLOUT_COST_FILE\"\n\
         setsid bash -c 'exec -a {mark} sleep 100000' > /dev/null 2>&1 &\n\
         sleep 0.2"
    );
    let record = fixture.run(&script, 60.0).await;
    assert_eq!((record.end, &record.error), (IdeasEnd::Written, &None));
    assert_eq!(record.reported_cost, Some(1.25));
    let wanted: Vec<_> =
        (1..=4).map(|n| (format!("idea-{n}.md"), format!("- Idea {n}\n"))).collect();
    assert_eq!(fixture.files(record.ideas.as_ref()).await, wanted);
    assert_eq!(fixture.output(&record, "stdout.txt").await, "1\n- One\n# History\n");
    let logs = fixture.files(record.logs.as_ref()).await;
    assert_eq!(logs, [("note".to_owned(), "kept\n".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn symlink_and_special_files_in_ideas_are_left_out() {
    let fixture = IdeasFixture::new();
    let script = "cd $ROLLOUT_IDEAS_DIR\n\
        ln -s /etc/passwd link.md; ln -s /etc linked; mkfifo pipe.md; mkdir -p a/b\n\
        echo x > a/b/deep.md; echo y > .hidden.md; echo z > $'new\\nline.md'; : > empty.md\n\
        head -c 300000 /dev/zero > large.md; echo good > good.md; ln good.md same.md\n\
        ln -s /etc/passwd $ROLLOUT_COST_FILE; mkfifo $ROLLOUT_LOGS_DIR/pipe\n";
    let record = fixture.run(script, 60.0).await;
    assert_eq!((record.end, record.reported_cost), (IdeasEnd::Written, None), "{record:?}");
    let ideas = fixture.files(record.ideas.as_ref()).await;
    // One of two names of a file may be archived as a link.
    assert!(ideas.iter().all(|(name, text)| {
        ["good.md", "same.md"].contains(&name.as_str()) && text == "good\n"
    }));
    assert!(!ideas.is_empty());
    let reasons = record.left_out.join("\n");
    for name in ["\"a\"", ".hidden.md", "empty.md", "large.md", "links"] {
        assert!(reasons.contains(name), "{name} not in {reasons}");
    }
    let record = fixture.run("head -c 80000000 /dev/zero > /ideas/huge", 60.0).await;
    assert!(message(&record).contains("cannot read the ideas"), "{record:?}");
    let record = fixture.run("rm -rf /ideas; ln -s /etc /ideas", 60.0).await;
    assert_eq!(record.end, IdeasEnd::Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn ideas_command_failure_or_timeout_leaves_no_process() {
    let fixture = IdeasFixture::new();
    let mark = fixture.mark();
    let sleeper = format!("setsid bash -c 'exec -a {mark} sleep 100000' > /dev/null 2>&1 &");
    let record = fixture.run(&format!("{sleeper}\necho gone wrong >&2; exit 7"), 60.0).await;
    assert_eq!(message(&record), "ideas: the command ended with code 7: gone wrong");
    let slow = format!("{sleeper}\ntrap '' TERM; echo on it >&2; sleep 100000");
    let record = fixture.run(&slow, 0.5).await;
    assert!(message(&record).contains("500ms"), "{record:?}");
    assert_eq!(fixture.output(&record, "stderr.txt").await, "on it\n");
    assert_eq!(record.ideas, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_of_ideas_command_is_immediate() {
    let fixture = IdeasFixture::new();
    // The mark alone is also in the arguments of the processes that create the sandbox.
    let command = format!("{}-command", fixture.mark());
    let script = format!("echo x > /ideas/a.md; exec -a {command} sleep 100000");
    let killing = async {
        let is_running = async || !processes::with_mark(&command).is_empty();
        wait::until_async(WAIT_DEADLINE, "the command runs", is_running).await;
        fixture.stop.send_replace(Some(StopLevel::Kill));
    };
    let (record, ()) = tokio::join!(fixture.run(&script, 100_000.0), killing);
    assert_eq!((record.end, record.ideas), (IdeasEnd::Stopped, None));
}

#[test]
fn ideas_command_in_container_returns_ideas() {
    if DockerEngine::available().is_none() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let fixture = IdeasFixture { image: Some("debian:bookworm-slim"), ..IdeasFixture::new() };
    let script = "cat src/value; ls -A; cat $ROLLOUT_CONTEXT_PACK_DIR/history.md\n\
        cat ${ROLLOUT_CONTEXT_IDEAS_DIRS%%:*}/one.md; echo - Idea > $ROLLOUT_IDEAS_DIR/a.md\n\
        ln -s /etc/passwd $ROLLOUT_IDEAS_DIR/b.md; echo 2 > $ROLLOUT_COST_FILE";
    let record = runtime.block_on(fixture.run(script, 60.0));
    assert_eq!((record.end, record.reported_cost), (IdeasEnd::Written, Some(2.0)), "{record:?}");
    let ideas = runtime.block_on(fixture.files(record.ideas.as_ref()));
    assert_eq!(ideas, [("a.md".to_owned(), "- Idea\n".to_owned())]);
    let printed = runtime.block_on(fixture.output(&record, "stdout.txt"));
    assert_eq!(printed, "1\nsrc\n# History\n- One\n");
    let record = runtime.block_on(fixture.run("sleep 1000", 0.5));
    assert!(message(&record).contains("500ms"), "{record:?}");
}
