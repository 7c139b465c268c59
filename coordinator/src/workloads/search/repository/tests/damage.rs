//! Repositories and checkouts after a power failure, which empties or removes unsynced files.

use super::*;
use crate::workloads::search::validate::CommitLookup as _;

/// Files below the run's directory that git leaves to the kernel.
const UNSYNCED_FILES: [&str; 14] = [
    "repository/bare/HEAD",
    "repository/bare/config",
    "repository/bare/shallow",
    "repository/bare/packed-refs",
    "repository/bare/info/attributes",
    "repository/bare/refs/rollout/root",
    "repository/bare/refs/tree/run/n0001",
    "repository/bare/worktrees/0001/HEAD",
    "repository/bare/worktrees/0001/commondir",
    "repository/bare/worktrees/0001/gitdir",
    "repository/bare/worktrees/0001/index",
    "wt/0001/.git",
    "wt/0001/one",
    "wt/0000/src/main.py",
];

/// A search with a candidate that was promoted.
struct PromotedFixture {
    world: RepositoryFixture,
    wanted: DesiredRepositoryState,
    references: Vec<(String, String)>,
}

impl PromotedFixture {
    async fn new() -> Self {
        let world = RepositoryFixture::new().await;
        let root = world.repository.root();
        let one = world.candidate(&root, "one", "100644", "1").await;
        world.repository.import(&root, &one).await.expect("imported");
        let (a, b) = (root.as_str(), one.commit.as_str());
        let refs = [("tree/run/n0000", a), ("tree/run/n0001", b)];
        let wanted = world.wanted(&refs, &[("wt/0000", a), ("wt/0001", b)]);
        world.reconcile(&wanted).await;
        let references = world.references().await;
        assert_eq!(references.len(), 2);
        Self { world, wanted, references }
    }

    fn run(&self) -> &Path {
        self.world.run.path()
    }

    fn empty(&self, name: &str) {
        std::fs::write(self.run().join(name), "").expect("emptied");
    }

    async fn damages(&self) -> Vec<String> {
        SearchRepository::damages(self.run()).await.expect("looked")
    }

    async fn open(&self) -> Result<SearchRepository, RepositoryError> {
        SearchRepository::open(self.run(), "run", self.world.store.clone()).await
    }

    /// Opens the search as its next session does, and expects everything to be as before.
    async fn assert_restored(&self, after: &str) {
        let again = self.open().await.unwrap_or_else(|error| panic!("{after}: {}", error.chain()));
        let left = again.reconcile(&self.wanted, &BTreeSet::new()).await;
        let left = left.unwrap_or_else(|error| panic!("{after}: {}", error.chain()));
        assert_eq!(left, [], "{after}");
        assert_eq!(self.world.references().await, self.references, "{after}");
        for name in ["wt/0000", "wt/0001"] {
            let text = self.world.read(&format!("{name}/src/main.py"));
            assert_eq!(text.as_deref(), Some("print(2)\n"), "{after}: {name}");
        }
        assert_eq!(self.world.read("wt/0001/one").as_deref(), Some("1"), "{after}");
        assert_eq!(self.damages().await, Vec::<String>::new(), "{after}");
    }
}

#[tokio::test]
async fn repository_with_an_emptied_file_is_made_again() {
    let search = PromotedFixture::new().await;
    assert_eq!(search.damages().await, Vec::<String>::new());
    for name in UNSYNCED_FILES {
        search.empty(name);
        assert_eq!(search.damages().await.len(), 1, "{name}");
        search.assert_restored(name).await;
    }
    for name in UNSYNCED_FILES {
        search.empty(name);
    }
    search.assert_restored("all of them").await;
}

#[tokio::test]
async fn repository_that_is_missing_is_made_again() {
    let search = PromotedFixture::new().await;
    for name in ["repository/bare", "repository", "wt"] {
        std::fs::remove_dir_all(search.run().join(name)).expect("removed");
        search.assert_restored(name).await;
    }
    // Remains of a process that was killed meanwhile.
    std::fs::create_dir_all(search.run().join("repository/new-bare/objects")).expect("left");
    search.assert_restored("a restoration").await;
    assert!(!search.run().join("repository/new-bare").exists());
}

#[tokio::test]
async fn damaged_repository_stays_while_the_store_lacks_its_root() {
    let search = PromotedFixture::new().await;
    search.empty("repository/bare/HEAD");
    let store = Arc::new(MemoryStore::default());
    let opened = SearchRepository::open(search.run(), "run", store).await;
    assert!(matches!(opened, Err(RepositoryError::Store(_))), "{opened:?}");
    assert!(search.run().join("repository/bare/objects").is_dir());
    search.assert_restored("the store is back").await;
}

#[tokio::test]
async fn bundle_index_of_earlier_version_is_moved() {
    let search = PromotedFixture::new().await;
    let [now, earlier] = ["bundles.json", "repository/bundles.json"].map(|n| search.run().join(n));
    std::fs::rename(&now, &earlier).expect("moved");
    assert_eq!(search.damages().await, Vec::<String>::new());
    search.assert_restored("an upgrade").await;
    assert!(now.is_file() && !earlier.exists());
}

#[tokio::test]
async fn inspector_of_damaged_repository_tells_the_damage() {
    let search = PromotedFixture::new().await;
    let (name, commit) = ("tree/run/n0000", search.world.repository.root());
    let inspect = async || {
        let inspector = RepositoryInspector::open(search.run()).await.expect("opened");
        inspector.is_reachable(name, &commit)
    };
    assert_eq!(inspect().await, Ok(true));
    search.empty("repository/bare/HEAD");
    let told = inspect().await.expect_err("damaged");
    assert!(told.contains("HEAD is empty") && told.contains("rollout repair"), "{told}");
}
