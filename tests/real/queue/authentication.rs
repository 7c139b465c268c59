//! Every way to authenticate at a server, and protection of the credentials.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rollout_queue::nats::{ConnectError, Nats, NatsCredentials, NatsOptions, NatsSecret, TlsFiles};

use crate::queue::fixture::{QueueFixture, pool, until, with_every_server};

async fn assert_accepted(options: NatsOptions) {
    let nats = Nats::connect(options).await.expect("accepted");
    nats.prepare(&pool("default"), &[]).await.expect("set up");
}

async fn assert_refused(options: NatsOptions, secret: &str) {
    let error = Nats::connect(options).await.expect_err("not accepted");
    let is_refusal =
        matches!(error, ConnectError::Denied { .. } | ConnectError::NoCredentials { .. });
    assert!(is_refusal, "{error:?}");
    let told = format!("{error} {error:?}");
    assert!(!told.contains(secret), "{told}");
}

#[test]
fn token_wrong_is_refused() {
    with_every_server(async |program| {
        let lab = QueueFixture::new(&program, "authorization { token: \"right-token\" }\n");
        let with = |token: &str| {
            let mut options = lab.options();
            options.credentials = NatsCredentials::Token(NatsSecret::new(token));
            options
        };
        assert_accepted(with("right-token")).await;
        assert_refused(with("wrong-token"), "wrong-token").await;
        assert_refused(lab.options(), "right-token").await;
    });
}

#[test]
fn nkey_unknown_is_refused() {
    with_every_server(async |program| {
        let (known, stranger) = (nkeys::KeyPair::new_user(), nkeys::KeyPair::new_user());
        let users = format!("authorization {{ users: [{{ nkey: {} }}] }}\n", known.public_key());
        let lab = QueueFixture::new(&program, &users);
        let with = |key: &nkeys::KeyPair| {
            let seed = key.seed().expect("a seed");
            let mut options = lab.options();
            options.credentials = NatsCredentials::Nkey(NatsSecret::new(seed.as_str()));
            (options, seed)
        };
        assert_accepted(with(&known).0).await;
        let (options, seed) = with(&stranger);
        assert_refused(options, &seed).await;
    });
}

#[test]
fn tls_certificate_unknown_is_refused() {
    with_every_server(async |program| {
        let files = tempfile::tempdir().expect("a directory");
        let at = |name: &str| files.path().join(name);
        let (known, unknown) = (authority("known"), authority("unknown"));
        fs::write(at("ca.pem"), known.pem()).expect("a file");
        fs::write(at("other-ca.pem"), unknown.pem()).expect("a file");
        certificate(&known, &["127.0.0.1"], files.path(), "server");
        certificate(&known, &["client"], files.path(), "client");
        let settings = format!(
            "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}\n",
            at("server.pem"),
            at("server.key"),
            at("ca.pem")
        );
        let lab = QueueFixture::new(&program, &settings);
        let with = |ca: &str, client: bool| {
            let client = client.then(|| (at("client.pem"), at("client.key")));
            let mut options = lab.options();
            options.tls = TlsFiles { ca: Some(at(ca)), client };
            options
        };
        assert_accepted(with("ca.pem", true)).await;
        // A lost alert looks like a lost connection; the next attempt shows it.
        for (ca, client) in [("other-ca.pem", true), ("ca.pem", false)] {
            until("the refusal", async || {
                let refused = Nats::connect(with(ca, client)).await.expect_err("refused");
                let is_final = matches!(refused, ConnectError::Tls { .. });
                assert!(is_final || matches!(refused, ConnectError::Unreachable { .. }));
                is_final
            })
            .await;
        }
        let missing = Nats::connect(with("none.pem", true)).await.expect_err("no file");
        assert!(matches!(missing, ConnectError::TlsFile(_)), "{missing:?}");
        assert!(missing.to_string().ends_with("none.pem"), "{missing}");
    });
}

#[test]
fn tls_of_a_server_with_another_name_or_without_tls_is_refused() {
    with_every_server(async |program| {
        let files = tempfile::tempdir().expect("a directory");
        let at = |name: &str| files.path().join(name);
        let known = authority("known");
        fs::write(at("ca.pem"), known.pem()).expect("a file");
        certificate(&known, &["nats.example.org"], files.path(), "server");
        let (server, key) = (at("server.pem"), at("server.key"));
        let named = format!("tls {{ cert_file: {server:?}, key_file: {key:?} }}\n");
        for (settings, reason) in [(&*named, "not valid for name"), ("", "InvalidContentType")] {
            let lab = QueueFixture::new(&program, settings);
            let mut options = lab.options();
            options.tls = TlsFiles { ca: Some(at("ca.pem")), client: None };
            // A server that closes the connection may take its answer back; the next attempt shows it.
            until("the refusal", async || match Nats::connect(options.clone()).await {
                Err(ConnectError::Tls { reason: found, .. }) => {
                    assert!(found.contains(reason), "{found}");
                    true
                }
                Err(ConnectError::Unreachable { .. }) => false,
                other => panic!("not refused: {other:?}"),
            })
            .await;
        }
    });
}

/// A new authority, which signs certificates.
pub(crate) fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut parameters = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    CertifiedIssuer::self_signed(parameters, key).expect("a certificate")
}

/// Writes a certificate for these names and its key: `<file>.pem`, `<file>.key`.
pub(crate) fn certificate(
    by: &CertifiedIssuer<'static, KeyPair>,
    names: &[&str],
    to: &Path,
    file: &str,
) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let key = KeyPair::generate().expect("a key");
    let parameters = CertificateParams::new(names).expect("names");
    let certificate = parameters.signed_by(&key, by).expect("a certificate");
    fs::write(to.join(format!("{file}.pem")), certificate.pem()).expect("a file");
    fs::write(to.join(format!("{file}.key")), key.serialize_pem()).expect("a file");
}
