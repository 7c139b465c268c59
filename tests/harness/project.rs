//! A temporary project directory for each test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

use crate::print_notice;
use crate::program::RunningProgram;
use crate::results::Results;

/// Variables that the program under test inherits from this process; all others are dropped.
const INHERITED: &[&str] = &["PATH", "LANG", "DOCKER_HOST", "ROLLOUT_LOG", "ROLLOUT_TEST_MARK"];

/// A directory with tasks and a job file, in which the program under test runs. It is removed
/// unless the test fails.
#[derive(Debug)]
pub struct Project {
    /// Of everything, with the outputs of programs in `runs`.
    directory: TempDir,
    /// Of the project's files.
    root: PathBuf,
    program: PathBuf,
    runs: AtomicU32,
    kept: AtomicBool,
    /// Variables of all commands.
    variables: Mutex<BTreeMap<String, String>>,
}

impl Project {
    /// An empty project for `program`: in test files, `env!("CARGO_BIN_EXE_rollout-under-test")`.
    ///
    /// # Panics
    /// When the directory cannot be created.
    pub fn new(program: &str) -> Self {
        let directory = tempfile::Builder::new().prefix("project-").tempdir().expect("a directory");
        let root = directory.path().to_owned();
        Self::at(program, directory, root)
    }

    /// An empty project whose files are in a directory below `directory`. The outputs of programs are
    /// not below `root`, unless both are the same.
    pub(crate) fn at(program: &str, directory: TempDir, root: PathBuf) -> Self {
        for new in [root.join("home"), root.join("tmp"), directory.path().join("runs")] {
            fs::create_dir(new).expect("a directory");
        }
        let (runs, kept) = (AtomicU32::new(0), AtomicBool::new(false));
        Self { directory, root, program: program.into(), runs, kept, variables: Mutex::default() }
    }

    /// Sets a variable of all commands that are started from now on.
    pub fn set_variable(&self, name: &str, value: &str) {
        let mut variables = self.variables.lock().unwrap_or_else(PoisonError::into_inner);
        variables.insert(name.to_owned(), value.to_owned());
    }

    /// Keeps the directory, as for a failed test.
    pub fn preserve(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// Its root.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// A text that occurs nowhere else on the machine.
    pub fn mark(&self) -> String {
        let name = self.directory.path().file_name().expect("a directory has a name");
        format!("mark-{}", name.to_string_lossy())
    }

    /// Copies fixture tasks (`faults/passes`) to `tasks/<last part of the name>`, replacing their
    /// `@KEY@` placeholders by the values.
    ///
    /// # Panics
    /// When there is no such fixture.
    #[must_use]
    pub fn tasks<'a>(
        self,
        names: impl IntoIterator<Item = &'a str>,
        values: &[(&str, &str)],
    ) -> Self {
        for name in names {
            let last = name.rsplit('/').next().unwrap_or(name);
            let to = self.path().join("tasks").join(last);
            copy(&fixtures().join("tasks").join(name), &to, values);
        }
        self
    }

    /// Writes a fixture job (`faults.yaml`) as `job.yaml`, with the placeholders replaced.
    ///
    /// # Panics
    /// When there is no such fixture, or a `@KEY@` has no value.
    #[must_use]
    pub fn job(self, name: &str, values: &[(&str, &str)]) -> Self {
        let path = fixtures().join("jobs").join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let text = fill(&text, values);
        assert!(!text.contains('@'), "a value is missing:\n{text}");
        self.write("job.yaml", &text)
    }

    /// Writes a file below the project.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn write(self, name: &str, text: &str) -> Self {
        self.write_file(name, text);
        self
    }

    /// Writes a file below the project.
    ///
    /// # Panics
    /// When that fails.
    pub fn write_file(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().expect("below the project")).expect("a directory");
        fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    /// Writes a task `t` in the directory `tasks`, with these tests.
    ///
    /// # Panics
    /// When that fails.
    pub fn write_small_task(&self, tests: &str) {
        self.write_file("tasks/t/task.toml", "version = '1.0'\n");
        self.write_file("tasks/t/instruction.md", "Write the answer.\n");
        self.write_file("tasks/t/environment/Dockerfile", "FROM debian:bookworm-slim\n");
        self.write_file("tasks/t/tests/test.sh", tests);
    }

    /// Writes the context of a small image in which agents can be installed. Registries may be reached
    /// over a proxy whose certificate only this host knows: containers then get the certificates that
    /// `SSL_CERT_FILE` names.
    ///
    /// # Panics
    /// When a file cannot be read or written.
    pub fn write_agent_image(&self, directory: &str) {
        self.write_agent_image_from("debian:bookworm-slim", directory);
    }

    /// The same from another image.
    ///
    /// # Panics
    /// Like [`Self::write_agent_image`].
    pub fn write_agent_image_from(&self, base: &str, directory: &str) {
        let mut image = format!("FROM {base}\nWORKDIR /app\n");
        if let Ok(certificates) = std::env::var("SSL_CERT_FILE") {
            let text = std::fs::read_to_string(&certificates).expect("certificates");
            self.write_file(&format!("{directory}/certificates.pem"), &text);
            image.push_str("COPY certificates.pem /opt/certificates.pem\n");
            for name in [
                "SSL_CERT_FILE",
                "CURL_CA_BUNDLE",
                "NODE_EXTRA_CA_CERTS",
                "NPM_CONFIG_CAFILE",
                "PIP_CERT",
                "REQUESTS_CA_BUNDLE",
            ] {
                image.push_str(&format!("ENV {name}=/opt/certificates.pem\n"));
            }
        }
        self.write_file(&format!("{directory}/Dockerfile"), &image);
    }

    /// Makes the project a git repository whose first commit contains all its files.
    ///
    /// # Panics
    /// When git fails.
    #[must_use]
    pub fn commit(self) -> Self {
        let settings = ["-c", "user.name=user", "-c", "user.email=user@localhost"];
        let commands: [&[&str]; 3] =
            [&["init", "-q", "-b", "main"], &["add", "-A"], &["commit", "-q", "-m", "everything"]];
        for words in commands {
            let mut git = Command::new("git");
            git.args(settings).args(words).current_dir(self.path());
            git.env("HOME", self.path().join("home")).env("GIT_CONFIG_NOSYSTEM", "1");
            assert!(git.status().expect("git runs").success(), "git {words:?}");
        }
        self
    }

    /// A command of the program under test, run in the project with a clean environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.command_of(&self.program, arguments)
    }

    /// A command of another program, with the same environment.
    pub fn command_of(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.path()).env_clear();
        for name in INHERITED {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.env("HOME", self.path().join("home")).env("TMPDIR", self.path().join("tmp"));
        command.env("RUST_BACKTRACE", "1");
        command.envs(&*self.variables.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(program) = crate::docker::compose_program() {
            command.env("ROLLOUT_DOCKER_COMPOSE", program);
        }
        command
    }

    /// A command of the program under test with resource limits: `limits` are arguments of
    /// `ulimit`.
    pub fn limited(&self, limits: &str, arguments: &[&str]) -> Command {
        let of_program = self.command(arguments);
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit {limits}; exec \"$@\"")).arg("sh");
        command.arg(of_program.get_program()).args(of_program.get_args());
        command.current_dir(self.path()).env_clear();
        for (name, value) in of_program.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command
    }

    /// A script that runs the program under test as `ROLLOUT`, in the project, with a clean
    /// environment.
    pub fn script(&self, path: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(path);
        let of_program = self.command(&[]);
        for (name, value) in of_program.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command.args(arguments).current_dir(self.path()).env("ROLLOUT", &self.program);
        command
    }

    /// Starts a command made by [`Project::command`].
    pub fn start(&self, command: Command) -> RunningProgram {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        RunningProgram::start(command, &self.directory.path().join("runs").join(number.to_string()))
    }

    /// Starts the program under test.
    pub fn rollout(&self, arguments: &[&str]) -> RunningProgram {
        self.start(self.command(arguments))
    }

    /// Starts a command line that the program printed, as a shell runs it.
    pub fn paste(&self, line: &str) -> RunningProgram {
        self.paste_with(line, &[])
    }

    /// The same with further variables.
    pub(crate) fn paste_with(&self, line: &str, variables: &[(String, String)]) -> RunningProgram {
        let script = format!("rollout() {{ \"$PROGRAM\" \"$@\"; }}\n{line}");
        let mut command = self.command_of(Path::new("bash"), &["-c", &script]);
        command.env("PROGRAM", &self.program);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        self.start(command)
    }

    /// The names of the runs in a directory of runs.
    pub fn runs(&self, directory: &str) -> Vec<String> {
        let entries = crate::leak_check::directory_entries(&self.path().join(directory));
        let names = entries.iter().filter_map(|path| path.file_name()?.to_str());
        names.filter(|name| !name.starts_with('.')).map(str::to_owned).collect()
    }

    /// The results of a job of this project.
    pub fn results(&self, job: &str) -> Results {
        Results::new(self.path().join("jobs").join(job))
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        if std::thread::panicking() || *self.kept.get_mut() {
            self.directory.disable_cleanup(true);
            print_notice(&format!("kept: {}", self.path().display()));
        }
    }
}

/// The fixtures' directory.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The repository's root.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace member").to_owned()
}

/// Copies a file or a tree, replacing placeholders by the values.
pub fn copy(from: &Path, to: &Path, values: &[(&str, &str)]) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
        for entry in fs::read_dir(from).expect("a directory") {
            let name = entry.expect("an entry").file_name();
            copy(&from.join(&name), &to.join(&name), values);
        }
    } else {
        let text = fs::read_to_string(from).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        fs::write(to, fill(&text, values)).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
    }
}

fn fill(text: &str, values: &[(&str, &str)]) -> String {
    let put = |text: String, (key, value): &(&str, &str)| text.replace(&format!("@{key}@"), value);
    values.iter().fold(text.to_owned(), put)
}
