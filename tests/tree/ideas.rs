//! The command for ideas in sandboxes of this kernel.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollout_coordinator::config::{Problems, TreeFile, TreeOptions, TreeOverrides, read_tree};
use rollout_coordinator::workloads::search::driver::IdeasOrder;
use rollout_coordinator::workloads::search::generator::{
    Generator, Holder, IdeasError, IdeasFault,
};
use rollout_protocol::wire::control::StopLevel;
use rollout_tests::docker::Engine;
use rollout_tests::{processes, sandbox, wait};
use rollout_worker::environment::docker::{DockerOptions, DockerProvider};
use rollout_worker::environment::{Labels, Provider};
use rollout_worker::executor::{TaskFiles, TrialServices};
use rollout_worker::secrets::TrialVariables;
use rollout_worker::store::MemoryStore;
use serde_json::json;
use tokio::sync::watch;

/// Longest that something may take that is due at once.
const SOON: Duration = Duration::from_secs(120);

/// A search's directory, and sandboxes or containers for its command.
struct Bench {
    directory: tempfile::TempDir,
    stop: watch::Sender<Option<StopLevel>>,
    /// What makes the environment, as the search's file says it.
    environment: serde_json::Value,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let environment = json!({ "type": "process" });
        let bench = Self { directory, stop: watch::Sender::new(None), environment };
        for (path, text) in [
            ("base.csv", "config_id\n0\n"),
            ("prior/one.md", "- One\n"),
            ("runs/run/wt/0000/src/value", "1\n"),
            ("runs/run/wt/0000/.git", "gitdir: elsewhere\n"),
            ("runs/run/context/0000/history.md", "# History\n"),
            ("runs/run/node_ideas/.new-0000/none", ""),
        ] {
            let path = bench.path(path);
            std::fs::create_dir_all(path.parent().expect("below")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        std::fs::remove_file(bench.target().join("none")).expect("removed");
        bench
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    fn target(&self) -> PathBuf {
        self.path("runs/run/node_ideas/.new-0000")
    }

    /// A mark that no other process of this machine has.
    fn mark(&self) -> String {
        let name = self.directory.path().file_name().expect("a name");
        name.to_string_lossy().trim_start_matches('.').to_owned()
    }

    fn tree(&self, script: &str, timeout_sec: f64) -> TreeFile {
        let command = |run: &str| json!({ "run": run, "timeout_sec": timeout_sec });
        let text = json!({
            "tree_run_id": "run",
            "root_baseline_csv": "base.csv",
            "environment": self.environment,
            "commands": {
                "ideas": command(script),
                "implement": command("true"),
                "sweep": command("true"),
            },
        });
        let file = self.path("tree.json");
        std::fs::write(&file, text.to_string()).expect("written");
        let runs_root = Some(self.path("runs"));
        let is_set = |_: &str| true;
        let overrides = TreeOverrides { runs_root, ..TreeOverrides::default() };
        let options = TreeOptions { overrides, ..TreeOptions::new(&is_set) };
        let mut problems = Problems::default();
        let tree = read_tree(&file, &options, &mut problems);
        problems.finish(tree).expect("no faults").0.expect("a search")
    }

    fn order(&self) -> IdeasOrder {
        let node = json!({
            "node_id": "0000",
            "depth": 0,
            "commit": "c",
            "ref_name": "tree/run/n0000",
            "worktree_path": "wt/0000",
            "baseline_results_csv_path": "artifacts/root_baseline.csv",
            "baseline_provenance": { "source_path": "b", "copied_to_path": "b", "sha256": "" },
            "idea_chain": [],
            "created_at": "1970-01-01T00:00:00Z",
            "status": "frontier",
            "node_ideas_dir": "node_ideas/0000",
        });
        IdeasOrder {
            node: serde_json::from_value(node).expect("a node"),
            into: self.target(),
            count: 4,
            context: vec![self.path("prior")],
            pack: self.path("runs/run/context/0000"),
        }
    }

    fn provider(&self) -> Arc<dyn Provider> {
        if self.environment["type"] == "docker" {
            let options = DockerOptions::new(self.path("locks"));
            return Arc::new(DockerProvider::new(options));
        }
        let helper = Path::new(env!("CARGO_BIN_EXE_sandbox-helper"));
        Arc::new(sandbox::provider(&self.path("sandboxes"), helper))
    }

    async fn generate(&self, script: &str, timeout_sec: f64) -> Result<f64, IdeasError> {
        let provider = self.provider();
        let files = TaskFiles::open(&self.path("files"), Arc::new(MemoryStore::default()));
        let services = TrialServices {
            providers: [(provider.kind(), provider)].into(),
            files: files.expect("a directory"),
            variables: TrialVariables::default(),
            disks: Arc::default(),
            host: "host".to_owned(),
        };
        let Labels { run, worker, owner, .. } = sandbox::labels();
        let tree = self.tree(script, timeout_sec);
        let generator = Generator::new(&tree, Arc::new(services), Holder { run, worker, owner });
        let generated = generator.generate(&self.order(), self.stop.subscribe()).await;
        let left = std::fs::read_dir(self.path("sandboxes")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "sandboxes after {generated:?}");
        assert!(!self.path("runs/run/node_ideas/.work-0000").exists(), "{generated:?}");
        assert_eq!(processes::with_mark(&self.mark()).len(), 0, "{generated:?}");
        generated
    }

    /// The ideas that were taken, by name.
    fn ideas(&self) -> Vec<(String, String)> {
        let entries = std::fs::read_dir(self.target()).expect("there");
        let mut found: Vec<_> = entries
            .map(|entry| entry.expect("listed"))
            .map(|entry| {
                let text = std::fs::read_to_string(entry.path()).expect("text");
                (entry.file_name().to_string_lossy().into_owned(), text)
            })
            .collect();
        found.sort();
        found
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path("runs/run/logs/ideas/0000").join(name)).expect(name)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generator_reads_what_there_is_and_its_ideas_are_taken() {
    let bench = Bench::new();
    let mark = bench.mark();
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
    let cost = bench.generate(&script, 60.0).await;
    let cost = cost.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert!((cost - 1.25).abs() < 1e-12);
    let wanted: Vec<_> =
        (1..=4).map(|n| (format!("idea-{n}.md"), format!("- Idea {n}\n"))).collect();
    assert_eq!(bench.ideas(), wanted);
    assert_eq!(bench.log("stdout.txt"), "1\n- One\n# History\n");
    assert_eq!(bench.log("logs/note"), "kept\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_hostile_command_leaves_does_no_harm() {
    let bench = Bench::new();
    let script = "cd $ROLLOUT_IDEAS_DIR\n\
        ln -s /etc/passwd link.md; ln -s /etc linked; mkfifo pipe.md; mkdir -p a/b\n\
        echo x > a/b/deep.md; echo y > .hidden.md; echo z > $'new\\nline.md'; : > empty.md\n\
        head -c 300000 /dev/zero > large.md; echo good > good.md; ln good.md same.md\n\
        ln -s /etc/passwd $ROLLOUT_COST_FILE; mkfifo $ROLLOUT_LOGS_DIR/pipe\n";
    let cost = bench.generate(script, 60.0).await;
    assert!(cost.unwrap_or_else(|error| panic!("{}", error.chain())) == 0.0);
    let ideas = bench.ideas();
    // Of two names of one file, one may be given as a link.
    assert!(ideas.iter().all(|(name, text)| {
        ["good.md", "same.md"].contains(&name.as_str()) && text == "good\n"
    }));
    assert!(!ideas.is_empty());
    let told = bench.log("left_out.txt");
    for name in ["\"a\"", ".hidden.md", "empty.md", "large.md", "links"] {
        assert!(told.contains(name), "{name} not in {told}");
    }
    let error = bench.generate("head -c 80000000 /dev/zero > /ideas/huge", 60.0).await;
    let error = error.expect_err("too much");
    assert!(matches!(error.fault, IdeasFault::Unreadable(_)), "{error:?}");
    let error = bench.generate("rm -rf /ideas; ln -s /etc /ideas", 60.0).await;
    assert!(error.is_err(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_and_time_limits_leave_no_process() {
    let bench = Bench::new();
    let mark = bench.mark();
    let sleeper = format!("setsid bash -c 'exec -a {mark} sleep 100000' > /dev/null 2>&1 &");
    let error = bench.generate(&format!("{sleeper}\necho gone wrong >&2; exit 7"), 60.0).await;
    let text = "the command `ideas` for node 0000: it ended with code 7: gone wrong";
    assert_eq!(error.expect_err("it failed").chain(), text);
    let slow = format!("{sleeper}\ntrap '' TERM; echo on it >&2; sleep 100000");
    let error = bench.generate(&slow, 0.5).await.expect_err("it took too long");
    assert!(error.chain().ends_with("it was ended after 500ms: on it"), "{}", error.chain());
    assert_eq!(bench.ideas(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_ends_a_command_at_once() {
    let bench = Bench::new();
    let mark = bench.mark();
    let script = format!("echo x > /ideas/a.md; exec -a {mark} sleep 100000");
    let killing = async {
        let is_running = async || !processes::with_mark(&mark).is_empty();
        wait::until_so(SOON, "the command runs", is_running).await;
        bench.stop.send_replace(Some(StopLevel::Kill));
    };
    let (ended, ()) = tokio::join!(bench.generate(&script, 100_000.0), killing);
    let error = ended.expect_err("stopped");
    assert!(matches!(error.fault, IdeasFault::Stopped), "{error:?}");
    assert_eq!(bench.ideas(), []);
}

#[test]
fn a_container_does_as_well() {
    if Engine::available().is_none() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let bench = Bench {
        environment: json!({ "type": "docker", "docker_image": "debian:bookworm-slim" }),
        ..Bench::new()
    };
    let script = "cat src/value; ls -A; cat $ROLLOUT_CONTEXT_PACK_DIR/history.md\n\
        cat ${ROLLOUT_CONTEXT_IDEAS_DIRS%%:*}/one.md; echo - Idea > $ROLLOUT_IDEAS_DIR/a.md\n\
        ln -s /etc/passwd $ROLLOUT_IDEAS_DIR/b.md; echo 2 > $ROLLOUT_COST_FILE";
    let cost = runtime.block_on(bench.generate(script, 60.0));
    let cost = cost.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert!((cost - 2.0).abs() < 1e-12);
    assert_eq!(bench.ideas(), [("a.md".to_owned(), "- Idea\n".to_owned())]);
    assert_eq!(bench.log("stdout.txt"), "1\nsrc\n# History\n- One\n");
    let error = runtime.block_on(bench.generate("sleep 1000", 0.5)).expect_err("too slow");
    assert!(matches!(error.fault, IdeasFault::TimedOut { .. }), "{error:?}");
}
