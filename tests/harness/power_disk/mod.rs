//! A disk that can lose its power.
//!
//! A file served over FUSE is the disk, a loop device makes it a block device, and ext4 is mounted on
//! that. The server of the file knows every write and every flush. A cut stops the disk at one of them:
//! from then on it answers nothing, so that no program takes anything for written. Then all processes
//! that use the disk are killed together. The next life of the disk has what finished flushes cover, and
//! of the later writes none, a random half of the pages, or all. What the page cache of the host would
//! still write goes to the former disk, which nobody reads any more.

mod control_groups;
mod cuts;
mod disk_processes;
mod disk_server;
mod page_log;
mod service;
mod unsynced;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use rollout_base::supervise;
use tempfile::TempDir;

use crate::hidden_commands::POWER_DISK;
use crate::ignored::{is_root_or_ignored, or_ignored, report_ignored};
use crate::project::Project;
use crate::wait;

pub use self::cuts::{PowerCut, PowerCuts};
pub use self::page_log::LateWrites;
pub use self::service::serve;
pub use self::unsynced::UnsyncedFiles;

/// Lines of the service.
const CUT: &str = "cut";
const DONE: &str = "done";
const FAILED: &str = "failed: ";
const REFUSED: &str = "refused: ";

/// Longest time for an answer of the service.
const ANSWER_DEADLINE: Duration = Duration::from_secs(120);

/// Longest time that a cut waits for the writes and flushes before it.
const REQUESTS_DEADLINE: Duration = Duration::from_secs(1);

/// How the file system of a disk is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskOptions {
    /// As hosts do: the journal is committed every five seconds, and a file that replaces another is
    /// written with it.
    Defaults,
    /// Nothing is written before it is synced.
    Lazy,
}

/// A disk, mounted at a directory. Dropping it unmounts it; if the test fails, its content stays.
#[derive(Debug)]
pub struct PowerDisk {
    place: PathBuf,
    service: Child,
    /// Closed to end the service.
    commands: Option<ChildStdin>,
    answers: Receiver<String>,
    cuts: Receiver<()>,
    /// On the disk when its power was cut.
    sandboxes: BTreeSet<String>,
    /// Where the service keeps the files of the disk.
    _server: TempDir,
    /// Around the place, if the disk is that of a project.
    around: Option<TempDir>,
}

/// An empty project on a disk. `program` is the program under test. The outputs of commands are not on the
/// disk. Without FUSE, loop devices or the right to mount, the test is ignored.
///
/// # Panics
/// When the disk cannot be made for another reason.
pub fn project(program: &str, options: DiskOptions) -> Option<(Project, PowerDisk)> {
    let around = tempfile::Builder::new().prefix("powered-").tempdir().expect("a directory");
    let place = around.path().join("disk");
    fs::create_dir(&place).expect("a directory");
    let mut disk = PowerDisk::mount(program, &place, options)?;
    disk.around = Some(around);
    Some((Project::at(program, place), disk))
}

impl PowerDisk {
    /// An empty disk at an existing directory. `program` is the program under test. Without FUSE, loop
    /// devices or the right to mount, the test is ignored.
    ///
    /// # Panics
    /// When the disk cannot be made for another reason.
    pub fn mount(program: &str, place: &Path, options: DiskOptions) -> Option<Self> {
        if !is_root_or_ignored("who may mount a disk") {
            return None;
        }
        or_ignored(find_devices())?;
        let server = tempfile::Builder::new().prefix("power-disk-").tempdir().expect("a directory");
        let mut service = Command::new(program);
        service.arg(POWER_DISK).args([server.path(), place]).arg(options.text());
        service.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut service = service.spawn().expect("the program under test");
        let commands = service.stdin.take();
        let lines = BufReader::new(service.stdout.take().expect("a pipe")).lines();
        let (send_answer, answers) = mpsc::channel();
        let (send_cut, cuts) = mpsc::channel();
        let forward = move || {
            for line in lines.map_while(Result::ok) {
                // The disk may have been dropped.
                let _gone = match &*line {
                    CUT => send_cut.send(()).is_ok(),
                    _ => send_answer.send(line).is_ok(),
                };
            }
        };
        supervise::thread("disk answers", forward).expect("a thread");
        let place = place.to_owned();
        let sandboxes = BTreeSet::new();
        let (_server, around) = (server, None);
        let disk = Self { place, service, commands, answers, cuts, sandboxes, _server, around };
        let answer = disk.answer();
        if let Some(reason) = answer.strip_prefix(REFUSED) {
            report_ignored(&format!("needs the right to mount a file system over FUSE: {reason}"));
            return None;
        }
        assert_eq!(answer, DONE, "the disk cannot be made");
        Some(disk)
    }

    /// Writes everything so far to the disk.
    ///
    /// # Panics
    /// When that fails.
    pub fn sync(&self) {
        let place = File::open(&self.place).expect("a directory");
        rustix::fs::syncfs(place).expect("synced");
    }

    /// Cuts the power, and kills all processes that use the disk, with `members` and their descendants.
    /// Waits first until the cut is due, unless `has_ended` says that nothing is left to be disturbed.
    ///
    /// # Panics
    /// When the disk does not answer.
    pub fn cut(&mut self, cut: &PowerCut, members: &[u32], mut has_ended: impl FnMut() -> bool) {
        wait::holds_within(cut.after, &mut has_ended);
        self.send(&format!("cut-after {}", cut.requests));
        if self.cuts.recv_timeout(REQUESTS_DEADLINE).is_err() {
            self.send("cut-after 0");
            self.cuts.recv_timeout(ANSWER_DEADLINE).expect("the power is cut");
        }
        disk_processes::kill_together(&self.place, members);
        self.send("release");
        assert_eq!(self.answer(), DONE);
        self.sandboxes = control_groups::sandboxes_below(&self.place);
    }

    /// Mounts what is left of the disk after a cut. The children among the killed processes have been
    /// waited for.
    ///
    /// # Panics
    /// When the file system of the disk is still used, or cannot be mounted any more.
    pub fn restart(&mut self, late: LateWrites) {
        self.send(&match late {
            LateWrites::Lost => "restart lost".to_owned(),
            LateWrites::Half { seed } => format!("restart {seed}"),
            LateWrites::Kept => "restart kept".to_owned(),
        });
        assert_eq!(self.answer(), DONE);
        control_groups::remove(&self.sandboxes);
    }

    /// Processes that use the disk.
    pub fn users(&self) -> Vec<u32> {
        disk_processes::of_file_system(&self.place)
    }

    fn send(&mut self, line: &str) {
        let commands = self.commands.as_mut().expect("open until the drop");
        writeln!(commands, "{line}").expect("the disk is served");
    }

    fn answer(&self) -> String {
        self.answers.recv_timeout(ANSWER_DEADLINE).expect("the disk answers")
    }

    /// Copies the content beside the disk, and returns the place of the copy.
    fn copy_content(&self) -> Option<PathBuf> {
        let copy = self.place.with_extension("copy");
        let copied = Command::new("cp").arg("-a").args([&self.place, &copy]).status();
        copied.is_ok_and(|status| status.success()).then_some(copy)
    }

    fn end(&mut self) -> bool {
        drop(self.commands.take());
        wait::holds_within(ANSWER_DEADLINE, || matches!(self.service.try_wait(), Ok(Some(_))))
    }
}

impl Drop for PowerDisk {
    fn drop(&mut self) {
        let copy = if thread::panicking() { self.copy_content() } else { None };
        let has_ended = self.end();
        // The system may use a place for a moment after it is unmounted. Who removes what is around it
        // could not.
        let is_busy = |removed: &io::Result<()>| {
            removed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
        };
        let mut removed = Ok(());
        wait::holds_within(ANSWER_DEADLINE, || {
            removed = fs::remove_dir(&self.place);
            !is_busy(&removed)
        });
        // Where the disk was, for the paths in the messages of a failed test.
        if let Some(copy) = copy {
            drop(removed.and_then(|()| fs::rename(copy, &self.place)));
            if let Some(around) = &mut self.around {
                around.disable_cleanup(true);
            }
        }
        assert!(has_ended || thread::panicking(), "the disk stays mounted");
    }
}

impl DiskOptions {
    /// As for `mount`.
    fn text(self) -> &'static str {
        match self {
            Self::Defaults => "defaults",
            Self::Lazy => "commit=600,noauto_da_alloc",
        }
    }
}

/// Whether this host has what a disk needs; else the reason.
fn find_devices() -> Result<(), String> {
    for device in ["/dev/fuse", "/dev/loop-control"] {
        let opened = OpenOptions::new().read(true).write(true).open(device);
        opened.map_err(|error| format!("needs {device}: {error}"))?;
    }
    let found = Command::new("mkfs.ext4").arg("-V").output();
    found.map(drop).map_err(|error| format!("needs mkfs.ext4: {error}"))
}
