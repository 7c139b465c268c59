//! The supervisor inside a sandbox: the same program, started again in up to three roles.
//!
//! * `outer` makes the namespaces and waits for `init`.
//! * `init` is process 1 of the sandbox. It builds the root, starts commands, reaps orphans, and
//!   kills everything when the worker's end of the control socket closes.
//! * `command`, which already has a command's capabilities, joins the control groups and becomes
//!   the command.
//!
//! Starting the program again instead of forking avoids unsafe code: every role is an ordinary
//! single-threaded program.

mod capabilities;
mod command;
mod init;
mod namespaces;
mod network;
mod root;

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

use super::message::{self, SetupStepError, SupervisorEvent};

/// Exit code of a failed role; the reason was sent over the control socket.
const FAILED_EXIT_CODE: u8 = 125;

/// Runs a role. Must be called first in `main`, before any thread or runtime exists, if the program
/// was started with the helper words that the provider was given; `args` are the words after those.
pub fn main(args: &[OsString]) -> ExitCode {
    let all: Vec<OsString> = std::env::args_os().collect();
    let helper = &all[..all.len().saturating_sub(args.len())];
    let words: Vec<_> = args.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let done = match words[..] {
        ["outer", _, network] => namespaces::main(helper, args[1].as_ref(), network == "none"),
        ["init"] => init::main(helper),
        ["command"] => command::main(),
        _ => return ExitCode::from(FAILED_EXIT_CODE),
    };
    match done {
        Ok(code) => code,
        Err(failed) => {
            let packet = message::encode(&SupervisorEvent::Failed(failed));
            // If this fails, there is no receiver for the error.
            let _sent = message::send_with(io::stdin().as_fd(), &packet, &[]);
            ExitCode::from(FAILED_EXIT_CODE)
        }
    }
}

/// Adds the step to an error.
trait StepResultExt<T> {
    fn step(self, step: &str) -> Result<T, SetupStepError>;
}

impl<T, E: Into<io::Error>> StepResultExt<T> for Result<T, E> {
    fn step(self, step: &str) -> Result<T, SetupStepError> {
        self.map_err(|error| SetupStepError::new(step, &error.into()))
    }
}
