//! A search's directory, and an engine that runs nothing, for tests of commands for ideas.

use std::collections::BTreeMap;

use rollout_protocol::spec::environment::ProviderKind;
use rollout_worker::environment::Provider;
use rollout_worker::environment::fake::FakeProvider;
use rollout_worker::executor::TaskFiles;
use rollout_worker::secrets::TrialVariables;
use rollout_worker::store::MemoryStore;
use rollout_worker::work::trial::testing;

use super::*;
use crate::config::{Problems, TreeOptions, TreeOverrides, read_tree};
use crate::workloads::search::policy::testing::begun;

/// A search's directory with a checkout of its root, earlier ideas and what is known.
pub(in crate::workloads::search) struct Bench {
    pub(in crate::workloads::search) directory: tempfile::TempDir,
    pub(in crate::workloads::search) provider: FakeProvider,
    pub(in crate::workloads::search) variables: TrialVariables,
    pub(in crate::workloads::search) stop: watch::Sender<Option<StopLevel>>,
}

impl Bench {
    pub(in crate::workloads::search) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let bench = Self {
            directory,
            provider: FakeProvider::default(),
            variables: TrialVariables::default(),
            stop: watch::Sender::new(None),
        };
        for (path, text) in [
            ("base.csv", "config_id\n0\n"),
            ("prior ideas/one.md", "- One"),
            ("prior ideas/.hidden", "no"),
            ("prior ideas/below/two.md", "no"),
            ("runs/run/wt/0000/value", "1\n"),
            ("runs/run/wt/0000/.git", "gitdir: elsewhere\n"),
            ("runs/run/context/0000/history.md", "# History\n"),
        ] {
            bench.write(path, text);
        }
        let link = bench.run().join("wt/0000/outside");
        std::os::unix::fs::symlink("/etc/passwd", link).expect("linked");
        std::fs::create_dir_all(bench.target()).expect("made");
        bench
    }

    pub(in crate::workloads::search) fn write(&self, path: &str, text: &str) {
        let path = self.directory.path().join(path);
        std::fs::create_dir_all(path.parent().expect("below")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    pub(in crate::workloads::search) fn run(&self) -> PathBuf {
        self.directory.path().join("runs/run")
    }

    pub(in crate::workloads::search) fn target(&self) -> PathBuf {
        self.run().join("node_ideas/.new-0000")
    }

    /// The file of a search whose command for ideas is this.
    pub(in crate::workloads::search) fn tree(&self, script: &str) -> TreeFile {
        let script: String = script.lines().map(|line| format!("      {line}\n")).collect();
        let text = format!(
            "tree_run_id: run\nroot_baseline_csv: base.csv\nenvironment: {{type: docker, \
             docker_image: image}}\ncommands:\n  ideas:\n    timeout_sec: 5\n    env: {{KEY: \
             '${{KEY:-none}}'}}\n    run: |\n{script}  implement: {{run: b}}\n  sweep: {{run: c}}\n"
        );
        self.write("tree.yaml", &text);
        let overrides = TreeOverrides {
            runs_root: Some(self.directory.path().join("runs")),
            ..TreeOverrides::default()
        };
        let is_set = |_: &str| true;
        let options = TreeOptions { overrides, ..TreeOptions::new(&is_set) };
        let mut problems = Problems::default();
        let tree = read_tree(&self.directory.path().join("tree.yaml"), &options, &mut problems);
        problems.finish(tree).expect("no faults").0.expect("a search")
    }

    pub(in crate::workloads::search) fn order(&self) -> IdeasOrder {
        IdeasOrder {
            node: begun(|_| {}).node(NodeId(0)).clone(),
            into: self.target(),
            count: 3,
            context: vec![self.directory.path().join("prior ideas")],
            pack: self.run().join("context/0000"),
        }
    }

    pub(in crate::workloads::search) async fn generate(
        &self,
        script: &str,
    ) -> Result<f64, IdeasError> {
        self.generate_with(self.tree(script)).await
    }

    pub(in crate::workloads::search) async fn generate_with(
        &self,
        tree: TreeFile,
    ) -> Result<f64, IdeasError> {
        let generated = self.generator(&tree).generate(&self.order(), self.stop.subscribe()).await;
        assert_eq!(self.provider.leaked(), Vec::<String>::new(), "{generated:?}");
        assert!(!self.run().join("node_ideas/.work-0000").exists(), "{generated:?}");
        generated
    }

    /// What runs the command of a search.
    pub(in crate::workloads::search) fn generator(&self, tree: &TreeFile) -> Generator {
        let provider: Arc<dyn Provider> = Arc::new(self.provider.clone());
        let files =
            TaskFiles::open(&self.directory.path().join("files"), Arc::new(MemoryStore::default()));
        let services = TrialServices {
            providers: [(ProviderKind::Docker, provider)].into(),
            files: files.expect("a directory"),
            variables: self.variables.clone(),
            disks: Arc::default(),
            host: "host".into(),
        };
        let Labels { run, worker, owner, .. } = testing::labels();
        Generator::new(tree, Arc::new(services), Holder { run, worker, owner })
    }

    /// The ideas that were taken, by name.
    pub(in crate::workloads::search) fn ideas(&self) -> BTreeMap<String, String> {
        let entries = std::fs::read_dir(self.target()).expect("there");
        let entries = entries.map(|entry| entry.expect("listed").path());
        let text = |path: &Path| std::fs::read_to_string(path).expect("text");
        entries.map(|path| (name(&path), text(&path))).collect()
    }

    pub(in crate::workloads::search) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.run().join("logs/ideas/0000").join(name)).unwrap_or_default()
    }
}

fn name(path: &Path) -> String {
    path.file_name().expect("a name").to_string_lossy().into_owned()
}
