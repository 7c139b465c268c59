//! Tests of the wait for programs of an environment, in a directory like `/proc`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use super::*;

/// A directory like `/proc`, which a test fills.
struct ProcessDirectory(tempfile::TempDir);

impl ProcessDirectory {
    /// Init, with these processes: number, parent, arguments.
    fn with(processes: &[(u32, u32, &[&str])]) -> Self {
        let dir = Self(tempfile::tempdir().expect("a directory"));
        dir.write("uptime", "100.00 0.00\n");
        dir.process(1, 0, &["/sbin/init", "--", "/bin/sh", "-c", KEEP_ALIVE]);
        for (pid, parent, arguments) in processes {
            dir.process(*pid, *parent, arguments);
        }
        dir
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().expect("below the directory")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn process(&self, pid: u32, parent: u32, arguments: &[&str]) {
        let rest = "0 ".repeat(17);
        self.write(&format!("{pid}/stat"), &format!("{pid} (a) b (c) S {parent} {rest}{pid} 0\n"));
        let cmdline: String = arguments.iter().flat_map(|word| [*word, "\0"]).collect();
        self.write(&format!("{pid}/cmdline"), &cmdline);
    }

    /// What the script prints, whose clock the test sets to `later` hundredths of a second after the
    /// first look.
    fn observe(&self, later: u32) -> StartWait {
        // The pause of the script advances its clock.
        let bin = self.path().join("bin");
        fs::create_dir(&bin).expect("made");
        let uptime = self.path().join("uptime");
        let sleep = format!("#!/bin/sh\necho {}.00 0 > {}\n", 100 + later / 100, uptime.display());
        fs::write(bin.join("sleep"), sleep).expect("written");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(bin.join("sleep"), mode).expect("changed");
        let command = observation();
        let ran = Command::new("/bin/sh")
            .args(&command.argv[1..])
            .arg(self.path())
            .env("PATH", &bin)
            .output()
            .expect("a shell");
        let printed = String::from_utf8(ran.stdout).expect("text");
        let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
        observed(&printed).unwrap_or_else(|| panic!("{printed:?} {errors:?}"))
    }
}

const KEPT: &[&str] = &["/bin/sh", "-c", KEEP_ALIVE];

fn wait(until: StartWaitEnd, waited_sec: f64, processes: u32, sockets: u32) -> StartWait {
    StartWait { until, waited_sec, processes: Some(processes), sockets: Some(sockets) }
}

#[test]
fn start_of_command_alone_is_not_waited_for() {
    let kept = (7, 1, KEPT);
    let pause = (8, 7, &["sleep", "3600"] as &[&str]);
    let command = (20, 0, &["/bin/sh", "-c", "the script"] as &[&str]);
    let below = (21, 20, &["sleep", "0.1"] as &[&str]);
    let cases: [&[(u32, u32, &[&str])]; 3] = [
        &[kept, pause, command, below],
        // An entrypoint that waits for its command.
        &[(6, 1, &["/bin/bash", "/entry.sh", "/bin/sh", "-c", KEEP_ALIVE]), (7, 6, KEPT), pause],
        &[(7, 1, &["sleep", "infinity"])],
    ];
    for processes in cases {
        let found = ProcessDirectory::with(processes).observe(0);
        assert_eq!(found, wait(StartWaitEnd::Idle, 0.0, 0, 0), "{processes:?}");
    }
}

#[test]
fn start_with_service_settles_after_a_second() {
    let dir = ProcessDirectory::with(&[(7, 1, KEPT), (9, 7, &["redis-server"])]);
    let line = |state: &str| format!("   0: 0100007F:1F90 00000000:0000 {state} 0 0\n");
    dir.write("net/tcp", &format!("  sl local rem st\n{}{}", line("0A"), line("01")));
    dir.write(
        "net/unix",
        "Num Ref Protocol Flags Type St Inode Path\n00: 2 0 00010000 1 1 77 /s\n",
    );
    assert_eq!(dir.observe(100), wait(StartWaitEnd::Settled, 1.0, 1, 2));
}

#[test]
fn start_before_entrypoint_has_run_its_command_is_waited_for_longer() {
    let entrypoint: &[&str] = &["/bin/bash", "/entry.sh", "/bin/sh", "-c", KEEP_ALIVE];
    let dir = ProcessDirectory::with(&[(6, 1, entrypoint)]);
    assert_eq!(dir.observe(300), wait(StartWaitEnd::Settled, 3.0, 1, 0));
}

#[test]
fn start_with_pause_that_ends_soon_is_waited_for_to_the_limit() {
    for pause in [&["sleep", "4"] as &[&str], &["/bin/sleep", "0.5"], &["busybox", "sleep", "10"]] {
        let dir = ProcessDirectory::with(&[(7, 1, KEPT), (8, 7, pause)]);
        assert_eq!(dir.observe(1000), wait(StartWaitEnd::Limit, 10.0, 1, 0), "{pause:?}");
    }
    let dir = ProcessDirectory::with(&[(7, 1, KEPT), (8, 7, &["sleep", "100"])]);
    assert_eq!(dir.observe(100), wait(StartWaitEnd::Settled, 1.0, 1, 0));
}

#[test]
fn start_output_of_other_programs_is_no_observation() {
    for printed in ["", "until=never waited=1 processes=0 sockets=0", "until=idle waited=x"] {
        assert_eq!(observed(printed), None, "{printed}");
    }
}
