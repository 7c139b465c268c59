//! Locations of a task's parts in its directory, and missing parts.

use std::path::{Path, PathBuf};

use rollout_base::confined::ConfinedDir;
use rollout_environment::descriptor;
use rollout_protocol::spec::task::{StepSpec, TaskFormat};

use super::{INSTRUCTION_FILE, StepParts, TaskParts, harborignore, trajectory};
use crate::config::{Job, TaskFile};

/// The build context of a task.
pub(super) const ENVIRONMENT_DIR: &str = "environment";

/// The directory of steps.
pub(super) const STEPS_DIR: &str = "steps";

/// Names of a compose file; the first one found wins. Harbor tasks use only the first name: a task
/// about Docker Compose may have the other among its data.
pub(super) const COMPOSE_FILES: [&str; 2] = ["docker-compose.yaml", "docker-compose.yml"];

/// Files of a build context that planning looks at.
const CONTEXT_FILES: [&str; 4] =
    ["Dockerfile", ".dockerignore", COMPOSE_FILES[0], COMPOSE_FILES[1]];

/// Files of `tests` that planning looks at.
pub(super) const TESTS_FILES: [&str; 2] = ["test.sh", harborignore::FILE_NAME];

/// Files of `solution` that planning looks at.
pub(super) const SOLUTION_FILES: [&str; 2] = ["solve.sh", harborignore::FILE_NAME];

/// The entries of a task, or of a step, that are looked at before its parts are packed.
pub(super) fn entries_looked_at() -> impl Iterator<Item = PathBuf> {
    let below = |dir: &'static str, files: &'static [&str]| {
        let files = files.iter().map(move |file| Path::new(dir).join(file));
        std::iter::once(PathBuf::from(dir)).chain(files)
    };
    let own = [INSTRUCTION_FILE, trajectory::FILE_NAME, "workdir"].map(PathBuf::from);
    own.into_iter()
        .chain(below("solution", &SOLUTION_FILES))
        .chain(below("tests", &TESTS_FILES))
        .chain(below("tests", &CONTEXT_FILES))
        .chain(below(ENVIRONMENT_DIR, &CONTEXT_FILES))
}

/// A task's directory, for a given job.
pub(super) struct TaskLayout<'a> {
    job: &'a Job,
    dir: &'a ConfinedDir,
    file: &'a TaskFile,
}

impl<'a> TaskLayout<'a> {
    pub(super) fn new(job: &'a Job, dir: &'a ConfinedDir, file: &'a TaskFile) -> Self {
        Self { job, dir, file }
    }

    /// The parts that exist and that the job needs.
    pub(super) fn parts(&self) -> TaskParts {
        let compose = self.compose(Path::new(ENVIRONMENT_DIR));
        let image = self.file.environment.docker_image.as_ref();
        let wanted = self.builds(image, Path::new(ENVIRONMENT_DIR))
            || !self.has_images()
            || compose.is_some()
            // Paths in compose files of the job are relative to it.
            || !self.job.settings.compose_overlays.is_empty();
        let mut parts = TaskParts {
            context: self.existing(ENVIRONMENT_DIR.into()).filter(|_| wanted),
            workdir_files: self.workdir_files(),
            compose,
            steps: Vec::new(),
        };
        parts.steps = self.file.steps.iter().map(|step| self.step(step, &parts)).collect();
        parts
    }

    fn step(&self, step: &StepSpec, task: &TaskParts) -> StepParts {
        let own = step_dir(step);
        let dirs = |name: &str| {
            let shared = step.name.is_some().then(|| PathBuf::from(name));
            let dirs = shared.into_iter().chain([own.join(name)]);
            dirs.filter_map(|dir| self.existing(dir)).collect::<Vec<_>>()
        };
        let tests = dirs("tests");
        let has_script = |dir: &PathBuf| self.has_file(&dir.join("solve.sh"));
        let mut parts = StepParts {
            instruction: own.join(INSTRUCTION_FILE),
            solution: dirs("solution").into_iter().rev().find(has_script),
            workdir: step.name.as_ref().and_then(|_| self.existing(own.join("workdir"))),
            tests: tests.clone(),
            verifier_context: None,
            verifier_compose: None,
            verifier_shares_image: false,
        };
        if let Some(verifier) = &step.verifier.environment {
            let context = tests.into_iter().next_back();
            let image = &verifier.docker_image;
            let named = image.is_some() && *image != self.file.environment.docker_image;
            let compose = context.as_deref().and_then(|dir| self.compose(dir));
            let built = context.as_deref().is_some_and(|dir| {
                self.has_file(&dir.join("Dockerfile"))
                    && (!named || self.builds(image.as_ref(), dir) || !self.has_images())
            });
            if built || compose.is_some() {
                parts.verifier_context = context;
                parts.verifier_compose = compose;
            } else if !named {
                // The verifier uses the agent's image, and the tests are copied into it.
                parts.verifier_context.clone_from(&task.context);
                parts.verifier_compose.clone_from(&task.compose);
                parts.verifier_shares_image = true;
                return parts;
            }
            // The verifier's image contains the tests, built or named.
            parts.tests = Vec::new();
        }
        parts
    }

    /// The directory with files for the working directory of a named image. An image that is built
    /// from the directory has them already. Beside a compose file, they are the services' and not the
    /// agent's: passwords and data of a service, for example.
    fn workdir_files(&self) -> Option<PathBuf> {
        let dir = self.existing(ENVIRONMENT_DIR.into())?;
        let image = self.file.environment.docker_image.as_ref();
        let is_used = image.is_some() && !self.builds(image, &dir);
        if !is_used || self.has_file(&dir.join("Dockerfile")) || self.compose(&dir).is_some() {
            return None;
        }
        // A directory that cannot be listed is an error when it is packed.
        let entries = self.dir.directory(&dir).and_then(|dir| dir.entries());
        (!entries.is_ok_and(|entries| entries.is_empty())).then_some(dir)
    }

    /// The files that the task needs under every agent and lacks.
    pub(super) fn missing(&self, parts: &TaskParts) -> Vec<PathBuf> {
        let mut needed = Vec::new();
        let verified = !self.job.settings.verifier.disable;
        for (step, parts) in self.file.steps.iter().zip(&parts.steps) {
            needed.push(parts.instruction.clone());
            if !verified {
                continue;
            }
            let scripts = parts.tests.iter().any(|dir| self.has_file(&dir.join("test.sh")));
            // The verifier's own image may contain its tests.
            let in_image = step.verifier.environment.is_some() && parts.tests.is_empty();
            if !scripts && !in_image {
                needed.push(step_dir(step).join("tests/test.sh"));
            }
        }
        let image = self.file.environment.docker_image.as_ref();
        if self.builds(image, Path::new(ENVIRONMENT_DIR)) && parts.compose.is_none() {
            needed.push(Path::new(ENVIRONMENT_DIR).join("Dockerfile"));
        }
        needed.retain(|path| !self.has_file(path));
        needed
    }

    /// The solutions that the oracle lacks: those of all steps, or none if any step has one. The
    /// oracle does nothing in steps without a solution.
    pub(super) fn missing_solutions(parts: &TaskParts) -> Vec<PathBuf> {
        if parts.steps.iter().any(|step| step.solution.is_some()) {
            return Vec::new();
        }
        parts
            .steps
            .iter()
            .map(|step| step.instruction.with_file_name("solution/solve.sh"))
            .collect()
    }

    /// Whether an image is built from a directory although one may be named. A named one without a
    /// Dockerfile is never built.
    fn builds(&self, image: Option<&String>, dir: &Path) -> bool {
        let is_forced = self.job.settings.environment.force_build;
        let is_built = image.is_none() || (is_forced && self.has_file(&dir.join("Dockerfile")));
        self.has_images() && is_built
    }

    /// Whether environments are made from images.
    fn has_images(&self) -> bool {
        let kind = self.job.settings.environment.provider.kind();
        descriptor::for_kind(kind).capabilities.images.is_supported()
    }

    /// The compose file in a directory.
    fn compose(&self, dir: &Path) -> Option<String> {
        let names = match self.file.format.format {
            TaskFormat::Harbor => &COMPOSE_FILES[..1],
            TaskFormat::Rollout => &COMPOSE_FILES[..],
        };
        let name = names.iter().find(|name| self.has_file(&dir.join(name)));
        name.map(|name| (*name).to_owned())
    }

    fn existing(&self, dir: PathBuf) -> Option<PathBuf> {
        self.dir.has_directory(&dir).then_some(dir)
    }

    fn has_file(&self, file: &Path) -> bool {
        self.dir.has_file(file)
    }
}

/// The directory of a step; the task's own directory if the task has no steps.
pub(super) fn step_dir(step: &StepSpec) -> PathBuf {
    step.name.as_ref().map_or_else(PathBuf::new, |name| Path::new(STEPS_DIR).join(name))
}
