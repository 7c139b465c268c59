//! The template of a search that asks a language model, with a fake model server.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;
use rollout_tests::ignored::report_ignored;
use rollout_tests::project::repository;
use rollout_tests::results::json;
use rollout_tests::search::ExampleSearch;
use serde_json::{Value, json as value};

use crate::tree::{DEADLINE, project};

/// An API key that occurs nowhere else.
const KEY: &str = "key-of-the-model-5f0e9c1d7a";

/// Requests that the server got: the key and the prompt of each.
type SeenRequests = Arc<Mutex<Vec<(String, String)>>>;

/// Starts a fake model server, whose first answer is the status 503.
fn model() -> (String, SeenRequests) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let seen = SeenRequests::default();
    let requests = Arc::clone(&seen);
    let answer = move || {
        for stream in listener.incoming().flatten() {
            serve(stream, &requests);
        }
    };
    supervise::thread("model", answer).expect("a thread");
    (format!("http://{address}/v1/chat/completions"), seen)
}

fn serve(mut stream: TcpStream, seen: &SeenRequests) {
    let mut reader = BufReader::new(stream.try_clone().expect("a handle"));
    let (mut key, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).expect("a request") == 0 {
            return;
        }
        let Some((name, text)) = line.trim_end().split_once(": ") else {
            if line.trim_end().is_empty() {
                break;
            }
            continue;
        };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => key = text.to_owned(),
            "content-length" => length = text.parse().expect("a length"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let prompt = body["messages"][0]["content"].as_str().expect("a prompt").to_owned();
    let is_first = {
        let mut seen = seen.lock().expect("requests");
        seen.push((key, prompt.clone()));
        seen.len() == 1
    };
    // Answers repeat the key, which must not be stored.
    let (code, document) = match is_first {
        true => ("503 Busy", value!({ "error": format!("too much for {KEY}") })),
        false => {
            let message = value!({ "message": { "content": answer(&prompt) } });
            let usage = value!({ "prompt_tokens": 900, "completion_tokens": 100 });
            ("200 OK", value!({ "choices": [message], "usage": usage }))
        }
    };
    let text = document.to_string();
    let head = format!("HTTP/1.1 {code}\r\nConnection: close\r\nContent-Length: {}", text.len());
    // A client that has disconnected reports its own error.
    let _gone = stream.write_all(format!("{head}\r\n\r\n{text}").as_bytes());
}

/// Three ideas (a good one, one without a change, one that is not understood), or the change of
/// one.
fn answer(prompt: &str) -> String {
    if prompt.starts_with("Propose") {
        return format!(
            "# Midpoints\n\nTake it in the middle, says {KEY}.\n\n---\n# Tidy up\n\n---\n# A riddle\n"
        );
    }
    let program = fs::read_to_string(repository().join("examples/tree/program/integrate.awk"));
    let program = program.expect("the program");
    if prompt.contains("# Midpoints") {
        let better = program.replace("return h * f(x)", "return h * f(x + h / 2)");
        format!("Here it is:\n\n```awk\n{better}```\n")
    } else if prompt.contains("# Tidy up") {
        format!("```\n{program}```")
    } else {
        format!("I do not understand, {KEY}.")
    }
}

/// Files below a directory that contain the key.
fn files_with_key(directory: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            files_with_key(&path, found);
        } else if path.is_file() {
            let content = fs::read(&path).expect("a file");
            if content.windows(KEY.len()).any(|bytes| bytes == KEY.as_bytes()) {
                found.push(path.display().to_string());
            }
        }
    }
}

#[test]
fn model_template_stores_no_api_key() {
    if !Path::new("/usr/bin/python3").exists() {
        report_ignored("needs /usr/bin/python3");
        return;
    }
    let (url, seen) = model();
    let search = ExampleSearch::example("model.yaml")
        .with_replacement("k < 2000", "k < 300")
        .with_replacement("http://127.0.0.1:8000/v1/chat/completions", &url)
        .with_replacement("MODEL_PRICE: \"0\"", "MODEL_PRICE: \"2000\"");
    let project = search.write(project());
    let words =
        ["tree", "run", &search.file, "--runs-root", "runs", "--max-depth", "1", "--verbose"];
    let mut command = project.command(&words);
    command.env("MODEL_API_KEY", KEY);
    let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    let ended = ended
        .expect_stderr("implement: the command ended with code 1: the answer of the model has no");
    assert!(!ended.stderr.contains(KEY) && !ended.stdout.contains(KEY), "{}", ended.stderr);
    let seen = seen.lock().expect("requests");
    assert_eq!(seen.len(), 5, "one that was retried, one for ideas, three for changes");
    assert!(seen.iter().all(|(key, _)| *key == format!("Bearer {KEY}")));

    let directory = search.directory(&project, "runs");
    let manifest = json(&directory.join("manifest.json")).expect("a manifest");
    let evals = manifest["evaluations"].as_object().expect("evals").values();
    let of = |eval: &Value| {
        let decision = &eval["decision"];
        value!([eval["status"], decision["promotion_reason"], decision["promoted_to_node_id"]])
    };
    assert_eq!(
        evals.clone().map(of).collect::<Vec<_>>(),
        [
            value!(["completed", "should_explore", "0001"]),
            value!(["no_changes", "no_changes", null]),
            value!(["failed", "eval_not_completed", null]),
        ]
    );
    assert_eq!(manifest["nodes"]["0000"]["ideas_cost"], 2.0);
    assert!(evals.into_iter().all(|eval| eval["cost"] == 2.0));
    let env = &manifest["run_config"]["settings"]["commands"]["ideas"]["env"];
    assert_eq!(env["MODEL_API_KEY"], "${MODEL_API_KEY}");
    let idea = fs::read_to_string(directory.join("node_ideas/0000/01.md")).expect("an idea");
    assert!(idea.starts_with("# Midpoints"), "{idea}");
    let mut found = Vec::new();
    files_with_key(project.path(), &mut found);
    assert_eq!(found, Vec::<String>::new(), "files with the key in them");
}
