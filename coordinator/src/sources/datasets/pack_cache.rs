//! Cache of packed task parts. Every directory of tasks has a file with the fingerprint and the
//! blob of each part. It only saves time: an unreadable file is treated as absent, and of two
//! processes that write one, the last wins.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rollout_base::digest_line;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::Digest;
use serde::{Deserialize, Serialize};

/// Bumped when packing of equal files changes.
const VERSION: u32 = 1;

/// Largest file that is read: room for a million parts.
const FILE_BYTES: u64 = 512 * 1024 * 1024;

/// Most files of a cache. A server has one for each dataset that was ever uploaded otherwise.
const FILES: usize = 256;

/// Cache of packed parts, in a directory shared by runs.
#[derive(Debug)]
pub struct PackCache {
    dir: PathBuf,
    groups: Mutex<HashMap<PathBuf, PackCacheGroup>>,
}

/// Cached parts of the tasks in one directory.
#[derive(Debug, Default)]
struct PackCacheGroup {
    parts: HashMap<String, PackCacheEntry>,
    changed: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct PackCacheEntry {
    fingerprint: Digest,
    blob: BlobRef,
}

#[derive(Serialize, Deserialize)]
struct PackCacheDocument {
    version: u32,
    parts: HashMap<String, PackCacheEntry>,
}

impl PackCache {
    /// The cache in `dir`, which need not exist.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, groups: Mutex::default() }
    }

    /// The blob of a part of a task, if its fingerprint is unchanged.
    pub(super) fn find(&self, task: &Path, part: &str, fingerprint: &Digest) -> Option<BlobRef> {
        let (group, key) = cache_key(task, part)?;
        let mut groups = self.groups();
        let group_entries = groups.entry(group).or_insert_with_key(|group| self.read(group));
        let known =
            group_entries.parts.get(&key).filter(|known| known.fingerprint == *fingerprint)?;
        Some(known.blob.clone())
    }

    /// Adds a part that was packed and stored.
    pub(super) fn insert(&self, task: &Path, part: &str, fingerprint: Digest, blob: &BlobRef) {
        let Some((group, key)) = cache_key(task, part) else { return };
        let mut groups = self.groups();
        let group_entries = groups.entry(group).or_insert_with_key(|group| self.read(group));
        group_entries.parts.insert(key, PackCacheEntry { fingerprint, blob: blob.clone() });
        group_entries.changed = true;
    }

    /// Writes changed entries.
    ///
    /// # Errors
    /// If a write fails; entries on disk stay valid.
    pub(super) fn save(&self) -> std::io::Result<()> {
        for (group, group_entries) in &mut *self.groups() {
            if !std::mem::take(&mut group_entries.changed) {
                continue;
            }
            // Keep entries that other processes added meanwhile.
            let mut parts = self.read(group).parts;
            parts.extend(group_entries.parts.clone());
            let document = serde_json::to_vec(&PackCacheDocument { version: VERSION, parts })?;
            let document = digest_line::append(document);
            fs::create_dir_all(&self.dir)?;
            let mut file = tempfile::NamedTempFile::new_in(&self.dir)?;
            file.write_all(&document)?;
            // Not synced: a torn file fails its digest and counts as absent.
            file.persist(self.file(group)).map_err(|error| error.error)?;
            self.remove_oldest();
        }
        Ok(())
    }

    /// Removes the files that were not written for longest, if there are too many. Their parts are packed
    /// again when they are needed.
    fn remove_oldest(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        let mut files: Vec<_> = (entries.flatten().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
            .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
            .collect();
        files.sort_unstable();
        for (_, path) in files.iter().rev().skip(FILES) {
            if let Err(error) = fs::remove_file(path) {
                tracing::debug!(%error, "cannot remove {}", path.display());
            }
        }
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<PathBuf, PackCacheGroup>> {
        // The map is consistent after every statement.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, group: &Path) -> PathBuf {
        let name = Digest::sha256(group.as_os_str().as_bytes()).hex();
        self.dir.join(format!("{}.json", &name[..32]))
    }

    fn read(&self, group: &Path) -> PackCacheGroup {
        let file = self.file(group);
        let small = fs::metadata(&file).is_ok_and(|metadata| metadata.len() <= FILE_BYTES);
        let bytes = if small { fs::read(&file).unwrap_or_default() } else { Vec::new() };
        let text = digest_line::check(&bytes).unwrap_or_default();
        match serde_json::from_slice::<PackCacheDocument>(text) {
            Ok(document) if document.version == VERSION => {
                PackCacheGroup { parts: document.parts, changed: false }
            }
            _ => PackCacheGroup::default(),
        }
    }
}

/// The cache file and entry name of a part of the task in a directory.
fn cache_key(task: &Path, part: &str) -> Option<(PathBuf, String)> {
    let name = task.file_name()?.to_str()?;
    Some((std::path::absolute(task.parent()?).ok()?, format!("{name}/{part}")))
}

#[cfg(test)]
mod tests {
    use rollout_protocol::blob::MediaType;

    use super::*;

    #[test]
    fn pack_cache_keeps_the_files_that_were_written_last() {
        let dir = tempfile::tempdir().expect("a directory");
        let digest = Digest::sha256(b"1");
        let blob = BlobRef::for_bytes(b"blob", MediaType::Tar);
        let task = |number: usize| PathBuf::from(format!("/set-{number}/task"));
        // The files of one server are written one after the other.
        for number in 0..=FILES {
            let cache = PackCache::new(dir.path().to_owned());
            cache.insert(&task(number), "tests", digest, &blob);
            cache.save().expect("saved");
            let file = cache.file(Path::new(&format!("/set-{number}")));
            let written = std::time::UNIX_EPOCH + std::time::Duration::from_secs(number as u64);
            let file = fs::File::options().write(true).open(file).expect("its file");
            file.set_modified(written).expect("set");
        }
        PackCache::new(dir.path().to_owned()).remove_oldest();
        let found = |number: usize| {
            PackCache::new(dir.path().to_owned()).find(&task(number), "tests", &digest).is_some()
        };
        assert!(!found(0) && found(1) && found(FILES));
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), FILES);
    }

    #[test]
    fn pack_cache_entry_is_shared_and_ignored_when_damaged() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("known");
        let open = || PackCache::new(at.clone());
        let (task, old, new) = (Path::new("/set/task"), Digest::sha256(b"1"), Digest::sha256(b"2"));
        let blob = BlobRef::for_bytes(b"blob", MediaType::Tar);
        let (one, other) = (open(), open());
        assert_eq!(one.find(task, "tests", &old), None);
        other.insert(task, "solution", old, &blob);
        other.save().expect("saved");
        one.insert(task, "tests", old, &blob);
        one.save().expect("saved");
        for part in ["tests", "solution"] {
            assert_eq!(open().find(task, part, &old).as_ref(), Some(&blob), "{part}");
            assert_eq!(open().find(task, part, &new), None, "{part}");
        }
        assert_eq!(open().find(Path::new("/other/task"), "tests", &old), None);

        let file = fs::read_dir(&at).expect("listed").next().expect("one").expect("read").path();
        let bytes = fs::read(&file).expect("read");
        fs::write(&file, &bytes[..bytes.len() / 2]).expect("written");
        assert_eq!(open().find(task, "tests", &old), None);
        for at in 0..bytes.len() - 1 {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            fs::write(&file, &changed).expect("written");
            assert_eq!(open().find(task, "tests", &old), None, "changed at {at}");
        }
    }
}
