//! Rules that every builder applies to the instructions of a Dockerfile.

use super::parse::{Dockerfile, DockerfileInstruction, DockerfileProblem};

/// Every instruction, with its allowed flags.
const INSTRUCTIONS: [(&str, &[&str]); 18] = [
    ("ADD", &["checksum", "chmod", "chown", "exclude", "keep-git-dir", "link", "unpack"]),
    ("ARG", &[]),
    ("CMD", &[]),
    ("COPY", &["chmod", "chown", "exclude", "from", "link", "parents"]),
    ("ENTRYPOINT", &[]),
    ("ENV", &[]),
    ("EXPOSE", &[]),
    ("FROM", &["platform"]),
    ("HEALTHCHECK", &["interval", "retries", "start-interval", "start-period", "timeout"]),
    ("LABEL", &[]),
    ("MAINTAINER", &[]),
    ("ONBUILD", &[]),
    ("RUN", &["device", "mount", "network", "security"]),
    ("SHELL", &[]),
    ("STOPSIGNAL", &[]),
    ("USER", &[]),
    ("VOLUME", &[]),
    ("WORKDIR", &[]),
];

/// Instructions that are valid without an argument.
const OPTIONAL_ARGUMENTS: [&str; 2] = ["CMD", "ENTRYPOINT"];

/// The flags of an instruction, if it is one.
pub(super) fn flags_of(instruction: &str) -> Option<&'static [&'static str]> {
    INSTRUCTIONS.iter().find(|(known, _)| *known == instruction).map(|(_, flags)| *flags)
}

/// Records the violations that every builder refuses.
pub(super) fn check(file: &mut Dockerfile) {
    let mut problems = Vec::new();
    let mut staged = false;
    for instruction in &file.instructions {
        staged |= instruction.name == "FROM";
        let message = find_problem(instruction)
            .or_else(|| (!staged && instruction.name != "ARG").then(before_from));
        problems
            .extend(message.map(|message| DockerfileProblem { line: instruction.line, message }));
    }
    file.problems.extend(problems);
    if file.instructions.is_empty() {
        file.problem(1, "the Dockerfile has no instruction");
    } else if !staged && file.problems.is_empty() {
        file.problem(1, "the Dockerfile has no FROM");
    }
}

fn before_from() -> String {
    "only ARG is allowed before the first FROM".to_owned()
}

fn find_problem(instruction: &DockerfileInstruction) -> Option<String> {
    let name = instruction.name.as_str();
    let Some(flags) = flags_of(name) else {
        return Some(format!("`{name}` is not an instruction"));
    };
    let given = instruction.flags.iter().map(|flag| flag.trim_start_matches("--"));
    let mut given = given.map(|flag| flag.split_once('=').map_or(flag, |(name, _)| name));
    if let Some(flag) = given.find(|flag| !flags.contains(flag)) {
        return Some(format!("{name} has no flag `--{flag}`"));
    }
    let words: Vec<&str> = instruction.rest.split_whitespace().collect();
    if words.is_empty() && !OPTIONAL_ARGUMENTS.contains(&name) {
        return Some(format!("{name} needs an argument"));
    }
    match name {
        "FROM" => match words.as_slice() {
            [_] => None,
            [_, word, _] if word.eq_ignore_ascii_case("as") => None,
            _ => Some("FROM must be `FROM IMAGE` or `FROM IMAGE AS NAME`".to_owned()),
        },
        "COPY" | "ADD" => {
            let list = super::json_list(&instruction.rest);
            let paths = list.map_or(words.len(), |list| list.len());
            (paths < 2).then(|| format!("{name} needs a source and a target"))
        }
        "SHELL" => super::json_list(&instruction.rest)
            .is_none()
            .then(|| "SHELL needs a JSON list".to_owned()),
        _ => None,
    }
}
