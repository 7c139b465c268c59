//! Tests of the functions for install scripts, with stand-ins for the programs that they call.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use rollout_gateway::agents::{
    INSTALL_CODES, INSTALL_PACKAGE_MISSING, INSTALL_UNSUPPORTED, has_install_codes,
};
use rollout_protocol::spec::agent::AgentKind;

use super::{AgentCatalogue, AgentChoices, AgentEntry};

/// `curl`: the URL says how it ends.
const CURL: &str = r#"
case "$*" in
  *certificate*)
    echo 'curl: (60) SSL certificate problem: unable to get local issuer certificate' >&2
    printf 'More details here\n\ncurl failed to verify the server.\nTo learn more,\nvisit the page.\n' >&2
    exit 60 ;;
  *absent*) echo 'curl: (22) The requested URL returned error: 404' >&2; exit 22 ;;
  *down*) echo 'curl: (22) The requested URL returned error: 503' >&2; exit 22 ;;
  *) while [ "$1" != -o ]; do shift; done; echo content >"$2" ;;
esac
"#;

/// `npm`: the package says how it ends.
const NPM: &str = r#"
case "$*" in
  *absent@*) printf 'npm error code E404\nnpm error 404 Not Found\n' >&2; exit 1 ;;
  *offline@*) printf 'npm error code ECONNREFUSED\n' >&2; exit 1 ;;
  *hostile@*) echo 'npm error command failed' >&2; exit 120 ;;
esac
"#;

/// Of a Python environment: `pip` says the same of a missing package and of an index out of reach.
const PYTHON: &str = r#"
case "$*" in
  *venv*) mkdir -p "$AGENT_DIR/uv/bin"; cp "$STAND_INS/pip" "$STAND_INS/uv" "$AGENT_DIR/uv/bin" ;;
esac
"#;

const PIP: &str = r#"
[ -z "${OFFLINE:-}" ] || echo 'WARNING: Retrying (Retry(total=0)) after connection broken' >&2
[ -z "${ABSENT:-}${OFFLINE:-}" ] || { echo 'ERROR: No matching distribution found for uv' >&2; exit 1; }
"#;

const STAND_INS: [(&str, &str); 6] = [
    ("curl", CURL),
    ("npm", NPM),
    ("node", "[ \"$1\" = -p ] && echo 22 || echo v22"),
    ("python3", PYTHON),
    ("pip", PIP),
    ("uv", "case \"$*\" in *absent*) echo '  × No solution found' >&2; exit 1 ;; esac"),
];

/// Exit code and the last line of standard error of an install script.
fn install(script: &str) -> (i32, String) {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in STAND_INS {
        let file = dir.path().join(name);
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a program");
    }
    let entry = format!("name = 'a'\nsummary = 's'\nexecute = 'x'\ninstall = '''\n{script}\n'''");
    let entry = AgentEntry::parse(&entry).expect("an entry");
    let AgentKind::Script { install: Some(text), .. } = entry.kind(&AgentChoices::default()) else {
        panic!("an install script");
    };
    let own = dir.path().join("agent");
    let text = text.replace(&entry.directory(), &own.to_string_lossy());
    let path = std::env::var("PATH").unwrap_or_default();
    let temporary = dir.path().join("temporary");
    fs::create_dir(&temporary).expect("made");
    let ran = Command::new("bash")
        .args(["-c", &text])
        .env("PATH", format!("{}:{path}", dir.path().display()))
        .env("STAND_INS", dir.path())
        .env("AGENT_DIR", &own)
        .env("ROLLOUT_AGENT_VERSION", "1")
        .env("TMPDIR", &temporary)
        .current_dir(dir.path())
        .output()
        .expect("bash");
    let left = fs::read_dir(&temporary).expect("readable").count();
    assert_eq!(left, 0, "{script}: temporary files are left");
    let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
    let last = stderr.lines().last().unwrap_or_default().to_owned();
    (ran.status.code().unwrap_or_default(), last)
}

#[test]
fn failed_download_is_named_and_tried_again() {
    for (script, said) in [
        ("fetch https://certificate/x x", "curl: (60) SSL certificate problem"),
        ("fetch https://down/x x", "returned error: 503"),
        ("npm_package offline 16", "npm error code ECONNREFUSED"),
        ("OFFLINE=1 python_packages '>=3.10' fine", "connection broken"),
    ] {
        let (code, last) = install(script);
        assert_eq!(code, 1, "{script}: {last}");
        assert!(last.starts_with("cannot install the agent: "), "{script}: {last}");
        assert!(last.contains(said), "{script}: {last}");
    }
}

#[test]
fn install_scripts_of_the_catalogue_say_that_they_have_codes() {
    let lines = format!("UNSUPPORTED={INSTALL_UNSUPPORTED}\nMISSING={INSTALL_PACKAGE_MISSING}\n");
    assert_eq!(INSTALL_CODES, lines);
    for entry in AgentCatalogue::shipped().entries().filter(|entry| entry.install.is_some()) {
        assert!(has_install_codes(&entry.scripts()), "{}", entry.name);
    }
}

#[test]
fn missing_package_ends_installation_for_good() {
    for script in [
        "fetch https://absent/x x",
        "npm_package absent 16",
        "ABSENT=1 python_packages '>=3.10' fine",
        "python_packages '>=3.10' absent",
    ] {
        let (code, last) = install(script);
        assert_eq!(code, INSTALL_PACKAGE_MISSING, "{script}: {last}");
    }
}

#[test]
fn image_that_cannot_carry_agent_has_code_of_its_own() {
    let (code, last) = install("unsupported 'no Node.js for this machine'");
    assert_eq!(code, INSTALL_UNSUPPORTED);
    assert_eq!(last, "cannot install the agent: no Node.js for this machine");
    let (code, last) = install("have() { false; }\npackages curl");
    assert_eq!(code, INSTALL_UNSUPPORTED, "{last}");
}

#[test]
fn code_of_package_is_not_passed_on() {
    for script in ["npm_package hostile 16", "bash -c 'exit 121'", "x=$(unsupported x)"] {
        assert_eq!(install(script).0, 1, "{script}");
    }
    assert_eq!(install("bash -c 'kill -9 $$'").0, 137);
    assert_eq!(install("npm_package fine 16; fetch https://ok/x x; cat x").0, 0);
}
