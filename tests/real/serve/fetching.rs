//! Repositories and registries of users: without the credentials of the server's user, and not from its
//! own network, unless an option lists the host.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use rollout_tests::wait;
use rollout_worker::supervise;
use serde_json::{Value, json};

use crate::serve::{DEADLINE, DaemonProcess, project, submission, submitted};

/// A word that only a server of the inner network sends.
const INNER: &str = "INNER-WORD";

/// The user and the password of the file `.netrc`, as a request sends them.
const CREDENTIALS: &str = "Basic b3BlcmF0b3I6cGFzc3dvcmQ=";

/// The end of the head of an answer without a body.
const CLOSE: &str = "content-length: 0\r\nconnection: close\r\n\r\n";

/// A request.
#[derive(Default)]
struct HttpRequest {
    method: String,
    /// Path and query.
    target: String,
    /// Headers, names in lower case.
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// The answer to a request.
type Answer = dyn Fn(&HttpRequest) -> Vec<u8> + Send + Sync;

/// An HTTP server on a port of this host, with the requests that it got.
struct InnerServer {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl InnerServer {
    fn start(answer: impl Fn(&HttpRequest) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer): (_, Arc<Answer>) = (Arc::clone(&requests), Arc::new(answer));
        let _server = supervise::thread("inner-server", move || {
            for stream in listener.incoming() {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                let _connection = supervise::thread("inner-connection", move || {
                    stream.map(|stream| serve(&stream, &seen, &*answer))
                });
            }
        });
        Self { port, requests }
    }

    /// A server whose every answer has the word.
    fn talking() -> Self {
        Self::start(|_| ok(INNER.as_bytes()))
    }

    /// A server that redirects every request to the same path of another one.
    fn redirecting(to: &Self) -> Self {
        let to = to.url("");
        Self::start(move |request| {
            let place = format!("{to}{}", request.target);
            format!("HTTP/1.1 302 Found\r\nlocation: {place}\r\n{CLOSE}").into()
        })
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }
}

fn ok(body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

fn serve(mut stream: &TcpStream, seen: &Mutex<Vec<String>>, answer: &Answer) {
    let mut reader = BufReader::new(stream.try_clone().expect("a handle"));
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or_default() == 0 {
        return;
    }
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut request = HttpRequest { method, target, ..HttpRequest::default() };
    line.clear();
    while reader.read_line(&mut line).unwrap_or_default() > 2 {
        if let Some((name, value)) = line.split_once(':') {
            request.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        line.clear();
    }
    let length = request.headers.get("content-length").and_then(|length| length.parse().ok());
    request.body = vec![0; length.unwrap_or_default()];
    reader.read_exact(&mut request.body).expect("a body");
    seen.lock().expect("no panic").push(request.target.clone());
    // A client may have gone.
    let _gone = stream.write_all(&answer(&request));
}

/// A project with a task in a repository that HTTP servers may send, and the credentials of its user.
fn with_repository() -> (Project, PathBuf) {
    let netrc = "machine 127.0.0.1 login operator password password\n";
    let project = project().tasks(["slow/second"], &[]).write("home/.netrc", netrc);
    let repository = project.path().join("repository");
    rollout_tests::project::copy(&project.path().join("tasks"), &repository, &[]);
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=user", "-c", "user.email=user@localhost"]).args(words);
        git.current_dir(&repository).env("HOME", project.path()).env("GIT_CONFIG_NOSYSTEM", "1");
        assert!(git.status().expect("git runs").success(), "git {words:?}");
    };
    for words in [
        &["init", "-q", "-b", "main"][..],
        &["add", "-A"],
        &["commit", "-q", "-m", "tasks"],
        &["config", "uploadpack.allowFilter", "true"],
    ] {
        git(words);
    }
    let git = repository.join(".git");
    (project, git)
}

/// A server of a repository at `/tasks.git`, for those who send these credentials, or none.
fn repository_server(repository: &Path, credentials: Option<&'static str>) -> InnerServer {
    let repository = repository.to_owned();
    InnerServer::start(move |request| {
        if request.headers.get("authorization").map(String::as_str) != credentials {
            let head = "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic realm=\"x\"\r\n";
            return format!("{head}{CLOSE}").into();
        }
        repository_answer(&repository, request)
    })
}

/// The answer of git to a request below `/tasks.git`.
fn repository_answer(repository: &Path, request: &HttpRequest) -> Vec<u8> {
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let header = |name: &str| request.headers.get(name).cloned().unwrap_or_default();
    let mut git = Command::new("git");
    git.arg("http-backend").env("GIT_HTTP_EXPORT_ALL", "1");
    let translated = format!("{}{}", repository.display(), &path["/tasks.git".len()..]);
    git.env("PATH_TRANSLATED", translated);
    git.env("REQUEST_METHOD", &request.method).env("QUERY_STRING", query);
    git.env("CONTENT_TYPE", header("content-type")).env("GIT_PROTOCOL", header("git-protocol"));
    git.env("HTTP_CONTENT_ENCODING", header("content-encoding"));
    git.env("CONTENT_LENGTH", request.body.len().to_string());
    let mut git = git.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("git runs");
    git.stdin.take().expect("an input").write_all(&request.body).expect("sent");
    let output = git.wait_with_output().expect("an answer").stdout;
    [&b"HTTP/1.1 200 OK\r\nconnection: close\r\n"[..], &output].concat()
}

/// A server of the repository's files as they are.
fn plain_server(repository: &Path) -> InnerServer {
    let repository = repository.to_owned();
    let updated = Command::new("git").arg("update-server-info").current_dir(&repository).status();
    assert!(updated.expect("git runs").success());
    InnerServer::start(move |request| {
        let path = request.target.split('?').next().unwrap_or_default();
        let file = std::fs::read(repository.join(path.trim_start_matches("/tasks.git/")));
        file.map_or_else(
            |_| format!("HTTP/1.1 404 Not Found\r\n{CLOSE}").into(),
            |bytes| ok(&bytes),
        )
    })
}

/// The port of a proxy whose tunnels all lead to a port of this host, and the tunnels that were asked
/// for.
fn start_proxy(to: u16) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let _proxy = supervise::thread("proxy", move || {
        for stream in listener.incoming() {
            let seen = Arc::clone(&seen);
            let _tunnel = supervise::thread("tunnel", move || {
                // A tunnel ends with either side.
                let _ended = stream.and_then(|stream| tunnel(stream, to, &seen));
            });
        }
    });
    (port, asked)
}

fn tunnel(mut client: TcpStream, to: u16, seen: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let first = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
    seen.lock().expect("no panic").push(first);
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, to))?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let _requests =
        supervise::thread("requests", move || std::io::copy(&mut from_client, &mut to_server));
    std::io::copy(&mut server, &mut client)?;
    client.shutdown(std::net::Shutdown::Both)
}

/// A submission with one dataset.
fn with_dataset(project: &Project, dataset: &Value) -> Value {
    let mut submission = submission(project, 1);
    submission["document"]["datasets"] = json!([dataset]);
    submission
}

/// Submits a job with a dataset, and returns the failure in words: of the submission, or of its run.
fn failure(daemon: &DaemonProcess, project: &Project, dataset: &Value) -> String {
    let answer = daemon.client.post("/v1/runs", &[], &with_dataset(project, dataset));
    if answer.status != 201 {
        return answer.expect(422).text();
    }
    let id = answer.json()["id"].as_str().expect("an id").to_owned();
    let run = daemon.wait_for(&id, &["failed", "completed"]);
    assert_eq!(run["state"], "failed", "{run:#}");
    run["failure"].to_string()
}

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
