//! Bounded reading of files that others name or make. Only regular files are read: a device never
//! ends, a pipe blocks until something writes to it, and a file of the kernel may do either. A file of
//! FUSE or of a network file system is read as any other, and waits for its server.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rollout_protocol::digest::{Digest, DigestHasher};
use rustix::fs::{CWD, Mode, OFlags};

/// File systems whose files are made by the kernel when they are read, as `linux/magic.h` numbers
/// them.
const KERNEL_FILES: [i128; 18] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x7363_6673, // securityfs
    0x6265_6570, // configfs
    0xcafe_4a11, // bpf
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0x4249_4e4d, // binfmt_misc
    0x6573_5543, // fusectl
    0x6e66_7364, // nfsd
    0x0765_5821, // resctrl
    0x1980_0202, // mqueue
];

/// The bits of such a number: it is 32 bits long, also where the system's type is longer and has a sign.
const NUMBER: i128 = 0xffff_ffff;

/// Bytes that are read at once for a digest.
const CHUNK_SIZE: usize = 64 * 1024;

/// Opens a regular file for reading. Links are followed. Never waits for a writer.
///
/// # Errors
/// Those of the system; of kind [`io::ErrorKind::InvalidInput`] for anything but a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Opening a device may act on it. The handle is looked at again: another file may be there then.
    check(&fs::metadata(path)?)?;
    open_checked(CWD, path, OFlags::empty())
}

/// Opens a regular file of a directory, by its name. Links are not followed.
pub fn open_entry(directory: BorrowedFd<'_>, name: &Path) -> io::Result<File> {
    open_checked(directory, name, OFlags::NOFOLLOW)
}

fn open_checked(directory: BorrowedFd<'_>, path: &Path, more: OFlags) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | more;
    let file = File::from(rustix::fs::openat(directory, path, flags, Mode::empty())?);
    check(&file.metadata()?)?;
    if KERNEL_FILES.contains(&(i128::from(rustix::fs::fstatfs(&file)?.f_type) & NUMBER)) {
        return Err(no_regular_file());
    }
    Ok(file)
}

/// Reads a regular file of at most `limit` bytes. No more are read.
///
/// # Errors
/// As [`open`]; of kind [`io::ErrorKind::FileTooLarge`] if it is larger.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_at_most(open(path)?, limit)
}

/// Reads a regular file of at most `limit` bytes as a text.
///
/// # Errors
/// As [`read`]; of kind [`io::ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    text(read(path, limit)?)
}

/// Reads a text of at most `limit` bytes that the user of this program named: a file of any kind, such
/// as the pipe of a shell's `<(command)`.
///
/// # Errors
/// Those of the system; of kind [`io::ErrorKind::FileTooLarge`] if it is larger, and
/// [`io::ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_any_text(path: &Path, limit: u64) -> io::Result<String> {
    text(read_at_most(File::open(path)?, limit)?)
}

/// The digest of a regular file. Blocks.
///
/// # Errors
/// As [`open`].
pub fn digest(path: &Path) -> io::Result<Digest> {
    let (mut file, mut hasher) = (open(path)?, DigestHasher::default());
    let mut chunk = vec![0; CHUNK_SIZE];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(read) => hasher.update(&chunk[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads an open file of at most `limit` bytes.
pub fn read_at_most(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let reason = format!("it has more than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// The text of a file.
pub fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8")
    })
}

fn check(metadata: &fs::Metadata) -> io::Result<()> {
    if metadata.is_dir() {
        return Err(rustix::io::Errno::ISDIR.into());
    }
    if metadata.is_file() { Ok(()) } else { Err(no_regular_file()) }
}

/// The error for a pipe, a device, a socket or a file of the kernel.
pub fn no_regular_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_file_up_to_limit_is_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        fs::write(&path, "text").expect("written");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert_eq!(read_text(&link, 4).expect("read"), "text");
        assert_eq!(digest(&link).expect("read"), Digest::sha256(b"text"));
        let error = read(&path, 3).expect_err("too large");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        let missing = read(&directory.path().join("missing"), 3).expect_err("missing");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        fs::write(&path, b"\xff").expect("written");
        assert_eq!(read_text(&path, 4).expect_err("no text").kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn device_pipe_and_file_of_kernel_are_refused_at_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let pipe = directory.path().join("pipe");
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        );
        made.expect("a pipe");
        let to_device = directory.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &to_device).expect("a link");
        let others = [
            "/dev/zero",
            "/dev/tty",
            "/proc/self/environ",
            "/proc/kmsg",
            "/sys/kernel/notes",
            "/sys/fs/cgroup/cgroup.controllers",
            "/sys/fs/cgroup/memory/tasks",
            "/sys/kernel/security/lsm",
        ];
        let others = others.iter().map(Path::new).filter(|path| path.exists());
        for path in others.chain([pipe.as_path(), to_device.as_path()]) {
            let error = open(path).expect_err("no regular file");
            let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
            assert!(is_denied || error.kind() == io::ErrorKind::InvalidInput, "{path:?}: {error}");
        }
        let error = open(directory.path()).expect_err("a directory");
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }
}
