//! The images that a Dockerfile is built from.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use super::parse::{Dockerfile, DockerfileInstruction};
use super::words::{self, VariableLookup};

/// Longest value of an argument, and longest name of an image, in bytes: names that engines take are
/// shorter, and values that name each other twice must not exhaust memory.
const MAX_VALUE_BYTES: usize = 4096;

/// An image that a stage starts from, or that files are copied from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseImage {
    /// Line of the instruction, from 1.
    pub line: usize,
    /// The image, with variables replaced.
    pub image: String,
    /// `--platform` of a stage, with variables replaced.
    pub platform: Option<String>,
    /// The instruction's bytes in the file.
    span: Range<usize>,
    /// The text before the image there, and the image as written.
    before: &'static str,
    written: String,
}

/// Values of arguments, and whether one was requested that has no value.
struct ArgumentValues<'a> {
    values: &'a BTreeMap<String, String>,
    missing: Cell<bool>,
}

impl VariableLookup for ArgumentValues<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let value = self.values.get(name).map(String::as_str);
        self.missing.set(self.missing.get() || value.is_none());
        value
    }
}

/// How images are treated whose name needs an argument without a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissingArguments {
    /// They are left out. Given arguments are set once an `ARG` names them.
    LeaveOut,
    /// They are left out. Given arguments are set, as those of platforms are.
    LeaveOutUnset,
    /// The argument is empty. A substitution that is not supported, or too long, stays as written.
    Empty,
}

impl BaseImage {
    /// Whether a digest identifies the image.
    pub fn has_digest(&self) -> bool {
        self.image.contains('@')
    }

    /// Whether a stage starts from it.
    pub fn starts_stage(&self) -> bool {
        self.before.is_empty()
    }

    /// The image as written, with its variables.
    pub(super) fn written(&self) -> &str {
        &self.written
    }
}

impl Dockerfile {
    /// The images of other builds: those of `FROM`, of `COPY --from` and of `RUN --mount`. Stages
    /// of the Dockerfile are left out, and so are images whose name needs an argument without a
    /// value here.
    pub fn base_images(&self, build_args: &BTreeMap<String, String>) -> Vec<BaseImage> {
        self.images(build_args, MissingArguments::LeaveOut)
    }

    /// The same, also the images whose name needs an argument without a value, which is empty: so is
    /// the name then, if it has no other part.
    pub(super) fn images_with_empty_arguments(
        &self,
        build_args: &BTreeMap<String, String>,
    ) -> Vec<BaseImage> {
        self.images(build_args, MissingArguments::Empty)
    }

    /// The images with arguments that are set without an `ARG`, as those of platforms are.
    pub fn images_of_platform(&self, arguments: &BTreeMap<String, String>) -> Vec<BaseImage> {
        self.images(arguments, MissingArguments::LeaveOutUnset)
    }

    /// An image, as written, that these images of a platform lack: its name needs an argument without a
    /// value here.
    pub fn unknown_image(&self, arguments: &BTreeMap<String, String>) -> Option<String> {
        let known = self.images_of_platform(arguments);
        let known: HashSet<_> = known.iter().map(|base| (base.line, base.written())).collect();
        let all = self.images_with_empty_arguments(arguments);
        let unknown = all.iter().find(|base| !known.contains(&(base.line, base.written())));
        unknown.map(|base| base.written.clone())
    }

    fn images(
        &self,
        build_args: &BTreeMap<String, String>,
        missing: MissingArguments,
    ) -> Vec<BaseImage> {
        let mut values = match missing {
            MissingArguments::LeaveOut => BTreeMap::new(),
            MissingArguments::LeaveOutUnset | MissingArguments::Empty => build_args.clone(),
        };
        let read = ImageReader { file: self, missing };
        let mut stages = HashSet::from(["scratch".to_owned()]);
        let mut found = Vec::new();
        let mut in_stage = false;
        for instruction in &self.instructions {
            match instruction.name.as_str() {
                "ARG" if !in_stage => read.argument(instruction, build_args, &mut values),
                "FROM" => {
                    in_stage = true;
                    let words: Vec<&str> = instruction.rest.split_whitespace().collect();
                    let Some(image) = words.first() else { continue };
                    found.extend(read.image(instruction, "", image, Some(&values), &stages));
                    if let [_, word, name] = words.as_slice()
                        && word.eq_ignore_ascii_case("as")
                        && is_stage_name(name)
                    {
                        stages.insert(name.to_ascii_lowercase());
                    }
                }
                "COPY" | "ADD" => {
                    let from = instruction.flags.iter().filter_map(|f| f.strip_prefix("--from="));
                    let from = from.filter(|name| !is_stage_number(name));
                    // Arguments before the first FROM are not variables of a flag.
                    found.extend(from.filter_map(|name| {
                        read.image(instruction, "--from=", name, None, &stages)
                    }));
                }
                "RUN" => {
                    let mounts =
                        instruction.flags.iter().filter_map(|f| f.strip_prefix("--mount="));
                    let from = mounts
                        .flat_map(|mount| mount.split(','))
                        .filter_map(mount_source)
                        .filter(|name| !is_stage_number(name));
                    found.extend(
                        from.filter_map(|name| {
                            read.image(instruction, "from=", name, None, &stages)
                        }),
                    );
                }
                _ => {}
            }
        }
        found
    }
}

/// Reads the names of images.
struct ImageReader<'a> {
    file: &'a Dockerfile,
    missing: MissingArguments,
}

impl ImageReader<'_> {
    fn argument(
        &self,
        instruction: &DockerfileInstruction,
        build_args: &BTreeMap<String, String>,
        values: &mut BTreeMap<String, String>,
    ) {
        for word in words::split(&instruction.rest, self.file.escape) {
            let (name, default) = match word.split_once('=') {
                Some((name, default)) => (name, Some(default)),
                None => (word.as_str(), None),
            };
            let value = build_args.get(name).cloned();
            let value = value.or_else(|| self.expanded(default?, values));
            if let Some(value) = value {
                values.insert(name.to_owned(), value);
            }
        }
    }

    fn expanded(&self, text: &str, values: &BTreeMap<String, String>) -> Option<String> {
        let arguments = ArgumentValues { values, missing: Cell::new(false) };
        let expanded = words::expand(text, self.file.escape, &arguments)
            .ok()
            .filter(|expanded| expanded.len() <= MAX_VALUE_BYTES);
        match self.missing {
            MissingArguments::LeaveOut | MissingArguments::LeaveOutUnset => {
                expanded.filter(|_| !arguments.missing.get())
            }
            MissingArguments::Empty => Some(expanded.unwrap_or_else(|| text.to_owned())),
        }
    }

    /// The image of an instruction, unless it is a stage. Without `values`, builders disagree whether
    /// a name may have variables.
    fn image(
        &self,
        instruction: &DockerfileInstruction,
        before: &'static str,
        written: &str,
        values: Option<&BTreeMap<String, String>>,
        stages: &HashSet<String>,
    ) -> Option<BaseImage> {
        let image = match values {
            None if self.missing == MissingArguments::Empty && written.contains('$') => {
                Some(written.to_owned())
            }
            None => self.expanded(written, &BTreeMap::new()),
            Some(values) => self.expanded(written, values),
        };
        let keeps_empty = self.missing == MissingArguments::Empty;
        let image = image.filter(|image| keeps_empty || !image.is_empty())?;
        let is_stage = stages.contains(&image.to_ascii_lowercase());
        let flag = instruction.flags.iter().find_map(|flag| flag.strip_prefix("--platform="));
        let platform = match flag.zip(values).map(|(flag, values)| self.expanded(flag, values)) {
            // The image is another one on each platform.
            Some(None) if self.missing == MissingArguments::LeaveOutUnset => return None,
            known => known.flatten(),
        };
        (!is_stage).then(|| BaseImage {
            line: instruction.line,
            image,
            platform,
            span: instruction.span.clone(),
            before,
            written: written.to_owned(),
        })
    }
}

/// The image of an option of `RUN --mount`. Options are fields of CSV.
fn mount_source(option: &str) -> Option<&str> {
    let (name, image) = option.trim_matches('"').split_once('=')?;
    name.eq_ignore_ascii_case("from").then_some(image)
}

/// The Dockerfile with these images instead. An image that cannot be found in the text as it was
/// read, such as a name that spans two lines, stays.
pub fn with_images(text: &str, images: &[(BaseImage, String)]) -> String {
    let mut replacements: Vec<(Range<usize>, &str)> = Vec::new();
    for (base, image) in images {
        let Some(instruction) = text.get(base.span.clone()) else { continue };
        let sought = format!("{}{}", base.before, base.written);
        let ends = |after: &str| after.starts_with(|c: char| c.is_whitespace() || c == ',');
        let begins = |before: &str| before.ends_with(|c: char| c.is_whitespace() || c == ',');
        let found = instruction.match_indices(&sought).find(|(at, _)| {
            let after = &instruction[at + sought.len()..];
            let free = !base.before.is_empty() || begins(&instruction[..*at]);
            free && (after.is_empty() || ends(after))
        });
        if let Some((at, _)) = found {
            let from = base.span.start + at + base.before.len();
            replacements.push((from..from + base.written.len(), image));
        }
    }
    replacements.sort_by_key(|(place, _)| place.start);
    replacements.dedup_by_key(|(place, _)| place.start);
    let mut result = String::new();
    let mut at = 0;
    for (place, image) in replacements {
        result.push_str(&text[at..place.start]);
        result.push_str(image);
        at = place.end;
    }
    result + &text[at..]
}

/// Whether a stage may have a name: builders refuse a file with others.
fn is_stage_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_part)
}

fn is_stage_number(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_digit())
}
