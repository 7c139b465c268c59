//! Processes of this machine are found.

use std::process::{Command, Stdio};

use rollout_tests::processes::{descendants, with_mark};
use rollout_tests::wait;

#[test]
fn process_is_found_by_mark_and_by_ancestor() {
    let mark = format!("mark-of-{}", std::process::id());
    let mut shell = Command::new("sh")
        .args(["-c", "cat; :"])
        .env("MARK", &mark)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    wait::until(wait::LONG_DEADLINE, "cat to start", || {
        with_mark(&mark).iter().any(|process| process.arguments == "cat")
    });
    let below: Vec<_> = descendants(std::process::id()).into_iter().map(|p| p.pid).collect();
    for process in with_mark(&mark) {
        assert!(below.contains(&process.pid), "{process:?} {below:?}");
    }
    drop(shell.stdin.take());
    shell.wait().expect("it ends");
    assert_eq!(with_mark(&mark), []);
}
