//! The CA bundle of a host in a build: its commands have the file while they run, and no image has it.

use super::parse::Dockerfile;
use super::stages::in_every_stage;
use crate::CaBundle;

/// Name of the bundle among the secrets of a build. It is none, but builders give these to commands
/// only.
pub const CA_BUNDLE_SECRET: &str = "rollout-ca-bundle";

/// The Dockerfile whose commands have the bundle, and the variables that name it unless the Dockerfile
/// sets them. Triggers of base images have neither. Needs a frontend that has `RUN --mount`.
pub fn with_ca_bundle(text: &str) -> String {
    let values = CaBundle::VARIABLES.map(|name| format!(" {name}={}", CaBundle::PATH));
    in_every_stage(&with_mounts(text), &format!("ARG{}", values.concat()))
}

/// The Dockerfile whose commands have the bundle.
fn with_mounts(text: &str) -> String {
    let (name, mount) = ("RUN", mount());
    let (mut changed, mut copied) = (String::new(), 0);
    let file = Dockerfile::read(text);
    for run in file.instructions.iter().filter(|one| one.name == name) {
        let written = text[run.span.clone()].trim_start();
        // The word itself may go on in another line.
        if written.get(..name.len()).is_some_and(|word| word.eq_ignore_ascii_case(name)) {
            let end = run.span.end - written.len() + name.len();
            changed.push_str(&text[copied..end]);
            changed.push_str(&mount);
            copied = end;
        }
    }
    changed.push_str(&text[copied..]);
    changed
}

/// A text of the builder about such a Dockerfile, as it would be about the original.
pub fn without_ca_bundle(text: &str) -> String {
    text.replace(&mount(), "")
}

fn mount() -> String {
    let path = CaBundle::PATH;
    format!(" --mount=type=secret,id={CA_BUNDLE_SECRET},target={path},mode=0444")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_every_stage_have_the_bundle() {
        let text = "# syntax=docker/dockerfile:1\nARG V=1\nFROM a:$V AS one\n  run echo RUN \\\n  RUN\n\
                    RUN --network=none <<EOF\nRUN in the script\nEOF\nONBUILD RUN true\nFROM one";
        let arguments = "ARG AWS_CA_BUNDLE=/rollout/ca-bundle.pem \
                         CARGO_HTTP_CAINFO=/rollout/ca-bundle.pem \
                         CURL_CA_BUNDLE=/rollout/ca-bundle.pem \
                         GIT_SSL_CAINFO=/rollout/ca-bundle.pem \
                         NODE_EXTRA_CA_CERTS=/rollout/ca-bundle.pem \
                         PIP_CERT=/rollout/ca-bundle.pem \
                         REQUESTS_CA_BUNDLE=/rollout/ca-bundle.pem \
                         SSL_CERT_FILE=/rollout/ca-bundle.pem\n";
        let mount =
            "--mount=type=secret,id=rollout-ca-bundle,target=/rollout/ca-bundle.pem,mode=0444";
        let expected = format!(
            "# syntax=docker/dockerfile:1\nARG V=1\nFROM a:$V AS one\n{arguments}  run {mount} echo \
             RUN \\\n  RUN\nRUN {mount} --network=none <<EOF\nRUN in the script\nEOF\nONBUILD RUN \
             true\nFROM one\n{arguments}"
        );
        let changed = with_ca_bundle(text);
        assert_eq!(changed, expected);
        let of = |text: &str| Dockerfile::read(text);
        assert_eq!(of(&changed).problems, of(text).problems);
        let step = without_ca_bundle(&format!("[2/2] RUN {mount} true"));
        assert_eq!(step, "[2/2] RUN true");
    }

    #[test]
    fn dockerfile_without_stages_stays() {
        assert_eq!(with_ca_bundle("# nothing\n"), "# nothing\n");
        assert_eq!(with_ca_bundle(""), "");
    }
}
