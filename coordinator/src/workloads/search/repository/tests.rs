mod damage;

use std::collections::BTreeMap;
use std::time::Duration;

use rollout_protocol::blob::MediaType;
use rollout_protocol::spec::eval::CommitBundle;
use rollout_store::MemoryStore;
use rollout_store::git::testing::UserRepository as Users;
use rollout_store::git::{CommitIdentity, Git, bundle};

use super::*;
use crate::workloads::search::manifest::{CleanupKind, DeferredCleanup};

const MINUTE: Duration = Duration::from_secs(60);

/// A user's repository, a run's directory, and the repository of its search.
struct RepositoryFixture {
    user: Users,
    run: tempfile::TempDir,
    store: Arc<MemoryStore>,
    repository: SearchRepository,
}

impl RepositoryFixture {
    async fn new() -> Self {
        let user = Users::default();
        user.write("src/main.py", "print(1)\n");
        user.commit("first");
        user.write("src/main.py", "print(2)\n");
        let root = user.commit("root");
        let (run, store) = (tempfile::tempdir().expect("a directory"), Arc::default());
        let users = SourceRepository::open(user.path()).await.expect("opened");
        let repository = create(&run, &users, &root, &store).await;
        Self { user, run, store, repository }
    }

    /// A bundle of a commit on `parent` with one file, as a worker makes it.
    async fn candidate(&self, parent: &str, path: &str, mode: &str, content: &str) -> CommitBundle {
        let tree = |object: &str| format!("{mode} {} {object}\t{path}\0", kind(mode));
        let made = self.object(content, mode).await;
        let git = self.repository.bare.git();
        let base = git.call(["ls-tree", "-z", parent]).run().await.expect("listed");
        let list = [base, tree(&made).into_bytes()].concat();
        let tree =
            git.call(["mktree", "-z", "--missing"]).input(list).run_line().await.expect("made");
        let bare = &self.repository.bare;
        let commit = bare.commit(&tree, parent, "x", CommitIdentity { seconds: 1 }).await;
        self.bundle(&commit.expect("a commit"), Some(parent)).await
    }

    async fn object(&self, content: &str, mode: &str) -> String {
        if mode == "160000" {
            return "1".repeat(40);
        }
        let call = self.repository.bare.git().call(["hash-object", "-w", "--stdin"]);
        call.input(content).run_line().await.expect("stored")
    }

    /// Stores a commit of the search's repository as a bundle, and removes it there.
    async fn bundle(&self, commit: &str, parent: Option<&str>) -> CommitBundle {
        let file = self.run.path().join("made.bundle");
        rollout_base::fs_remove::remove_blocking(&file).expect("removed");
        let git = self.repository.bare.git();
        bundle::write(git, commit, parent, &file, 1 << 24).await.expect("written");
        let blob = self.store.put_file(&file, MediaType::Bytes).await.expect("stored");
        git.call(["prune", "--expire=now"]).run().await.expect("forgotten");
        CommitBundle { commit: commit.to_owned(), parent: parent.map(str::to_owned), blob }
    }

    fn wanted(&self, refs: &[(&str, &str)], worktrees: &[(&str, &str)]) -> DesiredRepositoryState {
        let map = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(name, commit)| ((*name).into(), (*commit).into()));
            pairs.collect::<BTreeMap<String, String>>()
        };
        DesiredRepositoryState {
            refs: map(refs),
            worktrees: map(worktrees),
            ..DesiredRepositoryState::default()
        }
    }

    async fn reconcile(&self, wanted: &DesiredRepositoryState) -> Vec<FailedRemoval> {
        self.repository.reconcile(wanted, &BTreeSet::new()).await.expect("kept")
    }

    async fn references(&self) -> Vec<(String, String)> {
        self.repository.references().await.expect("listed").into_iter().collect()
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.run.path().join(path)).ok()
    }
}

fn kind(mode: &str) -> &'static str {
    if mode == "160000" { "commit" } else { "blob" }
}

async fn create(
    run: &tempfile::TempDir,
    user: &SourceRepository,
    root: &str,
    store: &Arc<MemoryStore>,
) -> SearchRepository {
    let made = SearchRepository::create(run.path(), "run", user, root, store.clone()).await;
    made.expect("created")
}

#[tokio::test]
async fn source_repo_dirty_is_refused_and_never_changed() {
    let world = RepositoryFixture::new().await;
    let user = SourceRepository::open(world.user.path()).await.expect("opened");
    user.check_clean(&[]).await.expect("clean");
    assert_eq!(user.resolve("HEAD").await.expect("resolved"), world.repository.root());
    assert_eq!(user.resolve("main~1").await.expect("resolved").len(), 40);
    for bad in ["nothing", "--all", "HEAD:src"] {
        let error = user.resolve(bad).await;
        assert!(matches!(error, Err(RepositoryError::Unusable { .. })), "{error:?}");
    }
    world.user.write("runs/1/manifest.json", "{}");
    let error = user.check_clean(&[]).await;
    assert!(matches!(&error, Err(RepositoryError::Dirty { first, .. }) if first.contains("runs")));
    user.check_clean(&[world.user.path().join("runs")]).await.expect("clean except for the runs");
    world.user.write("src/main.py", "changed");
    assert!(user.check_clean(&[world.user.path().join("runs")]).await.is_err());
    let nowhere = tempfile::tempdir().expect("a directory");
    let error = SourceRepository::open(nowhere.path()).await;
    assert!(matches!(error, Err(RepositoryError::Unusable { .. })), "{error:?}");
    let names = world.user.git(&["for-each-ref", "--format=%(refname)"]);
    assert_eq!(names, "refs/heads/main", "no reference of the search");
}

#[tokio::test]
async fn patch_of_commit_applies_to_files_of_user_whole_or_not_at_all() {
    let world = RepositoryFixture::new().await;
    let root = world.repository.root();
    let made = world.candidate(&root, "added", "100755", "new\n").await;
    world.repository.import(&root, &made).await.expect("imported");
    let changes = SearchChanges::open(world.run.path(), &root, &made.commit).expect("opened");
    assert!(changes.files().await.expect("listed").contains("added | 1 +"));
    let patch = changes.patch().await.expect("made");
    for (dir, file) in [("", "added"), ("src", "src/added")] {
        let user = SourceRepository::open(&world.user.path().join(dir)).await.expect("opened");
        user.apply(patch.clone()).await.expect("applied");
        let text = std::fs::read_to_string(world.user.path().join(file)).expect("written");
        assert_eq!(text, "new\n");
        // The file exists now.
        let refused = user.apply(patch.clone()).await;
        assert!(matches!(refused, Err(RepositoryError::Git { .. })), "{refused:?}");
    }
    assert_eq!(world.user.git(&["diff", "--cached", "--name-only"]), "", "nothing is staged");
    let bad = SearchChanges::open(world.run.path(), &root, "--output=x");
    assert!(matches!(bad, Err(RepositoryError::Unknown { .. })), "{bad:?}");
}

#[tokio::test]
async fn source_repo_subdirectory_is_searched_alone() {
    let world = RepositoryFixture::new().await;
    let user = &world.user;
    let before = user.git(&["count-objects"]);
    user.git(&["config", "i18n.commitEncoding", "latin1"]);
    let open = || async { SourceRepository::open(&user.path().join("src")).await.expect("opened") };
    let part = open().await;
    let root = part.resolve("HEAD").await.expect("resolved");
    // Files beside the directory change neither its clean state nor its commit.
    user.write("beside", "x");
    part.check_clean(&[]).await.expect("clean");
    user.commit("beside");
    assert_eq!(open().await.resolve("main").await.expect("resolved"), root);
    assert_ne!(part.resolve("HEAD~2").await.expect("resolved"), root, "it has other files");
    user.write("src/new", "x");
    let dirty = part.check_clean(&[]).await;
    assert!(matches!(&dirty, Err(RepositoryError::Dirty { first, .. }) if first == "src/new"));
    part.check_clean(&[user.path().join("src/new")]).await.expect("clean except for that");
    std::fs::remove_file(user.path().join("src/new")).expect("removed");
    // Another repository with the same files, at its top or not.
    let other = Users::default();
    other.write("deep/er/main.py", "print(2)\n");
    other.commit("alike");
    let alike = SourceRepository::open(&other.path().join("deep/er")).await.expect("opened");
    assert_eq!(alike.resolve("HEAD").await.expect("resolved"), root);
    other.write("fresh/file", "x");
    let fresh = SourceRepository::open(&other.path().join("fresh")).await.expect("opened");
    let none = fresh.resolve("HEAD").await;
    assert!(matches!(none, Err(RepositoryError::Unusable { .. })), "{none:?}");
    // A search can start from it after the repository advanced, and in another process.
    user.write("src/main.py", "print(3)\n");
    user.commit("later");
    let run = tempfile::tempdir().expect("a directory");
    let repository = create(&run, &open().await, &root, &world.store).await;
    let files = repository.bare.tree(&root).await.expect("listed");
    let paths: Vec<_> = files.iter().map(|file| file.path.as_slice()).collect();
    assert_eq!(paths, [b"main.py".as_slice()]);
    assert_eq!(repository.bare.parents(&root).await.expect("asked"), Vec::<String>::new());
    let gone = open().await.export(&"1".repeat(40), &run.path().join("x"), &*world.store).await;
    assert!(matches!(gone, Err(RepositoryError::Unusable { .. })), "{gone:?}");
    let loose = |text: String| text.split(' ').next().and_then(|n| n.parse::<u32>().ok());
    let made = (loose(user.git(&["count-objects"])), loose(before));
    // Blobs, trees and commits of the user's two commits.
    assert_eq!(made.0, made.1.map(|n| n + 3 + 4), "no object of the search");
}

#[tokio::test]
async fn candidate_imported_survives_repack_and_reopen() {
    let world = RepositoryFixture::new().await;
    let root = world.repository.root();
    let one = world.candidate(&root, "one", "100644", "1").await;
    world.repository.import(&root, &one).await.expect("imported");
    world.repository.import(&root, &one).await.expect("again");
    world.reconcile(&world.wanted(&[("tree/run/n0001", &one.commit)], &[])).await;
    let two = world.candidate(&one.commit, "two", "100755", "2").await;
    world.repository.import(&one.commit, &two).await.expect("imported");
    let spec = world.repository.spec(&two.commit).expect("known");
    assert_eq!(
        (spec.root.commit.clone(), spec.chain),
        (root.clone(), vec![one.clone(), two.clone()])
    );
    // Another process resumes, with objects that no reference held.
    let store = world.store.clone();
    let again = SearchRepository::open(world.run.path(), "run", store).await.expect("opened");
    again.bare.git().call(["repack", "-q", "-a", "-d"]).run().await.expect("forgotten");
    let object = format!("{}^{{commit}}", two.commit);
    assert_eq!(again.bare.reference(&object).await.expect("asked"), None);
    let wanted = world.wanted(&[("tree/run/e0002", &two.commit)], &[("wt/0002", &two.commit)]);
    again.reconcile(&wanted, &BTreeSet::new()).await.expect("restored");
    assert_eq!(world.read("wt/0002/two").as_deref(), Some("2"));
    // The user can fetch the result.
    let from = again.dir().display().to_string();
    world.user.git(&[
        "-c",
        "protocol.file.allow=always",
        "fetch",
        "-q",
        &from,
        "refs/tree/run/e0002:refs/heads/found",
    ]);
    assert_eq!(world.user.git(&["rev-parse", "found~2"]), root);
    assert_eq!(world.user.git(&["rev-list", "--count", "found"]), "4", "with the user's history");
}

#[tokio::test]
async fn candidate_bundle_invalid_is_refused_and_leaves_nothing() {
    let world = RepositoryFixture::new().await;
    let root = world.repository.root();
    let good = world.candidate(&root, "good", "100644", "1").await;
    let remote = world.repository.import(&good.commit, &good).await;
    assert!(matches!(remote, Err(RepositoryError::Refused { .. })), "{remote:?}");
    for (path, mode) in [
        (".git", "100644"),
        (".GIT", "100644"),
        ("git~1", "100644"),
        (".g\u{200c}it", "120000"),
        ("sub", "160000"),
    ] {
        let bad = world.candidate(&root, path, mode, "x").await;
        let refused = world.repository.import(&root, &bad).await;
        assert!(matches!(refused, Err(RepositoryError::Refused { .. })), "{path}: {refused:?}");
        assert!(world.repository.spec(&bad.commit).is_err());
    }
    // A bundle with another commit than its metadata, and a blob that is no bundle.
    let other = world.candidate(&root, "other", "100644", "2").await;
    let lie = CommitBundle { blob: other.blob.clone(), ..good.clone() };
    assert!(matches!(
        world.repository.import(&root, &lie).await,
        Err(RepositoryError::Refused { .. })
    ));
    let blob = world.store.put_bytes("no bundle".into(), MediaType::Bytes).await.expect("stored");
    let none = CommitBundle { blob, ..good.clone() };
    assert!(matches!(
        world.repository.import(&root, &none).await,
        Err(RepositoryError::Refused { .. })
    ));
    // A bundle with two commits.
    let git = world.repository.bare.git();
    world.repository.import(&root, &good).await.expect("imported");
    git.call(["update-ref", "refs/keep/good", &good.commit]).run().await.expect("kept");
    let second = world.candidate(&good.commit, "second", "100644", "3").await;
    world.repository.import(&good.commit, &second).await.expect("imported");
    git.call(["update-ref", "refs/keep/second", &second.commit]).run().await.expect("kept");
    let both = world.bundle(&second.commit, Some(&root)).await;
    assert!(matches!(
        world.repository.import(&root, &both).await,
        Err(RepositoryError::Refused { .. })
    ));
    let incoming = git.call(["for-each-ref", "refs/incoming"]).run_line().await.expect("listed");
    assert_eq!((incoming.as_str(), world.references().await), ("", Vec::new()));
    let home = std::fs::read_dir(world.run.path().join("repository")).expect("listed");
    let mut left: Vec<_> = home.map(|entry| entry.expect("listed").file_name()).collect();
    left.sort();
    assert_eq!(left, ["bare"]);
}

#[tokio::test]
async fn refs_and_checkouts_after_crash_are_restored() {
    let world = RepositoryFixture::new().await;
    let root = world.repository.root();
    let one = world.candidate(&root, "one", "100644", "1").await;
    world.repository.import(&root, &one).await.expect("imported");
    let (a, b) = (root.as_str(), one.commit.as_str());
    let first =
        world.wanted(&[("tree/run/n0000", a), ("refs/tree/run/e0000", b)], &[("wt/0000", a)]);
    for _ in 0..2 {
        assert_eq!(world.reconcile(&first).await, []);
        let there = [("refs/tree/run/e0000", b), ("refs/tree/run/n0000", a)];
        assert_eq!(world.references().await, there.map(|(n, c)| (n.to_owned(), c.to_owned())));
        assert_eq!(world.read("wt/0000/src/main.py").as_deref(), Some("print(2)\n"));
    }
    // A promotion; foreign files in a checkout stay while it is wanted.
    std::fs::write(world.run.path().join("wt/0000/note"), "mine").expect("written");
    let next = world.wanted(
        &[("tree/run/n0000", a), ("tree/run/n0001", b)],
        &[("wt/0000", a), ("wt/0001", b), ("cand/0000", b)],
    );
    world.reconcile(&next).await;
    assert_eq!(world.read("wt/0000/note").as_deref(), Some("mine"));
    assert_eq!(world.read("wt/0001/one").as_deref(), Some("1"));
    assert_eq!(world.read("cand/0000/one").as_deref(), Some("1"));
    assert_eq!(world.references().await.len(), 2);
    // Remains of a crash: half a checkout, a lock of a killed git, directories without a checkout,
    // and a checkout whose directory is missing.
    let admin = world.repository.dir().join("worktrees/0001");
    std::fs::remove_file(admin.join(checkouts_mark())).expect("removed");
    std::fs::remove_file(world.run.path().join("wt/0001/one")).expect("removed");
    std::fs::remove_dir_all(world.run.path().join("wt/0000")).expect("removed");
    std::fs::create_dir_all(world.run.path().join("wt/stray/x")).expect("made");
    std::fs::write(world.repository.dir().join("refs/tree/run/n0000.lock"), "").expect("made");
    let store = world.store.clone();
    let again = SearchRepository::open(world.run.path(), "run", store).await.expect("opened");
    let last = world.wanted(&[("tree/run/n0002", b)], &[("wt/0000", a), ("wt/0001", b)]);
    let kept =
        DesiredRepositoryState { candidates: ["cand/0000".to_owned()].into(), ..last.clone() };
    again.reconcile(&kept, &BTreeSet::new()).await.expect("kept");
    assert!(world.run.path().join("cand/0000").exists(), "a candidate may stay");
    assert_eq!(again.reconcile(&last, &BTreeSet::new()).await.expect("again"), []);
    assert_eq!(world.read("wt/0001/one").as_deref(), Some("1"));
    assert!(world.read("wt/0000/src/main.py").is_some());
    assert!(
        !world.run.path().join("wt/stray").exists() && !world.run.path().join("cand/0000").exists()
    );
    assert_eq!(world.references().await, [("refs/tree/run/n0002".to_owned(), b.to_owned())]);
    let nothing = DesiredRepositoryState::default();
    again.reconcile(&nothing, &BTreeSet::new()).await.expect("emptied");
    assert_eq!(world.references().await, []);
    let listed = again.bare.git().call(["worktree", "list", "--porcelain"]).run_line().await;
    assert_eq!(listed.expect("listed").matches("worktree ").count(), 1, "only the bare one");
}

fn checkouts_mark() -> &'static str {
    "rollout-complete"
}

#[tokio::test]
async fn checkout_with_git_config_of_agent_runs_no_command() {
    let world = RepositoryFixture::new().await;
    let root = world.repository.root();
    let wanted = world.wanted(&[], &[("wt/0000", &root)]);
    world.reconcile(&wanted).await;
    let (home, mark) = (world.run.path().join("wt/0000"), world.run.path().join("it-ran"));
    let config = format!("[core]\n\tfsmonitor = touch {}\n", mark.display());
    std::fs::remove_file(home.join(".git")).expect("removed");
    std::fs::create_dir_all(home.join(".git/hooks")).expect("made");
    std::fs::write(home.join(".git/config"), config).expect("written");
    std::os::unix::fs::symlink("/etc", home.join("link")).expect("linked");
    // Its `.git` was changed, so it is made again.
    world.reconcile(&wanted).await;
    assert!(home.join(".git").is_file() && !mark.exists() && Path::new("/etc/passwd").exists());
    world.reconcile(&DesiredRepositoryState::default()).await;
    assert!(!home.exists() && !mark.exists());
}

#[tokio::test]
async fn ref_or_path_outside_search_is_refused() {
    let world = RepositoryFixture::new().await;
    let root = world.repository.root();
    for name in ["heads/main", "tree/other/n1", "tree/run/", "tree/run/a b", "tree/run/../x"] {
        let wanted = world.wanted(&[(name, &root)], &[]);
        let refused = world.repository.reconcile(&wanted, &BTreeSet::new()).await;
        assert!(matches!(refused, Err(RepositoryError::BadName { .. })), "{name}: {refused:?}");
    }
    for path in ["wt", "wt/0/1", "../wt/0", "/wt/0", "src/0", "wt/..", "repository/bare"] {
        let wanted = world.wanted(&[], &[(path, &root)]);
        let refused = world.repository.reconcile(&wanted, &BTreeSet::new()).await;
        assert!(matches!(refused, Err(RepositoryError::BadName { .. })), "{path}: {refused:?}");
    }
    let unknown = world.wanted(&[("tree/run/n1", &"0".repeat(40))], &[]);
    let refused = world.repository.reconcile(&unknown, &BTreeSet::new()).await;
    assert!(matches!(refused, Err(RepositoryError::Unknown { .. })), "{refused:?}");
}

#[tokio::test]
async fn cleanup_of_locked_ref_is_deferred_and_retried() {
    let world = RepositoryFixture::new().await;
    let root = world.repository.root();
    let refs = ["tree/run/n0000", "tree/run/n0001", "tree/run/n0002"].map(|n| (n, root.as_str()));
    world.reconcile(&world.wanted(&refs, &[])).await;
    // Another process holds the reference's lock.
    let lock = world.repository.dir().join("refs/tree/run/n0001.lock");
    std::fs::write(&lock, "").expect("locked");
    let wanted = world.wanted(&refs[..1], &[]);
    let left = world.reconcile(&wanted).await;
    assert_eq!((left.len(), left[0].path.as_str()), (1, "refs/tree/run/n0001"));
    assert_eq!(world.references().await.len(), 2, "the other one is removed");
    let deferred = BTreeSet::from([left[0].path.clone()]);
    let again = world.repository.reconcile(&wanted, &deferred).await.expect("kept");
    assert_eq!(again, [], "it is in the queue already");
    let item = |path: &str, kind| DeferredCleanup {
        path: path.to_owned(),
        kind,
        reason: String::new(),
        attempts: 1,
        next_retry_at: rollout_protocol::Timestamp::UNIX_EPOCH,
    };
    let queued = item("refs/tree/run/n0001", CleanupKind::Branch);
    assert!(world.repository.remove(&queued).await.is_err());
    std::fs::remove_file(&lock).expect("unlocked");
    for _ in 0..2 {
        world.repository.remove(&queued).await.expect("removed, and missing already");
    }
    assert_eq!(world.references().await.len(), 1);
    for (path, kind) in [
        ("refs/heads/main", CleanupKind::Branch),
        ("repository", CleanupKind::Dir),
        ("../outside/x", CleanupKind::Dir),
        ("wt/../repository", CleanupKind::Worktree),
    ] {
        let refused = world.repository.remove(&item(path, kind)).await;
        assert!(matches!(refused, Err(RepositoryError::BadName { .. })), "{path}: {refused:?}");
    }
}

#[tokio::test]
async fn repository_creation_interrupted_is_repeated() {
    let world = RepositoryFixture::new().await;
    let root = world.repository.root();
    std::fs::remove_file(world.run.path().join("bundles.json")).expect("removed");
    let store = world.store.clone();
    let error = SearchRepository::open(world.run.path(), "run", store).await;
    assert!(matches!(error, Err(RepositoryError::Unusable { .. })), "{error:?}");
    let users = SourceRepository::open(world.user.path()).await.expect("opened");
    let before = world.repository.spec(&root).expect("known");
    let again = create(&world.run, &users, &root, &world.store).await;
    assert_eq!(again.spec(&root).expect("known"), before, "equal commits are equal bundles");
    let shown = Git::own_repository(again.dir()).call(["cat-file", "-t", &root]).run_line().await;
    assert_eq!(shown.expect("there"), "commit");
}

#[tokio::test]
async fn diff_is_bounded_and_ignores_git_attributes() {
    let world = RepositoryFixture::new().await;
    let root = world.repository.root();
    let text = "print(3)\n".repeat(200);
    let candidate = world.candidate(&root, "new file", "100644", &text).await;
    world.repository.import(&root, &candidate).await.expect("imported");
    let shown = async |to: &str, most| {
        let shown = world.repository.bounded_diff(&root, to, most, MINUTE).await.expect("compared");
        String::from_utf8(shown).expect("text")
    };
    let whole = shown(&candidate.commit, 1 << 20).await;
    assert!(whole.contains("new file | 200 +++") && whole.contains("+print(3)\n"), "{whole}");
    assert_eq!(whole.matches("+print(3)").count(), 200);
    let again = world.repository.diff(&root, &candidate.commit).await.expect("compared");
    assert_eq!(again, whole.into_bytes());
    let cut = shown(&candidate.commit, 1000).await;
    assert!(cut.len() < 1100 && cut.ends_with("\n[… the rest of the changes is left out …]\n"));
    assert!(cut.contains("\n+print(3)\n["), "cut after a line: {cut}");
    assert_eq!(shown(&root, 1000).await, "");
    let attributes = world.candidate(&root, ".gitattributes", "100644", "* diff=x\n").await;
    world.repository.import(&root, &attributes).await.expect("imported");
    assert!(shown(&attributes.commit, 1 << 20).await.contains("+* diff=x"));
    let unknown = world.repository.diff(&root, "--output=/tmp/x").await;
    assert!(matches!(unknown, Err(RepositoryError::Unknown { .. })), "{unknown:?}");
}

#[tokio::test]
async fn diff_too_large_or_too_slow_is_noted_without_error() {
    let world = RepositoryFixture::new().await;
    let root = world.repository.root();
    let lines = |step: usize| (0..700_000).map(move |n| format!("{}\n", n * step % 1_000_003));
    let (one, two): (String, String) = (lines(7).collect(), lines(11).collect());
    assert!(one.len() > 4 << 20 && two.len() > 4 << 20);
    let large = world.candidate(&root, "large.txt", "100644", &one).await;
    world.repository.import(&root, &large).await.expect("imported");
    let changed = world.candidate(&root, "large.txt", "100644", &two).await;
    world.repository.import(&root, &changed).await.expect("imported");
    let diff = world.repository.diff(&large.commit, &changed.commit).await.expect("compared");
    let diff = String::from_utf8(diff).expect("text");
    assert!(diff.contains("large.txt | Bin") && diff.len() < 1000, "{diff}");
    let late = world.repository.bounded_diff(&root, &changed.commit, 1000, Duration::ZERO).await;
    let late = String::from_utf8(late.expect("a notice")).expect("text");
    assert!(late.contains("takes too long"), "{late}");
}
