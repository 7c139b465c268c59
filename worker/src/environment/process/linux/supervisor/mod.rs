//! The inside of a sandbox: the same program, started again in up to three roles.
//!
//! * `outer` makes the namespaces and waits for `init`;
//! * `init` is process 1 of the sandbox: it builds the root, starts commands, collects orphans,
//!   and ends everything when the worker's end of the control socket closes;
//! * `command`, which has the capabilities of a command already, joins the control groups and becomes
//!   it.
//!
//! Starting the program again instead of forking keeps all of this free of unsafe code: every role
//! is an ordinary single-threaded program.

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

/// Exit code of a role that could not do its work; the reason went over the control socket.
const FAILED_EXIT_CODE: u8 = 125;

/// Runs a role. To be called first thing in `main`, before any thread or runtime exists, when the
/// program was started with the words that the provider was given as its helper; `args` are the
/// words after those.
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
            // Nobody is left to hear of an error here.
            let _sent = message::send_with(io::stdin().as_fd(), &packet, &[]);
            ExitCode::from(FAILED_EXIT_CODE)
        }
    }
}

/// Names the step of an error.
trait StepResultExt<T> {
    fn step(self, step: &str) -> Result<T, SetupStepError>;
}

impl<T, E: Into<io::Error>> StepResultExt<T> for Result<T, E> {
    fn step(self, step: &str) -> Result<T, SetupStepError> {
        self.map_err(|error| SetupStepError::new(step, &error.into()))
    }
}
