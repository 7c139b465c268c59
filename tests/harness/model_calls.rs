//! Records of the model calls of a trial, compared with the log of a model server.

use std::path::{Path, PathBuf};

use rollout_protocol::digest::Digest;
use serde_json::Value;

use crate::model_server::LoggedCall;
use crate::results::TrialDirectory;

/// The key of a model server, which no agent and no file may have.
pub const REAL_KEY: &str = "sk-real-5f0c7c1b9d2e4a6f";

/// Headers with a key.
const KEY_HEADERS: [&str; 3] = ["x-api-key", "x-goog-api-key", "authorization"];

/// The lines of the calls file of a trial.
///
/// # Panics
/// When the file is missing, or is not JSON.
#[track_caller]
pub fn lines(trial: &TrialDirectory) -> Vec<Value> {
    let text = trial.text("gateway/calls.jsonl").expect("calls");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The lines of one type, by the numbers of their calls.
pub fn of_type<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let mut found: Vec<_> = lines.iter().filter(|line| line["type"] == kind).collect();
    found.sort_by_key(|line| line["call"].as_u64());
    found
}

/// Input and output tokens of a reply of the server, cached and reasoning ones included; of a stream,
/// those of its last event that has them.
pub fn tokens(reply: &[u8]) -> (u64, u64) {
    const INPUT: [&[&str]; 3] = [
        &["/prompt_tokens"],
        &["/input_tokens", "/cache_read_input_tokens", "/cache_creation_input_tokens"],
        &["/promptTokenCount"],
    ];
    const OUTPUT: [&[&str]; 3] = [
        &["/completion_tokens"],
        &["/output_tokens"],
        &["/candidatesTokenCount", "/thoughtsTokenCount"],
    ];
    let text = String::from_utf8_lossy(reply);
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = if text.starts_with('{') {
        serde_json::from_str(&text).into_iter().collect()
    } else {
        events.filter_map(|data| serde_json::from_str(data).ok()).collect()
    };
    let mut counts = (0, 0);
    for event in &events {
        for path in ["/usage", "/message/usage", "/usageMetadata", "/response/usage"] {
            let Some(usage) = event.pointer(path) else { continue };
            let number = |path: &&str| usage.pointer(path).and_then(Value::as_u64);
            let sum = |paths: [&[&str]; 3]| {
                let dialect = paths.into_iter().find(|paths| number(&paths[0]).is_some())?;
                Some(dialect.iter().filter_map(number).sum())
            };
            counts = (sum(INPUT).unwrap_or(counts.0), sum(OUTPUT).unwrap_or(counts.1));
        }
    }
    counts
}

/// Fails unless the records of a trial equal the log of its server, call by call: each call was
/// answered, was sent once, and had the server's key. Calls at the same time may reach the server in
/// another order.
///
/// # Panics
/// With the first difference.
#[track_caller]
pub fn assert_equal_log(lines: &[Value], calls: &[LoggedCall]) {
    let (begun, ended) = (of_type(lines, "begun"), of_type(lines, "ended"));
    assert_eq!((begun.len(), ended.len()), (calls.len(), calls.len()), "{lines:#?}");
    let mut records: Vec<_> = begun.into_iter().zip(ended).collect();
    records.sort_by_key(|(begun, _)| begun["request"]["text"].as_str().map(str::as_bytes));
    let mut calls: Vec<_> = calls.iter().collect();
    calls.sort_by_key(|call| call.request.clone());
    for ((begun, ended), call) in records.into_iter().zip(calls) {
        assert_eq!(begun["request"]["text"].as_str().map(str::as_bytes), Some(&*call.request));
        assert_eq!(ended["reply"]["text"].as_str().map(str::as_bytes), Some(&*call.reply));
        assert_eq!(ended["reply"]["digest"], Digest::sha256(&call.reply).to_string());
        let path = begun["path"].as_str().expect("a path");
        assert!(call.path.ends_with(path), "{path} {}", call.path);
        assert_eq!((&ended["end"], &ended["status"]), (&"complete".into(), &call.status.into()));
        let key = KEY_HEADERS.iter().find_map(|name| call.headers.get(*name)?.to_str().ok());
        assert!(key.is_some_and(|key| key.ends_with(REAL_KEY)), "{key:?}");
        assert!(!call.path.contains("key="), "{}", call.path);
    }
}

/// The files below a directory.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(directory) else { return found };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found
}

/// Fails if a file below a directory has the key of the model server.
///
/// # Panics
/// With the path of the file.
#[track_caller]
pub fn assert_key_is_in_no_file(directory: &Path) {
    for file in files(directory) {
        let bytes = std::fs::read(&file).unwrap_or_default();
        let holds = bytes.windows(REAL_KEY.len()).any(|part| part == REAL_KEY.as_bytes());
        assert!(!holds, "the key is in {}", file.display());
    }
}
