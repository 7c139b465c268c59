//! Hostile logs, floods and secrets.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use data_encoding::{BASE64, HEXLOWER};
use futures_util::stream;
use rollout_base::secrets::TrialVariables;
use rollout_environment::ByteStream;
use rollout_environment::fake::HostileReader;
use rollout_protocol::error::ErrorType;
use rollout_protocol::limits;
use rollout_protocol::record::TrialRecord;
use rollout_protocol::template::Template;
use rollout_store::testing::raw_entry;
use tar::EntryType;
use tokio_util::io::StreamReader;

use super::super::testing::TrialFixture;
use super::{error, log_names, logs, output, run, secondary_codes};
use crate::executor::{ArchiveCounts, FileRole, Finished};

/// Gives `/logs` as `tar` says.
fn hostile_logs(tar: Vec<u8>) -> HostileReader {
    let tar = Bytes::from(tar);
    Arc::new(move |path| {
        (path == "/logs").then(|| Some(Box::new(Cursor::new(tar.clone())) as ByteStream))
    })
}

/// Gives `/logs` as an endless or very long stream of pieces.
fn long_logs<I>(pieces: impl Fn() -> I + Send + Sync + 'static) -> HostileReader
where
    I: Iterator<Item = Bytes> + Send + 'static,
{
    Arc::new(move |path| {
        (path == "/logs").then(|| {
            let pieces = stream::iter(pieces().map(Ok::<_, std::io::Error>));
            Some(Box::new(StreamReader::new(pieces)) as ByteStream)
        })
    })
}

fn role(finished: &Finished<TrialRecord>) -> (u64, u64, bool) {
    let logs = finished.files.iter().find_map(|file| match file.role {
        FileRole::Logs(ArchiveCounts { entries, skipped, truncated }) => {
            Some((entries, skipped, truncated))
        }
        _ => None,
    });
    logs.expect("logs")
}

#[tokio::test]
async fn hostile_archive_names_links_and_devices_are_skipped() {
    let file = |name: &str, content: &str| {
        raw_entry(name.as_bytes(), EntryType::Regular, b"", content.as_bytes())
    };
    let link = |name: &str, target: &str| {
        raw_entry(name.as_bytes(), EntryType::Symlink, target.as_bytes(), b"")
    };
    let tar = [
        raw_entry(b"logs/", EntryType::Directory, b"", b""),
        file("logs/agent/good.txt", "good"),
        file("logs/../../../../tmp/rollout-escaped", "evil"),
        file("../logs/escaped", "evil"),
        link("logs/agent/etc", "/etc"),
        file("logs/agent/etc/passwd", "evil"),
        link("logs/a", "b"),
        link("logs/b", "../../.."),
        file("logs/b/chained", "evil"),
        raw_entry(b"logs/agent/null", EntryType::Char, b"", b""),
        raw_entry(b"logs/agent/disk", EntryType::Block, b"", b""),
        raw_entry(b"logs/agent/pipe", EntryType::Fifo, b"", b""),
        raw_entry(b"logs/agent/hard", EntryType::Link, b"/etc/shadow", b""),
        file("logs/verifier/reward.txt", "1"),
        vec![0; 1024],
    ];
    let rig = TrialFixture::new().await;
    rig.provider.set_hostile_reader(hostile_logs(tar.concat()));
    let finished = run(&rig).await;
    assert!(finished.record.verdict.passed());
    assert!(!Path::new("/tmp/rollout-escaped").exists());
    let names = log_names(&finished);
    assert!(names.contains(&"agent/good.txt".to_owned()));
    assert!(names.iter().all(|name| !name.contains("..") && !name.starts_with('/')), "{names:?}");
    let (_, skipped, truncated) = role(&finished);
    assert!(skipped >= 9 && !truncated, "{skipped}");
}

#[tokio::test]
async fn logs_with_million_files_are_cut_and_reward_is_read() {
    let rig = TrialFixture::new().await;
    rig.provider.set_hostile_reader(long_logs(|| {
        (0..1_000_000u32).map(|n| {
            let name = format!("logs/agent/{n:07}");
            raw_entry(name.as_bytes(), EntryType::Regular, b"", b"tiny").into()
        })
    }));
    let began = Instant::now();
    let finished = run(&rig).await;
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!(finished.record.verdict.reward, Some(1.0), "read in a call of its own");
    let (entries, _, truncated) = role(&finished);
    assert!(entries <= limits::LOGS_ENTRIES && truncated);
    assert_eq!(secondary_codes(&finished.record), ["collection_failed"]);
}

#[tokio::test]
async fn logs_with_giant_file_are_cut_at_header() {
    let giant = || {
        let mut header = tar::Header::new_ustar();
        header.set_path("logs/agent/giant").expect("a short name");
        header.set_size(100 << 30);
        header.set_mode(0o644);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let rig = TrialFixture::new().await;
    let zeros = Bytes::from(vec![0; 1 << 20]);
    rig.provider.set_hostile_reader(long_logs(move || {
        let before = raw_entry(b"logs/agent/a.txt", EntryType::Regular, b"", b"a");
        [before.into(), giant().into()].into_iter().chain(std::iter::repeat(zeros.clone()))
    }));
    let finished = run(&rig).await;
    assert!(finished.record.verdict.passed());
    assert_eq!(log_names(&finished), ["agent/a.txt"]);
    assert!(role(&finished).2);
}

#[tokio::test]
async fn reward_file_of_gigabyte_is_invalid() {
    let rig = TrialFixture::new().await;
    rig.provider.set_hostile_reader(Arc::new(|path| {
        let name = if path == "/logs" { "logs/verifier/reward.txt" } else { "reward.txt" };
        let mut header = tar::Header::new_ustar();
        header.set_path(name).expect("a short name");
        header.set_size(1 << 30);
        header.set_mode(0o644);
        header.set_cksum();
        let (header, ones) =
            (Bytes::copy_from_slice(header.as_bytes()), Bytes::from(vec![b'1'; 1 << 20]));
        let pieces = [header].into_iter().chain(std::iter::repeat_n(ones, 1024));
        let pieces = stream::iter(pieces.map(Ok::<_, std::io::Error>));
        Some(Some(Box::new(StreamReader::new(pieces)) as ByteStream))
    }));
    let finished = run(&rig).await;
    assert_eq!(
        error(&finished).kind,
        ErrorType::VerifierRewardInvalid,
        "{}",
        error(&finished).message
    );
    assert_eq!(finished.record.verdict.reward, None);
}

#[tokio::test]
async fn reward_hard_link_is_read_in_separate_call() {
    let tar = |alone: Vec<u8>| {
        let logs = [
            raw_entry(b"logs/agent/score", EntryType::Regular, b"", b"0.5"),
            raw_entry(b"logs/verifier/reward.txt", EntryType::Link, b"logs/agent/score", b""),
            vec![0; 1024],
        ];
        let (logs, alone) = (Bytes::from(logs.concat()), Bytes::from(alone));
        let hostile: HostileReader = Arc::new(move |path| {
            let tar = if path == "/logs" { &logs } else { &alone };
            Some(Some(Box::new(Cursor::new(tar.clone())) as ByteStream))
        });
        hostile
    };
    let rig = TrialFixture::new().await;
    let file = raw_entry(b"reward.txt", EntryType::Regular, b"", b"0.5");
    rig.provider.set_hostile_reader(tar([file, vec![0; 1024]].concat()));
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.reward, Some(0.5), "{:?}", finished.record.verdict.error);
    assert_eq!(log_names(&finished), ["agent/score"]);

    // A reader that lies twice is not asked a third time.
    let link = raw_entry(b"reward.txt", EntryType::Link, b"/etc/passwd", b"");
    rig.provider.set_hostile_reader(tar([link, vec![0; 1024]].concat()));
    let finished = run(&rig).await;
    assert_eq!(error(&finished).kind, ErrorType::VerifierRewardInvalid);

    // A malformed archive does not make the reward missing or invalid.
    rig.provider.set_hostile_reader(tar(b"no archive".to_vec()));
    let finished = run(&rig).await;
    assert_eq!(error(&finished).code.as_str(), "collection_failed");
    assert!(error(&finished).message.contains("hard link"), "{}", error(&finished).message);
}

#[tokio::test]
async fn output_flood_is_truncated_to_head_and_tail() {
    let mut rig = TrialFixture::new().await;
    rig.set_scripts(None, Some("echo first; flood 300000000; echo last"));
    let finished = run(&rig).await;
    let text = output(&finished, "command/stdout.txt");
    assert!((text.len() as u64) < limits::CAPTURE_HEAD_BYTES + limits::CAPTURE_TAIL_BYTES + 100);
    assert!(text.starts_with("first\n") && text.ends_with("last\n"));
    let output = finished.files.iter().find_map(|file| match &file.role {
        FileRole::Output { path, total_bytes, truncated } if path == "command/stdout.txt" => {
            Some((*total_bytes, *truncated))
        }
        _ => None,
    });
    assert_eq!(output, Some((300_000_011, true)));
}

/// Every file below a directory, with its name.
fn collect_bytes(dir: &Path, found: &mut Vec<u8>) {
    for entry in std::fs::read_dir(dir).expect("listed") {
        let path = entry.expect("an entry").path();
        found.extend_from_slice(path.as_os_str().as_encoded_bytes());
        if path.is_dir() {
            collect_bytes(&path, found);
        } else {
            found.extend(std::fs::read(&path).expect("readable"));
        }
    }
}

#[tokio::test]
async fn secret_is_redacted_in_record_outputs_and_logs() {
    const SECRET: &str = "sk-verysecret/0123456789";
    let mut rig = TrialFixture::new().await;
    rig.variables = TrialVariables::new([("API_KEY".to_owned(), SECRET.to_owned())]);
    rig.agent.env.insert("KEY".into(), Template::new("${API_KEY}"));
    rig.task.environment.env.insert("KEY".into(), Template::new("${API_KEY}"));
    let (one, two) = SECRET.split_at(9);
    let base64 = BASE64.encode(format!("user:{SECRET}").as_bytes());
    let hex = HEXLOWER.encode(SECRET.as_bytes());
    rig.set_scripts(
        Some("echo $KEY; echo $KEY >&2"),
        Some(&format!(
            "echo -n {one}; echo {two}; echo {base64} >&2; echo {hex} > /logs/agent/{hex}; \
             echo {}$KEY > /logs/agent/long.txt; echo x > /logs/agent/$KEY",
            "x".repeat(65_530)
        )),
    );
    let reward = "echo 0.5 > /logs/verifier/reward.txt";
    rig.set_tests(&format!("{reward}; echo checking $KEY; echo $KEY >&2; exit 1")).await;
    // The test script itself is no output of the trial.
    let scripts = (rig.agent.kind.clone(), rig.task.steps[0].files.tests.clone());
    let finished = run(&rig).await;
    drop(scripts);
    assert!(
        error(&finished).message.contains("[redacted:API_KEY]"),
        "{}",
        error(&finished).message
    );
    assert_eq!(output(&finished, "setup/stdout.txt"), "[redacted:API_KEY]\n");
    assert_eq!(output(&finished, "command/stdout.txt"), "[redacted:API_KEY]\n");
    let long =
        logs(&finished).expect("logs").into_iter().find(|(name, _)| name == "agent/long.txt");
    let (_, long) = long.expect("the file");
    assert_eq!(long.len(), 65_530 + SECRET.len() + 1, "lengths stay");

    let mut all = serde_json::to_vec(&finished.record).expect("a record");
    collect_bytes(&rig.dir.path().join("scratch"), &mut all);
    for (form, needle) in [("plain", SECRET), ("base64", &base64[8..30]), ("hex", &hex)] {
        let found = all.windows(needle.len()).any(|window| window == needle.as_bytes());
        assert!(!found, "{form} is there");
    }
}

#[tokio::test]
async fn reward_file_with_secret_is_redacted_in_error() {
    let long = "sk-".to_owned() + &"0123456789".repeat(6);
    for secret in [long.as_str(), "sk-\"quoted\"-secret"] {
        let mut rig = TrialFixture::new().await;
        rig.variables = TrialVariables::new([("API_KEY".to_owned(), secret.to_owned())]);
        rig.task.environment.env.insert("KEY".into(), Template::new("${API_KEY}"));
        rig.set_tests("echo $KEY > /logs/verifier/reward.txt").await;
        let finished = run(&rig).await;
        assert_eq!(error(&finished).kind, ErrorType::VerifierRewardInvalid);
        let message = &error(&finished).message;
        assert!(message.ends_with("`[redacted:API_KEY]` is not one number"), "{message}");
    }
}
