//! Repositories of users on public hosts: Git LFS, redirects and certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rollout_protocol::digest::Digest;
use rollout_tests::project::Project;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;

use crate::queue::authentication::authority;
use crate::serve::fetching_fixture::{
    CLOSE, HttpRequest, INNER, InnerServer, failure, ok, repository_answer, start_proxy,
    with_dataset, with_files, with_repository,
};
use crate::serve::{DaemonProcess, submitted};

/// A public address, at which the proxy of the server finds a server of this host.
const HOST: &str = "8.8.8.8";

/// Another one, with the same server.
const OTHER_HOST: &str = "9.9.9.9";

/// The reward of the task in the repository, in a file of Git LFS.
const REWARD: &str = "0.25\n";

/// The tests of that task.
const SCRIPT: &str = "#!/bin/bash\ncat /tests/reward.txt >/logs/verifier/reward.txt\n";

/// Where the API of Git LFS gets the places of files.
const BATCH: &str = "/tasks.git/info/lfs/objects/batch";

/// Where the file is.
const FILE: &str = "/files/reward";

/// Starts a server whose fetches of this scheme go through a proxy, with these variables.
fn daemon_behind_proxy(
    project: &Project,
    (scheme, port): (&str, u16),
    variables: &[(&str, &Path)],
) -> DaemonProcess {
    DaemonProcess::start_with(project, 0, &[], |words| {
        let mut command = project.command(words);
        command.env(format!("{scheme}_proxy"), format!("http://127.0.0.1:{port}"));
        command.envs(variables.iter().copied());
        project.start(command)
    })
}

/// The mean reward of a run with this dataset, which completes.
fn reward(daemon: &DaemonProcess, project: &Project, repo: &str) -> f64 {
    let id = submitted(&daemon.client, &with_dataset(project, &json!({ "repo": repo })));
    let run = daemon.wait_for(&id, &["failed", "completed"]);
    assert_eq!(run["state"], "completed", "{run:#}");
    run["progress"]["mean_reward"].as_f64().expect("a reward")
}

/// A project with a task whose reward is in Git LFS, and a `.lfsconfig` that names this server.
fn with_reward_in_lfs(named: &str) -> (Project, PathBuf) {
    let pointer = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n",
        Digest::sha256(REWARD.as_bytes()).hex(),
        REWARD.len()
    );
    let settings = format!("[lfs]\n\turl = {named}\n[remote \"origin\"]\n\tlfsurl = {named}\n");
    with_files(&[
        (".lfsconfig", &settings),
        ("second/tests/reward.txt", &pointer),
        ("second/tests/test.sh", SCRIPT),
    ])
}

/// The answer of a server of a repository with Git LFS, whose file is at `href`.
fn answer_with_lfs(repository: &Path, href: &str, request: &HttpRequest) -> Vec<u8> {
    match request.target.as_str() {
        BATCH => {
            let actions = json!({ "download": { "href": href } });
            ok(json!({ "objects": [{ "actions": actions }] }).to_string().as_bytes())
        }
        FILE => ok(REWARD.as_bytes()),
        _ => repository_answer(repository, request),
    }
}

#[test]
fn lfs_files_are_got_from_the_server_of_the_repository_whatever_its_settings_name() {
    let inner = InnerServer::talking();
    let (project, git) = with_reward_in_lfs(&inner.url("/lfs"));
    let href = format!("http://{HOST}{FILE}");
    let server = InnerServer::start(move |request| answer_with_lfs(&git, &href, request));
    let (port, asked) = start_proxy(server.port);
    let daemon = daemon_behind_proxy(&project, ("http", port), &[]);
    let found = reward(&daemon, &project, &format!("http://{HOST}/tasks.git"));
    assert!((found - 0.25).abs() < 1e-9, "{found}");
    for target in [BATCH, FILE] {
        assert!(server.requests().iter().any(|request| request == target), "{target}");
    }
    let asked = asked.lock().expect("no panic").clone();
    let target = format!("CONNECT {HOST}:80 HTTP/1.1");
    assert!(asked.iter().all(|line| *line == target), "{asked:?}");
    assert_eq!(inner.requests(), [""; 0]);
    daemon.stop();
}

#[test]
fn lfs_server_leads_to_no_server_of_the_inner_network() {
    let inner = InnerServer::talking();
    let (project, git) = with_reward_in_lfs(&inner.url("/lfs"));
    let href = inner.url(FILE);
    let server = InnerServer::start(move |request| answer_with_lfs(&git, &href, request));
    let (port, _asked) = start_proxy(server.port);
    let daemon = daemon_behind_proxy(&project, ("http", port), &[]);
    let repo = format!("http://{HOST}/tasks.git");
    let text = failure(&daemon, &project, &json!({ "repo": repo }));
    let requests = server.requests();
    assert!(requests.iter().any(|request| request == BATCH), "{text}: {requests:?}");
    assert!(text.contains("private network") && !text.contains(INNER), "{text}");
    assert_eq!(inner.requests(), [""; 0]);
    daemon.stop();
}

#[test]
fn public_repository_redirects_to_public_hosts_only() {
    let (project, git) = with_repository();
    let inner = InnerServer::talking();
    let to = inner.url("");
    let server = InnerServer::start(move |request| {
        let is_at = |host: &str| request.headers.get("host").is_some_and(|named| named == host);
        let moved = |to: &str| {
            let place = format!("{to}{}", request.target);
            format!("HTTP/1.1 302 Found\r\nlocation: {place}\r\n{CLOSE}").into_bytes()
        };
        if request.target.starts_with("/inner/") {
            return moved(&to);
        }
        if is_at(HOST) {
            return moved(&format!("http://{OTHER_HOST}"));
        }
        repository_answer(&git, request)
    });
    let (port, asked) = start_proxy(server.port);
    let daemon = daemon_behind_proxy(&project, ("http", port), &[]);
    let found = reward(&daemon, &project, &format!("http://{HOST}/tasks.git"));
    assert!((found - 0.5).abs() < 1e-9, "{found}");
    for host in [HOST, OTHER_HOST] {
        let target = format!("CONNECT {host}:80 HTTP/1.1");
        assert!(asked.lock().expect("no panic").contains(&target), "{target}");
    }
    let repo = format!("http://{HOST}/inner/tasks.git");
    let text = failure(&daemon, &project, &json!({ "repo": repo }));
    assert!(server.requests().iter().any(|request| request.starts_with("/inner/")), "{text}");
    assert!(text.contains("private network") && !text.contains(INNER), "{text}");
    assert_eq!(inner.requests(), [""; 0]);
    daemon.stop();
}

/// Settings of a server with a certificate for an address, which a new authority signed; its certificate
/// is written to a file.
fn certified(address: &str, authority_file: &Path) -> ServerConfig {
    let authority = authority("of tests");
    std::fs::write(authority_file, authority.pem()).expect("written");
    let key = KeyPair::generate().expect("a key");
    let parameters = CertificateParams::new(vec![address.to_owned()]).expect("an address");
    let certificate = parameters.signed_by(&key, &authority).expect("a certificate");
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions of TLS");
    let chain = vec![certificate.der().clone()];
    builder.with_no_client_auth().with_single_cert(chain, key).expect("a certificate and its key")
}

#[test]
fn public_repository_needs_a_certificate_that_the_server_trusts() {
    let (project, git) = with_reward_in_lfs("https://127.0.0.1:9/lfs");
    let trusted = project.path().join("authority.pem");
    let settings = certified(HOST, &trusted);
    let href = format!("https://{HOST}{FILE}");
    let server =
        InnerServer::start_tls(settings, move |request| answer_with_lfs(&git, &href, request));
    let (port, asked) = start_proxy(server.port);
    let other = project.path().join("other.pem");
    let _other_server = certified(HOST, &other);
    let refused = |authority: &Path, host: &str| {
        let variables = ["SSL_CERT_FILE", "GIT_SSL_CAINFO"].map(|name| (name, authority));
        let daemon = daemon_behind_proxy(&project, ("https", port), &variables);
        let repo = format!("https://{host}/tasks.git");
        let text = failure(&daemon, &project, &json!({ "repo": repo }));
        assert!(text.contains("cannot fetch") && text.contains("certificate"), "{host}: {text}");
        let target = format!("CONNECT {host}:443 HTTP/1.1");
        assert!(asked.lock().expect("no panic").contains(&target), "{target}");
        assert_eq!(server.requests(), [""; 0], "{host}");
        daemon.stop();
    };
    // The certificate is for another host. A later server tries again, in vain: this comes first.
    refused(&trusted, OTHER_HOST);
    refused(&other, HOST);
    // Git alone trusts it: the client of Git LFS does not.
    let repo = format!("https://{HOST}/tasks.git");
    let variables = [("SSL_CERT_FILE", other.as_path()), ("GIT_SSL_CAINFO", trusted.as_path())];
    let daemon = daemon_behind_proxy(&project, ("https", port), &variables);
    let text = failure(&daemon, &project, &json!({ "repo": repo }));
    assert!(text.contains("certificate"), "{text}");
    let requests = server.requests();
    assert!(!requests.is_empty() && !requests.iter().any(|request| request == BATCH), "{text}");
    daemon.stop();

    let variables = ["SSL_CERT_FILE", "GIT_SSL_CAINFO"].map(|name| (name, trusted.as_path()));
    let daemon = daemon_behind_proxy(&project, ("https", port), &variables);
    let found = reward(&daemon, &project, &repo);
    assert!((found - 0.25).abs() < 1e-9, "{found}");
    assert!(server.requests().iter().any(|request| request == BATCH), "{:?}", server.requests());
    daemon.stop();
}
