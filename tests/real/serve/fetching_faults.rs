//! Repositories of users that cannot be fetched or used: nothing of the server is sent or told.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rollout_tests::net;
use serde_json::json;

use crate::serve::DaemonProcess;
use crate::serve::fetching_fixture::{
    CLOSE, InnerServer, commit, failure, repository_answer, start_proxy, with_repository,
};
use crate::serve::links::mentions;

/// A word of a file of the server.
const SECRET: &str = "SECRET-WORD";

#[test]
fn repository_that_fails_is_named_by_its_address_and_gets_no_credentials_of_the_operator() {
    let (project, _git) = with_repository();
    let root = project.path().display().to_string();
    project.write_file("home/.netrc", "machine 8.8.8.8 login operator password password\n");
    let helper = project.path().join("helper");
    let answers = "echo username=operator\necho password=password\n";
    project.write_file("helper", &format!("#!/bin/sh\ntouch {root}/asked\n{answers}"));
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).expect("executable");
    let settings = format!("[credential]\n\thelper = {}\n", helper.display());
    project.write_file("home/.gitconfig", &settings);

    let sent = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sent);
    let server = InnerServer::start(move |request| {
        seen.lock().expect("no panic").push(request.headers.get("authorization").cloned());
        let head = match request.target.starts_with("/absent.git") {
            true => "404 Not Found\r\n",
            false => "401 Unauthorized\r\nwww-authenticate: Basic realm=\"x\"\r\n",
        };
        format!("HTTP/1.1 {head}{CLOSE}").into()
    });
    let (port, _asked) = start_proxy(server.port);
    let down = format!("127.0.0.1:{}", net::free_port());
    let options = ["--allow-git-host", &down];
    let daemon = DaemonProcess::start_with(&project, 0, &options, |words| {
        let mut command = project.command(words);
        command.env("http_proxy", format!("http://127.0.0.1:{port}"));
        command.env("no_proxy", "127.0.0.1");
        project.start(command)
    });
    let urls = ["8.8.8.8/tasks.git", "8.8.8.8/absent.git", &format!("{down}/tasks.git")]
        .map(|place| format!("http://{place}"));
    for url in urls {
        let text = failure(&daemon, &project, &json!({ "repo": url }));
        assert!(text.contains(&format!("cannot fetch the repository {url}")), "{url}: {text}");
        assert!(!text.contains(&root), "{url}: {text}");
    }
    let sent = sent.lock().expect("no panic").clone();
    assert!(!sent.is_empty() && sent.iter().all(Option::is_none), "{sent:?}");
    assert!(!project.path().join("asked").exists(), "a credential helper was asked");
    daemon.stop();
}

#[test]
fn link_out_of_a_fetched_task_is_refused_without_a_word_of_its_target() {
    let (project, git) = with_repository();
    let server = InnerServer::start(move |request| repository_answer(&git, request));
    let host = format!("127.0.0.1:{}", server.port);
    let daemon = DaemonProcess::start(&project, &["--allow-git-host", &host]);
    let dataset = json!({ "repo": server.url("/tasks.git") });
    let (secret, aside) = (project.path().join("secret"), project.path().join("aside"));
    fs::write(&secret, format!("{SECRET}\n")).expect("written");
    for (entry, target) in [
        ("environment/Dockerfile", secret.as_path()),
        ("instruction.md", Path::new("/etc/passwd")),
        ("solution", Path::new("/etc")),
    ] {
        let link = project.path().join("repository/second").join(entry);
        fs::rename(&link, &aside).expect("moved");
        symlink(target, &link).expect("a link");
        commit(&project);
        let text = failure(&daemon, &project, &dataset);
        assert!(text.contains(entry) && text.contains("symlink out of the task"), "{text}");
        for word in [SECRET, "root:", &project.path().display().to_string()] {
            assert!(!text.contains(word), "{entry}: {text}");
        }
        fs::remove_file(&link).expect("removed");
        fs::rename(&aside, &link).expect("moved back");
    }
    daemon.stop();
    assert!(!mentions(&project.path().join("state"), SECRET), "the target was read");
}
