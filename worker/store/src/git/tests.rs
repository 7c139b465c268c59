use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::spec::eval::CommitBundle;

use super::testing::UserRepository;
use super::*;

fn commit_bundle(commit: &str, parent: Option<&str>) -> CommitBundle {
    let blob = BlobRef::for_bytes(b"", MediaType::Bytes);
    CommitBundle { commit: commit.to_owned(), parent: parent.map(str::to_owned), blob }
}

async fn grafted(user: &UserRepository, commit: &str, dir: &std::path::Path) -> BareRepository {
    let file = dir.join("root.bundle");
    let git = Git::user_repository(user.path());
    bundle::write(&git, commit, None, &file, 1 << 30).await.expect("written");
    let root = commit_bundle(commit, None);
    BareRepository::create(&dir.join("bare"), &root, &file, "refs/commits/root")
        .await
        .expect("created")
}

#[tokio::test]
async fn git_bundle_omits_history_and_holds_only_changes() {
    let (user, dir) = (UserRepository::default(), tempfile::tempdir().expect("a directory"));
    user.write("old", vec![7; 100_000]);
    let before = user.commit("before");
    std::fs::remove_file(user.path().join("old")).expect("removed");
    user.write("large.txt", "some line of text, again\n".repeat(20_000));
    user.write("a/run.sh", "echo");
    let root = user.commit("root");
    let bare = grafted(&user, &root, dir.path()).await;
    assert_eq!(bare.reference("refs/commits/root").await.expect("asked"), Some(root.clone()));
    assert_eq!(bare.reference("refs/commits/other").await.expect("asked"), None);
    assert!(bare.git().call(["cat-file", "-e", &before]).run().await.is_err());
    assert_eq!(bare.parents(&root).await.expect("asked"), Vec::<String>::new());

    // A child commit, made by the user in this test.
    let changed = "some line of text, again\n".repeat(20_000) + "and one more";
    user.write("large.txt", changed);
    let next = user.commit("next");
    let file = dir.path().join("next");
    let users = Git::user_repository(user.path());
    let bytes = bundle::write(&users, &next, Some(&root), &file, 1 << 20).await.expect("thin");
    assert!(bytes < 1000, "{bytes}");
    let next_of = commit_bundle(&next, Some(&root));
    bundle::read(&bare, &file, &next_of, "refs/commits/next", true).await.expect("taken");
    assert_eq!(bare.parents(&next).await.expect("asked"), std::slice::from_ref(&root));
    let tree = bare.tree(&next).await.expect("a tree");
    let paths: Vec<&[u8]> = tree.iter().map(|entry| &entry.path[..]).collect();
    assert_eq!(paths, [&b"a/run.sh"[..], b"large.txt"]);

    // A different commit than announced, a size limit, and one whose parent is absent.
    let other = commit_bundle(&root, None);
    let error = bundle::read(&bare, &file, &other, "refs/commits/x", true).await;
    assert!(matches!(error, Err(GitError::BadBundle { .. })), "{error:?}");
    let bounded = dir.path().join("bounded");
    let error = bundle::write(&users, &next, Some(&root), &bounded, 10).await;
    assert!(matches!(error, Err(GitError::TooLarge { .. })) && !bounded.exists(), "{error:?}");
    user.write("more", "x");
    let third = user.commit("third");
    user.write("more", "y");
    let fourth = user.commit("fourth");
    let file = dir.path().join("fourth");
    bundle::write(&users, &fourth, Some(&third), &file, 1 << 20).await.expect("thin");
    let error =
        bundle::read(&bare, &file, &commit_bundle(&fourth, Some(&third)), "refs/x", true).await;
    assert!(matches!(error, Err(GitError::Failed { .. })), "{error:?}");
    assert_eq!(bare.reference("refs/x").await.expect("asked"), None);
}

#[tokio::test]
async fn own_repository_call_syncs_everything_that_git_writes() {
    let (user, dir) = (UserRepository::default(), tempfile::tempdir().expect("a directory"));
    let bare = grafted(&user, &user.commit("empty"), dir.path()).await;
    for (name, expected) in [("core.fsync", "all"), ("core.fsyncMethod", "fsync")] {
        let value = bare.git().call(["config", name]).run_line().await.expect("a setting");
        assert_eq!(value, expected, "{name}");
    }
    bare.sync().await.expect("synced");
}

#[tokio::test]
async fn repository_with_lost_content_is_damaged() {
    let (user, dir) = (UserRepository::default(), tempfile::tempdir().expect("a directory"));
    user.write("file", "text");
    let root = user.commit("root");
    let bare = grafted(&user, &root, dir.path()).await;
    assert_eq!(bare.find_damage(&root).await.expect("looked"), None);
    let names =
        ["HEAD", "config", "info/attributes", "shallow", "refs/commits/root", "packed-refs"];
    for name in names {
        let path = bare.dir().join(name);
        let before = std::fs::read(&path).ok();
        for lost in [&b""[..], &[0_u8; 64][..]] {
            std::fs::write(&path, lost).expect("damaged");
            let damage = bare.find_damage(&root).await.expect("looked").expect("damage");
            assert_eq!(damage.path, path);
        }
        std::fs::remove_file(&path).expect("removed");
        if let Some(before) = before {
            // A reference that is missing is made again when it is needed.
            let damage = bare.find_damage(&root).await.expect("looked");
            assert_eq!(damage.is_some(), !name.starts_with("refs/"), "{name}");
            std::fs::write(&path, before).expect("restored");
        }
        assert_eq!(bare.find_damage(&root).await.expect("looked"), None, "{name}");
    }
    std::fs::remove_dir_all(bare.dir().join("objects/pack")).expect("removed");
    let damage = bare.find_damage(&root).await.expect("looked").expect("damage");
    assert!(damage.to_string().contains("lacks objects of its root"), "{damage}");
}

#[tokio::test]
async fn git_call_beyond_timeout_is_killed() {
    let (user, dir) = (UserRepository::default(), tempfile::tempdir().expect("a directory"));
    let bare = grafted(&user, &user.commit("empty"), dir.path()).await;
    let limit = Duration::from_millis(200);
    // Waits for input that never ends.
    let waiting = bare.git().call(["-c", "alias.wait=!sleep 900", "wait"]).timeout(limit).run();
    let began = std::time::Instant::now();
    let error = waiting.await.expect_err("too long");
    assert!(matches!(&error, GitError::TimedOut { what, .. } if what == "wait"), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(300));
    let error = bare.git().call(["cat-file", "-e", "HEAD:nothing"]).run().await;
    assert!(
        matches!(&error, Err(GitError::Failed { said, .. }) if said.contains("HEAD")),
        "{error:?}"
    );
}

#[tokio::test]
async fn git_call_does_not_inherit_environment() {
    let (user, dir) = (UserRepository::default(), tempfile::tempdir().expect("a directory"));
    let bare = grafted(&user, &user.commit("empty"), dir.path()).await;
    let seen = bare.git().call(["-c", "alias.show=!env", "show-env"]);
    drop(seen);
    let shown = bare.git().call(["-c", "alias.seen=!env", "seen"]).run_line().await.expect("shown");
    let names: Vec<&str> =
        shown.lines().filter_map(|line| line.split_once('=')).map(|l| l.0).collect();
    for name in &names {
        let known = name.starts_with("GIT_")
            || ["PATH", "HOME", "LC_ALL", "PWD", "SHLVL", "_", "OLDPWD"].contains(name);
        assert!(known, "{name} in {names:?}");
    }
    assert!(shown.contains("GIT_CONFIG_NOSYSTEM=1") && shown.contains("GIT_ALLOW_PROTOCOL=\n"));
}

#[tokio::test]
async fn git_remote_call_has_user_environment_and_no_parent_repo() {
    let dir = tempfile::tempdir().expect("a directory");
    let git = Git::remote(dir.path());
    let shown = git.call(["-c", "alias.seen=!env", "seen"]).run_line().await.expect("shown");
    let home = std::env::var("HOME").map(|home| format!("HOME={home}"));
    assert!(home.is_ok_and(|home| shown.lines().any(|line| line == home)), "{shown}");
    assert!(shown.contains("GIT_ALLOW_PROTOCOL=file:git:http:https:ssh\n"), "{shown}");
    assert!(!shown.contains("GIT_NO_LAZY_FETCH"), "{shown}");
    let error = git.call(["ls-remote", "ext::true"]).run().await;
    let refused = |said: &str| said.contains("not allowed");
    assert!(matches!(&error, Err(GitError::Failed { said, .. }) if refused(said)), "{error:?}");
    // Repositories in parent directories must not be used.
    git.call(["init", "-q"]).run().await.expect("made");
    let below = dir.path().join("below");
    std::fs::create_dir(&below).expect("made");
    let asked = Git::remote(below).call(["rev-parse", "--git-dir"]).run().await;
    assert!(matches!(asked, Err(GitError::Failed { .. })), "{asked:?}");
}

/// The repository of the process that [`git_public_call_has_nothing_of_the_user_and_a_proxy`] starts.
const PUBLIC_CALLS: &str = "ROLLOUT_TEST_PUBLIC_CALLS";

/// Value of the variables of that process.
const OF_USER: &str = "of-the-user";

#[tokio::test]
async fn child_process_makes_public_calls() {
    let Ok(repository) = std::env::var(PUBLIC_CALLS) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let git = Git::public(dir.path(), "http://127.0.0.1:9");
    let shown = git.call(["-c", "alias.seen=!env", "seen"]).run_line().await.expect("shown");
    for line in ["HOME=/nonexistent", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0"] {
        assert!(shown.lines().any(|found| found == line), "{line}: {shown}");
    }
    assert!(shown.contains("GIT_ALLOW_PROTOCOL=http:https\n"), "{shown}");
    assert!(!shown.contains("GIT_NO_LAZY_FETCH") && !shown.contains(OF_USER), "{shown}");
    let proxy = git.call(["config", "http.proxy"]).run_line().await.expect("a setting");
    assert_eq!(proxy, "http://127.0.0.1:9");
    let file = format!("file://{repository}");
    for url in ["ssh://git@h/r", "git://h/r", "ext::true", repository.as_str(), file.as_str()] {
        let error = git.call(["ls-remote", url]).run().await;
        let is_refused =
            matches!(&error, Err(GitError::Failed { said, .. }) if said.contains("not allowed"));
        assert!(is_refused, "{url}: {error:?}");
    }
    let allowed = git.call(["ls-remote", file.as_str()]).variable("GIT_ALLOW_PROTOCOL", "file");
    assert!(!allowed.run().await.expect("a repository").is_empty());
}

#[test]
fn git_public_call_has_nothing_of_the_user_and_a_proxy() {
    let user = UserRepository::default();
    user.write("file", "text");
    let _commit = user.commit("root");
    let variables =
        ["SSH_AUTH_SOCK", "GIT_SSH_COMMAND", "GIT_ASKPASS", "GIT_ALLOW_PROTOCOL", "HTTPS_PROXY"];
    let ended = std::process::Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "git::tests::child_process_makes_public_calls"])
        .env(PUBLIC_CALLS, user.path())
        .envs(variables.map(|name| (name, OF_USER)))
        .output()
        .expect("it ends");
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && printed.contains("1 passed"), "{printed}");
}

#[test]
fn git_error_is_classified_transient_or_refusal() {
    let failed = |code, said: &str| {
        let (what, said) = ("fetch".to_owned(), said.to_owned());
        let error = GitError::Failed { what, said, code };
        (error.is_transient(), error.is_refusal())
    };
    let (host, input) = ((true, false), (false, true));
    assert_eq!(failed(None, "it ended with signal: 9 (SIGKILL)"), host);
    assert_eq!(failed(Some(137), ""), host);
    // As git reports that one of its child processes was killed.
    assert_eq!(failed(Some(1), "error: index-pack died of signal 9; error: index-pack died"), host);
    assert_eq!(failed(Some(128), "fatal: write error: Input/output error"), host);
    assert_eq!(failed(Some(128), "fatal: Out of memory, malloc failed"), host);
    assert_eq!(failed(Some(128), "fatal: sha1 file write error: No space left on device"), host);
    assert_eq!(failed(Some(128), "error: object 1: hasDotgit: contains '.git'"), input);
    assert_eq!(failed(Some(1), "error: bad pack header"), input);
    assert_eq!(failed(Some(129), "usage: git fetch"), (false, false), "a defect of the program");
    let io = |code| GitError::io("read", "x", std::io::Error::from_raw_os_error(code));
    let [error, files, denied] = [5, 24, 13].map(|code| io(code).is_transient());
    assert_eq!((error, files, denied), (true, true, false));
    let bundle = GitError::BadBundle { path: "x".into(), reason: "odd".into() };
    assert_eq!((bundle.is_transient(), bundle.is_refusal()), input);
}
