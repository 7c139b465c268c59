//! Connections of a container that lead to sockets of this process: rules of the packet filter in the
//! container's network, which has no interface but its loopback. Nothing that gets past the rules
//! leaves the container. They need the programs `nft` and `ip` beside this process.
//!
//! A route sends packets for every address to the loopback interface, with its own address as the
//! source. The rules redirect those to allowed networks, to addresses that stand for names, and queries
//! for names. The rest is refused at once, as an answer to the program that sent it.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::Ordering;

use super::container::Container;
use super::loopback::{self, LoopbackError, system};
use crate::egress::{LedNetwork, LedSockets};

/// The table of the rules.
const TABLE: &str = "table ip rollout_egress";

/// The route to the loopback interface.
const ROUTE: [&str; 6] = ["local", "default", "dev", "lo", "src", "127.0.0.1"];

/// Directories of system programs, which are not on every search path.
const DIRECTORIES: [&str; 3] = ["", "/usr/sbin/", "/sbin/"];

impl Container {
    /// Leads its connections to sockets of this process; `None` if a program is missing.
    pub(super) async fn lead(
        &self,
        networks: Vec<LedNetwork>,
    ) -> Result<Option<LedSockets>, LoopbackError> {
        // An attempt whose caller is gone may go on.
        let was_led = self.network.is_led.swap(true, Ordering::Relaxed);
        let led = self.in_own_network(move || lead_here(&networks, &DIRECTORIES)).await;
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
        self.in_own_network(|| release_here(&DIRECTORIES)).await
    }
}

/// Whether an attempt has left rules in the network, which must go before the network changes.
fn leaves_rules(led: &Result<Option<LedSockets>, LoopbackError>) -> bool {
    matches!(led, Ok(Some(_)) | Err(LoopbackError::NotUndone(_)))
}

/// Leads the connections of the network of this thread, with programs of these directories. An attempt
/// that fails changes nothing.
fn lead_here(
    networks: &[LedNetwork],
    directories: &[&str],
) -> Result<Option<LedSockets>, LoopbackError> {
    let cannot = system("listen on its loopback interface");
    let connections = loopback::listen()?;
    let names = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(&cannot)?;
    let port = connections.local_addr().map_err(&cannot)?.port();
    let names_port = names.local_addr().map_err(&cannot)?.port();
    let rules = rules(networks, port, names_port);
    // A script has all of its effects or none.
    if !run(directories, "nft", &["-f", "-"], &rules)? {
        return Ok(None);
    }
    // Without the rules the route would lead to listeners of the container itself.
    match run(directories, "ip", &[&["route", "replace"][..], &ROUTE].concat(), "") {
        Ok(true) => Ok(Some(LedSockets { connections, names })),
        other => {
            run(directories, "nft", &["-f", "-"], &no_rules())
                .map_err(|why| LoopbackError::NotUndone(Box::new(why)))?;
            other.map(|_| None)
        }
    }
}

fn release_here(directories: &[&str]) -> Result<(), LoopbackError> {
    // The route may be gone: it is there after this.
    let is_there = run(directories, "ip", &[&["route", "replace"][..], &ROUTE].concat(), "")?;
    if is_there {
        run(directories, "ip", &[&["route", "del"][..], &ROUTE].concat(), "")?;
    }
    run(directories, "nft", &["-f", "-"], &no_rules()).map(drop)
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

/// Runs a program of these directories with this input; returns whether there is such a program.
fn run(
    directories: &[&str],
    program: &str,
    arguments: &[&str],
    input: &str,
) -> Result<bool, LoopbackError> {
    for directory in directories {
        let started = Command::new(format!("{directory}{program}"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match started {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            started => started.map_err(system("run a system program"))?,
        };
        let written =
            child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
        let ended = child.wait_with_output().map_err(system("run a system program"))?;
        if ended.status.success() {
            written.map_err(system("write to a system program"))?;
            return Ok(true);
        }
        let said = String::from_utf8_lossy(&ended.stderr);
        let why = format!("`{program}`: {}", said.trim());
        return Err(system("set the rules of its network")(io::Error::other(why)));
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Attempts to lead connections with these scripts as the programs. Returns the result, and whether
    /// the attempt has left rules.
    fn attempt(programs: &[(&str, &str)]) -> (Result<bool, String>, bool) {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, script) in programs {
            let path = dir.path().join(name);
            fs::write(&path, format!("#!/bin/sh\nread -r input\n{script}\n")).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("changed");
        }
        let led = lead_here(&[], &[&format!("{}/", dir.path().display())]);
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
    fn rules_that_cannot_be_removed_again_are_left() {
        // Only the script of the rules leads connections anywhere.
        let only_rules = "grep -q redirect || exit 1";
        let (result, leaves) = attempt(&[("nft", only_rules), ("ip", "exit 1")]);
        assert!(leaves, "{result:?}");
        assert!(result.is_err_and(|why| why.contains("cannot undo")), "an error");
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
