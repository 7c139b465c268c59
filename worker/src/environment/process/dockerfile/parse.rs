//! Lines of a Dockerfile to instructions.

use std::sync::LazyLock;

use regex::Regex;

/// One instruction with its continuation lines joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Instruction {
    /// First line, from 1.
    pub(super) line: usize,
    /// Name in capitals.
    pub(super) name: String,
    /// What follows the name.
    pub(super) rest: String,
    /// Whether a here-document belongs to it.
    pub(super) heredoc: bool,
}

/// The start of a here-document with the word that ends it.
static HEREDOC: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(?:^|\s)\d*<<(-?)["']?([A-Za-z_][A-Za-z0-9_.]*)["']?"#).expect("a pattern")
});

/// The escape character and the instructions of a Dockerfile.
pub(super) fn instructions(text: &str) -> (char, Vec<Instruction>) {
    let text = text.trim_start_matches('\u{feff}');
    let lines: Vec<&str> = text.lines().collect();
    let escape = escape(&lines);
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let first = at;
        let logical = join(&lines, &mut at, escape);
        let logical = logical.trim();
        if logical.is_empty() {
            continue;
        }
        let end = logical.find(char::is_whitespace).unwrap_or(logical.len());
        let name = logical[..end].to_ascii_uppercase();
        let rest = logical[end..].trim().to_owned();
        let can = matches!(name.as_str(), "RUN" | "COPY" | "ADD");
        let heredoc = can && skip_heredocs(&rest, &lines, &mut at);
        found.push(Instruction { line: first + 1, name, rest, heredoc });
    }
    (escape, found)
}

/// The escape character, which a directive at the very start may change.
fn escape(lines: &[&str]) -> char {
    for line in lines {
        let Some((key, value)) = line.trim().strip_prefix('#').and_then(|l| l.split_once('='))
        else {
            break;
        };
        match (key.trim().to_ascii_lowercase().as_str(), value.trim()) {
            ("escape", "`") => return '`',
            ("syntax" | "check" | "escape", _) => {}
            _ => break,
        }
    }
    '\\'
}

/// Joins the line at `at` with those that continue it. Comments and empty lines between them do not
/// count.
fn join(lines: &[&str], at: &mut usize, escape: char) -> String {
    let mut logical = String::new();
    while let Some(line) = lines.get(*at) {
        *at += 1;
        if line.trim_start().starts_with('#') || line.trim().is_empty() {
            if logical.is_empty() {
                break;
            }
            continue;
        }
        match line.trim_end().strip_suffix(escape) {
            Some(begun) => {
                logical.push_str(begun);
                // Something is begun even when nothing stands before the escape character.
                if logical.is_empty() {
                    logical.push(' ');
                }
            }
            None => {
                logical.push_str(line);
                break;
            }
        }
    }
    logical
}

/// Moves `at` behind the here-documents that `rest` begins; whether there are any.
fn skip_heredocs(rest: &str, lines: &[&str], at: &mut usize) -> bool {
    let mut any = false;
    for begun in HEREDOC.captures_iter(rest) {
        let (tabs, word) = (!begun[1].is_empty(), &begun[2]);
        let ends = |line: &&str| {
            let line = if tabs { line.trim_start_matches('\t') } else { line };
            line == word
        };
        if let Some(length) = lines[*at..].iter().position(ends) {
            *at += length + 1;
            any = true;
        }
    }
    any
}
