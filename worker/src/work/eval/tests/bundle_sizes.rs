use super::*;

/// Files of the repository.
const FILES: usize = 2000;

#[tokio::test]
async fn commit_bundle_of_small_change_in_large_repo_is_small() {
    let world = MirrorFixture::new();
    let content = |number: usize| {
        let line = |line: usize| format!("value_{number}_{line} = {}\n", number * 7919 + line * 31);
        (0..60).map(line).collect::<String>()
    };
    let name = |number: usize| format!("src/package_{}/module_{number}.py", number % 40);
    for number in 0..FILES {
        world.user.write(&name(number), content(number));
    }
    let mut repository = world.root_spec(&world.user.commit("root")).await;
    println!("root bundle: {} bytes", repository.root.blob.size_bytes);
    for round in 0..3usize {
        let mut tree = TreeArchive::default();
        for number in 0..FILES {
            let changed = number <= round;
            let more = if changed { format!("# round {number}\n") } else { String::new() };
            tree = tree.file(&name(number), content(number) + &more);
        }
        let began = std::time::Instant::now();
        let made = candidate(world.commit(&repository, tree, "one line").await);
        println!("round {round}: {} bytes, {:?}", made.size_bytes, began.elapsed());
        assert_eq!(made.changes.written, 1);
        assert!(made.size_bytes < 4096, "{} bytes", made.size_bytes);
        world.add(&mut repository, &made).await;
    }
    let mirror = world.repositories.mirrors.get(&repository).await.expect("a mirror");
    assert_eq!(mirror.bare().tree(repository.commit()).await.expect("a tree").len(), FILES);
}
