//! The forms of Dockerfiles that all builders read alike. Builders differ in where words, flags, lines and
//! here-documents end, so what may be read in another way is told by a grammar of what is plain, not by a
//! copy of one builder.
//!
//! * `flags`: flags of instructions.
//! * `head`: the lines before the first instruction, and the characters of the text.
//! * `heredocs`: `<<` in commands and among paths.
//! * `unclear`: the other forms, and what to write instead.

mod flags;
mod head;
mod heredocs;
mod unclear;

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use regex::Regex;

pub(super) use self::head::unclear_text;
pub use self::unclear::UnclearForm;
use super::parse::{Dockerfile, DockerfileInstruction};
use super::words;

/// A place with such a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnclearPlace {
    /// The line, from 1.
    pub(super) line: usize,
    /// The instruction or directive.
    pub(super) key: String,
    pub(super) form: UnclearForm,
}

impl UnclearPlace {
    pub(super) fn of(instruction: &DockerfileInstruction, form: UnclearForm) -> Self {
        Self { line: instruction.line, key: instruction.name.clone(), form }
    }
}

/// A variable in a form that all builders substitute alike. The word after `:-` or `:+` may have others.
const VARIABLE: &str = concat!(
    r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*(?::[-+](?:[A-Za-z0-9._/@:+~-]",
    r"|\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\})*)?\})"
);

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern")
}

/// The name of an image, or of a stage.
static REFERENCE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^[A-Za-z0-9\[][A-Za-z0-9._/@:\[\]-]*$"));

/// The image of a `FROM`.
static IMAGE: LazyLock<Regex> = LazyLock::new(|| pattern(&quoted(r"[A-Za-z0-9._/@:\[\]-]")));

/// Words of these characters and of variables, with quotes around them or around parts of them. Builders split
/// words at blanks, also in quotes, and then remove the quotes.
fn quoted(plain: &str) -> String {
    let part = format!("{plain}|{VARIABLE}");
    format!(r#"^(?:{part}|"(?:{part})*"|'{plain}*')+$"#)
}

/// The value of an argument that chooses an image.
static CHOSEN: LazyLock<Regex> = LazyLock::new(|| {
    let plain = r"[A-Za-z0-9._/@:\[\]+~-]";
    let word = format!("(?:{plain}|{VARIABLE})*");
    pattern(&format!(r#"^(?:{word}|"{word}"|'{plain}*')$"#))
});

/// The names of the variables of a word.
static NAMES: LazyLock<Regex> = LazyLock::new(|| pattern(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)"));

/// The arguments of an `ARG`.
static ARGUMENTS: LazyLock<Regex> = LazyLock::new(|| {
    let value = r#"(?:[^\s"'\\]|"[^"\\]*"|'[^'\\]*')*"#;
    let one = format!("[A-Za-z_][A-Za-z0-9_]*(?:={value})?");
    pattern(&format!(r"^{one}(?:[ \t]+{one})*$"))
});

/// The characters of paths: those of words in all languages, and others that no builder replaces.
const PATH_CHARACTERS: &str = r"\w./@:+~*?=,%!#&()\[\]{}^-";

/// A source or the target of `ADD` and `COPY`.
static PATH: LazyLock<Regex> = LazyLock::new(|| pattern(&quoted(&format!("[{PATH_CHARACTERS}]"))));

/// The same in a list.
static LISTED_PATH: LazyLock<Regex> =
    LazyLock::new(|| pattern(&format!("^(?:[ {PATH_CHARACTERS}]|{VARIABLE})*$")));

/// A variable whose name some builders take to go on.
static LONGER_NAME: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"\$[A-Za-z_][A-Za-z0-9_]*[\w&&[^\x00-\x7F]]"));

/// The places of a Dockerfile, as current builders read its lines, with another form than the plain ones.
pub(super) fn unclear_places(file: &Dockerfile) -> Vec<UnclearPlace> {
    let each = file.instructions.iter();
    let unclear = each.filter_map(|one| Some(UnclearPlace::of(one, unclear_form(one)?)));
    unclear.chain(unclear_arguments(file)).collect()
}

fn unclear_form(instruction: &DockerfileInstruction) -> Option<UnclearForm> {
    let (name, rest) = (instruction.name.as_str(), instruction.rest.as_str());
    if !instruction.has_plain_head {
        return Some(UnclearForm::Head);
    }
    if instruction.ends_in_two_escapes {
        return Some(UnclearForm::Continuation);
    }
    if matches!(name, "FROM" | "RUN" | "COPY" | "ADD")
        && let Some(form) = instruction.flags.iter().find_map(|flag| flags::unclear_flag(flag))
    {
        return Some(form);
    }
    match name {
        "FROM" => unclear_image(rest).or_else(|| {
            let mut variables = instruction.flags.iter().flat_map(|flag| variables(flag));
            variables.any(is_of_builder).then_some(UnclearForm::BuilderVariable)
        }),
        "ADD" | "COPY" => unclear_paths(rest),
        "RUN" => {
            let is_list = super::json_list(rest).is_some();
            let is_plain = is_list || !rest.contains("<<") || heredocs::are_plain(rest);
            (!is_plain).then_some(UnclearForm::HereDocument)
        }
        "ONBUILD" => {
            let inner = instruction.trigger()?;
            if inner.name == "ONBUILD" {
                return Some(UnclearForm::Trigger);
            }
            unclear_form(&inner)
        }
        // Others fetch nothing and have no here-documents.
        _ => None,
    }
}

fn unclear_image(rest: &str) -> Option<UnclearForm> {
    let image = blank_separated(rest).next()?;
    if !rest.is_ascii() || !IMAGE.is_match(image) {
        return Some(UnclearForm::BaseImage);
    }
    variables(image).any(is_of_builder).then_some(UnclearForm::BuilderVariable)
}

fn unclear_paths(rest: &str) -> Option<UnclearForm> {
    if rest.starts_with('[') && rest.contains('"') {
        let list = super::json_list(rest).filter(|_| !rest.contains('\\'));
        let Some(list) = list else { return Some(UnclearForm::List) };
        let is_plain = list.iter().all(|path| is_plain_path(&LISTED_PATH, path));
        return (!is_plain).then_some(UnclearForm::Word);
    }
    blank_separated(rest).find_map(|word| match word.contains("<<") {
        true if heredocs::is_plain_operator(word) => None,
        true => Some(UnclearForm::HereDocument),
        false => (!is_plain_path(&PATH, word)).then_some(UnclearForm::Word),
    })
}

fn is_plain_path(form: &Regex, path: &str) -> bool {
    form.is_match(path) && !LONGER_NAME.is_match(path)
}

/// The words of arguments that have no quotes or escapes.
pub(super) fn blank_separated(text: &str) -> impl Iterator<Item = &str> {
    text.split([' ', '\t']).filter(|word| !word.is_empty())
}

fn variables(word: &str) -> impl Iterator<Item = &str> {
    NAMES.captures_iter(word).filter_map(|found| found.get(1)).map(|name| name.as_str())
}

/// Whether builds have a variable without an `ARG` of the file that sets it, or with a value that is not
/// known here.
fn is_of_builder(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    name.ends_with("_PROXY")
        || name.starts_with("BUILDKIT_")
        || matches!(
            name.as_str(),
            "TARGETSTAGE" | "TARGETOSVERSION" | "BUILDOSVERSION" | "SOURCE_DATE_EPOCH"
        )
}

/// The arguments before the first `FROM` that are not plain, or that choose an image or its platform and have
/// no plain value.
fn unclear_arguments(file: &Dockerfile) -> Vec<UnclearPlace> {
    let each = file.instructions.iter();
    let images = each.clone().filter(|one| one.name == "FROM").flat_map(|one| {
        let flags = one.flags.iter().map(String::as_str);
        flags.chain(blank_separated(&one.rest).next())
    });
    let mut choosing: HashSet<String> = images.flat_map(variables).map(str::to_owned).collect();
    let before = each.take_while(|one| one.name != "FROM");
    let arguments: Vec<_> = before.filter(|one| one.name == "ARG").collect();
    let mut found = Vec::new();
    // A value has the arguments before it.
    for argument in arguments.into_iter().rev() {
        if !ARGUMENTS.is_match(&argument.rest) {
            found.push(UnclearPlace::of(argument, UnclearForm::Argument));
            continue;
        }
        let forms = unclear_values(&words::split(&argument.rest, file.escape), &mut choosing);
        found.extend(forms.into_iter().map(|form| UnclearPlace::of(argument, form)));
    }
    found
}

/// The forms of the values of an `ARG` that choose an image, whose own variables choose it, too.
fn unclear_values(words: &[String], choosing: &mut HashSet<String>) -> Vec<UnclearForm> {
    let parts = words.iter().map(|word| match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word.as_str(), None),
    });
    let parts: Vec<_> = parts.collect();
    let mut first = HashMap::new();
    for (index, (name, _)) in parts.iter().enumerate() {
        first.entry(*name).or_insert(index);
    }
    let mut found = Vec::new();
    for (index, (name, value)) in parts.iter().enumerate().rev() {
        let Some(value) = value.filter(|_| choosing.contains(*name)) else { continue };
        let is_of_same = |name| first.get(name).is_some_and(|first| *first < index);
        if !CHOSEN.is_match(value) {
            found.push(UnclearForm::ArgumentValue);
        } else if variables(value).any(is_of_builder) {
            found.push(UnclearForm::BuilderVariable);
        } else if variables(value).any(is_of_same) {
            found.push(UnclearForm::SameArgument);
        }
        choosing.extend(variables(value).map(str::to_owned));
    }
    found
}

/// The place of an image whose name, with its variables replaced, is not plain.
pub(super) fn unclear_name(line: usize, image: &str) -> Option<UnclearPlace> {
    let place = || UnclearPlace { line, key: "FROM".to_owned(), form: UnclearForm::ImageName };
    (!REFERENCE.is_match(image)).then(place)
}

/// A form that may hide a source from builders that read lines in another way. A line of a script may look
/// like an instruction there.
pub(super) fn unclear_line(instruction: &DockerfileInstruction) -> Option<UnclearForm> {
    let mut written = instruction.flags.iter();
    if let Some(form) = written.find_map(|flag| flags::unclear_flag_of_line(flag)) {
        return Some(form);
    }
    if !instruction.flags.is_empty() && !instruction.has_plain_head {
        return Some(UnclearForm::Flag);
    }
    if let Some(inner) = instruction.trigger() {
        return match inner.name.as_str() {
            "ONBUILD" => Some(UnclearForm::Trigger),
            _ => unclear_line(&inner),
        };
    }
    let is_copy = matches!(instruction.name.as_str(), "ADD" | "COPY");
    (is_copy && super::may_be_json_list(&instruction.rest)).then_some(UnclearForm::List)
}

#[cfg(test)]
mod tests;
