//! Images, frontends and addresses that an engine fetches for a build of a Dockerfile.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::parse::{
    Dockerfile, DockerfileInstruction, LineRules, has_unclear_heredoc, split_flags,
};
use super::words::{self, VariableLookup};

/// Something that an engine fetches for a build, in the network of its own host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BuildFetch {
    /// Line of the instruction or directive, from 1.
    pub line: usize,
    /// Its kind.
    pub kind: BuildFetchKind,
    /// The image or the address. The address of an `ADD` is as written.
    pub source: String,
}

/// Kind of a [`BuildFetch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BuildFetchKind {
    /// An image that a stage starts from or that files are copied from.
    Image,
    /// An image that reads the Dockerfile. It can fetch anything itself.
    Frontend,
    /// A file or a git repository that `ADD` names, or may name once its variables are known.
    Address,
    /// An instruction that builders read in different ways, and which may fetch.
    Unclear,
}

/// Build argument that names a frontend.
pub const FRONTEND_ARGUMENT: &str = "BUILDKIT_SYNTAX";

/// Stands for a value that is only known during the build.
const UNKNOWN: &str = "\0";

/// Beginnings of repositories that old builders take without a scheme.
const REPOSITORY_HOSTS: [&str; 1] = ["github.com/"];

/// Values of the platform arguments, which every build has. Their form is that of real ones.
const PLATFORM_ARGUMENTS: [(&str, &str); 8] = [
    ("BUILDPLATFORM", "linux/amd64"),
    ("BUILDOS", "linux"),
    ("BUILDARCH", "amd64"),
    ("BUILDVARIANT", ""),
    ("TARGETPLATFORM", "linux/amd64"),
    ("TARGETOS", "linux"),
    ("TARGETARCH", "amd64"),
    ("TARGETVARIANT", ""),
];

/// The platform arguments that only some platforms have a value for, and the value.
const VARIANTS: [(&str, &str); 2] = [("BUILDVARIANT", "v7"), ("TARGETVARIANT", "v7")];

/// Everything that a build of a Dockerfile fetches, in the order of its lines. Arguments without a
/// value are empty, as during the build. Builders disagree about where here-documents end and about two
/// escape characters at the end of a line, so the lines are read in each of these ways.
pub fn build_fetches(text: &str, build_args: &BTreeMap<String, String>) -> Vec<BuildFetch> {
    let ways = [LineRules::Current, LineRules::WithoutHeredocs, LineRules::WithTwoEscapes];
    let found = ways.into_iter().flat_map(|rules| {
        let file = Dockerfile::read_as(text, rules);
        fetches_of(&file, text, build_args)
    });
    found.collect::<BTreeSet<_>>().into_iter().collect()
}

fn fetches_of(
    file: &Dockerfile,
    text: &str,
    build_args: &BTreeMap<String, String>,
) -> Vec<BuildFetch> {
    let mut arguments = PLATFORM_ARGUMENTS
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into_iter()
        .collect::<BTreeMap<_, _>>();
    arguments.extend(build_args.clone());
    let mut found: Vec<BuildFetch> = Vec::new();
    let own = file.syntax.clone();
    let others = other_frontends(text).into_iter().filter(|other| own.as_ref() != Some(other));
    found.extend(own.iter().cloned().chain(others).map(|(line, source)| BuildFetch {
        line,
        kind: BuildFetchKind::Frontend,
        source,
    }));
    found.extend(images_of(file, &arguments));
    // A Dockerfile may give platform arguments another value.
    let without_platform = images_of(file, build_args);
    found.extend(without_platform.filter(|fetch| fetch.kind == BuildFetchKind::Image));
    // An instruction may choose by whether they have a value.
    if file.instructions.iter().any(|instruction| instruction.rest.contains("VARIANT")) {
        for variants in [&VARIANTS[..1], &VARIANTS[1..], &VARIANTS[..]] {
            let mut arguments = arguments.clone();
            let set = variants.iter().filter(|(name, _)| !build_args.contains_key(*name));
            arguments.extend(set.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
            found.extend(images_of(file, &arguments));
        }
    }
    for instruction in &file.instructions {
        found.extend(is_unclear(instruction, file.escape).then(|| BuildFetch {
            line: instruction.line,
            kind: BuildFetchKind::Unclear,
            source: instruction.name.clone(),
        }));
        let sources = added(instruction, file.escape).into_iter();
        found.extend(sources.map(|source| BuildFetch {
            line: instruction.line,
            kind: BuildFetchKind::Address,
            source,
        }));
        found.extend(triggered(instruction, file.escape));
    }
    found
}

/// The images of a file. One without a name may get it from elsewhere.
fn images_of(
    file: &Dockerfile,
    arguments: &BTreeMap<String, String>,
) -> impl Iterator<Item = BuildFetch> + use<> {
    let images = file.images_with_empty_arguments(arguments).into_iter();
    images.map(|base| {
        let line = base.line;
        if base.image.is_empty() {
            let source = base.written().to_owned();
            return BuildFetch { line, kind: BuildFetchKind::Unclear, source };
        }
        BuildFetch { line, kind: BuildFetchKind::Image, source: base.image }
    })
}

/// Whether builders read an instruction in different ways: quotes and escapes in flags, values apart from
/// their flags, triggers of triggers, unusual ends of here-documents, lists that are no JSON for all, two
/// escape characters at its end.
fn is_unclear(instruction: &DockerfileInstruction, escape: char) -> bool {
    let is_odd = |flag: &String| flag.contains(['"', '\'', '\\', '`']) || flag == "--from";
    let mut words = instruction.rest.split_whitespace();
    let is_nested = |inner: &str| inner.eq_ignore_ascii_case("ONBUILD");
    let (name, rest) = (instruction.name.as_str(), instruction.rest.as_str());
    instruction.flags.iter().any(is_odd)
        || (name == "ONBUILD" && words.next().is_some_and(is_nested))
        || (matches!(name, "ADD" | "COPY") && super::may_be_json_list(rest))
        || has_unclear_heredoc(name, rest, escape)
        || instruction.ends_in_two_escapes
}

/// Everything that a trigger of `ONBUILD` fetches.
fn triggered(instruction: &DockerfileInstruction, escape: char) -> Vec<BuildFetch> {
    if instruction.name != "ONBUILD" {
        return Vec::new();
    }
    let rest = instruction.rest.trim();
    let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
    let (flags, arguments_text) = split_flags(rest[end..].trim());
    let inner = DockerfileInstruction {
        name: rest[..end].to_ascii_uppercase(),
        flags,
        rest: arguments_text.to_owned(),
        ..instruction.clone()
    };
    let line = inner.line;
    let fetch = |(kind, source)| BuildFetch { line, kind, source };
    let addresses = added(&inner, escape).into_iter();
    let addresses = addresses.map(|source| (BuildFetchKind::Address, source));
    let is_odd = is_unclear(&inner, escape);
    let unclear = is_odd.then(|| (BuildFetchKind::Unclear, inner.name.clone()));
    let instructions = vec![inner];
    let alone = Dockerfile { syntax: None, escape, instructions, problems: Vec::new() };
    // Its images have no arguments.
    let images = images_of(&alone, &BTreeMap::new());
    addresses.chain(unclear).map(fetch).chain(images).collect()
}

/// The sources of an `ADD` that are, or may be, addresses.
fn added(instruction: &DockerfileInstruction, escape: char) -> Vec<String> {
    if instruction.name != "ADD" {
        return Vec::new();
    }
    let mut sources = super::json_list(&instruction.rest)
        .unwrap_or_else(|| words::split(&instruction.rest, escape));
    sources.pop();
    sources.retain(|source| may_be_address(source, escape));
    sources
}

/// Every variable is set, to a text that is not known.
struct UnknownValues;

impl VariableLookup for UnknownValues {
    fn get(&self, _name: &str) -> Option<&str> {
        Some(UNKNOWN)
    }
}

fn may_be_address(source: &str, escape: char) -> bool {
    // A here-document.
    if source.starts_with("<<") {
        return false;
    }
    let Ok(expanded) = words::expand(source, escape, &UnknownValues) else { return true };
    let expanded = expanded.to_ascii_lowercase();
    let (known, is_whole) = match expanded.split_once(UNKNOWN) {
        Some((known, _)) => (known, false),
        None => (expanded.as_str(), true),
    };
    let host_first = known.split('/').next().unwrap_or_default();
    known.contains("://")
        || REPOSITORY_HOSTS.iter().any(|host| known.starts_with(host))
        // `user@host:path`.
        || host_first.contains('@')
        // A scheme has no slash before its colon.
        || (!is_whole && (!known.contains('/') || known.contains(':')))
}

/// The text of a value, or the value.
fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The frontends that some builders find where a Dockerfile names none: in JSON, in comments of another
/// language, behind a comment that is no directive, or in the last of several.
fn other_frontends(text: &str) -> Vec<(usize, String)> {
    let text = text.trim_start_matches('\u{feff}');
    let first = usize::from(text.starts_with("#!"));
    let text = if first == 0 { text } else { text.split_once('\n').map_or("", |(_, rest)| rest) };
    if text.trim_start().starts_with('{') {
        // Builders read more as JSON than is read here.
        let Ok(Value::Object(named)) = serde_json::from_str::<Value>(text) else {
            return vec![(first + 1, "JSON".to_owned())];
        };
        // The last of several keys counts, and their case does not.
        let mut named = named.into_iter().filter(|(key, _)| key.eq_ignore_ascii_case("syntax"));
        let last = named.next_back().map(|(_, image)| (first + 1, text_of(&image)));
        return last.into_iter().collect();
    }
    let lines = text.lines().map(str::trim).enumerate();
    let comments = lines.map_while(|(index, line)| {
        let comment = line.strip_prefix("//").or_else(|| line.strip_prefix('#'));
        comment.or_else(|| line.is_empty().then_some("")).map(|comment| (index, comment))
    });
    let frontends = comments.filter_map(|(index, comment)| {
        let (name, image) = comment.split_once('=')?;
        let image = image.split_whitespace().next().unwrap_or_default();
        let is_syntax = name.trim().eq_ignore_ascii_case("syntax");
        is_syntax.then(|| (first + index + 1, image.to_owned()))
    });
    frontends.collect()
}
