//! Lints: common mistakes in valid tasks, reported as warnings.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rollout_base::confined::ConfinedDir;
use rollout_environment::dockerfile::Dockerfile;
use rollout_protocol::spec::task::{NetworkPolicy, StepSpec, TaskFormat};
use rustix::fs::FileType;

use super::{dockerfile, scripts};
use crate::config::{ConfigWarning, trajectory_file};
use crate::sources::datasets::{
    DatasetTask, StepParts, TASK_FILE, has_windows_line_ends, read_instruction, trajectory_files,
};

/// Largest file read.
const FILE_BYTES: u64 = 1024 * 1024;

/// Largest number of test files searched for a mention of the reward.
const MAX_TEST_FILES: usize = 1000;

/// The warnings of a task.
pub(super) fn lint_task(task: &DatasetTask) -> Vec<ConfigWarning> {
    let mut lints = TaskLinter { task, warnings: Vec::new(), seen: BTreeSet::new() };
    lints.environment();
    for (step, parts) in task.file.steps.iter().zip(&task.parts.steps) {
        lints.instruction(parts);
        lints.solution(parts);
        lints.verifier(step, parts);
        if let Some(workdir) = &parts.workdir {
            lints.script(&workdir.join("setup.sh"));
        }
    }
    for file in trajectory_files(&task.dir, &task.file) {
        match trajectory_file::read_valid_of_task(&task.dir, &file) {
            Ok(_) => {
                let message = "the trials of agents that cannot continue a conversation settle as \
                               unsupported";
                lints.warn(&file, None, message);
            }
            Err(why) => lints.warn(&file, None, format!("is no conversation to continue: {why}")),
        }
    }
    if task.file.steps[0].name.is_some() && lints.has_file(Path::new("instruction.md")) {
        let message = "has no effect: every step has its own instruction";
        lints.warn(Path::new("instruction.md"), None, message);
    }
    lints.warnings
}

struct TaskLinter<'a> {
    task: &'a DatasetTask,
    warnings: Vec<ConfigWarning>,
    /// Files already checked: steps share some.
    seen: BTreeSet<PathBuf>,
}

impl TaskLinter<'_> {
    fn warn(&mut self, file: &Path, line: Option<usize>, message: impl Into<String>) {
        self.warnings.push(ConfigWarning {
            file: self.task.dir.join(file),
            line,
            key: String::new(),
            message: message.into(),
        });
    }

    fn warn_of_key(&mut self, key: &str, message: impl Into<String>) {
        self.warn(Path::new(TASK_FILE), None, message);
        if let Some(warning) = self.warnings.last_mut() {
            key.clone_into(&mut warning.key);
        }
    }

    /// The text of a file that was not checked before; `None` if it is not readable text.
    fn text(&mut self, file: &Path) -> Option<String> {
        if !self.seen.insert(file.to_owned()) {
            return None;
        }
        self.read(file)
    }

    fn read(&self, file: &Path) -> Option<String> {
        text(&ConfinedDir::open(&self.task.dir).ok()?, file)
    }

    fn has_file(&self, file: &Path) -> bool {
        ConfinedDir::open(&self.task.dir).is_ok_and(|dir| dir.has_file(file))
    }

    fn environment(&mut self) {
        let image = self.task.file.environment.docker_image.clone();
        if let Some(image) = image {
            self.image("environment.docker_image", &image);
        } else if let Some(text) = self.text(Path::new("environment/Dockerfile")) {
            self.dockerfile(Path::new("environment/Dockerfile"), &text);
            self.leaks(&text);
        }
    }

    fn image(&mut self, key: &str, image: &str) {
        if dockerfile::is_unpinned(image) {
            self.warn_of_key(key, unpinned(image));
        }
    }

    fn dockerfile(&mut self, file: &Path, text: &str) {
        let read = Dockerfile::read(text);
        for (line, problem) in dockerfile::problems(&read) {
            self.warn(file, Some(line), format!("does not build: {problem}"));
        }
        for (line, image) in dockerfile::base_images(&read) {
            if dockerfile::is_unpinned(&image) {
                self.warn(file, Some(line), unpinned(&image));
            }
        }
    }

    /// Warns about tests or solutions copied into the agent's image.
    fn leaks(&mut self, text: &str) {
        for copy in &Dockerfile::read(text).instructions {
            for source in dockerfile::copy_sources(copy) {
                let mut parts = source.split('/').filter(|part| !part.is_empty() && *part != ".");
                let leaks = match parts.next() {
                    Some("tests" | "solution" | "test.sh" | "solve.sh") => true,
                    first => first == Some("..") || parts.any(|part| part == ".."),
                };
                if leaks {
                    let message = format!(
                        "`{source}` is copied into the image: agents could read tests or solution"
                    );
                    self.warn(Path::new("environment/Dockerfile"), Some(copy.line), message);
                }
            }
        }
    }

    fn instruction(&mut self, parts: &StepParts) {
        let format = self.task.file.format.format;
        let text = read_instruction(&self.task.dir, &parts.instruction, format);
        if text.is_ok_and(|text| text.trim_ascii().is_empty()) {
            self.warn(&parts.instruction.clone(), None, "is empty: agents get no instruction");
        }
    }

    fn solution(&mut self, parts: &StepParts) {
        match &parts.solution {
            Some(dir) => self.script(&dir.join("solve.sh")),
            None => {
                let file = parts.instruction.with_file_name("solution/solve.sh");
                let others = self.task.parts.steps.iter().any(|step| step.solution.is_some());
                let message = if others {
                    "is missing: the oracle does nothing in this step"
                } else if self.task.file.format.format == TaskFormat::Harbor {
                    "is missing: trials of the oracle have an error beside their reward"
                } else {
                    "is missing: trials of the oracle fail"
                };
                self.warn(&file, None, message);
            }
        }
    }

    fn verifier(&mut self, step: &StepSpec, parts: &StepParts) {
        let own = step.verifier.environment.as_deref();
        if own.is_some() && step.artifacts.is_empty() && self.seen.insert(TASK_FILE.into()) {
            let message = "is empty: the separate verifier gets no files from the agent";
            self.warn_of_key("artifacts", message);
        }
        if let Some(own) = own {
            match &parts.verifier_context {
                Some(context) => {
                    let file = context.join("Dockerfile");
                    if let Some(text) = self.text(&file) {
                        self.dockerfile(&file, &text);
                        self.verifier_image(&file, &text);
                    }
                }
                None => {
                    let image = own.docker_image.iter();
                    image.for_each(|image| self.image("verifier.environment.docker_image", image));
                }
            }
        }
        let baseline = own.map_or(&self.task.file.environment.network, |own| &own.network);
        let network = step.verifier.network.as_ref().unwrap_or(baseline).clone();
        let dirs = match &parts.verifier_context {
            Some(context) if parts.tests.is_empty() => std::slice::from_ref(context),
            _ => parts.tests.as_slice(),
        };
        // Later directories override earlier ones, so the last script runs.
        let script = dirs.iter().rev().map(|dir| dir.join("test.sh"));
        let script = script.into_iter().find(|file| self.has_file(file));
        if let Some(script) = script {
            self.tests(&script, dirs, &network);
        }
    }

    /// Warns if a verifier image has no tests in it.
    fn verifier_image(&mut self, file: &Path, text: &str) {
        if !Dockerfile::read(text).instructions.iter().any(dockerfile::is_copy) {
            let message =
                "copies no tests: an image built from `tests/` must have them in `/tests`";
            self.warn(file, None, message);
        }
    }

    fn tests(&mut self, script: &Path, dirs: &[PathBuf], network: &NetworkPolicy) {
        self.script(script);
        let Some(text) = self.read(script) else { return };
        if let Some((line, command)) = scripts::find_network_command(&text) {
            let message = if *network == NetworkPolicy::NoNetwork {
                format!("`{command}` needs the network, which the verifier does not have")
            } else {
                format!("`{command}` needs the network: a network failure can lose the reward")
            };
            self.warn(script, Some(line), message);
        }
        let mut texts = vec![text];
        if !scripts::mentions_reward(&texts[0]) {
            for dir in dirs {
                let dir = ConfinedDir::open(&self.task.dir).and_then(|task| task.directory(dir));
                texts.extend(dir.iter().flat_map(texts_below));
            }
        }
        if !texts.iter().any(|text| scripts::mentions_reward(text)) {
            let message =
                "the tests never mention a reward or /logs/verifier: they cannot write a reward";
            self.warn(script, None, message);
        }
    }

    fn script(&mut self, file: &Path) {
        let Some(text) = self.text(file) else { return };
        // A script whose first line and first command end so is an error.
        if text.contains("\r\n") && !has_windows_line_ends(text.as_bytes()) {
            let message = "has Windows line endings: bash treats the carriage returns as text";
            self.warn(file, None, message);
        }
    }
}

fn unpinned(image: &str) -> String {
    format!("`{image}` is not pinned and can change; name a tag or digest")
}

fn text(dir: &ConfinedDir, file: &Path) -> Option<String> {
    let bytes = dir.read(file, FILE_BYTES).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The texts of the files below a directory; symlinks are not followed.
fn texts_below(dir: &ConfinedDir) -> Vec<String> {
    let mut paths = vec![PathBuf::new()];
    let mut texts = Vec::new();
    let mut seen = 0;
    while let Some(path) = paths.pop() {
        let entries = dir.directory(&path).and_then(|below| below.entries());
        for (name, kind) in entries.unwrap_or_default() {
            seen += 1;
            if seen > MAX_TEST_FILES {
                return texts;
            }
            match kind {
                FileType::Directory => paths.push(path.join(name)),
                FileType::RegularFile => texts.extend(text(dir, &path.join(name))),
                _ => {}
            }
        }
    }
    texts
}
