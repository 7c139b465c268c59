//! Servers of repositories and registries on this host, and a proxy that leads to them.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use rollout_base::supervise;
use rollout_tests::project::Project;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::serve::{DaemonProcess, project, submission};

/// A word that only a server of the inner network sends.
pub(super) const INNER: &str = "INNER-WORD";

/// The user and the password of the file `.netrc`, as a request sends them.
pub(super) const CREDENTIALS: &str = "Basic b3BlcmF0b3I6cGFzc3dvcmQ=";

/// The end of the head of an answer without a body.
pub(super) const CLOSE: &str = "content-length: 0\r\nconnection: close\r\n\r\n";

/// A request.
#[derive(Default)]
pub(super) struct HttpRequest {
    pub(super) method: String,
    /// Path and query.
    pub(super) target: String,
    /// Headers, names in lower case.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

/// The answer to a request.
type Answer = dyn Fn(&HttpRequest) -> Vec<u8> + Send + Sync;

/// An HTTP server on a port of this host, with the requests that it got.
pub(super) struct InnerServer {
    pub(super) port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl InnerServer {
    pub(super) fn start(answer: impl Fn(&HttpRequest) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::listen(None, Arc::new(answer))
    }

    /// A server of HTTPS.
    pub(super) fn start_tls(
        tls: ServerConfig,
        answer: impl Fn(&HttpRequest) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        Self::listen(Some(Arc::new(tls)), Arc::new(answer))
    }

    fn listen(tls: Option<Arc<ServerConfig>>, answer: Arc<Answer>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let _server = supervise::thread("inner-server", move || {
            for stream in listener.incoming() {
                let (seen, answer, tls) = (Arc::clone(&seen), Arc::clone(&answer), tls.clone());
                let _connection = supervise::thread("inner-connection", move || {
                    stream.map(|stream| match tls {
                        None => serve(stream, &seen, &*answer),
                        Some(tls) => serve_tls(stream, tls, &seen, &*answer),
                    })
                });
            }
        });
        Self { port, requests }
    }

    /// A server whose every answer has the word.
    pub(super) fn talking() -> Self {
        Self::start(|_| ok(INNER.as_bytes()))
    }

    /// A server that redirects every request to the same path of another one.
    pub(super) fn redirecting(to: &Self) -> Self {
        let to = to.url("");
        Self::start(move |request| {
            let place = format!("{to}{}", request.target);
            format!("HTTP/1.1 302 Found\r\nlocation: {place}\r\n{CLOSE}").into()
        })
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }
}

pub(super) fn ok(body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

fn serve_tls(
    stream: TcpStream,
    tls: Arc<ServerConfig>,
    seen: &Mutex<Vec<String>>,
    answer: &Answer,
) {
    let connection = ServerConnection::new(tls).expect("valid settings");
    let mut stream = StreamOwned::new(connection, stream);
    serve(&mut stream, seen, answer);
    stream.conn.send_close_notify();
    // A client may have gone.
    let _gone = stream.flush();
}

fn serve(stream: impl Read + Write, seen: &Mutex<Vec<String>>, answer: &Answer) {
    let mut reader = BufReader::new(stream);
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
    let _gone = reader.get_mut().write_all(&answer(&request));
}

/// A project with a task in a repository that HTTP servers may send, and the credentials of its user.
pub(super) fn with_repository() -> (Project, PathBuf) {
    with_files(&[])
}

/// The same with these files in the repository, besides those of its task `second`.
pub(super) fn with_files(files: &[(&str, &str)]) -> (Project, PathBuf) {
    let netrc = "machine 127.0.0.1 login operator password password\n";
    let project = project().tasks(["slow/second"], &[]).write("home/.netrc", netrc);
    let repository = project.path().join("repository");
    rollout_tests::project::copy(&project.path().join("tasks"), &repository, &[]);
    for (name, text) in files {
        std::fs::write(repository.join(name), text).expect("written");
    }
    git(&project, &["init", "-q", "-b", "main"]);
    commit(&project);
    git(&project, &["config", "uploadpack.allowFilter", "true"]);
    let git = repository.join(".git");
    (project, git)
}

/// Commits everything in the repository of a project.
pub(super) fn commit(project: &Project) {
    git(project, &["add", "-A"]);
    git(project, &["commit", "-q", "-m", "tasks"]);
}

fn git(project: &Project, words: &[&str]) {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=user", "-c", "user.email=user@localhost"]).args(words);
    git.current_dir(project.path().join("repository"));
    git.env("HOME", project.path()).env("GIT_CONFIG_NOSYSTEM", "1");
    assert!(git.status().expect("git runs").success(), "git {words:?}");
}

/// A server of a repository at `/tasks.git`, for those who send these credentials, or none.
pub(super) fn repository_server(
    repository: &Path,
    credentials: Option<&'static str>,
) -> InnerServer {
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
pub(super) fn repository_answer(repository: &Path, request: &HttpRequest) -> Vec<u8> {
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
pub(super) fn plain_server(repository: &Path) -> InnerServer {
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
pub(super) fn start_proxy(to: u16) -> (u16, Arc<Mutex<Vec<String>>>) {
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
pub(super) fn with_dataset(project: &Project, dataset: &Value) -> Value {
    let mut submission = submission(project, 1);
    submission["document"]["datasets"] = json!([dataset]);
    submission
}

/// Submits a job with a dataset, and returns the failure in words: of the submission, or of its run.
pub(super) fn failure(daemon: &DaemonProcess, project: &Project, dataset: &Value) -> String {
    let answer = daemon.client.post("/v1/runs", &[], &with_dataset(project, dataset));
    if answer.status != 201 {
        return answer.expect(422).text();
    }
    let id = answer.json()["id"].as_str().expect("an id").to_owned();
    let run = daemon.wait_for(&id, &["failed", "completed"]);
    assert_eq!(run["state"], "failed", "{run:#}");
    run["failure"].to_string()
}
