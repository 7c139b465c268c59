//! A registry at a URL: read for every run, and cached for outages of its server.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;

use crate::registry::fixture::{RegistryFixture, tasks};

const DEADLINE: Duration = Duration::from_secs(120);

/// Serves one request for each of `answers`, then stops.
fn serve(listener: TcpListener, answers: Vec<String>) -> std::thread::JoinHandle<()> {
    let answer = |mut stream: TcpStream, text: &str| {
        let mut request = [0; 4096];
        let _whole = stream.read(&mut request).expect("a request");
        stream.write_all(text.as_bytes()).expect("answered");
    };
    let serving = move || {
        for text in &answers {
            answer(listener.accept().expect("a client").0, text);
        }
    };
    supervise::thread("registry", serving).expect("a thread")
}

fn http_ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

#[test]
fn registry_at_url_is_cached_for_outage() {
    let fixture = RegistryFixture::new();
    let registry = std::fs::read_to_string(fixture.path("registry.json")).expect("a registry");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/registry.json", listener.local_addr().expect("an address"));
    let not_found = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let moved = "HTTP/1.1 302 Found\r\nLocation: /other.json\r\nContent-Length: 0\r\n\
                 Connection: close\r\n\r\n";
    let answers = vec![
        not_found.to_owned(),
        http_ok("nothing of the kind"),
        moved.to_owned(),
        http_ok(&registry),
        not_found.to_owned(),
    ];
    let server = serve(listener, answers);
    fixture.job(&format!("{{registry: {{url: '{url}'}}, name: bench, version: '1.0'}}"));
    let stderr = fixture.refusal();
    assert!(stderr.contains("404") && stderr.contains(&url), "{stderr}");
    assert!(fixture.refusal().contains("it is not a list of datasets in JSON"));
    let first = fixture.tasks();
    assert_eq!(first.len(), 40);
    assert!(fixture.refusal().contains("404"), "an answer is no outage");
    server.join().expect("it served");

    fixture.remove_repositories();
    let ended = fixture.dry_run().wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(tasks(&ended), first);
    let _said = ended.expect_stderr("using its last known content");
}
