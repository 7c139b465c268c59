//! Fixture with git repositories, a registry, and a `git` that records its calls.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::ignored::report_ignored_part;
use rollout_tests::program::{ProgramExit, RunningProgram};
use rollout_tests::project::Project;
use serde_json::{Value, json};

pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// The names of the three repositories.
pub(crate) const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];

/// Number of tasks in each of them: 40 in total.
const TASKS: [usize; 3] = [20, 15, 5];

pub(crate) struct RegistryFixture {
    pub(crate) project: Project,
}

impl RegistryFixture {
    /// Three repositories with 40 tasks, and a registry that has them in two versions: `1.0` at the
    /// first commits, `2.0` at the heads.
    pub(crate) fn new() -> Self {
        let fixture = Self::empty();
        let mut pinned = Vec::new();
        let mut moving = Vec::new();
        for (name, count) in NAMES.iter().zip(TASKS) {
            let tasks: Vec<_> = (0..count).map(|n| format!("{name}-{n:02}")).collect();
            let commit = fixture.repository(name, &tasks, "first");
            for task in &tasks {
                let (url, path) = (fixture.url(name), format!("tasks/{task}"));
                pinned.push(json!({"git_url": url, "git_commit_id": commit, "path": path}));
                moving.push(json!({"name": task, "git_url": url, "path": path}));
            }
            fixture.commit(name, &tasks, "second");
        }
        fixture.registry(&json!([
            {"name": "bench", "version": "1.0", "description": "pinned", "tasks": pinned},
            {"name": "bench", "version": "2.0", "tasks": moving},
        ]));
        fixture
    }

    pub(crate) fn empty() -> Self {
        let project = Project::new(env!("CARGO_BIN_EXE_rollout-under-test"))
            .write("home/.gitconfig", "[user]\nname = T\nemail = t@example.com\n");
        let fixture = Self { project };
        let real = Command::new("sh").args(["-c", "command -v git"]).output().expect("sh");
        let real = String::from_utf8(real.stdout).expect("a path").trim().to_owned();
        let root = fixture.path("").display().to_string();
        // It hangs after a subcommand for as long as `hang-after-<subcommand>` exists, and fails fetches of
        // all commits without files, with the words in `lookup-error`, for as long as that exists.
        fixture.program(
            "bin/git",
            &format!(
                "#!/bin/sh\nwhile [ \"$1\" = -c ]; do shift 2; done\n\
                 echo \"$@\" >> {root}/calls\n\
                 case \"$*\" in fetch*--filter=tree:0*)\n\
                 if [ -e {root}/lookup-error ]; then cat {root}/lookup-error >&2; exit 128; fi\n\
                 esac\n\
                 {real} \"$@\"; code=$?\n\
                 if [ -e {root}/hang-after-$1 ]; then : > {root}/hanging; fi\n\
                 while [ -e {root}/hang-after-$1 ]; do sleep 0.1; done\n\
                 exit $code\n"
            ),
        );
        // Hides a git-lfs that this machine has.
        fixture.program("bin/git-lfs", "#!/bin/sh\nexit 127\n");
        fixture
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.project.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("below the project")).expect("a directory");
        fs::write(path, text).expect("written");
    }

    pub(crate) fn program(&self, name: &str, text: &str) {
        self.write(name, text);
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).expect("a program");
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("file://{}", self.path("repos").join(name).display())
    }

    pub(crate) fn registry(&self, registry: &Value) {
        self.write("registry.json", &registry.to_string());
    }

    /// Writes a job over a dataset of the registry.
    pub(crate) fn job(&self, dataset: &str) {
        let text = format!(
            "name: j\nagents: [{{name: nop}}]\nenvironment: {{type: process}}\ndatasets: [{dataset}]\n"
        );
        self.write("job.yaml", &text);
    }

    /// Starts the program with the git that records its calls.
    pub(crate) fn start(&self, arguments: &[&str]) -> RunningProgram {
        let mut command = self.project.command(arguments);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.path("bin").display()));
        self.project.start(command)
    }

    pub(crate) fn dry_run(&self) -> RunningProgram {
        self.start(&["run", "job.yaml", "--dry-run", "--json"])
    }

    /// The tasks with the commits they were taken from.
    pub(crate) fn tasks(&self) -> BTreeMap<String, String> {
        tasks(&self.dry_run().wait(DEADLINE).expect_code(ExitCode::Success))
    }

    /// Lets git find the real git-lfs. Returns whether there is one.
    pub(crate) fn install_lfs(&self) -> bool {
        let program = std::env::var_os("ROLLOUT_TEST_LFS").filter(|program| program != "no");
        let Some(program) = program else {
            report_ignored_part("files of Git LFS: needs git-lfs, named by ROLLOUT_TEST_LFS");
            return false;
        };
        fs::remove_file(self.path("bin/git-lfs")).expect("removed");
        std::os::unix::fs::symlink(program, self.path("bin/git-lfs")).expect("a link");
        true
    }

    /// Stores a file of a repository in Git LFS: a pointer at its path, and the content in the
    /// repository's `.git/lfs`.
    pub(crate) fn keep_in_lfs(&self, repository: &str, path: &str, content: &str) {
        let digest = rollout_protocol::digest::Digest::sha256(content.as_bytes()).hex();
        let object = format!(
            "repos/{repository}/.git/lfs/objects/{}/{}/{digest}",
            &digest[..2],
            &digest[2..4]
        );
        self.write(&object, content);
        let pointer = format!(
            "version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {}\n",
            content.len()
        );
        self.write(&format!("repos/{repository}/{path}"), &pointer);
        self.git(repository, &["add", "-A"]);
        self.git(repository, &["commit", "-qm", "a large file"]);
    }

    /// Standard error of a dry run of a job that is refused.
    pub(crate) fn refusal(&self) -> String {
        self.dry_run().wait(DEADLINE).expect_code(ExitCode::Config).stderr
    }

    /// Number of git calls with this first argument and, unless `other` is empty, with `other`
    /// among the rest.
    pub(crate) fn calls(&self, first: &str, other: &str) -> usize {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let is_match = |line: &&str| {
            let mut words = line.split(' ');
            words.next() == Some(first) && (other.is_empty() || words.any(|word| word == other))
        };
        calls.lines().filter(is_match).count()
    }

    pub(crate) fn all_calls(&self) -> usize {
        fs::read_to_string(self.path("calls")).unwrap_or_default().lines().count()
    }

    pub(crate) fn forget_calls(&self) {
        let _none = fs::remove_file(self.path("calls"));
    }

    /// Incomplete clones in the cache.
    pub(crate) fn unfinished(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        collect_files(&self.path("home/.cache/rollout/git"), &mut found);
        found.retain(|path| path.to_string_lossy().contains(".tmp-"));
        found
    }

    pub(crate) fn git(&self, repository: &str, args: &[&str]) -> String {
        let mut command = Command::new("git");
        command.current_dir(self.path("repos").join(repository)).args(args);
        command.env("HOME", self.path("home")).env("GIT_CONFIG_NOSYSTEM", "1");
        let output = command.output().expect("git");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {stderr}");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }

    /// Creates a repository with tasks and returns its commit.
    pub(crate) fn repository(&self, name: &str, tasks: &[String], text: &str) -> String {
        fs::create_dir_all(self.path("repos").join(name)).expect("a directory");
        self.git(name, &["init", "-q", "-b", "main"]);
        // `alpha` allows partial clones, as large servers do; the others send everything.
        let parts = if name == "alpha" { "true" } else { "false" };
        self.git(name, &["config", "uploadpack.allowFilter", parts]);
        self.write(&format!("repos/{name}/large/unrelated.bin"), &"x".repeat(100_000));
        self.commit(name, tasks, text)
    }

    pub(crate) fn commit(&self, name: &str, tasks: &[String], text: &str) -> String {
        for task in tasks {
            let dir = format!("repos/{name}/tasks/{task}");
            self.write(&format!("{dir}/task.toml"), "version = \"1.0\"\n");
            self.write(&format!("{dir}/instruction.md"), &format!("{text} {task}\n"));
            self.write(&format!("{dir}/tests/test.sh"), "echo 1 > /logs/verifier/reward.txt\n");
        }
        self.git(name, &["add", "-A"]);
        self.git(name, &["commit", "-qm", text]);
        self.git(name, &["rev-parse", "HEAD"])
    }

    /// Makes the repositories unreachable, as a network outage does.
    pub(crate) fn remove_repositories(&self) {
        fs::rename(self.path("repos"), self.path("gone")).expect("moved");
    }
}

pub(crate) fn tasks(ended: &ProgramExit) -> BTreeMap<String, String> {
    let plan: Value = serde_json::from_str(&ended.stdout).expect("a plan");
    let text = |task: &Value, key: &str| task[key].as_str().expect("text").to_owned();
    let tasks = plan["tasks"].as_array().expect("tasks");
    tasks.iter().map(|task| (text(task, "task"), text(task, "git_commit_id"))).collect()
}

fn collect_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        found.push(entry.path());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect_files(&entry.path(), found);
        }
    }
}
