//! The images that a Dockerfile is built from.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
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
    /// Whether an earlier stage has its name, in any case.
    names_stage: bool,
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
    /// They are left out.
    LeaveOut,
    /// They are left out, and so are images whose platform needs such an argument.
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

    /// Whether it is a stage for some builders, and an image for others.
    pub(super) fn may_be_stage(&self) -> bool {
        self.starts_stage() && self.names_stage
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
        let stages = BuildStages::new(self, StageRules::Current);
        self.images(BTreeMap::new(), build_args, MissingArguments::LeaveOut, stages)
    }

    /// The images that some builder takes, with arguments that are set from the start, and those that an
    /// `ARG` sets whatever its default is. An argument without a value is empty: so is the name then, if
    /// it has no other part.
    pub(super) fn images_of_builders(
        &self,
        set: &BTreeMap<String, String>,
        given: &BTreeMap<String, String>,
    ) -> Vec<BaseImage> {
        let stages = BuildStages::new(self, StageRules::Common);
        self.images(set.clone(), given, MissingArguments::Empty, stages)
    }

    /// The images with arguments that are set without an `ARG`, as those of platforms are. Images whose
    /// name or platform needs another argument without a value here are left out.
    pub fn images_of_platform(
        &self,
        platform: &BTreeMap<String, String>,
        build_args: &BTreeMap<String, String>,
    ) -> Vec<BaseImage> {
        let stages = BuildStages::new(self, StageRules::Current);
        self.images(platform.clone(), build_args, MissingArguments::LeaveOutUnset, stages)
    }

    /// An image, as written, that these images of a platform lack: its name needs an argument without a
    /// value here.
    pub fn unknown_image(
        &self,
        platform: &BTreeMap<String, String>,
        build_args: &BTreeMap<String, String>,
    ) -> Option<String> {
        let known = self.images_of_platform(platform, build_args);
        let known: HashSet<_> = known.iter().map(|base| (base.line, base.written())).collect();
        let stages = BuildStages::new(self, StageRules::Current);
        let all = self.images(platform.clone(), build_args, MissingArguments::Empty, stages);
        let unknown = all.iter().find(|base| !known.contains(&(base.line, base.written())));
        unknown.map(|base| base.written.clone())
    }

    fn images(
        &self,
        mut values: BTreeMap<String, String>,
        given: &BTreeMap<String, String>,
        missing: MissingArguments,
        mut stages: BuildStages,
    ) -> Vec<BaseImage> {
        let read = ImageReader { file: self, missing };
        let mut found = Vec::new();
        for instruction in &self.instructions {
            match instruction.name.as_str() {
                "ARG" if stages.begun == 0 => read.argument(instruction, given, &mut values),
                "FROM" => {
                    stages.begin();
                    let Some(image) = instruction.rest.split_whitespace().next() else { continue };
                    found.extend(read.image(instruction, "", image, Some(&values), &stages));
                    stages.name(stage_name(instruction));
                }
                _ => {
                    let sources = sources(instruction).into_iter();
                    let sources = sources.filter(|(before, name)| !stages.has_number(before, name));
                    // Arguments before the first FROM are not variables of a flag.
                    found.extend(sources.filter_map(|(before, name)| {
                        read.image(instruction, before, name, None, &stages)
                    }));
                }
            }
        }
        found
    }
}

/// The text before the image of a `COPY --from`, and of a mount.
const COPY_SOURCE: &str = "--from=";
const MOUNT_SOURCE: &str = "from=";

/// The stages and images that an instruction takes files from, with the text before each.
fn sources(instruction: &DockerfileInstruction) -> Vec<(&'static str, &str)> {
    let flags = instruction.flags.iter();
    match instruction.name.as_str() {
        "COPY" | "ADD" => {
            let names = flags.filter_map(|flag| flag.strip_prefix(COPY_SOURCE));
            names.map(|name| (COPY_SOURCE, name)).collect()
        }
        "RUN" => {
            let mounts = flags.filter_map(|flag| flag.strip_prefix("--mount="));
            let names = mounts.flat_map(|mount| mount.split(',')).filter_map(mount_source);
            names.map(|name| (MOUNT_SOURCE, name)).collect()
        }
        _ => Vec::new(),
    }
}

/// The names that are those of stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StageRules {
    /// Numbers, and names in any case.
    Current,
    /// The names that every builder takes for a stage. Some know names in one case alone, names and
    /// numbers of earlier stages alone, the last of the stages of one name alone, or no numbers in mounts.
    Common,
}

/// The stages of a Dockerfile up to an instruction.
struct BuildStages {
    rules: StageRules,
    begun: usize,
    names: HashSet<String>,
    /// The names of all stages so far in lower case.
    folded: HashSet<String>,
    /// The name of the last stage, which only the stages after it take for one.
    last: Option<String>,
    /// The numbers of the stages whose name another stage of the Dockerfile has, or may have, too.
    repeated: HashSet<usize>,
}

impl BuildStages {
    fn new(file: &Dockerfile, rules: StageRules) -> Self {
        let names = HashSet::from(["scratch".to_owned()]);
        let repeated = match rules {
            StageRules::Current => HashSet::new(),
            StageRules::Common => repeated_stages(file),
        };
        Self { rules, begun: 0, names, folded: HashSet::new(), last: None, repeated }
    }

    /// Begins a stage. It has no name yet: its image may have the same one.
    fn begin(&mut self) {
        self.names.extend(self.last.take());
        self.begun += 1;
    }

    /// Names the stage that has begun.
    fn name(&mut self, name: Option<&str>) {
        self.folded.extend(name.map(str::to_ascii_lowercase));
        let name = name.map(|name| self.key(name));
        match self.rules {
            StageRules::Current => self.names.extend(name),
            // Stages of one name may run at the same time, so it depends on the time which of them a
            // builder knows.
            StageRules::Common => {
                let is_repeated = self.repeated.contains(&(self.begun - 1));
                self.last = name.filter(|_| !is_repeated);
            }
        }
    }

    fn key(&self, name: &str) -> String {
        match self.rules {
            StageRules::Current => name.to_ascii_lowercase(),
            StageRules::Common => name.to_owned(),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(&self.key(name))
    }

    fn has_number(&self, before: &str, name: &str) -> bool {
        let is_number = name.chars().all(|c| c.is_ascii_digit());
        match self.rules {
            StageRules::Current => is_number,
            StageRules::Common => {
                // Some builders replace a number with the stage's name.
                let is_earlier = |number: usize| {
                    number < self.begun.saturating_sub(1)
                        && number.to_string() == name
                        && !self.repeated.contains(&number)
                };
                before == COPY_SOURCE && name.parse().is_ok_and(is_earlier)
            }
        }
    }
}

/// The numbers of the stages whose name another stage has, or may have, too.
fn repeated_stages(file: &Dockerfile) -> HashSet<usize> {
    let stages = file.instructions.iter().filter(|one| one.name == "FROM").enumerate();
    let mut numbers = HashMap::<&str, Vec<usize>>::new();
    let mut may_be_any = false;
    for (number, stage) in stages {
        match stage_name(stage) {
            Some(name) => numbers.entry(name).or_default().push(number),
            // Some builders replace variables in names, and remove quotes.
            None => {
                let mut after = stage.rest.split_whitespace().skip(1);
                may_be_any |= after.any(|word| word.contains(['$', '"', '\'', '\\', '`']));
            }
        }
    }
    let repeated = numbers.into_values().filter(|numbers| may_be_any || numbers.len() > 1);
    repeated.flatten().collect()
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
        stages: &BuildStages,
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
        let is_stage = stages.has(&image);
        let flag = instruction.flags.iter().find_map(|flag| flag.strip_prefix("--platform="));
        let platform = match flag.zip(values).map(|(flag, values)| self.expanded(flag, values)) {
            // The image is another one on each platform.
            Some(None) if self.missing == MissingArguments::LeaveOutUnset => return None,
            known => known.flatten(),
        };
        (!is_stage).then(|| BaseImage {
            line: instruction.line,
            names_stage: stages.folded.contains(&image.to_ascii_lowercase()),
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

/// The name that a `FROM` gives its stage.
fn stage_name(from: &DockerfileInstruction) -> Option<&str> {
    let words: Vec<&str> = from.rest.split_whitespace().collect();
    match words.as_slice() {
        [_, word, name] if word.eq_ignore_ascii_case("as") && is_stage_name(name) => Some(*name),
        _ => None,
    }
}

/// Whether a stage may have a name: builders refuse a file with others.
pub(super) fn is_stage_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_part)
}
