//! The limit of the allocator's arenas in processes that run for months.
//!
//! glibc gives threads arenas of their own, eight for each processor, and a peak of work leaves memory in
//! each of them. With two arenas most of it is used again or given back. The limit can only be set where a
//! process starts.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
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

/// Whether the mappings of a process have an address in a program's file. A loader that was called with the
/// program is the process's file itself.
fn is_mapped(mappings: &str, address: usize, program: &Path) -> bool {
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    mappings.lines().any(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let bounds = range.and_then(|(from, to)| Some(number(from)?..number(to)?));
        let file = line.find('/').map(|at| Path::new(&line[at..]));
        bounds.is_some_and(|bounds| bounds.contains(&address)) && file == Some(program)
    })
}

/// Starts this program again in the same process, with the limit. Returns where there is nothing to limit,
/// where a limit is set, and where the program cannot be started again, also because a loader was started
/// with it: it runs without a limit then.
pub(super) fn restart() {
    if !is_wanted(|name| std::env::var_os(name)) {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    if !is_mapped(&mappings, LIMIT.as_ptr().addr(), &program) {
        return;
    }
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

    #[test]
    fn program_under_a_loader_is_not_taken_for_the_loader() {
        let mappings = "00400000-00452000 r--p 00000000 08:02 17   /opt/with space/rollout\n\
                        7f0000000000-7f0000002000 r--p 00000000 08:02 18 /lib/ld-linux.so.2\n\
                        7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0  [stack]\n";
        let (own, loader) = (Path::new("/opt/with space/rollout"), Path::new("/lib/ld-linux.so.2"));
        for (address, program, expected) in [
            (0x0040_1000, own, true),
            (0x0040_1000, loader, false),
            (0x0045_2000, own, false),
            (0x7f00_0000_1000, loader, true),
            (0x7ffc_0000_0001, own, false),
        ] {
            assert_eq!(is_mapped(mappings, address, program), expected, "{address:x}");
        }
        let program = std::env::current_exe().expect("known");
        let mappings = std::fs::read_to_string("/proc/self/maps").expect("readable");
        assert!(is_mapped(&mappings, LIMIT.as_ptr().addr(), &program), "{mappings}");
    }
}
