//! HTTPS with a certificate in files.

use std::fs;
use std::process::Command;

use rollout_protocol::exit::ExitCode;
use rollout_tests::ignored::report_ignored;
use rollout_tests::nats::{self, NatsServer};
use rollout_tests::project::Project;
use rollout_tests::wait;

use crate::queue::authentication::{authority, certificate};
use crate::serve::{DaemonProcess, project};

/// Writes a new certificate for `localhost` and its key.
fn write_certificate(project: &Project) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("made");
    let path = |name: &str| project.path().join(name);
    fs::write(path("key.pem"), made.signing_key.serialize_pem()).expect("written");
    fs::write(path("cert.pem"), made.cert.pem()).expect("written");
}

/// Gets the health check with `curl`, which trusts the certificate in a file alone.
fn is_trusted(project: &Project, port: u16, certificate: &str) -> bool {
    let url = format!("https://localhost:{port}/healthz");
    let mut curl = Command::new("curl");
    let certificate = project.path().join(certificate);
    curl.args(["-sS", "--cacert"]).arg(certificate).args(["--noproxy", "*", &url]);
    let ended = curl.output().expect("curl ran before");
    ended.status.success() && ended.stdout == b"ok\n"
}

#[test]
fn certificate_is_read_again_when_it_changes() {
    if Command::new("curl").arg("--version").output().is_err() {
        report_ignored("needs curl");
        return;
    }
    let project = project();
    write_certificate(&project);
    fs::copy(project.path().join("cert.pem"), project.path().join("first.pem")).expect("copied");
    let options = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let daemon = DaemonProcess::start(&project, &options);
    assert!(daemon.process.stdout().contains("https://"));
    let port = daemon.client.connect().peer_addr().expect("an address").port();
    assert!(is_trusted(&project, port, "first.pem"));
    write_certificate(&project);
    wait::until(wait::LONG_DEADLINE, "the new certificate is used", || {
        is_trusted(&project, port, "cert.pem")
    });
    assert!(!is_trusted(&project, port, "first.pem"));
    let plain = daemon.client.send("GET", "/healthz", &[], b"").expect("an answer").expect(400);
    assert!(plain.text().contains("https://"), "{}", plain.text());
    let run = format!("http://localhost:{port}/v1/runs/r1");
    let refused = project.rollout(&["status", &run]).wait(wait::LONG_DEADLINE);
    let _refused = refused.expect_code(ExitCode::Failure).expect_stderr("give it as https://");
}

#[test]
fn certificate_of_a_nats_server_for_another_name_ends_each_command_at_once() {
    let project = project();
    let Some(program) = nats::programs().into_iter().next() else { return };
    let (files, known) = (project.path().to_owned(), authority("known"));
    fs::write(files.join("ca.pem"), known.pem()).expect("written");
    certificate(&known, &["nats.example.org"], &files, "nats");
    let [public, key] = ["nats.pem", "nats.key"].map(|name| files.join(name));
    let settings = format!("tls {{ cert_file: {public:?}, key_file: {key:?} }}\n");
    let server = NatsServer::start_with(&program, &files.join("nats"), &settings);
    let url = server.url();
    let access = ["--nats", &url, "--nats-ca", "ca.pem"];
    for command in [
        &["serve", "--dir", "state", "--listen", "127.0.0.1:0"][..],
        &["worker", "--store", "store", "--dir", "host"],
        &["doctor"],
    ] {
        let ended = project.rollout(&[command, &access].concat()).wait(wait::LONG_DEADLINE);
        let ended = ended.expect_code(ExitCode::Config);
        assert!(ended.stderr.contains("not valid for name"), "{}", ended.stderr);
    }
}

#[test]
fn certificate_that_has_expired_is_refused_at_the_start() {
    let project = project();
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters =
        rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    parameters.not_before = rcgen::date_time_ymd(2000, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(2001, 1, 1);
    let certificate = parameters.self_signed(&key).expect("a certificate");
    fs::write(project.path().join("cert.pem"), certificate.pem()).expect("written");
    fs::write(project.path().join("key.pem"), key.serialize_pem()).expect("written");
    let words = ["serve", "--dir", "state", "--listen", "127.0.0.1:0"];
    let tls = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let refused = project.rollout(&[&words[..], &tls].concat()).wait(wait::LONG_DEADLINE);
    let _refused = refused.expect_code(ExitCode::Config).expect_stderr("cert.pem: it expired at");
}
