//! Disk that uploaded datasets and exports take: a limit that users share. Who uploaded a dataset is in
//! a file: it is a part of these users, and theirs to use, also after a restart. A dataset counts once
//! for each of them: otherwise the room of one would tell what others have uploaded.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_base::shared_limit::{LimitReached, LimitShares, LimitUser, SharedLimit, SharedPlace};
use rollout_engine::atomic_file;
use serde::{Deserialize, Serialize};

use super::DaemonError;
use super::record::RecordError;

/// Bytes of a block, of which the system counts those of a file.
const BLOCK_BYTES: u64 = 512;

/// The disk of users.
#[derive(Debug)]
pub(super) struct UserDisk {
    limit: Arc<SharedLimit>,
    /// Uploaded datasets.
    uploads: PathBuf,
    /// A file for each of them, with the same name.
    users: PathBuf,
    /// Places of the datasets, by name: one for each user who uploaded it.
    kept: Mutex<HashMap<String, Vec<SharedPlace>>>,
    /// Held while a file in `users` is changed. Questions to `kept` wait for no disk.
    writing: Mutex<()>,
    /// Held while removed datasets are looked for, by one refused request at a time.
    looking: Mutex<()>,
}

/// The content of the file of a dataset.
#[derive(Debug, Serialize, Deserialize)]
struct DatasetUsers {
    /// The first one.
    user: String,
    bytes: u64,
    /// Those who uploaded it after the first one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    others: Vec<String>,
}

impl UserDisk {
    /// A limit of `bytes`, of which the datasets in `uploads` are a part. Blocks.
    ///
    /// # Errors
    /// [`RecordError`] when the files cannot be listed.
    pub(super) fn open(uploads: PathBuf, users: PathBuf, bytes: u64) -> Result<Self, RecordError> {
        let limit = SharedLimit::new(LimitShares::new(bytes));
        let mut kept = HashMap::new();
        let failed = || RecordError::file("list", &users);
        for entry in fs::read_dir(&users).map_err(failed())? {
            let path = entry.map_err(failed())?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !uploads.join(&name).is_dir() {
                remove(&path);
                continue;
            }
            let text = fs::read(&path).unwrap_or_default();
            match serde_json::from_slice(&text) {
                Ok(DatasetUsers { user, bytes, others }) => {
                    let users = std::iter::once(user).chain(others);
                    let places = users.map(|name| {
                        let user = LimitUser { name, is_admin: false };
                        limit.hold(&user, bytes)
                    });
                    kept.insert(name, places.collect());
                }
                Err(error) => tracing::warn!("cannot read {}: {error}", path.display()),
            }
        }
        Ok(Self {
            limit,
            uploads,
            users,
            kept: Mutex::new(kept),
            writing: Mutex::default(),
            looking: Mutex::default(),
        })
    }

    /// Room of a user for an amount. Blocks.
    ///
    /// # Errors
    /// [`DaemonError::NoDisk`].
    pub(super) fn room(&self, user: &LimitUser, bytes: u64) -> Result<SharedPlace, DaemonError> {
        self.take(|| self.limit.try_acquire(user, bytes)).map_err(DaemonError::NoDisk)
    }

    /// Makes a room as large as what is in it. Blocks.
    ///
    /// # Errors
    /// [`LimitReached`]: it cannot grow.
    pub(super) fn fit(&self, room: &mut SharedPlace, bytes: u64) -> Result<(), LimitReached> {
        room.shrink_to(bytes);
        self.grow(room, bytes)
    }

    /// Lets a room grow to what is in it. Blocks.
    ///
    /// # Errors
    /// [`LimitReached`]: it cannot.
    pub(super) fn grow(&self, room: &mut SharedPlace, bytes: u64) -> Result<(), LimitReached> {
        match bytes.saturating_sub(room.amount()) {
            0 => Ok(()),
            more => self.take(|| room.grow(more)),
        }
    }

    /// Takes room. Only at the limit are removed datasets looked for: a look at all of them may take long.
    fn take<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, LimitReached>,
    ) -> Result<T, LimitReached> {
        attempt().or_else(|_| {
            self.forget_removed();
            attempt()
        })
    }

    /// Counts a dataset as part of the user of its room, who may use it from now on, durably. Blocks.
    ///
    /// # Errors
    /// [`RecordError`]
    pub(super) fn keep(&self, name: &str, room: SharedPlace) -> Result<(), RecordError> {
        // Another upload of the same dataset adds its user to the same file.
        let _turn = self.writing();
        let mut users = self.users_of(name);
        if users.contains(&room.user().name) {
            return Ok(());
        }
        let path = self.users.join(name);
        users.push(room.user().name.clone());
        let (user, others) = (users.remove(0), users);
        let text = serde_json::to_vec(&DatasetUsers { user, bytes: room.amount(), others })
            .map_err(|error| RecordError::file("encode", &path)(error.into()))?;
        atomic_file::replace(&path, &text).map_err(RecordError::file("write", &path))?;
        self.kept().entry(name.to_owned()).or_default().push(room);
        Ok(())
    }

    /// Those who uploaded a dataset, the first one first.
    fn users_of(&self, name: &str) -> Vec<String> {
        let kept = self.kept();
        let places = kept.get(name).map(Vec::as_slice).unwrap_or_default();
        places.iter().map(|place| place.user().name.clone()).collect()
    }

    /// Whether a user uploaded a dataset.
    pub(super) fn has_uploaded(&self, user: &str, name: &str) -> bool {
        self.kept().get(name).is_some_and(|places| is_among(user, places))
    }

    /// The datasets that a user uploaded.
    pub(super) fn uploaded_by(&self, user: &str) -> BTreeSet<String> {
        let kept = self.kept();
        let own = kept.iter().filter(|(_, places)| is_among(user, places));
        own.map(|(name, _)| name.clone()).collect()
    }

    /// Counts datasets no longer that the operator has removed. Blocks.
    fn forget_removed(&self) {
        let Ok(_turn) = self.looking.try_lock() else { return };
        let names: Vec<_> = self.kept().keys().cloned().collect();
        for name in names.iter().filter(|name| !self.is_there(name)) {
            self.forget_if_removed(name);
        }
    }

    /// Counts a dataset no longer if the operator has removed it. It has no users then, and who uploads
    /// it next is the first. Blocks.
    pub(super) fn forget_if_removed(&self, name: &str) {
        let _turn = self.writing();
        if self.is_there(name) {
            return;
        }
        let places = self.kept().remove(name);
        if places.is_some() {
            remove(&self.users.join(name));
        }
    }

    fn is_there(&self, name: &str) -> bool {
        self.uploads.join(name).is_dir()
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<String, Vec<SharedPlace>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_among(user: &str, places: &[SharedPlace]) -> bool {
    places.iter().any(|place| place.user().name == user)
}

/// Removes a file, which may be gone.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn remove(path: &Path) {
    if let Err(error) = remove_file(path) {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}

/// Bytes of the disk that a directory takes with its content. Blocks.
pub(super) fn bytes_in(directory: &Path) -> u64 {
    let own = directory.symlink_metadata().map_or(0, |metadata| taken(&metadata));
    let Ok(entries) = fs::read_dir(directory) else { return own };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
        Ok(metadata) => taken(&metadata),
        Err(_) => 0,
    });
    bytes.fold(own, u64::saturating_add)
}

/// Bytes of the disk that a file or directory takes: a small file takes a whole block. Some file systems
/// tell its blocks only after they are written.
fn taken(metadata: &fs::Metadata) -> u64 {
    metadata.len().max(metadata.blocks().saturating_mul(BLOCK_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> LimitUser {
        LimitUser { name: name.to_owned(), is_admin: name == "root" }
    }

    #[test]
    fn datasets_of_a_user_count_until_they_are_removed_also_after_a_restart() {
        let directory = tempfile::tempdir().expect("a directory");
        let [uploads, users] = ["uploads", "users"].map(|name| directory.path().join(name));
        for made in [&uploads.join("one"), &users] {
            fs::create_dir_all(made).expect("made");
        }
        let open = || UserDisk::open(uploads.clone(), users.clone(), 800).expect("opened");
        let disk = open();
        let room = disk.room(&user("ada"), 400).expect("room");
        disk.keep("one", room).expect("kept");
        let refused = disk.room(&user("ada"), 100);
        assert!(matches!(refused, Err(DaemonError::NoDisk(_))), "{refused:?}");
        drop(disk);
        let disk = open();
        assert!(disk.room(&user("ada"), 100).is_err());
        for other in ["bob", "root"] {
            let _room = disk.room(&user(other), 100).expect("a part of one's own");
        }
        fs::remove_dir(uploads.join("one")).expect("removed");
        let _room = disk.room(&user("ada"), 400).expect("hers is gone");
        assert_eq!(fs::read_dir(&users).expect("a directory").count(), 0);
    }

    #[test]
    fn small_files_count_as_the_blocks_that_they_take() {
        let directory = tempfile::tempdir().expect("a directory");
        let below = directory.path().join("below");
        fs::create_dir(&below).expect("made");
        for number in 0..64 {
            fs::write(below.join(number.to_string()), [0; 3000]).expect("written");
        }
        fs::File::open(&below).and_then(|below| Ok(rustix::fs::syncfs(below)?)).expect("on disk");
        let bytes = bytes_in(directory.path());
        assert!(bytes >= 64 * 4096, "{bytes}");
        assert_eq!(bytes_in(&below.join("none")), 0);
    }

    #[test]
    fn room_fits_what_is_in_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let (uploads, users) = (directory.path().join("none"), directory.path().to_owned());
        let disk = UserDisk::open(uploads, users, 80).expect("opened");
        let mut room = disk.room(&user("ada"), 20).expect("room");
        for bytes in [10, 30] {
            disk.fit(&mut room, bytes).expect("room");
            assert_eq!((room.amount(), disk.limit.counts().held), (bytes, bytes));
        }
        disk.grow(&mut room, 20).expect("it has more");
        assert_eq!(room.amount(), 30);
        assert!(disk.fit(&mut room, 80).is_err());
    }

    #[test]
    fn removed_datasets_are_looked_for_at_the_limit_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let [uploads, users] = ["uploads", "users"].map(|name| directory.path().join(name));
        fs::create_dir(&users).expect("made");
        let disk = UserDisk::open(uploads.clone(), users.clone(), 800).expect("opened");
        let ada = user("ada");
        let has_file = || users.join("one").exists();
        for is_grown in [false, true] {
            fs::create_dir_all(uploads.join("one")).expect("made");
            disk.keep("one", disk.room(&ada, 400).expect("room")).expect("kept");
            fs::remove_dir(uploads.join("one")).expect("removed");
            let mut small = disk.room(&ada, 1).expect("room");
            assert!(has_file(), "it is below the limit");
            let taken = match is_grown {
                true => disk.grow(&mut small, 400).map_err(DaemonError::NoDisk),
                false => disk.room(&ada, 400).map(drop),
            };
            taken.expect("a removed one takes no room");
            assert!(!has_file());
        }
    }

    #[test]
    fn dataset_belongs_to_all_who_uploaded_it_also_after_a_restart() {
        let directory = tempfile::tempdir().expect("a directory");
        let [uploads, users] = ["uploads", "users"].map(|name| directory.path().join(name));
        for made in [&uploads.join("one"), &uploads.join("old"), &users] {
            fs::create_dir_all(made).expect("made");
        }
        // An earlier program wrote one user.
        fs::create_dir(uploads.join("former")).expect("made");
        fs::write(users.join("former"), r#"{"user":"eve","bytes":1}"#).expect("written");
        let open = || UserDisk::open(uploads.clone(), users.clone(), 8000).expect("opened");
        let disk = open();
        for name in ["ada", "bob", "ada"] {
            let room = disk.room(&user(name), 100).expect("room");
            disk.keep("one", room).expect("kept");
        }
        let held = disk.limit.counts().held;
        drop(disk);
        let disk = open();
        assert_eq!((held, disk.limit.counts().held), (201, 201), "once for each user");
        let owners = |name: &str| ["ada", "bob", "eve"].map(|user| disk.has_uploaded(user, name));
        assert_eq!(owners("one"), [true, true, false]);
        assert_eq!(owners("former"), [false, false, true]);
        assert_eq!(owners("old"), [false; 3], "no user is recorded");
        assert_eq!(disk.uploaded_by("bob"), BTreeSet::from(["one".to_owned()]));
    }
}
