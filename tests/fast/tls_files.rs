//! Checks of certificates and keys in files.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, KeyPair};
use rollout_base::tls_files::{TlsFileError, check_authorities, read_bundle, read_identity};
use rollout_protocol::limits;

/// Writes a certificate that ends with this year, and its key.
fn write(directory: &Path, name: &str, end: i32) -> (PathBuf, PathBuf) {
    write_valid(directory, name, (2000, end))
}

/// Writes a certificate that is valid between these years, and its key.
fn write_valid(directory: &Path, name: &str, (begin, end): (i32, i32)) -> (PathBuf, PathBuf) {
    let key = KeyPair::generate().expect("a key");
    let mut parameters = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    parameters.not_before = rcgen::date_time_ymd(begin, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(end, 1, 1);
    let certificate = parameters.self_signed(&key).expect("a certificate");
    let path = |ending: &str| directory.join(format!("{name}.{ending}"));
    fs::write(path("pem"), certificate.pem()).expect("written");
    fs::write(path("key"), key.serialize_pem()).expect("written");
    (path("pem"), path("key"))
}

#[test]
fn faults_of_certificates_and_keys_name_their_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let (certificate, key) = write(directory.path(), "good", 4000);
    let (expired, its_key) = write(directory.path(), "old", 2001);
    let (missing, empty) = (directory.path().join("none"), directory.path().join("empty"));
    fs::write(&empty, "nothing\n").expect("written");
    let _valid = read_identity(&certificate, &key).expect("valid");
    check_authorities(&certificate).expect("valid");
    let text = |refused: Result<(), TlsFileError>| refused.expect_err("refused").to_string();
    let identity = |certificate: &Path, key: &Path| read_identity(certificate, key).map(drop);
    for (refused, start, end) in [
        (text(check_authorities(&missing)), "cannot read ", "/none"),
        (text(check_authorities(&empty)), "cannot use ", "empty: it has no certificate in PEM"),
        (text(identity(&certificate, &missing)), "cannot read ", "/none"),
        (
            text(identity(&certificate, &empty)),
            "cannot use ",
            "empty: it has no private key in PEM",
        ),
        (text(identity(&certificate, &its_key)), "cannot use the key in ", "/good.pem"),
        (
            text(identity(&expired, &its_key)),
            "cannot use the certificate in ",
            "old.pem: it expired at 2001-01-01T00:00:00Z",
        ),
    ] {
        assert!(refused.starts_with(start) && refused.ends_with(end), "{refused}");
    }
}

#[test]
fn certificate_whose_validity_ends_before_it_begins_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, years) in
        [("past", (2010, 2001)), ("around", (4000, 2001)), ("future", (4010, 4000))]
    {
        let (certificate, key) = write_valid(directory.path(), name, years);
        let refused = read_identity(&certificate, &key).map(drop).expect_err("refused").to_string();
        assert!(refused.ends_with(".pem: its validity ends before it begins"), "{refused}");
    }
}

#[test]
fn device_pipe_and_large_file_are_refused_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let (certificate, key) = write(directory.path(), "good", 4000);
    let (pipe, large) = (directory.path().join("pipe"), directory.path().join("large"));
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).expect("a pipe");
    let file = fs::File::create(&large).expect("a file");
    file.set_len(limits::CA_BUNDLE_BYTES + 1).expect("large");
    for other in [Path::new("/dev/zero"), pipe.as_path(), large.as_path()] {
        let refused = [
            check_authorities(other),
            read_identity(other, &key).map(drop),
            read_identity(&certificate, other).map(drop),
            read_bundle(other).map(drop),
        ];
        for refused in refused {
            let error = refused.expect_err("refused");
            assert!(matches!(&error, TlsFileError::Pem { path, .. } if path == other), "{error}");
        }
    }
}

#[test]
fn bundle_has_certificates_that_can_be_used_and_no_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let (first, key) = write(directory.path(), "first", 4000);
    let (second, _) = write(directory.path(), "second", 2001);
    let read = |path: &Path| fs::read_to_string(path).expect("readable");
    let path = directory.path().join("bundle");
    let with = |text: &str| {
        fs::write(&path, text).expect("written");
        read_bundle(&path)
    };
    let bundle = format!("# The corporation\n{}\n{}", read(&first), read(&second));
    assert_eq!(with(&bundle).expect("valid"), bundle.as_bytes());
    let unusable = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    with(&format!("{unusable}{bundle}")).expect("some of it can be used");

    let limit = usize::try_from(limits::CA_BUNDLE_BYTES).expect("small");
    let (with_key, large) = (bundle.clone() + &read(&key), bundle.clone() + &"\n".repeat(limit));
    for (text, start, end) in [
        ("", "cannot use ", "/bundle: it has no certificate in PEM"),
        (unusable, "cannot use ", "/bundle: it has no certificate in PEM"),
        (&bundle[..bundle.len() - 20], "cannot read ", "/bundle"),
        (
            with_key.as_str(),
            "cannot use ",
            "/bundle: it has a private key, which every environment would have",
        ),
        (large.as_str(), "cannot read ", "/bundle"),
    ] {
        let refused = with(text).expect_err("refused").to_string();
        assert!(refused.starts_with(start) && refused.ends_with(end), "{refused}");
    }
    let refused = read_bundle(&directory.path().join("none")).expect_err("refused").to_string();
    assert!(refused.starts_with("cannot read ") && refused.ends_with("/none"), "{refused}");
}
