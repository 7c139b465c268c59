//! Which tasks a process sandbox can stand in for: it has no image, so whatever a task's image would
//! have that the sandbox cannot give refuses the run, unless the job says `ignore_dockerfile`.

use std::path::Path;

use rollout_protocol::spec::environment::ProviderSpec;

use super::discover::TASK_FILE;
use crate::config::{ConfigError, ErrorKind, Job, Problems, Spot, TaskFile};

/// Records why the task in `dir` cannot run in a process sandbox.
pub(super) fn check(job: &Job, dir: &Path, file: &TaskFile, problems: &mut Problems) {
    let ProviderSpec::Process(settings) = &job.settings.environment.provider else { return };
    if settings.ignore_dockerfile {
        return;
    }
    let dockerfile = dir.join("environment/Dockerfile");
    if dockerfile.is_file() {
        check_instructions(&dockerfile, problems);
    } else if file.docker_image.is_some() {
        let spot = Spot { key: "environment.docker_image".to_owned(), line: None };
        let found = "an image without a Dockerfile that says what is in it";
        refuse(&spot, &dir.join(TASK_FILE), found, problems);
    }
}

/// Without the provider nothing can be said of its instructions; its worker refuses the trials.
#[cfg(not(feature = "process"))]
fn check_instructions(_: &Path, _: &mut Problems) {}

#[cfg(feature = "process")]
fn check_instructions(file: &Path, problems: &mut Problems) {
    let Some(text) = crate::config::read_text(file, problems) else { return };
    for unsupported in rollout_worker::environment::process::dockerfile::check(&text) {
        let found = format!("an instruction that it cannot honour: {}", unsupported.reason);
        let spot = Spot { key: unsupported.instruction, line: Some(unsupported.line) };
        refuse(&spot, file, &found, problems);
    }
}

fn refuse(spot: &Spot, file: &Path, found: &str, problems: &mut Problems) {
    let expected = "what the process environment can honour";
    let hint = "use `environment.type: docker`, or set `ignore_dockerfile: true` in \
                `environment.provider_config` to run on the host's own files";
    problems.error(ConfigError {
        hint: Some(hint.to_owned()),
        ..spot.error(file, ErrorKind::UnsupportedInstruction, found, expected)
    });
}
