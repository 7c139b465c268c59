//! Repositories and registries of users: without the credentials of the server's user, and not from its
//! own network, unless an option lists the host.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::wait;
use serde_json::json;

use crate::serve::fetching_fixture::{
    CLOSE, CREDENTIALS, INNER, InnerServer, failure, ok, plain_server, repository_answer,
    repository_server, start_proxy, with_dataset, with_repository,
};
use crate::serve::{DEADLINE, DaemonProcess, submitted};

#[test]
fn repository_of_the_inner_network_is_not_asked() {
    let (project, _git) = with_repository();
    let inner = InnerServer::talking();
    let daemon = DaemonProcess::start(&project, &[]);
    let port = inner.port;
    for url in [
        inner.url("/tasks.git"),
        format!("http://localhost:{port}/tasks.git"),
        format!("http://[::ffff:127.0.0.1]:{port}/tasks.git"),
        format!("http://2130706433:{port}/tasks.git"),
        format!("http://0:{port}/tasks.git"),
        format!("http://127.0.0.1:{port}\\@example.com/tasks.git"),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "http://10.0.0.1/tasks.git".to_owned(),
        "ssh://git@127.0.0.1/tasks.git".to_owned(),
        "git@127.0.0.1:tasks.git".to_owned(),
    ] {
        let text = failure(&daemon, &project, &json!({ "repo": url }));
        assert!(text.contains("cannot fetch") || text.contains("repository "), "{url}: {text}");
        assert!(!text.contains(INNER) && !text.contains("Connection"), "{url}: {text}");
    }
    assert_eq!(inner.requests(), [""; 0]);
    daemon.stop();
}

#[test]
fn listed_host_is_asked_with_the_credentials_of_the_user_and_redirects_to_no_other() {
    let (project, git) = with_repository();
    let (server, inner) = (repository_server(&git, Some(CREDENTIALS)), InnerServer::talking());
    let redirecting = InnerServer::redirecting(&inner);
    let hosts = [&server, &redirecting].map(|server| format!("127.0.0.1:{}", server.port));
    let options = hosts.iter().flat_map(|host| ["--allow-git-host", host]).collect::<Vec<_>>();
    let daemon = DaemonProcess::start(&project, &options);
    let dataset = json!({ "repo": server.url("/tasks.git") });
    let id = submitted(&daemon.client, &with_dataset(&project, &dataset));
    let run = daemon.wait_for(&id, &["failed", "completed"]);
    assert_eq!(run["state"], "completed", "{run:#}\n{:?}", server.requests());
    assert_eq!(run["progress"]["mean_reward"], 0.5, "{run:#}");

    let text = failure(&daemon, &project, &json!({ "repo": redirecting.url("/tasks.git") }));
    assert!(!redirecting.requests().is_empty(), "{text}");
    assert!(!text.contains(INNER), "{text}");
    let text = failure(&daemon, &project, &json!({ "repo": inner.url("/tasks.git") }));
    assert!(text.contains("private network"), "{text}");
    assert_eq!(inner.requests(), [""; 0]);
    daemon.stop();
}

#[test]
fn user_of_this_host_fetches_with_credentials_and_without_a_list() {
    let (project, git) = with_repository();
    let server = repository_server(&git, Some(CREDENTIALS));
    project.write_file(
        "job.yaml",
        &format!(
            "name: own\nenvironment: {{type: process}}\nagents: [{{name: oracle}}]\n\
             datasets: [{{repo: '{}'}}]\n",
            server.url("/tasks.git")
        ),
    );
    let ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    let ended = ended.expect_code(ExitCode::Success);
    assert!(ended.stdout.contains("mean reward 0.5"), "{}", ended.stdout);

    let process = project.rollout(&["up", "--dir", "state", "--listen", "127.0.0.1:0"]);
    let daemon = DaemonProcess::started(&project, process);
    let dataset = json!({ "repo": server.url("/tasks.git") });
    let id = submitted(&daemon.client, &with_dataset(&project, &dataset));
    let run = daemon.wait_for(&id, &["failed", "completed"]);
    assert_eq!(run["state"], "completed", "{run:#}");
    daemon.stop();
}

#[test]
fn repository_that_its_server_denies_is_not_used_from_the_cache() {
    let (project, git) = with_repository();
    let status = Arc::new(AtomicU16::new(200));
    let answered = Arc::clone(&status);
    let server = InnerServer::start(move |request| match answered.load(Ordering::SeqCst) {
        200 => repository_answer(&git, request),
        status => format!("HTTP/1.1 {status} No\r\n{CLOSE}").into(),
    });
    let url = server.url("/tasks.git");
    let run = |name: &str| {
        let words = ["run", "--repo", &url, "-a", "oracle", "-e", "process", "--name", name];
        project.rollout(&words).wait(DEADLINE)
    };
    let _fetched = run("first").expect_code(ExitCode::Success);
    for denied in [401, 403, 404] {
        status.store(denied, Ordering::SeqCst);
        let ended = run(&format!("denied-{denied}")).expect_stderr("cannot fetch the repository");
        assert!(!ended.status.success(), "{denied}: {}", ended.stderr);
        assert!(!ended.stderr.contains("last known"), "{denied}: {}", ended.stderr);
    }
    status.store(503, Ordering::SeqCst);
    let ended = run("outage").expect_code(ExitCode::Success);
    let _said = ended.expect_stderr("using its last known head");
}

#[test]
fn entry_of_a_registry_fails_alone_only_if_its_server_has_no_such_repository() {
    let (project, git) = with_repository();
    let status = Arc::new(AtomicU16::new(404));
    let answered = Arc::clone(&status);
    let server = InnerServer::start(move |request| {
        if request.target.starts_with("/tasks.git") {
            return repository_answer(&git, request);
        }
        format!("HTTP/1.1 {} No\r\n{CLOSE}", answered.load(Ordering::SeqCst)).into()
    });
    let entry = |name: &str, repository: &str| {
        let url = server.url(repository);
        json!({ "name": name, "git_url": url, "path": "second" })
    };
    let entries = [entry("found", "/tasks.git"), entry("lost", "/lost.git")];
    let registry = json!([{ "name": "bench", "tasks": entries }]);
    project.write_file("registry.json", &registry.to_string());
    let run = |name: &str| {
        project.write_file(
            "job.yaml",
            &format!(
                "name: {name}\nenvironment: {{type: process}}\nagents: [{{name: oracle}}]\n\
                 datasets: [{{registry: {{path: registry.json}}, name: bench}}]\n"
            ),
        );
        project.rollout(&["run", "job.yaml"]).wait(DEADLINE)
    };
    let ended = run("absent").expect_code(ExitCode::Success);
    let results = project.results("absent");
    assert_eq!(results.trial("oracle", "found").error(), None, "{}", ended.stderr);
    assert_eq!(results.trial("oracle", "lost").error(), Some("task_not_found"));
    for denied in [401, 403] {
        status.store(denied, Ordering::SeqCst);
        let name = format!("denied-{denied}");
        let refused = run(&name).expect_code(ExitCode::Config);
        let _said = refused.expect_stderr("cannot fetch the repository");
        let directory = project.path().join("jobs").join(&name);
        assert!(!directory.exists(), "{denied} decided about trials in {}", directory.display());
    }
}

#[test]
fn public_repository_is_fetched_without_credentials_over_the_proxy_of_the_server() {
    let (project, git) = with_repository();
    let server = repository_server(&git, None);
    let (port, asked) = start_proxy(server.port);
    // The credentials of the user are for this host.
    project.write_file("home/.netrc", "machine 8.8.8.8 login operator password password\n");
    let daemon = DaemonProcess::start_with(&project, 0, &[], |words| {
        let mut command = project.command(words);
        command.env("http_proxy", format!("http://127.0.0.1:{port}"));
        project.start(command)
    });
    let dataset = json!({ "repo": "http://8.8.8.8/tasks.git" });
    let id = submitted(&daemon.client, &with_dataset(&project, &dataset));
    let run = daemon.wait_for(&id, &["failed", "completed"]);
    assert_eq!(run["state"], "completed", "{run:#}\n{:?}", server.requests());
    assert_eq!(run["progress"]["mean_reward"], 0.5, "{run:#}");
    let asked = asked.lock().expect("no panic").clone();
    let target = "CONNECT 8.8.8.8:80 HTTP/1.1";
    assert!(!asked.is_empty() && asked.iter().all(|line| line == target), "{asked:?}");
    daemon.stop();
}

#[test]
fn registry_redirects_to_no_server_of_the_inner_network() {
    let (project, _git) = with_repository();
    let inner = InnerServer::talking();
    let redirecting = InnerServer::redirecting(&inner);
    let entry = json!({ "git_url": inner.url("/tasks.git"), "path": "second" });
    let registry = json!([{ "name": "bench", "tasks": [entry] }]).to_string();
    let serving = InnerServer::start(move |_| ok(registry.as_bytes()));
    let (first, second) = (redirecting.url("/"), serving.url("/"));
    let options = ["--allow-registry", &first, "--allow-registry", &second];
    let daemon = DaemonProcess::start(&project, &options);
    let dataset = |server: &InnerServer| {
        let registry = json!({ "url": server.url("/registry.json") });
        json!({ "name": "bench", "registry": registry })
    };
    let text = failure(&daemon, &project, &dataset(&redirecting));
    assert!(!redirecting.requests().is_empty(), "{text}");
    assert!(text.contains("private network") && !text.contains(INNER), "{text}");
    // A listed registry names repositories, which are no more allowed than those of a document.
    let text = failure(&daemon, &project, &dataset(&serving));
    assert!(!serving.requests().is_empty(), "{text}");
    assert!(text.contains("private network") && !text.contains(INNER), "{text}");
    assert_eq!(inner.requests(), [""; 0]);
    daemon.stop();
}

#[test]
fn repository_that_does_not_answer_ends_with_its_deadline_or_with_the_server() {
    let (project, _git) = with_repository();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let host = listener.local_addr().expect("an address").to_string();
    let dataset = json!({ "repo": format!("http://{host}/tasks.git") });
    let options = ["--allow-git-host", &host, "--prepare-timeout", "1s"];
    let daemon = DaemonProcess::start(&project, &options);
    let text = failure(&daemon, &project, &dataset);
    assert!(text.contains("--prepare-timeout"), "{text}");
    daemon.stop();

    let mut daemon = DaemonProcess::start(&project, &options[..2]);
    let id = submitted(&daemon.client, &with_dataset(&project, &dataset));
    let _starting = daemon.wait_for(&id, &["starting"]);
    let repository = format!("{host}/tasks.git");
    wait::until(DEADLINE, "git fetches", || fetches_from(&repository) > 0);
    daemon.process.signal(rustix::process::Signal::TERM);
    let ended = wait::holds_within(Duration::from_secs(30), || daemon.process.has_ended());
    assert!(ended, "{}", daemon.process.stderr());
    // Killed programs are gone a moment later.
    let is_gone = || fetches_from(&repository) == 0;
    assert!(wait::holds_within(Duration::from_secs(5), is_gone), "git outlives the server");
}

/// Programs of this host that name a repository.
fn fetches_from(repository: &str) -> usize {
    let processes = std::fs::read_dir("/proc").expect("a directory").flatten();
    let commands =
        processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    commands.filter(|command| String::from_utf8_lossy(command).contains(repository)).count()
}

#[test]
fn repository_of_a_server_of_plain_files_is_fetched_once() {
    let (project, git) = with_repository();
    let server = plain_server(&git);
    let url = server.url("/tasks.git");
    let words = ["run", "--repo", &url, "-a", "oracle", "-e", "process", "--name", "plain"];
    let ended = project.rollout(&words).wait(DEADLINE);
    let ended = ended.expect_code(ExitCode::Success);
    assert!(ended.stdout.contains("mean reward 0.5"), "{}", ended.stdout);
    let requests = server.requests();
    assert!(requests.len() < 200, "{} requests: git fetched again and again", requests.len());
}

#[test]
fn content_fetched_with_credentials_is_kept_from_users_once_its_host_is_not_listed() {
    let (project, git) = with_repository();
    let head = std::fs::read_to_string(git.join("refs/heads/main")).expect("a commit");
    let server = repository_server(&git, Some(CREDENTIALS));
    let (port, _asked) = start_proxy(server.port);
    // A public address. Only the server's user, who has the credentials, gets something from it.
    let inside = format!("http://127.0.0.1:{}/", server.port);
    project.write_file(
        "home/.gitconfig",
        &format!("[url \"{inside}\"]\ninsteadOf = http://8.8.8.8/\n"),
    );
    let url = "http://8.8.8.8/tasks.git";
    let datasets = [
        json!({ "repo": url }),
        json!({ "repo": format!("{url}@{}", head.trim()) }),
        json!({ "repo": format!("{url}@main") }),
    ];
    let words = ["run", "--repo", url, "-a", "oracle", "-e", "process", "--name", "own"];
    let ended = project.rollout(&words).wait(DEADLINE);
    let _ended = ended.expect_code(rollout_protocol::exit::ExitCode::Success);
    let daemon = DaemonProcess::start(&project, &["--allow-git-host", "8.8.8.8"]);
    for dataset in &datasets {
        let id = submitted(&daemon.client, &with_dataset(&project, dataset));
        let run = daemon.wait_for(&id, &["failed", "completed"]);
        assert_eq!(run["state"], "completed", "{dataset}: {run:#}");
    }
    daemon.stop();
    let daemon = DaemonProcess::start_with(&project, 0, &[], |words| {
        let mut command = project.command(words);
        command.env("http_proxy", format!("http://127.0.0.1:{port}"));
        project.start(command)
    });
    for dataset in &datasets {
        let text = failure(&daemon, &project, dataset);
        assert!(text.contains("cannot fetch"), "{dataset}: {text}");
    }
    daemon.stop();
}

#[test]
fn registry_that_redirects_to_a_refused_host_is_not_read_from_the_cache() {
    let (project, _git) = with_repository();
    let inner = InnerServer::talking();
    let registry = json!([{ "name": "bench", "tasks": [] }]).to_string();
    let (moved, to) = (Arc::new(Mutex::new(false)), inner.url("/"));
    let is_moved = Arc::clone(&moved);
    let serving = InnerServer::start(move |_| match *is_moved.lock().expect("no panic") {
        true => format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\n{CLOSE}").into(),
        false => ok(registry.as_bytes()),
    });
    let daemon = DaemonProcess::start(&project, &["--allow-registry", &serving.url("/")]);
    let dataset = json!({ "name": "other", "registry": { "url": serving.url("/r.json") } });
    let text = failure(&daemon, &project, &dataset);
    assert!(text.contains("available: bench"), "{text}");
    *moved.lock().expect("no panic") = true;
    let text = failure(&daemon, &project, &dataset);
    assert!(text.contains("private network") && !text.contains("bench"), "{text}");
    assert_eq!(inner.requests(), [""; 0]);
    daemon.stop();
}
