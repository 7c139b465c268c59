//! Validated paths inside archives.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rollout_protocol::limits;

/// Longest file name on all supported file systems.
const COMPONENT_BYTES: usize = 255;

/// A path that stays inside the directory it is applied to: relative, without `.` and `..`, within
/// the limits on length and depth. Its bytes need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArchivePath(Vec<u8>);

/// Why a name in an archive is not a valid [`ArchivePath`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidArchivePath {
    /// It leads upwards.
    #[error("it contains `..`")]
    Parent,
    /// It contains a NUL byte.
    #[error("it contains a NUL byte")]
    Nul,
    /// It or one of its components is too long.
    #[error("it is too long")]
    Long,
    /// It has too many components.
    #[error("it is too deep")]
    Deep,
}

impl ArchivePath {
    /// Cleans a name from an archive: an absolute name becomes relative, empty and `.` components
    /// are dropped. `None` for the directory itself.
    ///
    /// # Errors
    /// [`InvalidArchivePath`].
    pub fn clean(name: &[u8]) -> Result<Option<Self>, InvalidArchivePath> {
        if name.contains(&0) {
            return Err(InvalidArchivePath::Nul);
        }
        let mut clean = Vec::with_capacity(name.len().min(limits::ARCHIVE_PATH_BYTES));
        let mut depth = 0;
        for component in name.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => continue,
                b".." => return Err(InvalidArchivePath::Parent),
                _ => {}
            }
            depth += 1;
            if depth > 1 {
                clean.push(b'/');
            }
            clean.extend_from_slice(component);
            if component.len() > COMPONENT_BYTES || clean.len() > limits::ARCHIVE_PATH_BYTES {
                return Err(InvalidArchivePath::Long);
            }
            if depth > limits::ARCHIVE_DEPTH {
                return Err(InvalidArchivePath::Deep);
            }
        }
        Ok(if clean.is_empty() { None } else { Some(Self(clean)) })
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As a relative path.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// The components, first to last.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/')
    }

    /// Everything but the last component, and the last component.
    pub(super) fn split_last(&self) -> (&[u8], &[u8]) {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&self.0[..at], &self.0[at + 1..]),
            None => (b"", &self.0),
        }
    }

    /// The path without its first component; `None` if it has only one.
    pub fn without_first(&self) -> Option<Self> {
        let at = self.0.iter().position(|byte| *byte == b'/')?;
        Some(Self(self.0[at + 1..].to_vec()))
    }
}

/// Whether the target of a symbolic link at `link` stays inside the directory: relative, with `..`
/// only at its beginning and not beyond the root. Since the directories above a link are real
/// directories and every other link obeys the same rule, following the link cannot lead outside.
pub fn link_stays_inside(link: &ArchivePath, target: &[u8]) -> bool {
    if target.is_empty() || target.contains(&0) || target.starts_with(b"/") {
        return false;
    }
    let above = link.components().count() - 1;
    let (mut ups, mut names) = (0, 0);
    for component in target.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." if names > 0 => return false,
            b".." => ups += 1,
            _ => names += 1,
        }
    }
    ups <= above
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(name: &str) -> Result<Option<String>, InvalidArchivePath> {
        let path = ArchivePath::clean(name.as_bytes())?;
        Ok(path.map(|path| path.as_path().display().to_string()))
    }

    #[test]
    fn archive_path_with_parent_nul_or_excess_is_refused() {
        assert_eq!(clean("./a//b/./c/"), Ok(Some("a/b/c".into())));
        assert_eq!(clean("/etc/passwd"), Ok(Some("etc/passwd".into())));
        assert_eq!(clean("..."), Ok(Some("...".into())));
        for itself in ["", "/", "./", "."] {
            assert_eq!(clean(itself), Ok(None), "{itself}");
        }
        for up in ["..", "../a", "a/../b", "a/..", "/../a"] {
            assert_eq!(clean(up), Err(InvalidArchivePath::Parent), "{up}");
        }
        assert_eq!(clean("a\0b"), Err(InvalidArchivePath::Nul));
        assert_eq!(clean(&"a".repeat(256)), Err(InvalidArchivePath::Long));
        assert_eq!(clean(&"a/".repeat(limits::ARCHIVE_DEPTH + 1)), Err(InvalidArchivePath::Deep));
        assert_eq!(
            clean(&format!("{}/", "a".repeat(250)).repeat(5)),
            Err(InvalidArchivePath::Long)
        );
    }

    #[test]
    fn symlink_target_outside_archive_is_detected() {
        let inside = |link: &str, target: &str| {
            let link = ArchivePath::clean(link.as_bytes()).expect("good").expect("not the root");
            link_stays_inside(&link, target.as_bytes())
        };
        assert!(inside("a", "b/c"));
        assert!(inside("a/b", "../c"));
        assert!(inside("a/b/c", "../.././x"));
        assert!(!inside("a", "../c"));
        assert!(!inside("a/b", "../../c"));
        assert!(!inside("a", "/etc"));
        assert!(!inside("a/b/c", "d/../x"), "the name before `..` may be a link itself");
        assert!(!inside("a", ""));
    }
}
