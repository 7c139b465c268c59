//! Small readers of `FROM`, `ARG`, `COPY` and `RUN` lines, written from the sources of BuildKit, kaniko and buildah,
//! without the parser of the check.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

use crate::image_reference::ImageReference;

pub(super) type Arguments = BTreeMap<String, String>;

/// The value of an argument that only some releases of a builder read.
const OF_SOME_RELEASES: &str = "\0";

/// A builder's way to read arguments and names of stages.
#[derive(Debug, Clone, Copy)]
pub(super) struct OtherBuilder {
    /// A build argument is set without an `ARG`.
    sets_all: bool,
    /// The values of an `ARG` have the variables of those before them in it.
    in_order: bool,
    /// An `ARG` changes the arguments of platforms.
    changes_platforms: bool,
    /// A stage is known in other cases than its own, and the first of several stages of a name.
    ignores_case: bool,
    /// The last of several flags of a `FROM` counts.
    takes_last_flag: bool,
}

pub(super) const BUILDKIT: OtherBuilder = OtherBuilder {
    sets_all: false,
    in_order: true,
    changes_platforms: true,
    ignores_case: true,
    takes_last_flag: false,
};
const KANIKO: OtherBuilder = OtherBuilder { sets_all: true, ..BUILDKIT };
pub(super) const BUILDAH: OtherBuilder = OtherBuilder {
    sets_all: false,
    in_order: false,
    changes_platforms: false,
    ignores_case: false,
    takes_last_flag: true,
};

pub(super) const BUILDERS: [OtherBuilder; 3] = [BUILDKIT, KANIKO, BUILDAH];

/// Why a text has no images for a builder.
pub(super) enum Unread {
    /// It refuses the text.
    Refused,
    /// Older or newer releases of the builder read it in another way.
    OfSomeReleases,
}

/// An image that a builder takes.
#[derive(Debug)]
pub(super) struct TakenImage {
    pub(super) image: String,
    /// The platform of its stage.
    pub(super) platform: Option<String>,
    /// Whether a stage starts from it.
    pub(super) starts_stage: bool,
}

impl TakenImage {
    /// The image of this name, if engines take the name.
    fn named(image: &str, platform: Option<String>, starts_stage: bool) -> Option<Self> {
        let is_image = image.parse::<ImageReference>().is_ok() && image != "scratch";
        is_image.then(|| Self { image: image.to_owned(), platform, starts_stage })
    }
}

/// The stages of a text up to a line.
struct StageNames {
    /// The names of all stages of the text.
    names: Vec<Option<String>>,
    /// Number of those that have begun.
    begun: usize,
}

impl StageNames {
    fn of(lines: &[String]) -> Self {
        let instructions = lines.iter().filter_map(|line| instruction(line).ok());
        let stages = instructions.filter(|(name, ..)| name == "FROM");
        let names = stages.map(|(_, _, rest)| stage_words(&rest)?.1.map(str::to_owned)).collect();
        Self { names, begun: 0 }
    }

    /// Whether a builder takes a name for that of a stage before the current one.
    fn has(&self, name: &str, builder: OtherBuilder) -> bool {
        let is_same = |own: &Option<String>| match own {
            Some(own) if builder.ignores_case => own.eq_ignore_ascii_case(name),
            Some(own) => own == name,
            None => false,
        };
        let number = match builder.ignores_case {
            true => self.names.iter().position(is_same),
            false => self.names.iter().rposition(is_same),
        };
        number.is_some_and(|number| number + 1 < self.begun)
    }

    /// The image that a source of files is for a builder; `None` if it is a stage.
    fn image<'a>(
        &'a self,
        source: &'a str,
        is_copy: bool,
        builder: OtherBuilder,
    ) -> Option<&'a str> {
        let earlier = source.parse::<usize>().ok().filter(|number| number + 1 < self.begun);
        let name = match earlier.map(|number| self.names[number].as_deref()) {
            // A number is the name of a stage without one, or stands for the stage or its name in a copy.
            Some(None) if is_copy || !builder.ignores_case => return None,
            Some(Some(_)) if is_copy && builder.ignores_case => return None,
            Some(Some(name)) if is_copy => name,
            _ => source,
        };
        (!self.has(name, builder)).then_some(name)
    }
}

impl OtherBuilder {
    /// Adds the images that it takes from a text, up to the first line that it does not read.
    pub(super) fn add_images(
        self,
        text: &str,
        (platform, given): (&Arguments, &Arguments),
        found: &mut Vec<TakenImage>,
    ) -> Result<(), Unread> {
        let mut set = platform.clone();
        let is_set =
            |name: &str| self.sets_all || (self.changes_platforms && platform.contains_key(name));
        let before = given.iter().filter(|(name, _)| is_set(name));
        set.extend(before.map(|(name, value)| (name.clone(), value.clone())));
        let lines = joined(text);
        let mut stages = StageNames::of(&lines);
        for line in &lines {
            let (name, flags, rest) = instruction(line)?;
            match name.as_str() {
                "ARG" if stages.begun == 0 => {
                    self.set_arguments(&rest, (platform, given), &mut set)?;
                }
                "ARG" => {}
                "COPY" | "RUN" => {
                    let is_copy = name == "COPY";
                    let sources = sources(is_copy, &flags).into_iter();
                    let images = sources.filter_map(|source| stages.image(source, is_copy, self));
                    found.extend(images.filter_map(|image| TakenImage::named(image, None, false)));
                }
                "FROM" => {
                    stages.begun += 1;
                    let platform = self.stage_platform(&flags, &set)?;
                    let image = image(&rest, &set)?;
                    if !stages.has(&image, self) {
                        found.extend(TakenImage::named(&image, platform, true));
                    }
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

    fn stage_platform(self, flags: &[String], set: &Arguments) -> Result<Option<String>, Unread> {
        let mut platform = None;
        for flag in flags {
            let value = flag.strip_prefix("--platform=").ok_or(Unread::Refused)?;
            platform = Some(expanded(value, set)?);
        }
        let is_second = flags.len() > 1 && !self.takes_last_flag;
        if is_second || platform.as_deref() == Some("") {
            return Err(Unread::Refused);
        }
        Ok(platform)
    }
}

/// The sources of files in flags.
fn sources(is_copy: bool, flags: &[String]) -> Vec<&str> {
    if is_copy {
        return flags.iter().filter_map(|flag| flag.strip_prefix("--from=")).collect();
    }
    let mounts = flags.iter().filter_map(|flag| flag.strip_prefix("--mount="));
    let options = mounts.flat_map(|mount| mount.split(',')).filter_map(|one| one.split_once('='));
    options.filter(|(key, _)| key.eq_ignore_ascii_case("from")).map(|(_, source)| source).collect()
}

/// The image and the name of a stage, as written.
fn stage_words(rest: &str) -> Option<(&str, Option<&str>)> {
    let words = rest.split([' ', '\t', '\r', '\u{b}', '\u{c}']).filter(|word| !word.is_empty());
    match words.collect::<Vec<_>>().as_slice() {
        [image] => Some((*image, None)),
        [image, word, stage] if word.eq_ignore_ascii_case("as") => Some((*image, Some(*stage))),
        _ => None,
    }
}

/// The image of a stage.
fn image(rest: &str, set: &Arguments) -> Result<String, Unread> {
    let (image, stage) = stage_words(rest).ok_or(Unread::Refused)?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = |stage: &str| {
        stage.starts_with(|c: char| c.is_ascii_alphabetic()) && stage.chars().all(is_part)
    };
    if !stage.is_none_or(is_name) {
        return Err(Unread::Refused);
    }
    expanded(image, set)
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
    let name = name.to_ascii_uppercase();
    if !["ARG", "COPY", "FROM", "RUN"].contains(&name.as_str()) {
        return Err(Unread::Refused);
    }
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
            return Ok((name, flags, rest.trim().to_owned()));
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
