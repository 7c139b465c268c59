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
use self::unclear::UnclearPart;
use super::parse::{Dockerfile, DockerfileInstruction};
use super::{images, rules, words};

/// A place with such a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnclearPlace {
    /// The line, from 1.
    pub(super) line: usize,
    /// The instruction or directive.
    pub(super) key: String,
    pub(super) form: UnclearForm,
    /// The text that has the form, shortened; empty if the form says it all.
    pub(super) written: String,
}

impl UnclearPlace {
    fn of(instruction: &DockerfileInstruction, part: UnclearPart) -> Self {
        let UnclearPart { form, written } = part;
        Self { line: instruction.line, key: instruction.name.clone(), form, written }
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
    let unclear = each.filter_map(|one| Some(UnclearPlace::of(one, unclear_part(one)?)));
    unclear.chain(unclear_arguments(file)).collect()
}

fn unclear_part(instruction: &DockerfileInstruction) -> Option<UnclearPart> {
    let (name, rest) = (instruction.name.as_str(), instruction.rest.as_str());
    if let Some(odd) = instruction.odd_head {
        return Some(UnclearPart::new(UnclearForm::Head, &odd.to_string()));
    }
    if instruction.ends_in_two_escapes {
        return Some(UnclearPart::new(UnclearForm::Continuation, ""));
    }
    let mut flags = instruction.flags.iter();
    if matches!(name, "FROM" | "RUN" | "COPY" | "ADD")
        && let Some(part) =
            flags.find_map(|flag| flag_part(flag, |flag| flags::unclear_flag(name, flag)))
    {
        return Some(part);
    }
    if let Some(part) = second_flag(instruction) {
        return Some(part);
    }
    match name {
        "FROM" => unclear_image(rest).or_else(|| {
            let mut flags = instruction.flags.iter();
            let of_builder = |flag: &str| variables(flag).any(is_of_builder);
            flags.find_map(|flag| {
                flag_part(flag, |flag| of_builder(flag).then_some(UnclearForm::BuilderVariable))
            })
        }),
        "ADD" | "COPY" => unclear_paths(rest),
        "RUN" if rest.contains("<<") && super::json_list(rest).is_none() => {
            let part = heredocs::unclear_part(rest)?;
            Some(UnclearPart::new(UnclearForm::HereDocument, &part))
        }
        "ONBUILD" => {
            let inner = instruction.trigger()?;
            if inner.name == "ONBUILD" {
                return Some(UnclearPart::new(UnclearForm::Trigger, ""));
            }
            unclear_part(&inner)
        }
        // Others fetch nothing and have no here-documents.
        _ => None,
    }
}

/// A second flag of a `FROM`, which some builders refuse and others take in the place of the first.
fn second_flag(instruction: &DockerfileInstruction) -> Option<UnclearPart> {
    let second = instruction.flags.get(1).filter(|_| instruction.name == "FROM")?;
    Some(UnclearPart::new(UnclearForm::Flag, second))
}

fn flag_part(flag: &str, unclear: impl Fn(&str) -> Option<UnclearForm>) -> Option<UnclearPart> {
    unclear(flag).map(|form| UnclearPart::new(form, flag))
}

fn unclear_image(rest: &str) -> Option<UnclearPart> {
    if !rest.is_ascii() {
        return Some(UnclearPart::new(UnclearForm::BaseImage, rest));
    }
    let image = blank_separated(rest).next()?;
    if !IMAGE.is_match(image) {
        return Some(UnclearPart::new(UnclearForm::BaseImage, image));
    }
    if variables(image).any(is_of_builder) {
        return Some(UnclearPart::new(UnclearForm::BuilderVariable, image));
    }
    let after: Vec<&str> = blank_separated(rest).skip(1).collect();
    let is_plain = match after.as_slice() {
        [] => true,
        [word, name] => word.eq_ignore_ascii_case("as") && images::is_stage_name(name),
        _ => false,
    };
    (!is_plain).then(|| UnclearPart::new(UnclearForm::StageName, &after.join(" ")))
}

fn unclear_paths(rest: &str) -> Option<UnclearPart> {
    if rest.starts_with('[') && rest.contains('"') {
        let list = super::json_list(rest).filter(|_| !rest.contains('\\'));
        let Some(list) = list else { return Some(UnclearPart::new(UnclearForm::List, rest)) };
        let odd = list.iter().find(|path| !is_plain_path(&LISTED_PATH, path));
        return odd.map(|path| UnclearPart::new(UnclearForm::Word, path));
    }
    blank_separated(rest).find_map(|word| {
        let form = match word.contains("<<") {
            true if heredocs::is_plain_operator(word) => return None,
            true => UnclearForm::HereDocument,
            false if is_plain_path(&PATH, word) => return None,
            false => UnclearForm::Word,
        };
        Some(UnclearPart::new(form, word))
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

/// Whether builds have an argument of a platform: an `ARG` changes its value for some builders alone.
fn is_of_platform(name: &str) -> bool {
    let part = name.strip_prefix("TARGET").or_else(|| name.strip_prefix("BUILD"));
    part.is_some_and(|part| matches!(part, "PLATFORM" | "OS" | "ARCH" | "VARIANT"))
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
            let part = UnclearPart::new(UnclearForm::Argument, &argument.rest);
            found.push(UnclearPlace::of(argument, part));
            continue;
        }
        let parts = unclear_values(&words::split(&argument.rest, file.escape), &mut choosing);
        found.extend(parts.into_iter().map(|part| UnclearPlace::of(argument, part)));
    }
    found
}

/// The unclear values of an `ARG` that choose an image. Their own variables choose it, too.
fn unclear_values(words: &[String], choosing: &mut HashSet<String>) -> Vec<UnclearPart> {
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
        let form = if !CHOSEN.is_match(value) {
            Some(UnclearForm::ArgumentValue)
        } else if is_of_platform(name) || variables(value).any(is_of_builder) {
            Some(UnclearForm::BuilderVariable)
        } else {
            variables(value).any(is_of_same).then_some(UnclearForm::SameArgument)
        };
        found.extend(form.map(|form| UnclearPart::new(form, &words[index])));
        choosing.extend(variables(value).map(str::to_owned));
    }
    found
}

/// The place of a here-document that a frontend reads as instructions.
pub(super) fn heredoc_of_old_frontend(
    instruction: &DockerfileInstruction,
    frontend: &str,
) -> UnclearPlace {
    UnclearPlace::of(instruction, UnclearPart::new(UnclearForm::OldFrontend, frontend))
}

/// The place of an image whose name, with its variables replaced, is not plain.
pub(super) fn unclear_name(line: usize, image: &str) -> Option<UnclearPlace> {
    let UnclearPart { form, written } = UnclearPart::new(UnclearForm::ImageName, image);
    let place = || UnclearPlace { line, key: "FROM".to_owned(), form, written };
    (!REFERENCE.is_match(image)).then(place)
}

/// The places that may hide a source from builders that read lines in another way. A line of a script may look
/// like an instruction there.
pub(super) fn unclear_lines(file: &Dockerfile) -> Vec<UnclearPlace> {
    let each = file.instructions.iter();
    let unclear = each.filter_map(|one| Some(UnclearPlace::of(one, unclear_line(one)?)));
    unclear.chain(unclear_arguments(file)).collect()
}

fn unclear_line(instruction: &DockerfileInstruction) -> Option<UnclearPart> {
    let name = instruction.name.as_str();
    // A word that is no instruction for any builder.
    if name.is_ascii() && rules::flags_of(name).is_none() {
        return None;
    }
    let mut flags = instruction.flags.iter();
    let of_line = |flag: &str| flags::unclear_flag_of_line(name, flag);
    if let Some(part) = flags.find_map(|flag| flag_part(flag, of_line)) {
        return Some(part);
    }
    if let Some(odd) = instruction.odd_head
        && !instruction.flags.is_empty()
    {
        return Some(UnclearPart::new(UnclearForm::Flag, &odd.to_string()));
    }
    if let Some(inner) = instruction.trigger() {
        return match inner.name.as_str() {
            "ONBUILD" => Some(UnclearPart::new(UnclearForm::Trigger, "")),
            _ => unclear_line(&inner),
        };
    }
    if name == "FROM" {
        return second_flag(instruction).or_else(|| unclear_variables(&instruction.rest));
    }
    let is_copy = matches!(name, "ADD" | "COPY");
    let is_list = is_copy && super::may_be_json_list(&instruction.rest);
    is_list.then(|| UnclearPart::new(UnclearForm::List, &instruction.rest))
}

/// The image of a line that may be one of a script, if it has variables that builders read in different ways.
fn unclear_variables(rest: &str) -> Option<UnclearPart> {
    let image = blank_separated(rest).next().filter(|image| image.contains('$'))?;
    let form = match IMAGE.is_match(image) {
        false => UnclearForm::BaseImage,
        true if variables(image).any(is_of_builder) => UnclearForm::BuilderVariable,
        true => return None,
    };
    Some(UnclearPart::new(form, image))
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
