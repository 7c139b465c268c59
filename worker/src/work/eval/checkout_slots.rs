//! Slots for checkouts. A slot belongs to one eval at a time. It is empty when the eval gets it, or
//! has the commit that the eval begins with: evals of one node follow each other, and a checkout of
//! some thousand files costs more than the rest of a short eval.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rollout_base::fs_make::make_directory;
use rollout_base::supervise;

use super::EvalFilesError;
use super::local_dir::{self, CacheDirLock};

/// Directories above that of a slot which may be missing: `repositories/slots` in that of the worker.
const HOME_DEPTH: u32 = 2;

/// Marker file of a slot that was given out and not cleaned since.
const DIRTY_MARK: &str = "dirty";

/// Names that an eval adds to a slot beside the checkout of its commit, which nothing changes.
pub(super) const ADDED_NAMES: [&str; 3] = ["out", "changed", "index.new"];

/// A directory of slots, used by one process at a time.
#[derive(Debug, Clone)]
pub struct CheckoutSlots(Arc<CheckoutSlotsInner>);

#[derive(Debug)]
struct CheckoutSlotsInner {
    dir: PathBuf,
    state: Mutex<CheckoutSlotsState>,
    _lock: CacheDirLock,
}

#[derive(Debug, Default)]
struct CheckoutSlotsState {
    taken: BTreeSet<usize>,
    /// Free slots that have a checkout, and its commit. Known only to this process.
    ready: BTreeMap<usize, String>,
}

/// A slot that belongs to the owner of this value.
#[derive(Debug)]
pub struct CheckoutSlot {
    number: usize,
    shared: Arc<CheckoutSlotsInner>,
    /// The commit whose checkout is complete in the slot.
    commit: Option<String>,
}

impl CheckoutSlots {
    /// Opens the slots at `dir`.
    ///
    /// # Errors
    /// Errors of the local disk, and when another process uses the directory.
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        let lock = CacheDirLock::acquire(dir)?;
        let state = Mutex::default();
        Ok(Self(Arc::new(CheckoutSlotsInner { dir: dir.to_owned(), state, _lock: lock })))
    }

    /// Takes a slot for a checkout of a commit: one that has it, or an empty one. A slot that was
    /// not cleaned is wiped first.
    ///
    /// # Errors
    /// Errors of the local disk.
    pub async fn acquire(&self, commit: &str) -> Result<CheckoutSlot, EvalFilesError> {
        let slot = self.choose(commit);
        let home = slot.root();
        if slot.commit.is_none() {
            local_dir::remove_path(&slot.path()).await?;
        }
        let make = async {
            // Not the directory of the worker itself.
            let made = home.clone();
            supervise::blocking(move || make_directory(&made, HOME_DEPTH)).await?;
            tokio::fs::write(home.join(DIRTY_MARK), b"").await?;
            match slot.commit {
                Some(_) => Ok(()),
                None => tokio::fs::create_dir(slot.path()).await,
            }
        };
        make.await.map_err(|source| EvalFilesError::disk_error("prepare", &home, source))?;
        Ok(slot)
    }

    fn choose(&self, commit: &str) -> CheckoutSlot {
        let mut state = self.0.state();
        let has_it = state.ready.iter().find(|(_, ready)| *ready == commit).map(|(n, _)| *n);
        let free = || (0..).find(|number| !state.taken.contains(number)).expect("one is free");
        let number = has_it.unwrap_or_else(free);
        state.taken.insert(number);
        let ready = state.ready.remove(&number).filter(|ready| ready == commit);
        CheckoutSlot { number, shared: self.0.clone(), commit: ready }
    }
}

impl CheckoutSlotsInner {
    fn state(&self) -> std::sync::MutexGuard<'_, CheckoutSlotsState> {
        self.state.lock().expect("nothing panics while it holds the slots")
    }
}

impl CheckoutSlot {
    fn root(&self) -> PathBuf {
        self.shared.dir.join(format!("slot-{}", self.number))
    }

    /// The directory of the checkout.
    pub fn path(&self) -> PathBuf {
        self.root().join("work")
    }

    /// The commit whose checkout is complete in the slot.
    pub fn commit(&self) -> Option<&str> {
        self.commit.as_deref()
    }

    /// Marks the checkout of a commit as complete.
    pub(super) fn mark_complete(&mut self, commit: &str) {
        self.commit = Some(commit.to_owned());
    }

    /// Removes everything but the checkout of its commit, and returns the slot. One that is dropped
    /// instead, or whose cleaning fails, is wiped before its next use.
    ///
    /// # Errors
    /// Errors of the local disk.
    pub async fn clean(mut self) -> Result<(), EvalFilesError> {
        let commit = self.commit.take();
        match &commit {
            Some(_) => {
                for name in ADDED_NAMES {
                    local_dir::remove_path(&self.path().join(name)).await?;
                }
            }
            None => local_dir::remove_path(&self.path()).await?,
        }
        local_dir::remove_path(&self.root().join(DIRTY_MARK)).await?;
        if let Some(commit) = commit {
            self.shared.state().ready.insert(self.number, commit);
        }
        Ok(())
    }

    /// Returns the slot, cleaned if possible.
    pub(in crate::work) async fn return_cleaned(self) {
        if let Err(error) = self.clean().await {
            // It is wiped before its next use.
            tracing::warn!(error = %error.chain(), "cannot clean a checkout");
        }
    }
}

impl Drop for CheckoutSlot {
    fn drop(&mut self) {
        if let Ok(mut state) = self.shared.state.lock() {
            state.taken.remove(&self.number);
        }
    }
}
