//! A commit's files for an environment, with a `.git` of their own, which is thrown away with the
//! environment.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rollout_base::supervise;
use rollout_environment::Upload;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::limits;
use rollout_protocol::spec::eval::CommitBundle;
use rollout_store::archive::{self, ArchiveLimits, ArchivePath, FilterDecision};
use rollout_store::git::{BareRepository, TreeEntry, bundle};

use super::{CheckoutSlot, EvalFilesError, Mirror};

/// Size limits of checkouts, in both directions.
pub(super) const LIMITS: ArchiveLimits =
    ArchiveLimits { entries: limits::CHECKOUT_ENTRIES, bytes: limits::CHECKOUT_BYTES };

/// Mode of a symbolic link.
pub(super) const LINK: u32 = 0o120_000;

/// Mode of another repository's commit.
pub(super) const SUBMODULE: u32 = 0o160_000;

/// Configuration of the repository that is thrown away.
const CONFIG: &str = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n";

/// A commit's files in a slot.
#[derive(Debug)]
pub struct Checkout {
    /// Keeps the repository in the cache.
    pub(super) mirror: Mirror,
    pub(super) commit: String,
    /// A directory for this checkout alone.
    pub(super) slot: PathBuf,
    pub(super) entries: Vec<TreeEntry>,
    /// Paths that environments do not get and that commits keep all the same.
    pub(super) withheld: BTreeSet<Vec<u8>>,
    /// Whether the slot had all of it from an earlier eval.
    was_there: bool,
}

impl Checkout {
    /// Checks out a commit into a slot that is empty or has it.
    ///
    /// # Errors
    /// [`EvalFilesError`].
    pub async fn new(
        mirror: &Mirror,
        commit: &str,
        slot: &CheckoutSlot,
    ) -> Result<Self, EvalFilesError> {
        let (mirror, bare) = (mirror.clone(), mirror.bare());
        let entries = bare.tree(commit).await?;
        let bytes = entries.iter().filter_map(|entry| entry.size_bytes).sum::<u64>();
        if bytes > limits::CHECKOUT_BYTES {
            let (commit, max_bytes) = (commit.to_owned(), limits::CHECKOUT_BYTES);
            return Err(EvalFilesError::TooLarge { commit, size_bytes: bytes, max_bytes });
        }
        let (withheld, commit) = (BTreeSet::new(), commit.to_owned());
        let was_there = slot.commit() == Some(&*commit);
        let slot = slot.path();
        let mut checkout = Self { mirror, commit, slot, entries, withheld, was_there };
        let base = checkout.base();
        if !was_there {
            let made = tokio::fs::create_dir(&base).await;
            made.map_err(|source| EvalFilesError::disk_error("create", &base, source))?;
            let (bare, index) = (checkout.mirror.bare(), checkout.index());
            bare.export(&checkout.commit, &base, &index).await?;
        }
        let entries = std::mem::take(&mut checkout.entries);
        let find = move || (find_withheld(&base, &entries), entries);
        (checkout.withheld, checkout.entries) = supervise::blocking(find).await;
        Ok(checkout)
    }

    /// Directory of the commit's files.
    pub(super) fn base(&self) -> PathBuf {
        self.slot.join("base")
    }

    /// The git index of the commit's files.
    pub(super) fn index(&self) -> PathBuf {
        self.slot.join("index")
    }

    /// The uploads that place the checkout at `path` of an environment, as a repository of its own.
    /// The archives are in the slot.
    ///
    /// # Errors
    /// [`EvalFilesError`].
    pub async fn uploads(&self, path: &str) -> Result<Vec<Upload>, EvalFilesError> {
        let withheld = self.withheld.clone();
        let keep = move |path: &Path, _: bool| match withheld.contains(path.as_os_str().as_bytes())
        {
            true => FilterDecision::Exclude,
            false => FilterDecision::Include,
        };
        if !self.was_there {
            self.pack("base", keep).await?;
            self.create_disposable_repository().await?;
            self.pack("git", |_, _| FilterDecision::Include).await?;
        }
        Ok(vec![
            Upload::Archive { path: path.to_owned(), tar: self.archive("base") },
            Upload::Archive { path: format!("{path}/.git"), tar: self.archive("git") },
        ])
    }

    fn archive(&self, name: &str) -> PathBuf {
        self.slot.join(format!("{name}.tar"))
    }

    async fn pack(
        &self,
        name: &str,
        keep: impl Fn(&Path, bool) -> FilterDecision + Send + 'static,
    ) -> Result<(), EvalFilesError> {
        let (dir, to) = (self.slot.join(name), self.archive(name));
        let packed = supervise::blocking(move || archive::pack(&dir, &to, LIMITS, &keep)).await;
        packed.map_err(|source| EvalFilesError::Archive { what: "the checkout", source })?;
        Ok(())
    }

    /// Creates a repository that contains nothing but the commit.
    async fn create_disposable_repository(&self) -> Result<(), EvalFilesError> {
        let (dir, file) = (self.slot.join("git"), self.slot.join("commit.bundle"));
        let size =
            bundle::write(self.mirror.bare().git(), &self.commit, None, &file, u64::MAX >> 1)
                .await?;
        let blob = BlobRef { size_bytes: size, ..BlobRef::for_bytes(b"", MediaType::Bytes) };
        let alone = CommitBundle { commit: self.commit.clone(), parent: None, blob };
        let made = BareRepository::create(&dir, &alone, &file, "refs/heads/main").await?;
        made.git().call(["symbolic-ref", "HEAD", "refs/heads/main"]).run().await?;
        made.git().call(["read-tree", &self.commit]).index(dir.join("index")).run().await?;
        let config = dir.join("config");
        let sha256 = "[extensions]\n\tobjectformat = sha256\n";
        let text = match self.commit.len() {
            64 => CONFIG.replace("version = 0", "version = 1") + sha256,
            _ => CONFIG.to_owned(),
        };
        let written = tokio::fs::write(&config, text).await;
        written.map_err(|source| EvalFilesError::disk_error("write", &config, source))
    }
}

/// Paths that environments do not get: submodules, whose files are not available, and links that
/// lead outside.
fn find_withheld(base: &Path, entries: &[TreeEntry]) -> BTreeSet<Vec<u8>> {
    let leads_outside = |entry: &TreeEntry| {
        let path = Path::new(std::ffi::OsStr::from_bytes(&entry.path));
        let target = std::fs::read_link(base.join(path));
        let stays = match (ArchivePath::clean(&entry.path), &target) {
            (Ok(Some(link)), Ok(target)) => {
                archive::link_stays_inside(&link, target.as_os_str().as_bytes())
            }
            _ => false,
        };
        !stays
    };
    let withheld = entries.iter().filter(|entry| match entry.mode {
        SUBMODULE => true,
        LINK => leads_outside(entry),
        _ => false,
    });
    withheld.map(|entry| entry.path.clone()).collect()
}
