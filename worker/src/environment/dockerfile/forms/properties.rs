//! Properties of accepted `FROM` and `ARG` lines: small readers, written from the sources of BuildKit, kaniko and
//! buildah and without this module's parser, name no image that the check does not see.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::str::Chars;

use proptest::prelude::*;

use crate::environment::dockerfile::{BuildFetchKind, Dockerfile, build_fetches};
use crate::environment::image_reference::ImageReference;

type Arguments = BTreeMap<String, String>;

/// The value of an argument that only some releases of a builder read.
const OF_SOME_RELEASES: &str = "\0";

/// A builder's way to read arguments and names of stages.
#[derive(Debug, Clone, Copy)]
struct OtherBuilder {
    /// A build argument is set without an `ARG`.
    sets_all: bool,
    /// The values of an `ARG` have the variables of those before them in it.
    in_order: bool,
    /// An `ARG` changes the arguments of platforms.
    changes_platforms: bool,
    /// A stage is known in other cases than its own.
    ignores_case: bool,
}

const BUILDKIT: OtherBuilder =
    OtherBuilder { sets_all: false, in_order: true, changes_platforms: true, ignores_case: true };
const KANIKO: OtherBuilder = OtherBuilder { sets_all: true, ..BUILDKIT };
const BUILDAH: OtherBuilder = OtherBuilder {
    sets_all: false,
    in_order: false,
    changes_platforms: false,
    ignores_case: false,
};

const BUILDERS: [OtherBuilder; 3] = [BUILDKIT, KANIKO, BUILDAH];

/// Why a text has no images for a builder.
enum Unread {
    /// It refuses the text.
    Refused,
    /// Older or newer releases of the builder read it in another way.
    OfSomeReleases,
}

impl OtherBuilder {
    /// Adds the images that it takes from a text, with the platforms of their stages, up to the first line that
    /// it does not read.
    fn add_images(
        self,
        text: &str,
        (platform, given): (&Arguments, &Arguments),
        found: &mut Vec<(String, Option<String>)>,
    ) -> Result<(), Unread> {
        let mut set = platform.clone();
        let is_set =
            |name: &str| self.sets_all || (self.changes_platforms && platform.contains_key(name));
        let before = given.iter().filter(|(name, _)| is_set(name));
        set.extend(before.map(|(name, value)| (name.clone(), value.clone())));
        let mut stages = Vec::new();
        let mut begun = false;
        for line in joined(text) {
            let (name, flags, rest) = instruction(&line)?;
            match name.as_str() {
                "ARG" if !begun => self.set_arguments(&rest, (platform, given), &mut set)?,
                "ARG" | "RUN" => {}
                "FROM" => {
                    begun = true;
                    let platform = stage_platform(&flags, &set)?;
                    let (image, stage) = image(&rest, &set)?;
                    if image.parse::<ImageReference>().is_ok()
                        && image != "scratch"
                        && !stages.contains(&image)
                    {
                        found.push((image, platform));
                    }
                    stages.extend(stage.map(|stage| match self.ignores_case {
                        true => stage.to_ascii_lowercase(),
                        false => stage,
                    }));
                }
                _ => return Err(Unread::Refused),
            }
        }
        Ok(())
    }

    fn set_arguments(
        self,
        rest: &str,
        (platform, given): (&Arguments, &Arguments),
        set: &mut Arguments,
    ) -> Result<(), Unread> {
        let known = set.clone();
        for word in quoted_words(rest) {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word.as_str(), None),
            };
            let is_kept = !self.changes_platforms && platform.contains_key(name);
            let from = if self.in_order { &*set } else { &known };
            let value = match (given.get(name), value) {
                (Some(given), _) => given.clone(),
                (None, Some(value)) if !is_kept => match expanded(value, from) {
                    Err(Unread::OfSomeReleases) => OF_SOME_RELEASES.to_owned(),
                    value => value?,
                },
                (None, _) => continue,
            };
            set.insert(name.to_owned(), value);
        }
        Ok(())
    }
}

fn stage_platform(flags: &[String], set: &Arguments) -> Result<Option<String>, Unread> {
    let mut platform = None;
    for flag in flags {
        let value = flag.strip_prefix("--platform=").ok_or(Unread::Refused)?;
        platform = Some(expanded(value, set)?);
    }
    if flags.len() > 1 || platform.as_deref() == Some("") {
        return Err(Unread::Refused);
    }
    Ok(platform)
}

/// The image and the name of a stage.
fn image(rest: &str, set: &Arguments) -> Result<(String, Option<String>), Unread> {
    let words = rest.split([' ', '\t', '\r', '\u{b}', '\u{c}']).filter(|word| !word.is_empty());
    let (image, stage) = match words.collect::<Vec<_>>().as_slice() {
        [image] => (*image, None),
        [image, word, stage] if word.eq_ignore_ascii_case("as") => (*image, Some(*stage)),
        _ => return Err(Unread::Refused),
    };
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = |stage: &str| {
        stage.starts_with(|c: char| c.is_ascii_alphabetic()) && stage.chars().all(is_part)
    };
    if !stage.is_none_or(is_name) {
        return Err(Unread::Refused);
    }
    Ok((expanded(image, set)?, stage.map(str::to_owned)))
}

/// The lines of a text with those that continue them. A line ends in one backslash and blanks, not in two.
fn joined(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut begun = String::new();
    for line in text.trim_start_matches('\u{feff}').split('\n') {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.trim_start().starts_with('#') || line.trim().is_empty() {
            continue;
        }
        let bare = line.trim_end_matches([' ', '\t']);
        match bare.strip_suffix('\\').filter(|before| !before.ends_with('\\')) {
            Some(before) => begun.push_str(before),
            None => found.push(std::mem::take(&mut begun) + line),
        }
    }
    found.extend((!begun.is_empty()).then_some(begun));
    found
}

/// The name in upper case, the flags without their quotes and escapes, and the rest. Flags are read byte by byte.
fn instruction(line: &str) -> Result<(String, Vec<String>, String), Unread> {
    let line = line.trim();
    let end = line.find([' ', '\t', '\r', '\u{b}', '\u{c}']).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let is_blank = |byte: u8| matches!(byte, b'\t'..=b'\r' | b' ' | 0x85 | 0xa0);
    let bytes = rest.as_bytes();
    let (mut flags, mut at) = (Vec::new(), 0);
    loop {
        while at < bytes.len() && is_blank(bytes[at]) {
            at += 1;
        }
        if !bytes[at..].starts_with(b"--") {
            let rest =
                String::from_utf8(bytes[at..].to_vec()).map_err(|_| Unread::OfSomeReleases)?;
            return Ok((name.to_ascii_uppercase(), flags, rest.trim().to_owned()));
        }
        let (mut flag, mut quote) = (Vec::new(), None);
        while at < bytes.len() && (quote.is_some() || !is_blank(bytes[at])) {
            match bytes[at] {
                b'\\' if at + 1 < bytes.len() => {
                    at += 1;
                    flag.push(bytes[at]);
                }
                byte if quote == Some(byte) => quote = None,
                byte @ (b'"' | b'\'') if quote.is_none() => quote = Some(byte),
                byte => flag.push(byte),
            }
            at += 1;
        }
        flags.push(String::from_utf8(flag).map_err(|_| Unread::OfSomeReleases)?);
    }
}

/// Words that end at blanks without quotes and escapes, which stay.
fn quoted_words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c.is_whitespace() && quote.is_none() {
            words.push(String::new());
            continue;
        }
        let word = words.last_mut().expect("a word");
        word.push(c);
        match c {
            '\\' if quote != Some('\'') => word.extend(chars.next()),
            c if quote == Some(c) => quote = None,
            '"' | '\'' if quote.is_none() => quote = Some(c),
            _ => {}
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn expanded(word: &str, set: &Arguments) -> Result<String, Unread> {
    let mut chars = word.chars().peekable();
    until(&mut chars, None, set)
}

/// Reads up to a character, or to the end. Double quotes are no words of their own, as in the readers.
fn until(
    chars: &mut Peekable<Chars<'_>>,
    end: Option<char>,
    set: &Arguments,
) -> Result<String, Unread> {
    let mut read = String::new();
    let mut in_quotes = false;
    while let Some(c) = chars.next() {
        match c {
            '"' => in_quotes = !in_quotes,
            c if end == Some(c) && !in_quotes => return Ok(read),
            '\'' if !in_quotes => loop {
                match chars.next().ok_or(Unread::Refused)? {
                    '\'' => break,
                    c => read.push(c),
                }
            },
            '\\' if in_quotes => match chars.next_if(|c| matches!(c, '"' | '$' | '\\')) {
                Some(c) => read.push(c),
                None => read.push('\\'),
            },
            '\\' => read.extend(chars.next()),
            '$' => read.push_str(&variable(chars, set)?),
            c => read.push(c),
        }
    }
    if in_quotes || end.is_some() { Err(Unread::Refused) } else { Ok(read) }
}

fn variable(chars: &mut Peekable<Chars<'_>>, set: &Arguments) -> Result<String, Unread> {
    let is_braced = chars.next_if_eq(&'{').is_some();
    let mut name = String::new();
    match chars.peek() {
        Some(c) if c.is_numeric() => {
            while let Some(c) = chars.next_if(|c| c.is_numeric()) {
                name.push(c);
            }
        }
        Some('@' | '*' | '#' | '?' | '-' | '$' | '!') => name.extend(chars.next()),
        _ => {
            while let Some(c) = chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                name.push(c);
            }
        }
    }
    let value = set.get(&name).cloned();
    if value.as_deref() == Some(OF_SOME_RELEASES) {
        return Err(Unread::OfSomeReleases);
    }
    if !is_braced {
        return Ok(if name.is_empty() { "$".to_owned() } else { value.unwrap_or_default() });
    }
    let is_colon = chars.next_if_eq(&':').is_some();
    let value = value.filter(|value| !(is_colon && value.is_empty()));
    match chars.next().ok_or(Unread::Refused)? {
        '}' if !is_colon && !name.is_empty() => Ok(value.unwrap_or_default()),
        '-' if is_colon => {
            let other = until(chars, Some('}'), set)?;
            Ok(value.unwrap_or(other))
        }
        '+' if is_colon => {
            let other = until(chars, Some('}'), set)?;
            Ok(value.map_or(String::new(), |_| other))
        }
        _ => Err(Unread::OfSomeReleases),
    }
}

/// Whether the check accepts a text.
///
/// # Errors
/// It does not see an image that a builder takes from the text.
fn accepted(text: &str, given: &Arguments) -> Result<bool, String> {
    let found = build_fetches(text, given);
    if found.iter().any(|fetch| fetch.kind != BuildFetchKind::Image) {
        return Ok(false);
    }
    let seen: BTreeSet<&str> = found.iter().map(|fetch| fetch.source.as_str()).collect();
    for variant in ["", "v7"] {
        let platform = [("TARGETARCH", "amd64"), ("TARGETOS", "linux"), ("TARGETVARIANT", variant)];
        let platform = platform.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        // kaniko keeps a default where the build argument is empty. It builds for no worker.
        let has_empty = given.values().any(String::is_empty);
        for builder in if has_empty { &[BUILDKIT, BUILDAH][..] } else { &BUILDERS } {
            let mut images = Vec::new();
            let read = builder.add_images(text, (&platform, given), &mut images);
            if matches!(read, Err(Unread::OfSomeReleases)) {
                return Err(format!("{builder:?} reads {text:?} in some releases alone"));
            }
            let unseen = images.iter().find(|(image, _)| !seen.contains(image.as_str()));
            if let Some(image) = unseen {
                return Err(format!(
                    "{builder:?} takes {image:?} from {text:?} with {given:?}: {seen:?}"
                ));
            }
        }
        // Builders differ in whether these build arguments count without an `ARG`.
        let is_set = platform.keys().any(|name| given.contains_key(name));
        for builder in if is_set { &[BUILDKIT][..] } else { &[BUILDKIT, BUILDAH] } {
            let mut images = Vec::new();
            let read = builder.add_images(text, (&platform, given), &mut images);
            if read.is_ok()
                && let Some(image) = other_platform(text, (platform.clone(), given), &images)
            {
                return Err(format!("{builder:?} has {image:?} from {text:?} with {given:?}"));
            }
        }
    }
    Ok(true)
}

/// An image of another platform than the one whose triggers are checked.
fn other_platform<'a>(
    text: &str,
    (mut platform, given): (Arguments, &Arguments),
    images: &'a [(String, Option<String>)],
) -> Option<&'a (String, Option<String>)> {
    let file = Dockerfile::read(text);
    for (name, value) in &mut platform {
        if let Some(given) = given.get(name) {
            value.clone_from(given);
        }
    }
    // Workers give no here-documents to a builder that takes their lines for instructions.
    if file.has_heredocs() || file.unknown_image(&platform, given).is_some() {
        return None;
    }
    let checked = file.images_of_platform(&platform, given).into_iter();
    let checked: Vec<_> = checked.map(|base| (base.image, base.platform)).collect();
    images.iter().find(|image| !checked.contains(image))
}

/// Beginnings of lines and of words.
const BEGINNINGS: &[&str] = &[
    "ARG A=",
    "ARG B=",
    "ARG A",
    "ARG A= B=",
    "ARG B=$A",
    "ARG A=\"",
    "ARG A='",
    "ARG TARGETARCH=",
    "FROM ",
    "FROM ",
    "FROM \"",
    "FROM $A",
    "FROM ${B:-",
    "FROM --platform=",
    "FROM --platform=$A ",
    "FROM a AS ",
    "FROM scratch AS base\nFROM ",
    "from ",
    "RUN ",
    "# ",
    "\\\n",
    "\n",
    "",
];

/// Parts of words: those of names, variables, quotes, escapes and blanks.
const PARTS: &[&str] = &[
    "a",
    "b/c",
    "h:5000/",
    "10.0.0.5:1/x",
    ":1",
    "@sha256:00",
    ".",
    "-",
    "_",
    "scratch",
    "Base",
    "base",
    "$A",
    "${A}",
    "${B}",
    "$B",
    "${A:-",
    "${A:+",
    "${B:-h:5000/",
    "${TARGETARCH}",
    "$TARGETVARIANT",
    "${TARGETVARIANT:+",
    "${A-",
    "${A#",
    "}",
    "}",
    "}",
    "$",
    "$$",
    "$1",
    "$*",
    "{",
    "\"",
    "\"",
    "'",
    "'",
    "\\",
    "\\\\",
    "\\\n",
    "\\ \n",
    " ",
    "\t",
    "\u{a0}",
    "\u{85}",
    "é",
    "à",
    "<<",
    "<<E",
    "[",
    "]",
    "#",
    "=",
    ",",
    "AS",
];

/// The same for lines that are mostly accepted.
const PLAIN_BEGINNINGS: &[&str] = &[
    "ARG A=",
    "ARG B=",
    "ARG A=\"",
    "ARG A B=",
    "ARG A=b B=",
    "ARG B=a A=",
    "ARG A\nARG B=",
    "ARG TARGETARCH=",
    "FROM ",
    "FROM ",
    "FROM ",
    "FROM \"",
    "FROM a AS base\nFROM ",
    "FROM scratch AS Base\nFROM ",
    "FROM --platform=linux/$TARGETARCH ",
    "ARG TARGETARCH=b\nFROM --platform=linux/$TARGETARCH ",
    "ARG A=c B=$A\nFROM $B",
    "FROM a\nFROM ",
];
const PLAIN_PARTS: &[&str] = &[
    "a",
    "b/c",
    "h:5000/x",
    "10.0.0.5:1/x",
    "$A",
    "${A}",
    "$B",
    "${B}",
    "${A:-b}",
    "${B:-h:5000/$A}",
    "${A:+c}",
    "${A:+-${B}}",
    "${B:+h:1/}",
    "$TARGETARCH",
    "${TARGETVARIANT:+h:5000/}",
    "${TARGETOS:-x}",
    "\"\"",
    "\"$A\"",
    "'b'",
    "base",
    "-",
    "\"",
    "\\\n",
    "/",
    "}",
];

/// A line of a beginning and less than `count` parts.
fn lines(
    beginnings: &'static [&'static str],
    parts: &'static [&'static str],
    count: usize,
) -> impl Strategy<Value = String> {
    let parts = prop::collection::vec(prop::sample::select(parts), 0..count);
    let line = (prop::sample::select(beginnings), parts);
    line.prop_map(|(begun, parts)| format!("{begun}{}", parts.concat()))
}

fn texts() -> impl Strategy<Value = String> {
    let line = (lines(PLAIN_BEGINNINGS, PLAIN_PARTS, 3), lines(BEGINNINGS, PARTS, 6));
    let line = (line, prop::sample::select(vec![true, true, true, true, false]));
    let line = line.prop_map(|((plain, other), is_plain)| if is_plain { plain } else { other });
    let end = prop::sample::select(vec!["\n", "\n", "\n", "\r\n", "\nFROM a\n"]);
    let lines = prop::collection::vec((line, end), 1..6);
    lines.prop_map(|lines| lines.into_iter().map(|(line, end)| line + end).collect())
}

fn arguments() -> impl Strategy<Value = Arguments> {
    let name = prop::sample::select(vec!["A", "B", "TARGETARCH", "TARGETVARIANT"]);
    let value = prop::sample::select(vec!["", "a", "h:5000/x", "10.0.0.5/"]);
    prop::collection::btree_map(name.prop_map(str::to_owned), value.prop_map(str::to_owned), 0..3)
}

/// Random texts in a run, about a second in a debug build.
const CASES: u32 = 1024;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn image_of_an_accepted_text_is_seen_for_every_builder(text in texts(), given in arguments()) {
        let accepted = accepted(&text, &given);
        prop_assert!(accepted.is_ok(), "{:?}", accepted);
    }
}

#[test]
fn readers_take_the_images_of_plain_texts() {
    let given = Arguments::from([("B".to_owned(), "b/c".to_owned())]);
    let text = "ARG A=1 B\nARG C=\"${B}:$A\"\nFROM \"$C\" AS own\nFROM own\nFROM a${X:+-$A}\n";
    for builder in BUILDERS {
        let mut images = Vec::new();
        let read = builder.add_images(text, (&Arguments::new(), &given), &mut images);
        assert!(read.is_ok(), "{builder:?}");
        let names: Vec<&str> = images.iter().map(|(image, _)| image.as_str()).collect();
        assert_eq!(names, ["b/c:1", "a"], "{builder:?}");
    }
    assert_eq!(accepted(text, &given), Ok(true));
}
