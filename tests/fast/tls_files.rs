//! Checks of certificates and keys in files.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, KeyPair};
use rollout_worker::tls_files::{TlsFileError, check_authorities, read_identity};

/// Writes a certificate that ends with this year, and its key.
fn write(directory: &Path, name: &str, end: i32) -> (PathBuf, PathBuf) {
    let key = KeyPair::generate().expect("a key");
    let mut parameters = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    parameters.not_before = rcgen::date_time_ymd(2000, 1, 1);
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
