//! Directories of the server in texts for its users: none is named, and no guess is confirmed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rollout_tests::http::HttpClient;
use rollout_tests::project;
use serde_json::{Value, json};

use crate::serve::datasets::uploaded;
use crate::serve::farms::{completions, group, opened};
use crate::serve::tokens::with_users;
use crate::serve::{DaemonProcess, project, submission, submitted};

/// Faults of a file of a task.
const FAULTS: [&str; 5] =
    ["a loop", "a loop of directories", "a directory", "no text", "too large"];

/// Makes a file of a task faulty.
fn make_faulty(file: &Path, fault: &str) {
    let _absent = fs::remove_file(file).or_else(|_| fs::remove_dir_all(file));
    let name = file.file_name().expect("a name");
    match fault {
        "a loop" => symlink(name, file).expect("a link"),
        "a loop of directories" => symlink(Path::new(name).join("x"), file).expect("a link"),
        "a directory" => fs::create_dir(file).expect("made"),
        "no text" => fs::write(file, [0xff, 0xfe]).expect("written"),
        "too large" => {
            let file = fs::File::create(file).expect("made");
            file.set_len(8 * 1024 * 1024).expect("grown");
        }
        _ => unreachable!("{fault}"),
    }
}

/// Everything that a user can read of a run.
fn everything(client: &HttpClient, id: &str) -> String {
    let run = format!("/v1/runs/{id}");
    let mut paths = vec![run.clone(), format!("{run}/items"), "/v1/runs".to_owned()];
    let items = client.get(&format!("{run}/items")).json();
    for item in items["items"].as_array().into_iter().flatten() {
        let item = format!("{run}/items/{}", item["item"].as_str().expect("an id"));
        let parts = ["", "/outputs", "/logs", "/artifacts"];
        paths.extend(parts.map(|part| format!("{item}{part}")));
        let outputs = client.get(&format!("{item}/outputs")).json();
        let outputs = outputs["outputs"].as_array().into_iter().flatten();
        let names = outputs.filter_map(|output| output["path"].as_str());
        paths.extend(names.map(|name| format!("{item}/logs?name={name}")));
    }
    let formats = ["jsonl", "csv", "tables", "harbor", "atif", "traces-jsonl", "sft"];
    paths.extend(formats.map(|format| format!("{run}/export?format={format}")));
    let mut text: String = paths.iter().map(|path| client.get(path).text() + "\n").collect();
    text.extend(client.follow(&format!("{run}/events"), &[]).map(|line| line + "\n"));
    text
}

#[test]
fn faulty_files_of_a_task_name_no_directory_of_the_server() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &[]);
    let host = project.path().display().to_string();
    let (tasks, original) = (project.path().join("tasks"), project.path().join("original"));
    fs::rename(&tasks, &original).expect("moved");
    let entries = [
        "environment/Dockerfile",
        "environment/.dockerignore",
        "environment/deep/file",
        "instruction.md",
        "task.toml",
        "tests/test.sh",
        "solution/solve.sh",
    ];
    let mut runs = Vec::new();
    for (entry, fault) in entries.iter().flat_map(|entry| FAULTS.map(|fault| (*entry, fault))) {
        project::copy(&original, &tasks, &[]);
        let file = tasks.join("second").join(entry);
        fs::create_dir_all(file.parent().expect("a parent")).expect("made");
        make_faulty(&file, fault);
        let mut document = submission(&project, 1);
        let dataset = uploaded(&daemon.client, &project, &tasks);
        document["document"]["datasets"] = json!([{ "path": dataset }]);
        runs.push((entry, fault, submitted(&daemon.client, &document)));
        fs::remove_dir_all(&tasks).expect("removed");
    }
    for (entry, fault, id) in runs {
        let run = daemon.wait_for(&id, &["failed", "completed"]);
        let text = everything(&daemon.client, &id);
        assert!(!text.contains(&host), "{entry}, {fault}: {text}");
        if entry == "environment/Dockerfile" && fault == "a loop" {
            assert_eq!(run["state"], "completed", "{text}");
            assert!(text.contains("Dockerfile"), "{text}");
        }
    }
    daemon.stop();
}

#[test]
fn samples_of_a_faulty_task_name_no_directory_of_the_server() {
    let project = project().tasks(["slow/second"], &[]);
    let upload = project.path().join("upload");
    project::copy(&project.path().join("tasks"), &upload.join("tasks"), &[]);
    make_faulty(&upload.join("tasks/second/environment/Dockerfile"), "a loop");
    let daemon = DaemonProcess::start(&project, &[]);
    let dataset = uploaded(&daemon.client, &project, &upload);
    let mut request = submission(&project, 1);
    request["document"]["datasets"] = json!([{ "path": format!("{dataset}/tasks") }]);
    request["document"]["agents"] = json!([{ "name": "policy", "execute": "true" }]);
    let path = opened(&daemon.client, &json!({ "name": "p", "document": request["document"] }));
    let mut wanted = group("g", 1);
    wanted["task"] = json!({ "named": "tasks/second" });
    let asked = daemon.client.post(&format!("{path}/groups"), &[], &wanted);
    let mut text = asked.text();
    assert_eq!(asked.status, 201, "{text}");
    text += &json!(completions(&daemon.client, &path, 1)).to_string();
    for part in ["", "/groups/g", "/completions/1/record"] {
        text += &daemon.client.get(&format!("{path}{part}")).text();
    }
    assert!(text.contains("Dockerfile"), "{text}");
    assert!(!text.contains(&project.path().display().to_string()), "{text}");
    daemon.stop();
}

#[test]
fn guess_of_a_directory_comes_back_as_it_was_written() {
    let (project, daemon) = with_users();
    let client = daemon.client.with_token("ada-token");
    let id = submitted(&client, &submission(&project, 1));
    let state = project.path().join("state").display().to_string();
    // The first one is right. They are of one length: long texts are shown in part.
    let other = format!("/srv/{}", "x".repeat(state.len() - "/srv/".len()));
    let guesses = [state.clone(), state.replace("state", "other"), other];
    let answers = |guess: &str| {
        let text = format!("{guess}/jobs");
        let mut documents = Vec::new();
        for (key, value) in [
            ("n_attempts", json!(text)),
            (text.as_str(), json!(1)),
            ("agents", json!([{ "name": text }])),
            ("agents", json!([{ "name": "oracle", "import_path": text }])),
            ("environment", json!({ "type": text })),
            ("datasets", json!([{ "path": text }])),
            ("datasets", json!([{ "repo": text }])),
            ("datasets", json!([{ "name": "x", "registry": { "path": text } }])),
            ("datasets", json!([{ "name": "x", "registry": { "url": text } }])),
            ("prices", json!(text)),
            ("gateway", json!({ "upstreams": [{ "url": text }] })),
        ] {
            let mut document = submission(&project, 1)["document"].clone();
            document[key] = value;
            documents.push(json!({ "document": document }));
        }
        documents.push(json!({ "kind": "tree", "document": { "repository": text } }));
        documents.push(json!({ "document": text }));
        let posts = documents.iter().map(|document| client.post("/v1/runs", &[], document));
        let gets = ["items?agent=%5B", "items/", "events?after=", "nothing/"];
        let gets = gets.map(|part| client.get(&format!("/v1/runs/{id}/{part}{text}")));
        let answers = posts.chain(gets).map(|answer| {
            let text = answer.text();
            let mut body: Value = serde_json::from_str(&text).unwrap_or_default();
            if let Some(members) = body.as_object_mut() {
                members.remove("request_id");
            }
            let words = [body.to_string(), answer.status.to_string()].join(" ");
            assert!(!words.contains("<server>") && !words.contains("<host>"), "{guess}: {words}");
            let words = words.replace(guess, "GUESS");
            let parts = (1..guess.len()).rev().map(|end| format!("{}…", &guess[..end]));
            parts.fold(words, |words, part| words.replace(&part, "GUESS…"))
        });
        answers.collect::<Vec<_>>()
    };
    let [right, wrong, other] = guesses.each_ref().map(|guess| answers(guess));
    assert!(right.iter().any(|answer| answer.contains("GUESS")), "{right:#?}");
    assert_eq!(right, wrong);
    assert_eq!(right, other);
    daemon.stop();
}
