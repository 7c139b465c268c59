//! Fingerprints of task parts from file metadata, without reading the files, so that unchanged
//! parts are not packed again.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::limits::BUNDLE_ENTRIES;

/// A file changed this shortly before the check may change again without a new time stamp: some
/// file systems have time stamps no finer than this.
const SETTLE_TIME: Duration = Duration::from_secs(2);

/// Names, kinds, sizes, times and inode numbers of all files of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    pub(super) digest: Digest,
    /// Whether any later change is certain to change the digest.
    pub(super) settled: bool,
}

/// The fingerprint of `entries` of `dir`, files or directories that may be absent; `None` if one
/// cannot be read or has too many files. `recipe` is any other input of the packed part.
pub(super) fn compute<'a>(
    dir: &Path,
    entries: impl IntoIterator<Item = &'a Path>,
    recipe: &str,
) -> Option<Fingerprint> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let mut walk = FingerprintWalker {
        hasher: DigestHasher::default(),
        newest: Duration::ZERO,
        entries_left: BUNDLE_ENTRIES,
    };
    walk.hasher.update_part(recipe.as_bytes());
    for entry in entries {
        walk.entry(&dir.join(entry), entry.as_os_str().as_bytes())?;
    }
    Some(Fingerprint {
        digest: walk.hasher.finish(),
        settled: walk.newest.checked_add(SETTLE_TIME).is_some_and(|quiet| quiet < now),
    })
}

struct FingerprintWalker {
    hasher: DigestHasher,
    newest: Duration,
    entries_left: u64,
}

impl FingerprintWalker {
    fn entry(&mut self, path: &Path, name: &[u8]) -> Option<()> {
        self.entries_left = self.entries_left.checked_sub(1)?;
        self.hasher.update_part(name);
        let metadata = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.hasher.update_part(b"absent");
                return Some(());
            }
            Err(_) => return None,
        };
        if metadata.is_dir() {
            return self.directory(path);
        }
        for number in [
            u64::from(metadata.mode()),
            metadata.dev(),
            metadata.ino(),
            metadata.len(),
            metadata.mtime().cast_unsigned(),
            metadata.mtime_nsec().cast_unsigned(),
            metadata.ctime().cast_unsigned(),
            metadata.ctime_nsec().cast_unsigned(),
        ] {
            self.hasher.update(&number.to_be_bytes());
        }
        for (seconds, nanos) in
            [(metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec())]
        {
            let seconds = u64::try_from(seconds).unwrap_or(0);
            let nanos = u32::try_from(nanos).unwrap_or(0);
            self.newest = self.newest.max(Duration::new(seconds, nanos));
        }
        Some(())
    }

    fn directory(&mut self, path: &Path) -> Option<()> {
        let mut names = Vec::new();
        for entry in fs::read_dir(path).ok()? {
            names.push(entry.ok()?.file_name());
        }
        names.sort_unstable();
        self.hasher.update(&(names.len() as u64).to_be_bytes());
        names.iter().try_for_each(|name| self.entry(&path.join(name), name.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_changes_with_any_file_change_fresh_is_unsettled() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        let path = |name: &str| root.join("part").join(name);
        fs::create_dir_all(path("sub")).expect("made");
        fs::write(path("a"), "1").expect("written");
        let look =
            || compute(root, [Path::new("part"), Path::new("absent")], "recipe").expect("readable");
        let first = look();
        assert!(!first.settled, "it has just been written");
        assert_eq!(look().digest, first.digest);
        let other =
            compute(root, [Path::new("part"), Path::new("absent")], "other").expect("readable");
        assert_ne!(other.digest, first.digest);
        let mut seen = vec![first.digest];
        let mut change = |what: &str, act: &dyn Fn()| {
            act();
            let digest = look().digest;
            assert!(!seen.contains(&digest), "{what}");
            seen.push(digest);
        };
        change("a file in a directory", &|| fs::write(path("sub/b"), "").expect("written"));
        change("a name", &|| fs::rename(path("sub/b"), path("sub/c")).expect("renamed"));
        change("an empty directory", &|| fs::create_dir(path("empty")).expect("made"));
        change("a link", &|| std::os::unix::fs::symlink("a", path("link")).expect("linked"));
        change("equal content in another file", &|| {
            fs::write(path("new"), "1").expect("written");
            fs::rename(path("new"), path("a")).expect("renamed");
        });
        change("a file that was absent", &|| fs::write(root.join("absent"), "").expect("written"));

        let old = SystemTime::now() - Duration::from_secs(60);
        let file = fs::File::options().write(true).open(path("a")).expect("opened");
        change("times", &|| file.set_modified(old).expect("set"));
        assert!(!look().settled, "times that are set do not make a file old");
    }
}
