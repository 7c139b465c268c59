//! The limit of the allocator's arenas in processes that run for months.
//!
//! glibc gives threads arenas of their own, eight for each processor, and a peak of work leaves memory in
//! each of them. With two arenas most of it is used again or given back. The limit can only be set where a
//! process starts.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// The variable with the limit.
const LIMIT: &str = "MALLOC_ARENA_MAX";

/// Other variables of the allocator: a user who sets one has chosen.
const CHOICES: [&str; 2] = [LIMIT, "GLIBC_TUNABLES"];

/// Arenas of a process.
const ARENAS: &str = "2";

/// Whether a process with this environment is to be started again with the limit.
fn is_wanted(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    cfg!(target_env = "gnu") && CHOICES.iter().all(|name| variable(name).is_none())
}

/// Starts this program again in the same process, with the limit. Returns where there is nothing to limit,
/// where a limit is set, and where the program cannot be started again: it runs without a limit then.
pub(super) fn restart() {
    if !is_wanted(|name| std::env::var_os(name)) {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| program.clone().into_os_string());
    let mut again = Command::new(&program);
    let _not_started = again.arg0(name).args(arguments).env(LIMIT, ARENAS).exec();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_started_again_once_and_not_against_a_choice_of_the_user() {
        let with = |set: Option<&str>| is_wanted(|name| (Some(name) == set).then(|| ARENAS.into()));
        assert_eq!(with(None), cfg!(target_env = "gnu"));
        assert!(CHOICES.iter().all(|name| !with(Some(*name))));
    }
}
