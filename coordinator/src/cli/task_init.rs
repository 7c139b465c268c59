//! `rollout task init`: a template of a task.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::name;

use super::error::CliError;
use super::output::Printer;

/// Subcommands of `rollout task`.
#[derive(Debug, Subcommand)]
pub(super) enum TaskCommand {
    Init(InitArgs),
}

/// Create a task template that passes `rollout check`
#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Directory of the task; it must be empty or not exist
    dir: PathBuf,

    /// Format of the task files
    #[arg(long, default_value = "rollout")]
    format: InitFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum InitFormat {
    /// Rollout's format
    Rollout,
    /// Harbor's format
    Harbor,
}

/// Runs the command.
pub(super) async fn run(command: TaskCommand, printer: &Printer) -> Result<ExitCode, CliError> {
    let TaskCommand::Init(InitArgs { dir, format }) = command;
    let absolute = std::path::absolute(&dir);
    let name = absolute.ok().and_then(|dir| dir.file_name()?.to_str().map(str::to_owned));
    let name = name.unwrap_or_default();
    if let Err(why) = name::check_task(&name) {
        return Err(CliError::usage(format!("{}: the name {why}", dir.display())));
    }
    let target = dir.clone();
    let written = supervise::blocking(move || write(&target, &name, format)).await;
    written.map_err(|error| match error.kind() {
        io::ErrorKind::DirectoryNotEmpty => CliError::new(
            ExitCode::Config,
            format!("cannot create a task: {} is not empty", dir.display()),
        ),
        _ => CliError::failure(format!("cannot write {}", dir.display()), &error),
    })?;
    printer.hint(&format!("run `rollout check {}` to check it", dir.display()));
    Ok(ExitCode::Success)
}

fn write(dir: &Path, name: &str, format: InitFormat) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    if fs::read_dir(dir)?.next().is_some() {
        return Err(io::ErrorKind::DirectoryNotEmpty.into());
    }
    for (file, text) in files(name, format) {
        let file = dir.join(file);
        fs::create_dir_all(file.parent().unwrap_or(dir))?;
        fs::write(file, text)?;
    }
    Ok(())
}

/// The files of a task, each with its text.
fn files(name: &str, format: InitFormat) -> [(&'static str, String); 5] {
    let task = match format {
        InitFormat::Rollout => ROLLOUT.to_owned(),
        InitFormat::Harbor => HARBOR.replace("NAME", &name.replace(['"', '\\'], "-")),
    };
    [
        ("task.toml", task),
        ("instruction.md", INSTRUCTION.to_owned()),
        ("environment/Dockerfile", DOCKERFILE.to_owned()),
        ("solution/solve.sh", SOLVE.to_owned()),
        ("tests/test.sh", TEST.to_owned()),
    ]
}

const ROLLOUT: &str = "\
format = \"rollout\"
version = \"1.0\"

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 120.0

[environment]
cpus = 1
memory_mb = 2048
storage_mb = 10240
";

const HARBOR: &str = "\
schema_version = \"1.4\"

[task]
name = \"local/NAME\"
description = \"\"

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 120.0

[environment]
cpus = 1
memory_mb = 2048
";

const INSTRUCTION: &str = "\
Write the word `hello` to the file `greeting.txt` in the current directory.
";

const DOCKERFILE: &str = "\
FROM debian:bookworm-slim
WORKDIR /app
";

const SOLVE: &str = "\
#!/bin/bash
set -eu
echo hello > greeting.txt
";

const TEST: &str = "\
#!/bin/bash
# Always writes a reward and exits with code 0.
if [ \"$(cat greeting.txt 2>/dev/null)\" = hello ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
";

#[cfg(test)]
mod tests {
    use rollout_protocol::spec::environment::ProviderKind;
    use rollout_protocol::spec::task::TaskFormat;

    use super::*;
    use crate::sources::check::{CheckRequest, check};

    #[test]
    fn task_init_template_passes_check_for_every_provider() {
        let dir = tempfile::tempdir().expect("a directory");
        for (format, expected) in
            [(InitFormat::Rollout, TaskFormat::Rollout), (InitFormat::Harbor, TaskFormat::Harbor)]
        {
            let path = dir.path().join(expected.as_str());
            write(&path, "new", format).expect("written");
            for provider in [ProviderKind::Docker, ProviderKind::Process] {
                let asked = CheckRequest { path: path.clone(), format: None, provider };
                let report = check(&asked, &|_| true).expect("checked");
                assert_eq!((report.n_errors(), report.n_warnings()), (0, 0), "{report:#?}");
                let explained = report.tasks[0].explained.as_ref().expect("read");
                assert_eq!((explained.format.name, explained.format.guessed), (expected, false));
            }
            let again = write(&path, "new", format).expect_err("there is something");
            assert_eq!(again.kind(), io::ErrorKind::DirectoryNotEmpty);
        }
    }
}
