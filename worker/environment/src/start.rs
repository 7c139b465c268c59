//! Programs that an environment runs by itself, and the wait until they have started.
//!
//! An image's ENTRYPOINT may start services in the background and only then run the command that
//! keeps the environment alive. Nothing announces that a service is ready, so a script in the
//! environment observes processes and listening sockets until they no longer change.

use std::collections::BTreeMap;
use std::time::Duration;

use rollout_protocol::record::{StartWait, StartWaitEnd};

use super::ExecCommand;

/// Keeps a container alive without doing anything and ends at once on TERM, which `sleep` alone as
/// the first process would not. As the first process it also collects orphans: its `wait` waits for
/// all children.
pub const KEEP_ALIVE: &str = "trap \"exit 0\" TERM; while :; do sleep 3600 & wait $!; done";

/// Longest wait until an environment, or a service beside it, is healthy.
pub const HEALTHY_WITHIN: Duration = Duration::from_secs(480);

/// Longest wait for programs of an environment.
const LONGEST: Duration = Duration::from_secs(10);

/// Time without a change after which programs have settled.
const CALM: Duration = Duration::from_secs(1);

/// Time limit of the script: an environment that is short of processors delays it.
pub const OBSERVED_WITHIN: Duration = Duration::from_secs(30);

const SCRIPT: &str = include_str!("start.sh");

/// The command that waits until the environment's own programs have settled.
pub fn observation() -> ExecCommand {
    let [longest, calm] = [LONGEST, CALM].map(|time| (time.as_millis() / 10).to_string());
    let argv = ["/bin/sh", "-c", SCRIPT, "rollout", &longest, &calm, KEEP_ALIVE];
    ExecCommand {
        argv: argv.map(str::to_owned).to_vec(),
        env: BTreeMap::new(),
        workdir: Some("/".to_owned()),
        user: None,
    }
}

/// The wait that the command printed; `None` for other output.
pub fn observed(printed: &str) -> Option<StartWait> {
    let fields: BTreeMap<&str, &str> =
        printed.split_whitespace().filter_map(|field| field.split_once('=')).collect();
    let number = |name: &str| fields.get(name)?.parse::<u32>().ok();
    let until = match *fields.get("until")? {
        "idle" => StartWaitEnd::Idle,
        "settled" => StartWaitEnd::Settled,
        "limit" => StartWaitEnd::Limit,
        _ => return None,
    };
    Some(StartWait {
        until,
        waited_sec: f64::from(number("waited")?) / 100.0,
        processes: Some(number("processes")?),
        sockets: Some(number("sockets")?),
    })
}

#[cfg(test)]
mod tests;
