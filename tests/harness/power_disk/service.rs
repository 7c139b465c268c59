//! The process that serves a disk and mounts it.
//!
//! It is a process of its own, in its own session: a test that is killed cannot take it along, so no
//! process waits for a disk that nobody serves, and nothing stays mounted. It reads commands from its
//! standard input, a line each, and ends with the input:
//!
//! ```text
//! cut-after N      prints `cut` when this many more writes and flushes have been done
//! release          answers what arrived since the cut; prints `done`
//! restart WRITES   mounts what is left of the disk: `lost`, `kept` or the seed of the half
//! ```
//! The first line, the answer to the last command and the last line are `done` or `failed: REASON`.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption};

use super::disk_server::{self, Disks};
use super::page_log::LateWrites;
use super::{CUT, DONE, FAILED, REFUSED, disk_processes};
use crate::wait;

/// Bytes of a disk. Only pages that are written take memory.
const DISK_SIZE: u64 = 1 << 30;

/// Longest time until killed processes have released a file system.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(60);

/// What is mounted.
struct DiskMount {
    disks: Disks,
    /// Where the files of the disks are.
    server: PathBuf,
    /// Where the newest disk is mounted.
    place: PathBuf,
    /// Its mount options.
    options: String,
}

/// Serves a disk: `SERVER PLACE OPTIONS`, two directories and the mount options of ext4.
///
/// # Panics
/// When the arguments are wrong, or the standard output is closed.
pub fn serve(arguments: &[OsString]) -> ExitCode {
    let [server, place, options] = arguments else { panic!("usage: SERVER PLACE OPTIONS") };
    rustix::process::setsid().expect("it leads no process group");
    let disks = Disks::new(DISK_SIZE, || say(CUT));
    let (server, place) = (PathBuf::from(server), PathBuf::from(place));
    let session = match serve_files(&disks, &server) {
        Ok(session) => session,
        Err(error) => {
            let is_refused = error.kind() == io::ErrorKind::PermissionDenied;
            say(&format!("{}{error}", if is_refused { REFUSED } else { FAILED }));
            return ExitCode::FAILURE;
        }
    };
    let options = options.to_string_lossy().into_owned();
    let mount = DiskMount { disks, server, place, options };
    let made = mount.format().and_then(|()| mount.mount(&disk_server::name_of(0)));
    if answer(&made) {
        io::stdin().lock().lines().map_while(Result::ok).for_each(|line| mount.obey(&line));
    }
    mount.disks.cut_after(0);
    mount.disks.release();
    let ended = mount.unmount().and_then(|()| mount.end_server());
    drop(session);
    ExitCode::from(u8::from(!answer(&ended)))
}

fn serve_files(disks: &Disks, server: &Path) -> io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("power-disk".to_owned())];
    fuser::spawn_mount(disks.clone(), server, &config)
}

impl DiskMount {
    fn obey(&self, line: &str) {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("cut-after", requests) => self.disks.cut_after(requests.parse().expect("a number")),
            ("release", _) => {
                self.disks.release();
                say(DONE);
            }
            ("restart", late) => {
                let late = match late {
                    "lost" => LateWrites::Lost,
                    "kept" => LateWrites::Kept,
                    seed => LateWrites::Half { seed: seed.parse().expect("a seed") },
                };
                let _is_mounted = answer(&self.restart(late));
            }
            _ => panic!("unknown command: {line}"),
        }
    }

    fn format(&self) -> Result<(), String> {
        let file = self.server.join(disk_server::name_of(0));
        let mut format = Command::new("mkfs.ext4");
        format.args(["-q", "-F", "-J", "size=16", "-E"]);
        // Nothing is initialised later, so all writes are those of programs.
        format.arg("lazy_itable_init=0,lazy_journal_init=0,nodiscard").arg(file);
        run(format)
    }

    /// Mounts a file. Its loop device is released with the file system.
    fn mount(&self, name: &str) -> Result<(), String> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", &format!("loop,{}", self.options)]);
        run_on(mount, &[&self.server.join(name), &self.place])?;
        // A directory for a store or for workers has nothing else in it.
        match fs::remove_dir(self.place.join("lost+found")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("cannot remove lost+found: {error}"))
            }
            _ => Ok(()),
        }
    }

    /// Unmounts the file system on the disk, once the last of the killed processes has released it.
    fn unmount(&self) -> Result<(), String> {
        unmount(&self.place).map_err(|error| {
            format!("{error}; used by {:?}", disk_processes::of_file_system(&self.place))
        })
    }

    fn end_server(&self) -> Result<(), String> {
        unmount(&self.server)
    }

    fn restart(&self, late: LateWrites) -> Result<(), String> {
        self.unmount()?;
        self.mount(&self.disks.next_life(late))
    }
}

/// Unmounts what is mounted at a place, if anything is.
fn unmount(place: &Path) -> Result<(), String> {
    let mut last = Ok(());
    wait::holds_within(UNMOUNT_DEADLINE, || {
        last = if is_mounted(place) { run_on(Command::new("umount"), &[place]) } else { Ok(()) };
        last.is_ok()
    });
    last
}

fn is_mounted(place: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    device(place) != place.parent().and_then(device)
}

fn run(mut command: Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(format!("{command:?}: {}: {said}", output.status))
}

fn run_on(mut command: Command, paths: &[&Path]) -> Result<(), String> {
    command.args(paths);
    run(command)
}

/// Prints how something ended, and returns whether well.
fn answer(done: &Result<(), String>) -> bool {
    say(&done.as_ref().map_or_else(|reason| format!("{FAILED}{reason}"), |()| DONE.to_owned()));
    done.is_ok()
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    // A test that was killed reads no more, and the end of the input follows.
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}
