//! Tests that cannot run on this machine: each says so here, with its reason. `tests/run` counts them
//! as ignored.

pub use rollout_worker::testing::{report_ignored, report_ignored_part};

/// The service or program that a test needs; without it, the test is reported as ignored with the
/// reason in the error.
pub fn or_ignored<T>(found: Result<T, String>) -> Option<T> {
    found.map_err(|reason| report_ignored(&reason)).ok()
}

/// The need of the part of a test that is called `part`; without it, this part is reported as ignored.
pub fn or_ignored_part<T>(found: Result<T, String>, part: &str) -> Option<T> {
    found.map_err(|reason| report_ignored_part(&format!("{part}: {reason}"))).ok()
}

/// The need of the part of a test that is called `part`, which must run on every machine that can: without
/// it, this part is reported as ignored where `variable` is `no`, as `tests/run` sets it on a machine that
/// has no such service, or is told to use none.
///
/// # Panics
/// Without the need, on another machine.
#[track_caller]
pub fn or_left_out_part<T>(found: Result<T, String>, part: &str, variable: &str) -> Option<T> {
    let value = std::env::var(variable).ok();
    match found {
        Ok(found) => Some(found),
        Err(reason) => {
            assert_eq!(
                value.as_deref(),
                Some("no"),
                "cannot run this part: {part}: {reason}; `tests/run` installs what is missing, and \
                 {variable}=no leaves the part out"
            );
            report_ignored_part(&format!("{part}: {reason}"));
            None
        }
    }
}

/// Whether this process is root. If not, the test is reported as ignored; `why` says what only root
/// can do, or has: "which can be several users".
pub fn is_root_or_ignored(why: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        report_ignored(&format!("needs root, {why}"));
    }
    is_root
}
