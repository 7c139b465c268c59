//! Images, frontends and addresses that an engine fetches for a build of a Dockerfile.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::forms::{self, UnclearForm, UnclearPlace};
use super::parse::{Dockerfile, DockerfileInstruction, LineRules};
use crate::image_reference::ImageReference;

/// Something that an engine fetches for a build, in the network of its own host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BuildFetch {
    /// Line of the instruction or directive, from 1.
    pub line: usize,
    /// Its kind.
    pub kind: BuildFetchKind,
    /// The image or the address. The address of an `ADD` is as written. Of an unclear form, the
    /// instruction or directive.
    pub source: String,
    /// The text of an unclear form, shortened; empty if the form says it all.
    pub written: String,
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
    /// A form that builders read in different ways, so that they may fetch something.
    Unclear(UnclearForm),
}

impl BuildFetch {
    const fn new(line: usize, kind: BuildFetchKind, source: String) -> Self {
        Self { line, kind, source, written: String::new() }
    }
}

/// Build argument that names a frontend.
pub const FRONTEND_ARGUMENT: &str = "BUILDKIT_SYNTAX";

/// Build argument that names the namespace of cache mounts (`RUN --mount=type=cache`). Builds of one namespace
/// read, change and lock what others of it keep there.
pub const CACHE_NAMESPACE_ARGUMENT: &str = "BUILDKIT_CACHE_MOUNT_NS";

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

/// The other ways in which some builders take the lines of a Dockerfile.
const OTHER_WAYS: [LineRules; 2] = [LineRules::WithoutHeredocs, LineRules::WithTwoEscapes];

/// Everything that a build of a Dockerfile fetches, in the order of its lines, and every form in which it
/// may fetch something else. Arguments without a value are empty, as during the build. Builders disagree
/// about where here-documents end and about two escape characters at the end of a line, so the lines are
/// read in each of these ways.
pub fn build_fetches(text: &str, build_args: &BTreeMap<String, String>) -> Vec<BuildFetch> {
    let file = Dockerfile::read_as(text, LineRules::Current);
    let mut found = fetches_of(&file, text, build_args);
    let mut unclear = forms::unclear_text(text);
    unclear.extend(forms::unclear_places(&file));
    let frontends = found.iter().filter(|fetch| fetch.kind == BuildFetchKind::Frontend);
    unclear.extend(frontends.filter(|fetch| lacks_heredocs(&fetch.source)).filter_map(|fetch| {
        let heredoc = file.instructions.iter().find(|one| one.heredocs > 0)?;
        Some(forms::heredoc_of_old_frontend(heredoc, &fetch.source))
    }));
    let images = found.iter().filter(|fetch| fetch.kind == BuildFetchKind::Image);
    unclear.extend(images.filter_map(|image| forms::unclear_name(image.line, &image.source)));
    add_unclear(&mut found, unclear);
    for rules in OTHER_WAYS {
        let file = Dockerfile::read_as(text, rules);
        let mut of_file = fetches_of(&file, text, build_args);
        // Lines of a script, at which such a builder refuses the file.
        let refused: BTreeSet<usize> = file
            .instructions
            .iter()
            .filter(|one| names_no_image(one))
            .map(|one| one.line)
            .collect();
        of_file.retain(|fetch| !refused.contains(&fetch.line));
        found.extend(of_file);
        add_unclear(&mut found, forms::unclear_lines(&file));
    }
    found.into_iter().collect()
}

/// Whether a frontend is a release of Docker's before here-documents. The labs had them one release earlier.
pub fn lacks_heredocs(frontend: &str) -> bool {
    let name = frontend.split_once('@').map_or(frontend, |(name, _)| name);
    let name = name.strip_prefix("docker.io/").unwrap_or(name);
    let Some(tag) = name.strip_prefix("docker/dockerfile:") else { return false };
    let (release, kind) = tag.split_once('-').unwrap_or((tag, ""));
    let first = if kind == "labs" { 3 } else { 4 };
    let minor = release.strip_prefix("1.").and_then(|rest| rest.split('.').next());
    minor.is_some_and(|minor| minor.parse::<u32>().is_ok_and(|minor| minor < first))
}

/// Whether some builder gives a Dockerfile at this path to a preprocessor, which makes another text of it. A slash
/// or `/.` at the end of the path is no part of the name: builders remove them first.
pub fn is_preprocessed(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(b".in"))
}

/// Whether an instruction is a `FROM` whose image no builder takes, however it removes quotes. Some builders
/// look for blanks among single bytes.
fn names_no_image(instruction: &DockerfileInstruction) -> bool {
    let Some(word) = forms::blank_separated(&instruction.rest).next() else { return false };
    let bare = word.replace(['"', '\''], "");
    instruction.name == "FROM"
        && bare.chars().all(|c| c.is_ascii() || c.is_alphabetic())
        && !bare.bytes().any(|byte| matches!(byte, 0x85 | 0xa0))
        && !bare.contains(['$', '\\', '`'])
        && bare.parse::<ImageReference>().is_err()
}

/// Adds unclear forms, the first of each line. A word that may be an address has no other fault.
fn add_unclear(found: &mut BTreeSet<BuildFetch>, places: Vec<UnclearPlace>) {
    // The lines with an address, and whether they have an unclear form.
    let mut lines = BTreeMap::<usize, bool>::new();
    for fetch in &*found {
        let is_unclear = matches!(fetch.kind, BuildFetchKind::Unclear(_));
        if is_unclear || fetch.kind == BuildFetchKind::Address {
            *lines.entry(fetch.line).or_default() |= is_unclear;
        }
    }
    for UnclearPlace { line, key, form, written } in places {
        let is_word = matches!(form, UnclearForm::Word | UnclearForm::HereDocument);
        if lines.get(&line).is_some_and(|is_unclear| *is_unclear || is_word) {
            continue;
        }
        lines.insert(line, true);
        found.insert(BuildFetch {
            line,
            kind: BuildFetchKind::Unclear(form),
            source: key,
            written,
        });
    }
}

fn fetches_of(
    file: &Dockerfile,
    text: &str,
    build_args: &BTreeMap<String, String>,
) -> BTreeSet<BuildFetch> {
    let mut found = BTreeSet::new();
    let own = file.syntax.clone();
    let others = other_frontends(text).into_iter().filter(|other| own.as_ref() != Some(other));
    let frontends = own.iter().cloned().chain(others);
    let frontend = |(line, source)| BuildFetch::new(line, BuildFetchKind::Frontend, source);
    found.extend(frontends.map(frontend));
    found.extend(images_of_builders(file, build_args));
    for instruction in &file.instructions {
        found.extend(added(instruction));
        found.extend(triggered(instruction, file.escape));
    }
    found
}

/// The images that some builder takes. Builders differ in the platform arguments that they set, and in whether
/// a build argument that no `ARG` names is set.
fn images_of_builders(
    file: &Dockerfile,
    build_args: &BTreeMap<String, String>,
) -> BTreeSet<BuildFetch> {
    let mut ways = BTreeSet::new();
    for set in platforms(file, build_args) {
        let mut all = set.clone();
        all.extend(build_args.clone());
        ways.insert((all.clone(), all));
        ways.insert((set, build_args.clone()));
    }
    let mut found = BTreeSet::new();
    for (set, given) in &ways {
        found.extend(images_of(file, set, given));
    }
    // Builders without platform arguments. The name of an image that needs one is whole for others.
    for set in BTreeSet::from([build_args, &BTreeMap::new()]) {
        let images = images_of(file, set, build_args);
        found.extend(images.filter(|fetch| fetch.kind == BuildFetchKind::Image));
    }
    found
}

/// The platform arguments, those with a variant also where an instruction may choose by whether they have a
/// value. For some builders, build arguments of the same name replace them.
fn platforms(
    file: &Dockerfile,
    build_args: &BTreeMap<String, String>,
) -> Vec<BTreeMap<String, String>> {
    let has_variants = file.instructions.iter().any(|one| one.rest.contains("VARIANT"));
    let variants = [&VARIANTS[..0], &VARIANTS[..1], &VARIANTS[1..], &VARIANTS[..]];
    let used = if has_variants { &variants[..] } else { &variants[..1] };
    let none = BTreeMap::new();
    let each = used.iter().flat_map(|variants| [(*variants, build_args), (*variants, &none)]);
    let each = each.map(|(variants, given)| {
        let arguments = PLATFORM_ARGUMENTS.iter().chain(variants);
        let value = |name: &str, own: &str| given.get(name).map_or(own, String::as_str).to_owned();
        arguments.map(|(name, own)| ((*name).to_owned(), value(name, own))).collect()
    });
    each.collect()
}

/// The images of a file. One without a name may get it from elsewhere.
fn images_of(
    file: &Dockerfile,
    set: &BTreeMap<String, String>,
    given: &BTreeMap<String, String>,
) -> impl Iterator<Item = BuildFetch> + use<> {
    let images = file.images_of_builders(set, given).into_iter();
    images.map(|base| {
        let line = base.line;
        let form = match base.image.is_empty() {
            true => Some(UnclearForm::NoImage),
            false => base.may_be_stage().then_some(UnclearForm::UnknownStage),
        };
        let Some(form) = form else {
            return BuildFetch::new(line, BuildFetchKind::Image, base.image);
        };
        let (source, written) = ("FROM".to_owned(), base.written().to_owned());
        BuildFetch { line, kind: BuildFetchKind::Unclear(form), source, written }
    })
}

/// Everything that a trigger of `ONBUILD` fetches.
fn triggered(instruction: &DockerfileInstruction, escape: char) -> Vec<BuildFetch> {
    let Some(inner) = instruction.trigger() else { return Vec::new() };
    let mut found = added(&inner);
    let instructions = vec![inner];
    let alone = Dockerfile { syntax: None, escape, instructions, problems: Vec::new() };
    // Its images have no arguments.
    found.extend(images_of(&alone, &BTreeMap::new(), &BTreeMap::new()));
    found
}

/// The sources of an `ADD` that are, or may be, addresses.
fn added(instruction: &DockerfileInstruction) -> Vec<BuildFetch> {
    if instruction.name != "ADD" {
        return Vec::new();
    }
    let words = || forms::blank_separated(&instruction.rest).map(str::to_owned).collect();
    let mut sources = super::json_list(&instruction.rest).unwrap_or_else(words);
    sources.pop();
    sources.retain(|source| may_be_address(source));
    let address = |source| BuildFetch::new(instruction.line, BuildFetchKind::Address, source);
    sources.into_iter().map(address).collect()
}

/// Whether a source is, or may become, an address: what stands before the first character that a builder
/// may replace or remove does not rule it out.
fn may_be_address(source: &str) -> bool {
    // A here-document, or a path that begins so.
    if source.starts_with("<<") {
        return false;
    }
    let plain = source.replace(['"', '\''], "").to_ascii_lowercase();
    let end = plain.find(['$', '\\', '`', '<']);
    let known = &plain[..end.unwrap_or(plain.len())];
    let host_first = known.split('/').next().unwrap_or_default();
    known.contains("://")
        || REPOSITORY_HOSTS.iter().any(|host| known.starts_with(host))
        // `user@host:path`.
        || host_first.contains('@')
        // A scheme has no slash before its colon.
        || (end.is_some() && (!known.contains('/') || known.contains(':')))
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

#[cfg(test)]
mod tests;
