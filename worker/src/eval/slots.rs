//! Places for checkouts: a slot belongs to one eval at a time and is empty when it gets it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::EvalFilesError;
use super::disk::{self, Lock};

/// Mark of a slot that was given out and not cleaned since.
const DIRTY: &str = "dirty";

/// A directory of slots. One process at a time has it.
#[derive(Debug, Clone)]
pub struct Slots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    taken: Mutex<BTreeSet<usize>>,
    _lock: Lock,
}

/// A slot that belongs to whoever has this.
#[derive(Debug)]
pub struct Slot {
    number: usize,
    shared: Arc<Shared>,
}

impl Slots {
    /// The slots at `dir`.
    ///
    /// # Errors
    /// Of the local disk, and when another process has the directory.
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        let lock = Lock::take(dir)?;
        let taken = Mutex::default();
        Ok(Self(Arc::new(Shared { dir: dir.to_owned(), taken, _lock: lock })))
    }

    /// Takes a slot, which is empty: one that was not cleaned is wiped first.
    ///
    /// # Errors
    /// Of the local disk.
    pub async fn take(&self) -> Result<Slot, EvalFilesError> {
        let number = {
            let mut taken = self.0.taken.lock().expect("nothing panics while it holds the slots");
            let number = (0..).find(|number| !taken.contains(number)).expect("one is free");
            taken.insert(number);
            number
        };
        let slot = Slot { number, shared: self.0.clone() };
        let home = slot.home();
        if home.join(DIRTY).exists() || slot.path().exists() {
            disk::remove(&slot.path()).await?;
        }
        let make = async {
            tokio::fs::create_dir_all(&home).await?;
            tokio::fs::write(home.join(DIRTY), b"").await?;
            tokio::fs::create_dir(slot.path()).await
        };
        make.await.map_err(|source| EvalFilesError::disk("preparing", &home, source))?;
        Ok(slot)
    }
}

impl Slot {
    fn home(&self) -> PathBuf {
        self.shared.dir.join(format!("slot-{}", self.number))
    }

    /// The directory.
    pub fn path(&self) -> PathBuf {
        self.home().join("work")
    }

    /// Empties the slot and gives it back. One that is dropped instead, or whose cleaning fails, is
    /// wiped before its next use.
    ///
    /// # Errors
    /// Of the local disk.
    pub async fn clean(self) -> Result<(), EvalFilesError> {
        disk::remove(&self.path()).await?;
        disk::remove(&self.home().join(DIRTY)).await
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Ok(mut taken) = self.shared.taken.lock() {
            taken.remove(&self.number);
        }
    }
}
