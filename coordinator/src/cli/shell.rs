//! `rollout completions` and `rollout man`: files for shells and for `man`.

use std::fs;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;

use super::args::Cli;
use super::error::CliError;
use super::output::Printer;

/// Name of the program in completions and manual pages.
const PROGRAM: &str = "rollout";

/// Print the completion script of a shell
///
/// For the current shell: `source <(rollout completions bash)`. For all shells of a user, write it
/// to the shell's directory of completions.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// Shell
    shell: Shell,
}

/// Write manual pages, one for each command
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Directory, such as `/usr/local/share/man/man1`; made if it does not exist
    directory: PathBuf,
}

/// Prints the completions of a shell.
pub(super) fn completions(args: &CompletionsArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), PROGRAM, &mut script);
    printer.bytes(&script)?;
    Ok(ExitCode::Success)
}

/// Writes the manual pages.
pub(super) async fn man(args: ManArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let directory = args.directory.clone();
    let write = move || {
        fs::create_dir_all(&directory)?;
        clap_mangen::generate_to(Cli::command(), &directory)
    };
    supervise::blocking(write).await.map_err(|error| {
        let directory = args.directory.display();
        CliError::failure(format!("cannot write manual pages to {directory}"), &error)
    })?;
    printer.data(&format!("wrote manual pages to {}\n", args.directory.display()))?;
    Ok(ExitCode::Success)
}
