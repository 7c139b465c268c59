//! System errors that mean this host ran out of something, not that the request was wrong.

use std::error::Error;
use std::io;

use rustix::io::Errno;

/// A resource that a host ran out of. It may be available again a moment later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// Space on a disk, or a quota of it.
    Disk,
    /// Open files, memory or processes.
    Host,
}

impl Shortage {
    /// The shortage that an error or one of its causes stands for.
    pub fn from_io_error(error: &io::Error) -> Option<Self> {
        let itself = Errno::from_io_error(error).and_then(Self::from_errno);
        let inner = || error.get_ref().and_then(|inner| Self::from_error(inner));
        itself.or_else(|| Self::from_error_kind(error.kind())).or_else(inner)
    }

    /// The same for an error of any type.
    pub fn from_error(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            let found = error.downcast_ref::<io::Error>().and_then(Self::from_io_error);
            if found.is_some() {
                return found;
            }
            next = error.source();
        }
        None
    }

    /// The shortage that a system error number stands for.
    pub fn from_errno(error: Errno) -> Option<Self> {
        match error {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Some(Self::Disk),
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::NOBUFS => {
                Some(Self::Host)
            }
            _ => None,
        }
    }

    /// The same for a number of another process, which may be none of the system's.
    pub fn from_number(number: i32) -> Option<Self> {
        Self::from_io_error(&io::Error::from_raw_os_error(number))
    }

    /// The shortage that another program's output mentions.
    pub fn from_text(text: &str) -> Option<Self> {
        const DISK: [&str; 2] = ["no space left on device", "disk quota exceeded"];
        const HOST: [&str; 3] =
            ["too many open files", "cannot allocate memory", "resource temporarily unavailable"];
        let text = text.to_ascii_lowercase();
        let any = |words: &[&str]| words.iter().any(|words| text.contains(words));
        if any(&DISK) {
            Some(Self::Disk)
        } else if any(&HOST) {
            Some(Self::Host)
        } else {
            None
        }
    }

    fn from_error_kind(kind: io::ErrorKind) -> Option<Self> {
        use io::ErrorKind::{OutOfMemory, QuotaExceeded, StorageFull};
        match kind {
            StorageFull | QuotaExceeded => Some(Self::Disk),
            OutOfMemory => Some(Self::Host),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(errno: Errno) -> io::Error {
        errno.into()
    }

    #[test]
    fn shortage_of_wrapped_errno_is_found() {
        for (errno, expected) in [
            (Errno::NOSPC, Some(Shortage::Disk)),
            (Errno::DQUOT, Some(Shortage::Disk)),
            (Errno::MFILE, Some(Shortage::Host)),
            (Errno::NFILE, Some(Shortage::Host)),
            (Errno::NOMEM, Some(Shortage::Host)),
            (Errno::AGAIN, Some(Shortage::Host)),
            (Errno::NOENT, None),
            (Errno::ACCESS, None),
        ] {
            assert_eq!(Shortage::from_io_error(&system(errno)), expected, "{errno}");
            let wrapped = io::Error::other(io::Error::other(system(errno)));
            assert_eq!(Shortage::from_io_error(&wrapped), expected, "{errno} wrapped");
            assert_eq!(Shortage::from_error(&wrapped), expected, "{errno} as a cause");
        }
        assert_eq!(
            Shortage::from_io_error(&io::ErrorKind::StorageFull.into()),
            Some(Shortage::Disk)
        );
        assert_eq!(Shortage::from_io_error(&io::Error::other("words")), None);
    }

    #[test]
    fn number_that_is_no_system_error_is_no_shortage() {
        for number in [0, -1, i32::MIN, i32::MAX, 4096, 70_000] {
            assert_eq!(Shortage::from_number(number), None, "{number}");
            let wrapped = io::Error::other(io::Error::from_raw_os_error(number));
            assert_eq!(Shortage::from_error(&wrapped), None, "{number}");
        }
        let files = Shortage::from_number(Errno::MFILE.raw_os_error());
        assert_eq!(files, Some(Shortage::Host));
    }

    #[test]
    fn shortage_in_program_output_is_found() {
        assert_eq!(Shortage::from_text("mkdir: No space left on device"), Some(Shortage::Disk));
        assert_eq!(
            Shortage::from_text("fork/exec x: cannot allocate memory"),
            Some(Shortage::Host)
        );
        assert_eq!(Shortage::from_text("no such file"), None);
    }
}
