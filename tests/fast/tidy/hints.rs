//! Rule on hints: a text names the command that it means.

use regex::Regex;

use crate::files::SourceFile;
use crate::{Violation, assert_none, files};

/// A command that a reader has to remember, also over the end of a line.
const UNNAMED: &str = r"(?i)\bsame[\s\\]+command\b";

/// Texts of the program and of documents that name no command.
fn unnamed_commands(source: &SourceFile) -> Vec<Violation> {
    let is_read = source.is_rust() || source.path.ends_with(".md");
    if source.is_test() || !is_read {
        return Vec::new();
    }
    let pattern = Regex::new(UNNAMED).expect("a pattern");
    let text = match source.text.find("\n#[cfg(test)]\nmod tests {") {
        Some(end) => &source.text[..end],
        None => source.text.as_str(),
    };
    let hit = |found: regex::Match<'_>| {
        let line = text[..found.start()].lines().count().max(1);
        Violation::new(&source.path, line, "a command without its name: print the command itself")
    };
    pattern.find_iter(text).map(hit).collect()
}

#[test]
fn hints_name_their_command() {
    assert_none(&files::all().iter().flat_map(unnamed_commands).collect::<Vec<_>>());
}

#[test]
fn hints_without_a_command_are_found() {
    let found = |path, text| unnamed_commands(&SourceFile::new(path, text)).len();
    let cut = "\"run the same \\\n     command again\"";
    for (path, text) in [
        ("docs/running.md", "Give the same command again."),
        ("docs/running.md", "Give the same\ncommand again."),
        ("coordinator/src/cli/run.rs", cut),
        ("coordinator/src/cli/run.rs", "\n#[cfg(test)]\nmod tests;\n// the same command"),
    ] {
        assert_eq!(found(path, text), 1, "{path}: {text}");
    }
    for (path, text) in [
        ("coordinator/src/cli/tests.rs", "// the same command"),
        ("coordinator/src/cli/run.rs", "\n#[cfg(test)]\nmod tests { /* the same command */ }"),
        ("docs/running.md", "`rollout resume DIR`, from the same commander"),
    ] {
        assert_eq!(found(path, text), 0, "{path}: {text}");
    }
}
