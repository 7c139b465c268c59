//! The reason of a failed build in its builder's own words. Words of a task in an error, such as a command or a
//! path, say nothing about the engine.

use std::sync::LazyLock;

use regex::Regex;

/// Texts of clients and builders before an error, in any order and number.
static PREFIXES: LazyLock<Regex> = LazyLock::new(|| {
    let texts = [
        "(?i:error): ",
        "#[0-9]+ ",
        "Error response from daemon: ",
        r#"time="?[^" ]*"? level=[a-z]+ msg="?"#,
        r"failed to solve(?: with frontend \S+)?: ",
        "failed to build LLB: ",
        "failed to create LLB definition: ",
        "rpc error: code = [A-Za-z]+ desc = ",
        "Cannot start container [0-9a-f]+: ",
    ];
    pattern(&format!("^(?:{})+", texts.join("|")))
});

/// The command of a failed step, with quotes escaped.
static COMMAND: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"(?s)^process "(?:[^"\\]|\\.)*" did not complete successfully: "#));

/// Beginnings of errors that have the text of a step as it is, and the text that ends it.
const STEPS: [(&str, &str); 2] =
    [("executor failed running [", "]: "), ("building at STEP \"", "\": ")];

/// Errors about a command, the Dockerfile or a file of the task.
static OF_TASK: LazyLock<Regex> = LazyLock::new(|| {
    let texts = [
        "The command '.*' returned a non-zero code: [0-9]+$",
        "(?i:dockerfile) parse error ",
        "(?:COPY|ADD) failed: (?:file not found in build context|no source files|forbidden path)",
        "(?:COPY|ADD) failed: stat .*: (?:no such file or directory|not a directory)$",
    ];
    pattern(&format!("(?s)^(?:{})", texts.join("|")))
});

/// A path in a context, which builders show in quotes.
static PATH: LazyLock<Regex> = LazyLock::new(|| pattern(r#"(?s)"/(?:[^"\\]|\\.)*""#));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern")
}

/// The builder's own words in an error, from their beginning. They are empty if the error is about the task.
pub(super) fn own_words(error: &str) -> String {
    let error = error.trim();
    let begun = PREFIXES.find(error).map_or(error, |prefixes| &error[prefixes.end()..]);
    if OF_TASK.is_match(begun) {
        return String::new();
    }
    PATH.replace_all(after_step(begun), "\"\"").into_owned()
}

fn after_step(error: &str) -> &str {
    if let Some(command) = COMMAND.find(error) {
        return &error[command.end()..];
    }
    let Some((_, end)) = STEPS.into_iter().find(|(begin, _)| error.starts_with(begin)) else {
        return error;
    };
    // A step may have this text itself. A reason has it only with an odd name of a user: its words are then
    // taken for the builder's, and the build is tried again.
    error.rsplit_once(end).map_or("", |(_, reason)| reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING: &str = "failed to create endpoint x on network bridge: adding interface veth1 to bridge \
                           docker0 failed: could not find bridge docker0: no such network interface";

    #[test]
    fn own_words_begin_after_prefixes_and_the_step() {
        let command = r#"process "/bin/sh -c echo \"a: b\" && apt-get update" did not complete successfully: "#;
        let gateway = "failed to solve with frontend dockerfile.v0: failed to solve with frontend gateway.v0: \
                       rpc error: code = Unknown desc = failed to build LLB: ";
        for begun in [
            String::new(),
            command.to_owned(),
            format!("failed to solve: {command}"),
            format!("ERROR: failed to solve: {command}"),
            format!("error: failed to solve: {command}"),
            format!("failed to solve: rpc error: code = Unknown desc = {command}"),
            format!("#12 ERROR: {command}"),
            format!("{gateway}executor failed running [/bin/sh -c npm ci]: "),
            "failed to solve with frontend dockerfile.v0: failed to build LLB: executor failed running \
             [/bin/sh -c [ -f x ]\ny]: "
                .to_owned(),
            "Error response from daemon: ".to_owned(),
            "Cannot start container 0123456789ab: ".to_owned(),
            "time=\"2024-05-01T10:00:00Z\" level=error msg=\"".to_owned(),
            "time=2024-05-01T10:00:00Z level=error msg=".to_owned(),
            "Error: building at STEP \"RUN apk add git\": ".to_owned(),
            "building at STEP \"RUN echo '{\"a\": 1}' >f\": ".to_owned(),
            "executor failed running [/bin/sh -c echo [a]: b]: ".to_owned(),
        ] {
            assert_eq!(own_words(&format!("{begun}{MISSING}\n")), MISSING, "{begun}");
        }
    }

    #[test]
    fn words_of_a_task_are_no_words_of_a_builder() {
        let texts = ["network bridge not found", "connection refused", "no space left on device"];
        for text in texts {
            for error in [
                format!("The command '/bin/sh -c echo {text}' returned a non-zero code: 1"),
                format!("The command '/bin/sh -c echo\n{text}' returned a non-zero code: 1"),
                format!(
                    "failed to solve: process \"/bin/sh -c {text}\" did not complete successfully: x"
                ),
                format!(
                    r#"process "/bin/sh -c \" did not complete successfully: {text}" did not complete successfully: x"#
                ),
                format!(
                    "process \"sh -c \\failed to solve: \\\" did not complete successfully: {text}\" did not \
                     complete successfully: x"
                ),
                format!("executor failed running [/bin/sh -c x]: {text}]: no such file"),
                format!(
                    "building at STEP \"RUN echo \": {text}\": while running runtime: exit status 1"
                ),
                format!(
                    "failed to solve: dockerfile parse error on line 2: unknown instruction: {text}"
                ),
                format!("Dockerfile parse error line 2: unknown instruction: {text}"),
                format!("COPY failed: file not found in build context: stat {text}: no such file"),
                format!("COPY failed: stat /var/lib/docker/tmp/{text}: no such file or directory"),
                format!(
                    "failed to solve: failed to compute cache key: failed to calculate checksum of ref a::b: \
                     \"/{text}\": not found"
                ),
            ] {
                assert!(!own_words(&error).contains(text), "{error}: {}", own_words(&error));
            }
        }
    }

    #[test]
    fn words_about_registries_and_engines_stay() {
        for error in [
            "Get \"https://registry.example/v2/\": dial tcp: lookup registry.example: no such host",
            "pull access denied, repository does not exist or may require authorization",
            "connection error: desc = \"transport: dial unix:///run/containerd/containerd.sock: timeout\"",
            "mkdir /var/lib/docker/x: no space left on device",
        ] {
            assert_eq!(own_words(&format!("failed to solve: {error}")), error);
        }
    }
}
