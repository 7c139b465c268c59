use super::*;

#[tokio::test]
async fn mirror_lacking_commits_fetches_missing_chain() {
    let world = MirrorFixture::new();
    world.user.write("a", "0");
    let mut repository = world.root_spec(&world.user.commit("root")).await;
    for number in 1..4 {
        let tree = TreeArchive::default().file("a", number.to_string());
        let made = candidate(world.commit(&repository, tree, "next").await);
        world.add(&mut repository, &made).await;
    }
    // Another worker, without any cache, and one that has only the root.
    for has_root in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let others = Mirrors::open(dir.path(), world.store.clone(), 1 << 30).expect("opened");
        if has_root {
            let root = RepositorySpec { root: repository.root.clone(), chain: Vec::new() };
            others.get(&root).await.expect("a mirror");
        }
        let mirror = others.get(&repository).await.expect("a mirror");
        let shown = mirror.bare().git().call(["show", &format!("{}:a", repository.commit())]);
        assert_eq!(shown.run_line().await.expect("shown"), "3");
    }
    // Commits that are cached need no blob; a chain with a gap is refused.
    let mut broken = repository.clone();
    broken.chain.remove(1);
    let error = world.repositories.mirrors.get(&broken).await;
    assert!(matches!(error, Err(EvalFilesError::BrokenChain { .. })), "{error:?}");
    let mut alien = repository.clone();
    alien.chain[2].commit = "0".repeat(40);
    let error = world.repositories.mirrors.get(&alien).await;
    assert!(matches!(error, Err(EvalFilesError::Git(_))), "{error:?}");
    world.repositories.mirrors.get(&repository).await.expect("it is still there");
}

#[tokio::test]
async fn mirror_damaged_by_crash_is_recreated() {
    let world = MirrorFixture::new();
    world.user.write("a", "0");
    let repository = world.root_spec(&world.user.commit("root")).await;
    let dir = tempfile::tempdir().expect("a directory");
    let open = || Mirrors::open(dir.path(), world.store.clone(), 1 << 30);
    let mirrors = open().expect("opened");
    assert!(open().is_err(), "two processes have one directory");
    mirrors.get(&repository).await.expect("a mirror");
    drop(mirrors);
    std::fs::create_dir_all(dir.path().join("new-7/objects")).expect("left");
    std::fs::write(dir.path().join("new-8"), "half a bundle").expect("left");
    let home = dir.path().join(repository.root.blob.digest.hex());
    std::fs::remove_dir_all(home.join("objects")).expect("damaged");
    std::fs::remove_dir_all(home.join("refs")).expect("damaged");
    let mirrors = open().expect("opened");
    assert!(!exists(&dir.path().join("new-7")) && !exists(&dir.path().join("new-8")));
    assert_eq!(mirrors.len(), 1);
    let mirror = mirrors.get(&repository).await.expect("made anew");
    mirror.bare().tree(repository.commit()).await.expect("a tree");
}

#[tokio::test]
async fn mirror_with_files_emptied_by_power_failure_is_recreated() {
    let world = MirrorFixture::new();
    world.user.write("a", "0");
    let mut repository = world.root_spec(&world.user.commit("root")).await;
    let tree = TreeArchive::default().file("a", "1");
    let made = candidate(world.commit(&repository, tree, "next").await);
    world.add(&mut repository, &made).await;
    let dir = tempfile::tempdir().expect("a directory");
    let home = dir.path().join(repository.root.blob.digest.hex());
    let references = [&repository.root, &repository.chain[0]].map(super::super::mirror::commit_ref);
    let [root, next] = [references[0].as_str(), references[1].as_str()];
    for name in ["HEAD", "config", "shallow", "info/attributes", root, next] {
        let open = || Mirrors::open(dir.path(), world.store.clone(), 1 << 30).expect("opened");
        open().get(&repository).await.expect("a mirror");
        std::fs::write(home.join(name), "").expect("emptied");
        let mirror = open().get(&repository).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        let shown = mirror.bare().git().call(["show", &format!("{}:a", repository.commit())]);
        assert_eq!(shown.run_line().await.expect("shown"), "1", "{name}");
        let damage = mirror.bare().find_damage(&repository.root.commit).await.expect("looked");
        assert_eq!(damage, None, "{name}");
    }
}

/// Repositories of 200,000 bytes each.
async fn large_repositories(world: &MirrorFixture, count: u32) -> Vec<RepositorySpec> {
    let mut repositories = Vec::new();
    for number in 0..count {
        let noise: Vec<u8> = (0..200_000).map(|_| rand::random()).collect();
        world.user.write("a", noise);
        repositories.push(world.root_spec(&world.user.commit(&number.to_string())).await);
    }
    repositories
}

#[tokio::test]
async fn mirrors_above_size_limit_evict_only_unused() {
    let world = MirrorFixture::new();
    let repositories = large_repositories(&world, 3).await;
    let dir = tempfile::tempdir().expect("a directory");
    let mirrors = Mirrors::open(dir.path(), world.store.clone(), 500_000).expect("opened");
    let used = mirrors.get(&repositories[0]).await.expect("a mirror");
    for repository in &repositories[1..] {
        mirrors.get(repository).await.expect("a mirror");
    }
    assert_eq!(mirrors.len(), 2);
    used.bare().tree(repositories[0].commit()).await.expect("it is still there");
    let there = |at: usize| exists(&dir.path().join(repositories[at].root.blob.digest.hex()));
    assert!(there(0) && !there(1) && there(2));
    mirrors.get(&repositories[1]).await.expect("it comes back");
}

#[tokio::test]
async fn mirror_that_cannot_be_renamed_is_evicted_later() {
    let world = MirrorFixture::new();
    let repositories = large_repositories(&world, 2).await;
    let dir = tempfile::tempdir().expect("a directory");
    let mirrors = Mirrors::open(dir.path(), world.store.clone(), 300_000).expect("opened");
    mirrors.get(&repositories[0]).await.expect("a mirror");
    // Each repository takes two names: the next one that is used belongs to the eviction.
    let in_the_way = dir.path().join("new-4/file");
    std::fs::create_dir_all(&in_the_way).expect("created");
    mirrors.get(&repositories[1]).await.expect("a mirror");
    let first = dir.path().join(repositories[0].root.blob.digest.hex());
    assert!(exists(&in_the_way) && exists(&first));
    assert_eq!(mirrors.len(), 2, "it still counts");
    mirrors.get(&repositories[1]).await.expect("a mirror");
    assert_eq!((mirrors.len(), exists(&first)), (1, false));
}

#[tokio::test]
async fn slot_of_worker_whose_directory_is_gone_makes_no_new_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let worker = dir.path().join("w-1");
    let home = worker.join("repositories/slots");
    let slots = CheckoutSlots::open(&home).expect("opened");
    std::fs::remove_dir_all(worker.join("repositories")).expect("removed");
    slots.acquire("c0").await.expect("made again").clean().await.expect("cleaned");
    std::fs::remove_dir_all(&worker).expect("removed");
    assert!(slots.acquire("c1").await.is_err() && !exists(&worker));
}

#[tokio::test]
async fn slot_not_cleaned_is_empty_when_taken_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let slots = CheckoutSlots::open(dir.path()).expect("opened");
    assert!(CheckoutSlots::open(dir.path()).is_err(), "two processes have one directory");
    let (one, two) =
        (slots.acquire("c0").await.expect("a slot"), slots.acquire("c0").await.expect("a slot"));
    assert_ne!(one.path(), two.path());
    std::fs::write(one.path().join("left"), "x").expect("left");
    let path = one.path();
    drop((one, two));
    drop(slots);
    let slots = CheckoutSlots::open(dir.path()).expect("opened");
    let again = slots.acquire("c0").await.expect("a slot");
    assert_eq!((again.path(), exists(&path.join("left"))), (path.clone(), false));
    again.clean().await.expect("cleaned");
    assert!(!exists(&path));
}

#[tokio::test]
async fn slot_with_same_commit_is_reused_and_others_wiped() {
    let dir = tempfile::tempdir().expect("a directory");
    let slots = CheckoutSlots::open(dir.path()).expect("opened");
    let mut one = slots.acquire("c0").await.expect("a slot");
    let path = one.path();
    for name in ["base.tar", "out"] {
        std::fs::write(path.join(name), "x").expect("written");
    }
    one.mark_complete("c0");
    one.clean().await.expect("cleaned");
    let again = slots.acquire("c0").await.expect("a slot");
    assert_eq!((again.path(), again.commit()), (path.clone(), Some("c0")));
    assert!(exists(&path.join("base.tar")) && !exists(&path.join("out")));
    // A slot that was dropped uncleaned has nothing.
    drop(again);
    let wiped = slots.acquire("c0").await.expect("a slot");
    assert_eq!((wiped.commit(), exists(&path.join("base.tar"))), (None, false));
    drop(wiped);
    let mut other = slots.acquire("c1").await.expect("a slot");
    other.mark_complete("c1");
    other.clean().await.expect("cleaned");
    let another = slots.acquire("c2").await.expect("a slot");
    assert_eq!((another.path(), another.commit()), (path, None));
}
