//! Parser from lines of a Dockerfile to directives and instructions.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::words;

/// A parsed Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerfile {
    /// The frontend that `# syntax=` names, with its line.
    pub syntax: Option<(usize, String)>,
    /// The escape character.
    pub escape: char,
    /// The instructions, in order.
    pub instructions: Vec<DockerfileInstruction>,
    /// Violations of the grammar, in order.
    pub problems: Vec<DockerfileProblem>,
}

/// One instruction with its continuation lines joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerfileInstruction {
    /// First line, from 1.
    pub line: usize,
    /// Name in upper case.
    pub name: String,
    /// Words before the arguments that begin with `--`.
    pub flags: Vec<String>,
    /// The arguments as written.
    pub rest: String,
    /// Number of here-documents that belong to it.
    pub heredocs: usize,
    /// Its byte range in the file, without its here-documents.
    pub(super) span: Range<usize>,
    /// The first character of its name, its flags and the blanks around them that is not ASCII, or a control
    /// character but a tab.
    pub(super) odd_head: Option<char>,
    /// Whether it ends in two escape characters, which continue the line for old builders.
    pub(super) ends_in_two_escapes: bool,
}

/// The way in which a builder takes the lines of a Dockerfile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineRules {
    Current,
    /// It knows no here-documents, as those of Docker before 23.
    WithoutHeredocs,
    /// The same, and two escape characters at the end of a line continue the line, as one does.
    WithTwoEscapes,
}

/// A line that no builder accepts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct DockerfileProblem {
    /// The line, from 1.
    pub line: usize,
    /// The reason.
    pub message: String,
}

/// A directive. A line with any other name is a comment and ends the directives.
static DIRECTIVE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+?)\s*$").expect("a pattern")
});

/// A word that begins a here-document.
static HEREDOC: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^[0-9]*<<(-?)[ \t\r]*([^<]+)$").expect("a pattern"));

/// A line of the file and its start.
#[derive(Clone, Copy)]
struct DockerfileLine<'a> {
    at: usize,
    text: &'a str,
}

impl DockerfileInstruction {
    /// The arguments: a JSON list, or words.
    pub fn words(&self) -> Vec<String> {
        super::json_list(&self.rest)
            .unwrap_or_else(|| self.rest.split_whitespace().map(str::to_owned).collect())
    }

    /// The instruction that `ONBUILD` delays.
    pub(super) fn trigger(&self) -> Option<Self> {
        if self.name != "ONBUILD" {
            return None;
        }
        let text = self.rest.trim();
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        let (flags, rest) = split_flags(text[end..].trim());
        Some(Self {
            name: text[..end].to_ascii_uppercase(),
            flags,
            rest: rest.to_owned(),
            odd_head: self.odd_head.or_else(|| odd_character(&text[..text.len() - rest.len()])),
            ..self.clone()
        })
    }
}

impl Dockerfile {
    /// Reads a Dockerfile. Lines that do not follow the grammar become [`DockerfileProblem`]s.
    pub fn read(text: &str) -> Self {
        Self::read_as(text, LineRules::Current)
    }

    /// Reads a Dockerfile as a builder with these rules.
    pub(super) fn read_as(text: &str, rules: LineRules) -> Self {
        let lines = lines(text);
        let mut file =
            Self { syntax: None, escape: '\\', instructions: Vec::new(), problems: Vec::new() };
        file.directives(&lines);
        let mut next = 0;
        while next < lines.len() {
            file.instruction(&lines, &mut next, rules);
        }
        super::rules::check(&mut file);
        file.problems.sort_by_key(|problem| problem.line);
        file
    }

    /// Whether an instruction has a here-document.
    pub fn has_heredocs(&self) -> bool {
        self.instructions.iter().any(|instruction| instruction.heredocs > 0)
    }

    /// Whether a command has a mount, also one of a trigger.
    pub fn has_mounts(&self) -> bool {
        let has_mount =
            |one: &DockerfileInstruction| one.flags.iter().any(|flag| flag.starts_with("--mount"));
        let mut all = self.instructions.iter();
        all.any(|one| has_mount(one) || one.trigger().is_some_and(|inner| has_mount(&inner)))
    }

    pub(super) fn problem(&mut self, line: usize, message: impl Into<String>) {
        self.problems.push(DockerfileProblem { line, message: message.into() });
    }

    fn directives(&mut self, lines: &[DockerfileLine<'_>]) {
        let mut seen: Vec<String> = Vec::new();
        // The first line may name an interpreter.
        let skipped = usize::from(lines.first().is_some_and(|line| line.text.starts_with("#!")));
        for (index, line) in lines.iter().enumerate().skip(skipped) {
            let Some(found) = DIRECTIVE.captures(line.text.trim_end()) else { break };
            let (name, value) = (found[1].to_ascii_lowercase(), &found[2]);
            if !["escape", "syntax", "check"].contains(&name.as_str()) {
                break;
            }
            if seen.contains(&name) {
                self.problem(index + 1, format!("duplicate directive `{name}`"));
                continue;
            }
            match (name.as_str(), value) {
                ("syntax", image) => {
                    let image = image.split_whitespace().next().unwrap_or_default();
                    self.syntax = Some((index + 1, image.to_owned()));
                }
                ("escape", "`") => self.escape = '`',
                ("escape", "\\") | ("check", _) => {}
                _ => self.problem(index + 1, format!("`{value}` cannot be the escape character")),
            }
            seen.push(name);
        }
    }

    /// Reads the instruction that begins at `next`, if one does, and advances past it.
    fn instruction(&mut self, lines: &[DockerfileLine<'_>], next: &mut usize, rules: LineRules) {
        let first = *next;
        let JoinedLines { text, two_escapes } = join(lines, next, self.escape, rules);
        let logical = text.trim();
        if logical.is_empty() {
            return;
        }
        let end = logical.find(char::is_whitespace).unwrap_or(logical.len());
        let name = logical[..end].to_ascii_uppercase();
        let (flags, rest) = split_flags(logical[end..].trim());
        // It is the end of the trimmed text.
        let head = &text[..text.trim_end().len() - rest.len()];
        let last = lines[*next - 1];
        let span = lines[first].at..last.at + last.text.len();
        let mut heredocs = 0;
        let begun = match rules {
            LineRules::Current => parse_heredocs(&name, rest, self.escape),
            LineRules::WithoutHeredocs | LineRules::WithTwoEscapes => Vec::new(),
        };
        for (tabs, word) in begun {
            let ends = |line: &DockerfileLine<'_>| {
                let text = line.text.trim_end_matches(['\n', '\r']);
                let text = if tabs { text.trim_start_matches('\t') } else { text };
                text == word
            };
            match lines[*next..].iter().position(ends) {
                Some(length) => *next += length + 1,
                None => {
                    self.problem(first + 1, format!("the here-document `{word}` is not closed"));
                    *next = lines.len();
                }
            }
            heredocs += 1;
        }
        self.instructions.push(DockerfileInstruction {
            line: first + 1,
            name,
            flags,
            rest: rest.to_owned(),
            heredocs,
            span,
            odd_head: odd_character(head),
            // Without here-documents, their lines are no instructions of the author.
            ends_in_two_escapes: two_escapes && rules == LineRules::Current,
        });
    }
}

fn lines(text: &str) -> Vec<DockerfileLine<'_>> {
    let begin = text.len() - text.trim_start_matches('\u{feff}').len();
    let mut at = begin;
    let lines = text[begin..].split_inclusive('\n').map(|text| {
        let line = DockerfileLine { at, text };
        at += text.len();
        line
    });
    lines.collect()
}

/// A line with its continuation lines.
struct JoinedLines {
    text: String,
    /// Whether one of them ends in two escape characters.
    two_escapes: bool,
}

/// Joins the line at `next` with its continuation lines. Comments and empty lines between them are
/// skipped. A line is continued by one escape character at its end, for some builders also by two.
fn join(
    lines: &[DockerfileLine<'_>],
    next: &mut usize,
    escape: char,
    rules: LineRules,
) -> JoinedLines {
    let mut logical = String::new();
    let (mut begun, mut two_escapes) = (false, false);
    while let Some(line) = lines.get(*next) {
        *next += 1;
        let text = line.text.trim_end_matches(['\n', '\r']);
        if text.trim_start().starts_with('#') || text.trim().is_empty() {
            if begun {
                continue;
            }
            break;
        }
        let ended = text.trim_end_matches([' ', '\t']).strip_suffix(escape);
        let is_double = ended.is_some_and(|rest| rest.ends_with(escape));
        two_escapes |= is_double;
        match ended.filter(|_| !is_double || rules == LineRules::WithTwoEscapes) {
            Some(rest) => logical.push_str(rest),
            None => {
                logical.push_str(text);
                break;
            }
        }
        begun = true;
    }
    JoinedLines { text: logical, two_escapes }
}

fn odd_character(text: &str) -> Option<char> {
    text.chars().find(|c| !c.is_ascii_graphic() && !matches!(c, ' ' | '\t'))
}

/// The flags before the arguments, and the arguments.
fn split_flags(text: &str) -> (Vec<String>, &str) {
    let (mut flags, mut rest) = (Vec::new(), text);
    while rest.starts_with("--") {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        flags.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    (flags, rest)
}

/// The instruction that can have here-documents, and its arguments: that of a trigger of `ONBUILD`, or
/// the instruction itself. A JSON list has none.
fn with_heredocs<'a>(name: &str, rest: &'a str) -> Option<&'a str> {
    let (name, rest) = match (name, rest.split_once(char::is_whitespace)) {
        ("ONBUILD", Some((inner, rest))) => {
            (inner.to_ascii_uppercase(), split_flags(rest.trim()).1)
        }
        _ => (name.to_owned(), rest),
    };
    let can = matches!(name.as_str(), "RUN" | "COPY" | "ADD");
    (can && super::json_list(rest).is_none()).then_some(rest)
}

/// The here-documents that an instruction begins: whether leading tabs are stripped, and the word
/// that ends them. They are separate words; a JSON list has none.
fn parse_heredocs(name: &str, rest: &str, escape: char) -> Vec<(bool, String)> {
    let Some(rest) = with_heredocs(name, rest) else { return Vec::new() };
    let words = words::split_command(rest, escape);
    let begun = words.iter().filter_map(|word| HEREDOC.captures(word));
    let found = begun.map(|found| (!found[1].is_empty(), found[2].replace(['"', '\''], "")));
    found.filter(|(_, word)| !word.is_empty()).collect()
}
