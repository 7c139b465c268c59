//! `<<` in commands: here-documents that all builders find and end alike.

use std::sync::LazyLock;

use regex::Regex;

use super::{VARIABLE, pattern};
use crate::dockerfile::words;

/// The word that ends a here-document.
const NAME: &str =
    r#"(?:[A-Za-z_][A-Za-z0-9_.-]*|"[A-Za-z_][A-Za-z0-9_.-]*"|'[A-Za-z_][A-Za-z0-9_.-]*')"#;

/// A word that begins a here-document in a command.
static HEREDOC: LazyLock<Regex> = LazyLock::new(|| pattern(&format!(r"^[0-9]*<<-?[ \t]*{NAME}$")));

/// An operator without a word, which begins none for any builder.
static EMPTY: LazyLock<Regex> = LazyLock::new(|| pattern(r#"^[0-9]*<<-?(?:""|'')$"#));

/// A word that begins a here-document among paths.
static OPERATOR: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("^<<-?{NAME}$")));

/// A `<<` that is no part of `<<<`, with which no builder begins a here-document.
static MAY_BEGIN: LazyLock<Regex> = LazyLock::new(|| pattern("(?:^|[^<])<<(?:[^<]|$)|<<<<"));

/// A command whose quotes are closed.
static CLOSED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"(?s)^(?:[^"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')*$"#));

/// A part of a word that is quoted or escaped.
static QUOTED: LazyLock<Regex> = LazyLock::new(|| pattern(r#"(?s)\\.|"(?:[^"\\]|\\.)*"|'[^']*'"#));

/// A substitution without quotes, escapes and `<` inside.
static SUBSTITUTION: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("^{VARIABLE}")));

/// Whether a word among paths begins a plain here-document.
pub(super) fn is_plain_operator(word: &str) -> bool {
    OPERATOR.is_match(word)
}

/// The part of a command with `<<` for which builders find different here-documents.
pub(super) fn unclear_part(command: &str) -> Option<String> {
    if !MAY_BEGIN.is_match(command) {
        return None;
    }
    if !CLOSED.is_match(command) || crate::dockerfile::may_be_json_list(command) {
        return Some(command.to_owned());
    }
    let is_odd = |c: &char| c.is_whitespace() && !matches!(c, ' ' | '\t');
    if let Some(odd) = command.chars().find(is_odd) {
        return Some(odd.to_string());
    }
    let mut substitutions = command.match_indices("${").map(|(at, _)| &command[at..]);
    if let Some(odd) = substitutions.find(|begun| !SUBSTITUTION.is_match(begun)) {
        return odd.split_inclusive('}').next().map(str::to_owned);
    }
    words::split_command(command, '\\').into_iter().find(|word| !is_plain_word(word))
}

fn is_plain_word(word: &str) -> bool {
    // Quotes and escapes end no word, and are no operators.
    let bare = QUOTED.replace_all(word, "\"");
    let Some(at) = bare.find("<<") else { return true };
    let (before, operator) = bare.split_at(at);
    if HEREDOC.is_match(word) || EMPTY.is_match(word) {
        return true;
    }
    match before.bytes().all(|byte| byte.is_ascii_digit()) {
        // `<<<` begins a text for all.
        true => operator.starts_with("<<<"),
        // Other words begin none, unless a builder removes what stands before `<<`.
        false => !before.replace("$(", "(").contains(['"', '$', '}']),
    }
}
