//! A file system over FUSE whose files are disks.
//!
//! Its root has one file for each life of the disk, `disk-0` before the first cut. A write arrives when
//! the loop device writes; a flush arrives as a sync of the file, when the file system on the loop device
//! flushes the disk.

use std::ffi::OsStr;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, WriteFlags,
};

use super::page_log::{LateWrites, PageLog};

/// How long the kernel may keep names and attributes: they never change.
const FOREVER: Duration = Duration::from_secs(86_400);

/// Most bytes in one write: fewer requests than with the kernel's 128 KiB.
const MAX_WRITE: u32 = 1 << 20;

/// Inode of `disk-0`.
const FIRST_DISK: u64 = 2;

/// The disks of all lives, for the server and for its owner.
#[derive(Debug, Clone)]
pub(super) struct Disks(Arc<Mutex<Lives>>);

#[derive(Debug)]
struct Lives {
    /// Size of a disk in bytes.
    size: u64,
    /// Of each life.
    logs: Vec<PageLog>,
    power: Power,
    /// Called when the power is cut.
    on_cut: fn(),
}

/// Whether the newest disk has power.
#[derive(Debug)]
enum Power {
    On,
    /// It is cut when this many more writes and flushes have been done.
    CutAfter(u64),
    /// No write or flush is answered any more, so that nobody takes one for done.
    Cut {
        disk: PageLog,
        unanswered: Vec<Unanswered>,
    },
    /// Everything is answered, and the disk stays as it was.
    Off {
        disk: PageLog,
    },
}

#[derive(Debug)]
enum Unanswered {
    Write(ReplyWrite, u32),
    Flush(ReplyEmpty),
}

impl Unanswered {
    fn answer(self) {
        match self {
            Self::Write(reply, length) => reply.written(length),
            Self::Flush(reply) => reply.ok(),
        }
    }
}

impl Lives {
    /// Counts a write or flush before it is done.
    fn count_request(&mut self) {
        match &mut self.power {
            Power::CutAfter(0) => self.cut(),
            Power::CutAfter(more) => *more -= 1,
            Power::On | Power::Cut { .. } | Power::Off { .. } => {}
        }
    }

    fn cut(&mut self) {
        let disk = self.logs.last().expect("the first life").clone();
        self.power = Power::Cut { disk, unanswered: Vec::new() };
        (self.on_cut)();
    }

    fn newest(&self) -> u64 {
        self.logs.len() as u64 - 1
    }

    /// Answers a write or flush of a life, or keeps the answer while the power is cut.
    fn answer(&mut self, life: u64, answer: Unanswered) {
        let is_newest = life == self.newest();
        match &mut self.power {
            Power::Cut { unanswered, .. } if is_newest => unanswered.push(answer),
            _ => answer.answer(),
        }
    }
}

impl Disks {
    /// A disk of zeros. `on_cut` is called when its power is cut, with its lock held.
    pub(super) fn new(size: u64, on_cut: fn()) -> Self {
        let logs = vec![PageLog::default()];
        Self(Arc::new(Mutex::new(Lives { size, logs, power: Power::On, on_cut })))
    }

    fn lock(&self) -> MutexGuard<'_, Lives> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power when this many more writes and flushes have been done: with 0, now.
    pub(super) fn cut_after(&self, requests: u64) {
        let mut lives = self.lock();
        match (&lives.power, requests) {
            (Power::On | Power::CutAfter(_), 0) => lives.cut(),
            (Power::On | Power::CutAfter(_), _) => lives.power = Power::CutAfter(requests),
            (Power::Cut { .. } | Power::Off { .. }, _) => {}
        }
    }

    /// Answers what arrived since the cut, without effect.
    pub(super) fn release(&self) {
        let mut lives = self.lock();
        if let Power::Cut { disk, unanswered } = std::mem::replace(&mut lives.power, Power::On) {
            lives.power = Power::Off { disk };
            unanswered.into_iter().for_each(Unanswered::answer);
        }
    }

    /// Begins the next life, with what is left of the disk. Returns the name of its file.
    pub(super) fn next_life(&self, late: LateWrites) -> String {
        let mut lives = self.lock();
        let (Power::Cut { disk, .. } | Power::Off { disk }) =
            std::mem::replace(&mut lives.power, Power::On)
        else {
            panic!("the power is on");
        };
        // Whatever still reads the former disk sees zeros: its file system is gone.
        *lives.logs.last_mut().expect("the first life") = PageLog::default();
        lives.logs.push(disk.after_cut(late));
        name_of(lives.newest())
    }

    fn attributes(&self, life: u64) -> FileAttr {
        let size = self.lock().size;
        let (ino, kind) = (INodeNo(FIRST_DISK + life), FileType::RegularFile);
        FileAttr { size, blocks: size / 512, ..attributes(ino, kind) }
    }

    /// The life of a file that exists.
    fn life(&self, file: INodeNo) -> Option<u64> {
        let life = file.0.checked_sub(FIRST_DISK)?;
        (life <= self.lock().newest()).then_some(life)
    }
}

/// Name of the file of a life.
pub(super) fn name_of(life: u64) -> String {
    format!("disk-{life}")
}

fn attributes(ino: INodeNo, kind: FileType) -> FileAttr {
    let [atime, mtime, ctime, crtime] = [UNIX_EPOCH; 4];
    let (size, blocks, perm, nlink, uid, gid) = (0, 0, 0o700, 1, 0, 0);
    let (rdev, blksize, flags) = (0, 4096, 0);
    FileAttr {
        ino,
        size,
        blocks,
        atime,
        mtime,
        ctime,
        crtime,
        kind,
        perm,
        nlink,
        uid,
        gid,
        rdev,
        blksize,
        flags,
    }
}

impl Filesystem for Disks {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let set = config.set_max_write(MAX_WRITE);
        set.map(drop).map_err(|most| io::Error::other(format!("at most {most} bytes in a write")))
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let newest = self.lock().newest();
        match (0..=newest).find(|life| *name == *name_of(*life)) {
            Some(life) => reply.entry(&FOREVER, &self.attributes(life), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, file: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.life(file) {
            Some(life) => reply.attr(&FOREVER, &self.attributes(life)),
            None => reply.attr(&FOREVER, &attributes(file, FileType::Directory)),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        file: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(life) = self.life(file) else { return reply.error(Errno::EISDIR) };
        let lives = self.lock();
        let length = lives.size.saturating_sub(offset).min(u64::from(size));
        let log = &lives.logs[usize::try_from(life).expect("few")];
        reply.data(&log.read(offset, usize::try_from(length).expect("a part of a request")));
    }

    fn write(
        &self,
        _: &Request,
        file: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(life) = self.life(file) else { return reply.error(Errno::EISDIR) };
        let mut lives = self.lock();
        if life == lives.newest() {
            lives.count_request();
            lives.logs.last_mut().expect("the first life").write(offset, data);
        }
        let length = u32::try_from(data.len()).expect("a part of a request");
        lives.answer(life, Unanswered::Write(reply, length));
    }

    fn fsync(&self, _: &Request, file: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let Some(life) = self.life(file) else { return reply.ok() };
        let mut lives = self.lock();
        if life == lives.newest() {
            lives.count_request();
            lives.logs.last_mut().expect("the first life").flush();
        }
        lives.answer(life, Unanswered::Flush(reply));
    }

    /// The end of a descriptor's use, which is no flush of the disk.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}
