//! Connections of a container that lead to sockets of this process: rules of the packet filter in the
//! container's network, which has no interface but its loopback. Nothing that gets past the rules
//! leaves the container. They need the programs `nft` and `ip` beside this process.
//!
//! A route sends packets for every address to the loopback interface, with its own address as the
//! source. The rules redirect those to allowed networks, to addresses that stand for names, and queries
//! for names. The rest is refused at once, as an answer to the program that sent it.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Once;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rollout_environment::egress::{LedNetwork, LedSockets};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};

use super::container::Container;
use super::loopback::{self, LoopbackError, system};

/// The table of the rules.
const TABLE: &str = "table ip rollout_egress";

/// The route to the loopback interface.
const ROUTE: [&str; 6] = ["local", "default", "dev", "lo", "src", "127.0.0.1"];

/// The system programs. Their directories are not on every search path.
const PROGRAMS: SystemPrograms<'static> =
    SystemPrograms { directories: &["", "/usr/sbin/", "/sbin/"], limit: Duration::from_secs(10) };

/// Pause between two looks at a program that runs.
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// Most bytes that an error quotes of what a program said.
const MAX_QUOTED_BYTES: u64 = 4096;

/// Where the system programs are, and the longest time that one may take: it can wait for a lock of the
/// packet filter, while nothing else can change the network of the container.
#[derive(Debug, Clone, Copy)]
struct SystemPrograms<'a> {
    directories: &'a [&'a str],
    limit: Duration,
}

impl Container {
    /// Leads its connections to sockets of this process; `None` if a program is missing.
    pub(super) async fn lead(
        &self,
        networks: Vec<LedNetwork>,
    ) -> Result<Option<LedSockets>, LoopbackError> {
        // An attempt whose caller is gone may go on.
        let was_led = self.network.is_led.swap(true, Ordering::Relaxed);
        let led = self.in_own_network(move || lead_here(&networks, PROGRAMS)).await;
        self.network.is_led.store(was_led || leaves_rules(&led), Ordering::Relaxed);
        let led = led?;
        if led.is_none() {
            static NOTICE: Once = Once::new();
            NOTICE.call_once(|| {
                tracing::info!(
                    "programs in environments with allowed hosts must use the proxy: this host has \
                     no programs `nft` and `ip`"
                );
            });
        }
        Ok(led)
    }

    /// Ends what [`Self::lead`] has set up. A container that was restarted has nothing of it.
    pub(super) async fn release(&self) -> Result<(), LoopbackError> {
        self.in_own_network(|| release_here(PROGRAMS)).await
    }
}

/// Whether an attempt has left rules in the network, which must go before the network changes.
fn leaves_rules(led: &Result<Option<LedSockets>, LoopbackError>) -> bool {
    matches!(led, Ok(Some(_)) | Err(LoopbackError::NotUndone(_)))
}

/// Leads the connections of the network of this thread. An attempt that fails changes nothing.
fn lead_here(
    networks: &[LedNetwork],
    programs: SystemPrograms<'_>,
) -> Result<Option<LedSockets>, LoopbackError> {
    let cannot = system("listen on its loopback interface");
    let connections = loopback::listen()?;
    let names = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(&cannot)?;
    let port = connections.local_addr().map_err(&cannot)?.port();
    let names_port = names.local_addr().map_err(&cannot)?.port();
    let rules = rules(networks, port, names_port);
    // A script has all of its effects or none.
    match programs.run("nft", &["-f", "-"], &rules) {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(why) => {
            // Only the program knows whether it was ended before its effects or after them.
            if matches!(why, LoopbackError::TooSlow { .. }) {
                undo(programs)?;
            }
            return Err(why);
        }
    }
    // Without the rules the route would lead to listeners of the container itself.
    match programs.run("ip", &[&["route", "replace"][..], &ROUTE].concat(), "") {
        Ok(true) => Ok(Some(LedSockets { connections, names })),
        other => {
            undo(programs)?;
            other.map(|_| None)
        }
    }
}

/// Removes the rules of an attempt that failed.
fn undo(programs: SystemPrograms<'_>) -> Result<(), LoopbackError> {
    let undone = programs.run("nft", &["-f", "-"], &no_rules());
    undone.map(drop).map_err(|why| LoopbackError::NotUndone(Box::new(why)))
}

fn release_here(programs: SystemPrograms<'_>) -> Result<(), LoopbackError> {
    // The route may be gone: it is there after this.
    let is_there = programs.run("ip", &[&["route", "replace"][..], &ROUTE].concat(), "")?;
    if is_there {
        programs.run("ip", &[&["route", "del"][..], &ROUTE].concat(), "")?;
    }
    programs.run("nft", &["-f", "-"], &no_rules()).map(drop)
}

/// A script that removes the table, whether it exists or not.
fn no_rules() -> String {
    format!("{TABLE}\ndelete {TABLE}\n")
}

/// The script of the rules, which replaces earlier ones in one step.
fn rules(networks: &[LedNetwork], port: u16, names_port: u16) -> String {
    let led: String =
        [LedNetwork::NAMES].iter().chain(networks).map(|network| rule(network, port)).collect();
    let removed = no_rules();
    format!(
        "{removed}{TABLE} {{
  chain lead {{
    type nat hook output priority -100; policy accept;
    ip daddr 127.0.0.0/8 return
    udp dport 53 redirect to :{names_port}
{led}  }}
  chain shut {{
    type filter hook output priority 0; policy accept;
    ip daddr 127.0.0.0/8 accept
    ct status dnat accept
    meta l4proto tcp reject with tcp reset
    reject
  }}
}}
"
    )
}

/// The rule that leads connections to a network to a port.
fn rule(network: &LedNetwork, port: u16) -> String {
    let LedNetwork { address, bits, port: only } = network;
    let mask = u32::MAX.checked_shl(32 - u32::from(*bits)).unwrap_or(0);
    let to = match mask {
        0 => String::new(),
        mask => format!("ip daddr {}/{bits} ", Ipv4Addr::from_bits(address.to_bits() & mask)),
    };
    match only {
        None => format!("    {to}meta l4proto tcp redirect to :{port}\n"),
        Some(only) => format!("    {to}tcp dport {only} redirect to :{port}\n"),
    }
}

impl SystemPrograms<'_> {
    /// Runs a program with this input; returns whether there is such a program.
    fn run(
        self,
        program: &'static str,
        arguments: &[&str],
        input: &str,
    ) -> Result<bool, LoopbackError> {
        let cannot = system("run a system program");
        for directory in self.directories {
            // Files in memory: neither side waits for the other to read.
            let mut said = memory_file("").map_err(&cannot)?;
            let started = Command::new(format!("{directory}{program}"))
                .args(arguments)
                .process_group(0)
                .stdin(memory_file(input).map_err(&cannot)?)
                .stdout(Stdio::null())
                .stderr(said.try_clone().map_err(&cannot)?)
                .spawn();
            let mut child = match started {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                started => started.map_err(&cannot)?,
            };
            let Some(status) = wait(&mut child, self.limit).map_err(&cannot)? else {
                return Err(LoopbackError::TooSlow { program, limit: self.limit });
            };
            if status.success() {
                return Ok(true);
            }
            let mut text = Vec::new();
            said.rewind().map_err(&cannot)?;
            said.take(MAX_QUOTED_BYTES).read_to_end(&mut text).map_err(&cannot)?;
            let why = match (String::from_utf8_lossy(&text).trim(), status.code()) {
                ("", Some(code)) => format!("`{program}` ended with code {code}"),
                ("", None) => format!("`{program}` was ended ({status})"),
                (said, _) => format!("`{program}`: {said}"),
            };
            return Err(system("set the rules of its network")(io::Error::other(why)));
        }
        Ok(false)
    }
}

/// A file in memory, at the beginning of its text.
fn memory_file(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("rollout", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Waits for the end of a program in a process group of its own; `None` if it was ended at the limit.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() >= limit {
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let Some(group) = group {
                kill_process_group(group, Signal::KILL)?;
            }
            child.wait()?;
            return Ok(None);
        }
        std::thread::park_timeout(LOOK_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Attempts to lead connections with these scripts as the programs. Returns the result, and whether
    /// the attempt has left rules.
    fn attempt(programs: &[(&str, &str)]) -> (Result<bool, String>, bool) {
        attempt_within(Duration::from_secs(60), programs)
    }

    /// Such an attempt, whose programs may take this time.
    fn attempt_within(limit: Duration, programs: &[(&str, &str)]) -> (Result<bool, String>, bool) {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, script) in programs {
            let path = dir.path().join(name);
            fs::write(&path, format!("#!/bin/sh\nread -r input\n{script}\n")).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("changed");
        }
        let directory = format!("{}/", dir.path().display());
        let led = lead_here(&[], SystemPrograms { directories: &[&directory], limit });
        let leaves = leaves_rules(&led);
        (led.map(|sockets| sockets.is_some()).map_err(|why| why.to_string()), leaves)
    }

    #[test]
    fn attempt_that_fails_leaves_nothing_to_release() {
        let (works, fails) = ("exit 0", "echo 'not permitted' >&2; exit 1");
        for (nft, ip, led) in [
            (Some(works), Some(works), Ok(true)),
            (Some(fails), Some(works), Err(())),
            (Some(works), Some(fails), Err(())),
            (None, Some(fails), Ok(false)),
            (Some(works), None, Ok(false)),
        ] {
            let programs = [("nft", nft), ("ip", ip)];
            let programs: Vec<_> =
                programs.iter().filter_map(|(name, script)| Some((*name, (*script)?))).collect();
            let (result, leaves) = attempt(&programs);
            assert_eq!(leaves, led == Ok(true), "{programs:?}: {result:?}");
            assert_eq!(result.clone().map_err(drop), led, "{programs:?}: {result:?}");
            let names_cause = |why: &String| why.contains("not permitted");
            assert!(result.as_ref().err().is_none_or(names_cause), "{programs:?}: {result:?}");
        }
    }

    #[test]
    fn program_that_fails_without_a_word_is_told_by_its_end() {
        for (script, end) in [
            ("exit 4", "`nft` ended with code 4"),
            ("kill -KILL $$", "`nft` was ended (signal: 9 (SIGKILL))"),
        ] {
            let (result, _) = attempt(&[("nft", script), ("ip", "exit 0")]);
            assert!(result.as_ref().is_err_and(|why| why.contains(end)), "{script}: {result:?}");
        }
    }

    #[test]
    fn rules_that_cannot_be_removed_again_are_left() {
        // Only the script of the rules leads connections anywhere.
        let only_rules = "grep -q redirect || exit 1";
        let (result, leaves) = attempt(&[("nft", only_rules), ("ip", "exit 1")]);
        assert!(leaves, "{result:?}");
        assert!(result.is_err_and(|why| why.contains("cannot undo")), "an error");
    }

    #[test]
    fn program_that_hangs_is_ended_and_its_rules_are_removed() {
        let limit = Duration::from_secs(3);
        let only_rules = "! grep -q redirect || sleep 600";
        for (nft, leaves, said) in [
            (only_rules, false, "`nft` did not end within 3s"),
            ("sleep 600", true, "cannot undo changes of its network: `nft` did not end within 3s"),
        ] {
            let began = Instant::now();
            let (result, has_left) = attempt_within(limit, &[("nft", nft), ("ip", "exit 0")]);
            assert_eq!((result, has_left), (Err(said.to_owned()), leaves), "{nft}");
            assert!(began.elapsed() < Duration::from_secs(300), "{nft}");
        }
    }

    #[test]
    fn rules_of_any_length_reach_a_program_that_talks_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nft");
        // More than a pipe holds, in both directions.
        let script = "#!/bin/sh\nyes | head -c 300000 >&2\n[ \"$(wc -c)\" -eq 300000 ]\n";
        fs::write(&path, script).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("changed");
        let directory = format!("{}/", dir.path().display());
        let programs =
            SystemPrograms { directories: &[&directory], limit: Duration::from_secs(60) };
        let ran = programs.run("nft", &[], &"x".repeat(300_000)).map_err(|why| why.to_string());
        assert_eq!(ran, Ok(true));
    }

    #[test]
    fn rules_lead_listed_networks_and_refuse_the_rest() {
        let network =
            |text: &str, bits, port| LedNetwork { address: text.parse().expect("one"), bits, port };
        let networks = [
            network("203.0.113.9", 24, None),
            network("198.51.100.7", 32, Some(443)),
            network("0.0.0.0", 0, None),
        ];
        let script = rules(&networks, 4000, 4053);
        for line in [
            "delete table ip rollout_egress",
            "    ip daddr 198.18.0.0/15 meta l4proto tcp redirect to :4000",
            "    ip daddr 203.0.113.0/24 meta l4proto tcp redirect to :4000",
            "    ip daddr 198.51.100.7/32 tcp dport 443 redirect to :4000",
            "    meta l4proto tcp redirect to :4000",
            "    udp dport 53 redirect to :4053",
            "    reject",
        ] {
            assert!(script.lines().any(|found| found == line), "{line}:\n{script}");
        }
        assert_eq!(script.matches('{').count(), script.matches('}').count());
    }
}
