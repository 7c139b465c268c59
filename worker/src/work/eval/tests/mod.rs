mod bundle_sizes;
mod commits;
mod errors;
mod mirrors;
mod runs;
mod start_wait;
mod sweep_environment;

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use rollout_base::secrets::Redactor;
use rollout_protocol::blob::MediaType;
use rollout_protocol::spec::eval::{CommitBundle, RepositorySpec};
use rollout_store::MemoryStore;
use rollout_store::git::testing::UserRepository;
use rollout_store::testing::raw_entry_with_mode;
use tar::EntryType;

use super::*;

/// A user's repository, a store, and a worker's repositories.
struct MirrorFixture {
    user: UserRepository,
    store: Arc<MemoryStore>,
    repositories: Repositories,
    dir: tempfile::TempDir,
}

impl MirrorFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Arc::new(MemoryStore::default());
        let repositories = Repositories::open(dir.path(), store.clone(), 1 << 30).expect("opened");
        Self { user: UserRepository::default(), store, repositories, dir }
    }

    async fn root_spec(&self, commit: &str) -> RepositorySpec {
        let root = self.user.stored(commit, self.store.as_ref()).await;
        RepositorySpec { root, chain: Vec::new() }
    }

    async fn checkout(&self, repository: &RepositorySpec) -> (Checkout, CheckoutSlot) {
        let mirror = self.repositories.mirrors.get(repository).await.expect("a mirror");
        let commit = repository.commit();
        let slot = self.repositories.slots.acquire(commit).await.expect("a slot");
        let checkout = Checkout::new(&mirror, commit, &slot).await.expect("a checkout");
        (checkout, slot)
    }

    /// Commits a tree on top of the requested commit of a repository.
    async fn commit(
        &self,
        repository: &RepositorySpec,
        tree: TreeArchive,
        message: &str,
    ) -> Result<CandidateOutcome, EvalFilesError> {
        let (checkout, slot) = self.checkout(repository).await;
        let taken = checkout.extract(Box::new(Cursor::new(tree.finish()))).await?;
        let to = self.dir.path().join("candidate");
        rollout_base::fs_remove::remove_blocking(&to).expect("removed");
        let outcome = checkout.commit(&taken, message, &Redactor::default(), &to).await;
        slot.clean().await.expect("cleaned");
        outcome
    }

    /// Adds a candidate to a repository.
    async fn add(&self, repository: &mut RepositorySpec, candidate: &Candidate) {
        let blob = self.store.put_file(&candidate.file, MediaType::Bytes).await.expect("stored");
        let (commit, parent) = (candidate.commit.clone(), Some(candidate.parent.clone()));
        repository.chain.push(CommitBundle { commit, parent, blob });
    }

    /// The entries of a commit: `mode path`, by path.
    async fn listing(&self, repository: &RepositorySpec) -> Vec<String> {
        let mirror = self.repositories.mirrors.get(repository).await.expect("a mirror");
        let tree = mirror.bare().tree(repository.commit()).await.expect("a tree");
        let shown = |entry: &rollout_store::git::TreeEntry| {
            format!("{:o} {}", entry.mode, String::from_utf8_lossy(&entry.path))
        };
        tree.iter().map(shown).collect()
    }
}

/// An agent's tree, as an archive.
#[derive(Default)]
struct TreeArchive(Vec<u8>);

impl TreeArchive {
    fn entry(mut self, name: &str, kind: EntryType, link: &str, content: &[u8], mode: u32) -> Self {
        let name = format!("repository/{name}");
        let (name, link) = (name.as_bytes(), link.as_bytes());
        self.0.extend(raw_entry_with_mode(name, kind, link, content, mode));
        self
    }

    fn file(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        self.entry(name, EntryType::Regular, "", content.as_ref(), 0o644)
    }

    fn program(self, name: &str, content: &str) -> Self {
        self.entry(name, EntryType::Regular, "", content.as_bytes(), 0o755)
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.entry(name, EntryType::Symlink, target, b"", 0o777)
    }

    fn dir(self, name: &str) -> Self {
        self.entry(name, EntryType::Directory, "", b"", 0o755)
    }

    fn finish(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

fn candidate(outcome: Result<CandidateOutcome, EvalFilesError>) -> Candidate {
    match outcome {
        Ok(CandidateOutcome::Candidate(candidate)) => candidate,
        other => panic!("no candidate: {other:?}"),
    }
}

fn exists(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}
