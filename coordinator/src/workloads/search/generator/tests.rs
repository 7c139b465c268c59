use std::collections::BTreeMap;
use std::io::Cursor;

use rollout_worker::environment::fake::{At, Call, Effect, raw_entry, raw_entry_with_mode};
use rollout_worker::environment::{ByteStream, FailureKind};
use rollout_worker::secrets::TrialVariables;
use tar::EntryType;

use super::testing::Bench;
use super::*;
use crate::workloads::search::driver::WorkError;

#[tokio::test]
async fn a_command_is_given_everything_and_its_ideas_are_taken() {
    let bench = Bench::new();
    let script = "test -d $ROLLOUT_REPOSITORY; test -f value; cat value\n\
        echo $ROLLOUT_CONTEXT_IDEAS_DIRS; cat /context/00-prior_ideas/one.md\n\
        cat $ROLLOUT_CONTEXT_PACK_DIR/history.md\n\
        echo \"$ROLLOUT_TREE $ROLLOUT_NODE_ID $ROLLOUT_STAGE $ROLLOUT_IDEAS_COUNT $KEY\"\n\
        echo '- Faster' > $ROLLOUT_IDEAS_DIR/a.md; echo 'Slower' > /ideas/b.md\n\
        echo note > $ROLLOUT_LOGS_DIR/note; echo 0.5 > $ROLLOUT_COST_FILE\n\
        background watcher";
    let cost = bench.generate(script).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert!((cost - 0.5).abs() < 1e-12);
    let ideas = bench.ideas();
    let wanted = [("a.md", "- Faster\n"), ("b.md", "Slower\n")];
    assert_eq!(ideas, wanted.map(|(name, text)| (name.to_owned(), text.to_owned())).into());
    let printed = "1\n/context/00-prior_ideas\n- One# History\nrun 0000 ideas 3 none\n";
    assert_eq!(bench.log("stdout.txt"), printed);
    assert_eq!(bench.log("logs/note"), "note\n");
    assert!(!bench.run().join("logs/ideas/0000/left_out.txt").exists());
    let (request, _) = bench.provider.requests().remove(0);
    assert_eq!(
        (&request.labels.worker, request.labels.owner.pid),
        (&rollout_worker::work::trial::testing::labels().worker, 1)
    );
    // Done again, everything is anew.
    std::fs::remove_dir_all(bench.target()).expect("removed");
    std::fs::create_dir_all(bench.target()).expect("made");
    bench.generate("echo x > /ideas/c.md").await.expect("ideas");
    assert_eq!(bench.ideas().into_keys().collect::<Vec<_>>(), ["c.md"]);
    assert_eq!(bench.log("stdout.txt") + &bench.log("logs/note"), "");
}

#[tokio::test]
async fn nothing_that_is_no_file_of_a_commit_or_of_an_idea_is_given_away() {
    let bench = Bench::new();
    let earlier = bench.directory.path().join("prior ideas");
    std::fs::write(earlier.join("large.md"), vec![b'x'; 256 * 1024 + 1]).expect("written");
    for n in 0..1000 {
        std::fs::write(earlier.join(format!("a-{n:04}.md")), "- An idea").expect("written");
    }
    for absent in [
        "/repository/.git",
        "/context/00-prior_ideas/large.md",
        // The thousand before it are enough.
        "/context/00-prior_ideas/one.md",
        "/repository/outside",
        "/context/00-prior_ideas/.hidden",
        "/context/00-prior_ideas/below",
    ] {
        let script = format!("echo x > /ideas/a.md; test -e {absent}");
        let error = bench.generate(&script).await.expect_err(absent);
        assert!(matches!(error.fault, IdeasFault::Exit { code: 1, .. }), "{absent}: {error:?}");
    }
}

#[tokio::test]
async fn a_command_that_fails_or_takes_too_long_says_so_with_its_last_words() {
    let bench = Bench::new();
    let error = bench.generate("echo x > /ideas/a.md; echo no quota >&2; exit 3").await;
    let error = error.expect_err("it failed");
    let text = "the command `ideas` for node 0000: it ended with code 3: no quota";
    assert_eq!(error.chain(), text);
    assert_eq!(bench.ideas(), BTreeMap::new());
    let told = WorkError::from(error);
    assert_eq!(told.to_string(), text);
    let mut tree = bench.tree("echo waiting >&2; echo x > /ideas/a.md; sleep 1000");
    tree.commands.ideas.timeout_sec = 0.2;
    let error = bench.generate_with(tree).await.expect_err("it took too long");
    assert!(error.chain().ends_with("ended after 200ms: waiting"), "{}", error.chain());
    let error = bench.generate("echo thinking >&2").await.expect_err("nothing");
    assert!(error.chain().ends_with("it wrote no idea: thinking"), "{}", error.chain());
    let mut tree = bench.tree("echo");
    let variable = tree.commands.ideas.env.get_mut("KEY").expect("there");
    variable.template = rollout_protocol::template::Template::new("${NOT_SET}");
    let error = bench.generate_with(tree).await.expect_err("unset");
    assert!(matches!(error.fault, IdeasFault::Unset(_)), "{error:?}");
    assert!(bench.ideas().is_empty());
}

/// Gives an archive for what is read at a path.
fn archived(bench: &Bench, at: &'static str, members: &[Vec<u8>]) {
    let bytes = [members.concat(), vec![0; 1024]].concat();
    bench.provider.hostile(Arc::new(move |path: &str| {
        let stream: ByteStream = Box::new(Cursor::new(bytes.clone()));
        (path == at).then_some(Some(stream))
    }));
}

#[tokio::test]
async fn what_is_no_idea_is_left_out_and_told() {
    use EntryType::{Directory, Fifo, Regular, Symlink};
    let bench = Bench::new();
    let large = vec![b'x'; 300 * 1024];
    let entry = |name: &str, kind, link: &str, content: &[u8]| {
        raw_entry(name.as_bytes(), kind, link.as_bytes(), content)
    };
    archived(
        &bench,
        "/ideas",
        &[
            entry("ideas/", Directory, "", b""),
            entry("ideas/link.md", Symlink, "/etc/passwd", b""),
            entry("ideas/pipe.md", Fifo, "", b""),
            entry("ideas/../../up.md", Regular, "", b"- Up"),
            entry("ideas/below/", Directory, "", b""),
            entry("ideas/below/deep.md", Regular, "", b"- Deep"),
            entry("ideas/.hidden.md", Regular, "", b"- Hidden"),
            entry("ideas/bad\u{7}name.md", Regular, "", b"- Bell"),
            raw_entry(b"ideas/\xff.md", Regular, b"", b"- Bytes"),
            entry("ideas/blank.md", Regular, "", b" \n"),
            entry("ideas/large.md", Regular, "", &large),
            raw_entry_with_mode(b"ideas/good.md", Regular, b"", b"- Good", 0o777),
        ],
    );
    bench.generate("echo").await.expect("one idea");
    let ideas = bench.ideas();
    assert_eq!(ideas.keys().collect::<Vec<_>>(), ["good.md"]);
    let told = bench.log("left_out.txt");
    for name in ["below", ".hidden.md", "bad", "blank.md", "large.md", "3 links, special"] {
        assert!(told.contains(name), "{name} not in {told}");
    }
    assert!(!told.contains("good.md"));
    let outside = bench.run().join("node_ideas/up.md");
    assert!(!outside.exists() && !bench.run().join("up.md").exists());
}

#[tokio::test]
async fn more_than_anybody_reads_is_no_result() {
    let bench = Bench::new();
    let many: Vec<_> = (0..1100)
        .map(|n| raw_entry(format!("ideas/{n}").as_bytes(), EntryType::Regular, b"", b"x"))
        .collect();
    archived(&bench, "/ideas", &many);
    let error = bench.generate("echo").await.expect_err("too many");
    assert!(matches!(error.fault, IdeasFault::Unreadable(_)), "{error:?}");
    assert!(error.chain().contains("1000 entries"), "{}", error.chain());
    let flood = vec![b'x'; 65 * 1024 * 1024];
    archived(&bench, "/ideas", &[raw_entry(b"ideas/a.md", EntryType::Regular, b"", &flood)]);
    let error = bench.generate("echo").await.expect_err("too large");
    assert!(error.chain().contains("bytes"), "{}", error.chain());
    // The directory itself was replaced.
    archived(&bench, "/ideas", &[raw_entry(b"ideas", EntryType::Symlink, b"/etc", b"")]);
    let error = bench.generate("echo").await.expect_err("nothing");
    assert!(matches!(error.fault, IdeasFault::Nothing { .. }), "{error:?}");
    assert!(bench.ideas().is_empty());
}

#[tokio::test]
async fn secrets_are_in_nothing_that_is_kept() {
    let mut bench = Bench::new();
    bench.variables = TrialVariables::new([("KEY".into(), "hunter2-hunter2".into())]);
    let script = "echo $KEY; echo \"- $KEY\" > /ideas/a.md; echo $KEY > /logs/key; exit 0";
    bench.generate(script).await.expect("ideas");
    let kept = bench.ideas()["a.md"].clone() + &bench.log("stdout.txt") + &bench.log("logs/key");
    assert!(!kept.contains("hunter2") && kept.contains("[redacted:KEY]"), "{kept}");
    let error = bench.generate("echo $KEY >&2; exit 1").await.expect_err("it failed");
    assert!(!error.chain().contains("hunter2"), "{}", error.chain());
}

#[tokio::test]
async fn a_stop_ends_it_and_leaves_no_environment() {
    let bench = Bench::new();
    bench.stop.send_replace(Some(StopLevel::Drain));
    let error = bench.generate("echo x > /ideas/a.md").await.expect_err("stopped");
    assert!(matches!(error.fault, IdeasFault::Stopped), "{error:?}");
    assert_eq!(bench.provider.calls(), []);
    assert_eq!(WorkError::from(error), WorkError::Stopped);
    // In the middle of its command.
    bench.stop.send_replace(None);
    let killing = async {
        while bench.provider.busy().is_empty() {
            tokio::task::yield_now().await;
        }
        bench.stop.send_replace(Some(StopLevel::Kill));
    };
    let (ended, ()) = tokio::join!(bench.generate("echo x > /ideas/a.md; sleep 1000"), killing);
    assert!(matches!(ended.expect_err("stopped").fault, IdeasFault::Stopped));
    assert!(bench.ideas().is_empty());
    assert_eq!(bench.provider.existing(), Vec::<String>::new());
}

#[tokio::test]
async fn whatever_call_fails_there_is_an_end_and_no_environment_is_left() {
    let script = "echo x > /ideas/a.md; echo 1 > $ROLLOUT_COST_FILE; echo y > /logs/y";
    let calls = {
        let bench = Bench::new();
        bench.generate(script).await.expect("ideas");
        bench.provider.calls()
    };
    for (at, call) in calls.iter().enumerate() {
        for effect in [Effect::Fail(FailureKind::Unreachable), Effect::Panic] {
            let bench = Bench::new();
            bench.provider.fault(At::Any(at), effect);
            let ended = bench.generate(script).await;
            let what = format!("call {at}, {call:?}: {effect:?}: {ended:?}");
            match ended {
                // What it cost and its logs are no ideas; removals are tried again.
                Ok(_) => assert!(matches!(call, Call::CopyFrom | Call::Destroy), "{what}"),
                Err(error) => {
                    let is_defect = matches!(error.fault, IdeasFault::Defect(_));
                    assert!(
                        is_defect || error.fault.is_transient() || *call == Call::CopyFrom,
                        "{what}"
                    );
                    assert!(bench.ideas().is_empty(), "{what}");
                }
            }
        }
    }
}
