//! Rules for the images and image builds of tasks whose author may not use the network of an engine.
//! The engine fetches images, frontends and the sources of `ADD` from wherever it runs.

mod service_build;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use rollout_base::confined::ConfinedDir;
use rollout_environment::compose_limits;
use rollout_environment::compose_place::ComposePlace;
use rollout_environment::descriptor;
use rollout_environment::dockerfile::{FRONTEND_ARGUMENT, build_fetches, is_preprocessed};
use rollout_environment::image_access::ImageAccess;
use rollout_environment::registry_lookups::RegistryLookups;

use self::service_build::{ServiceBuild, has_key, in_context, text};
use super::TaskParts;
use super::discover::TASK_FILE;
use crate::config::{
    ConfigNode, ConfigValue, Diagnostics, ErrorKind, FetchAccess, Job, SourceLocation, TaskFile,
    parse_yaml, read_task_text,
};

/// Findings of a task that are recorded: its files may have any number of them.
const MAX_FINDINGS: usize = 20;

/// Findings of all tasks that are recorded.
const MAX_FINDINGS_OF_RUN: usize = 1000;

/// Longest text of a finding, in characters: an image or an address may be as long as its file.
const MAX_TEXT: usize = 500;

/// Files of a task that are checked: compose files, and Dockerfiles with each set of arguments.
const MAX_FILES: usize = 64;

/// Images of compose files that stand for the environment's own.
const OWN_IMAGES: [&str; 4] =
    ["${MAIN_IMAGE_NAME}", "$MAIN_IMAGE_NAME", "${PREBUILT_IMAGE_NAME}", "$PREBUILT_IMAGE_NAME"];

/// The expectation of most refusals.
const PUBLIC_IMAGES: &str = "images of public registries, and builds that fetch nothing else, or a \
                             registry that the operator lists with `--allow-image-registry`";

/// Name of a Dockerfile that is not named.
const DOCKERFILE: &str = "Dockerfile";

/// The images of a job's tasks, each registry looked up once.
pub(super) struct ImageRules<'a> {
    access: &'a ImageAccess,
    lookups: RegistryLookups<'a>,
    /// Number of findings so far.
    findings: Cell<usize>,
}

impl<'a> ImageRules<'a> {
    pub(super) fn new(access: &'a ImageAccess, fetch: &'a FetchAccess) -> Self {
        let lookups = RegistryLookups::new(move || fetch.is_cancelled());
        Self { access, lookups, findings: Cell::new(0) }
    }

    /// Records what the images and builds of a task may not use.
    pub(super) fn check(
        &self,
        job: &Job,
        (dir, root): (&Path, &ConfinedDir),
        (file, parts): (&TaskFile, &TaskParts),
        problems: &mut Diagnostics,
    ) {
        let kind = job.settings.environment.provider.kind();
        let has_images = descriptor::for_kind(kind).capabilities.images.is_supported();
        if *self.access == ImageAccess::Everything || !has_images {
            return;
        }
        let mut task = TaskImages {
            rules: self,
            dir,
            root,
            seen: BTreeSet::new(),
            extended: BTreeSet::new(),
            files: 0,
            found: BTreeSet::new(),
            problems,
        };
        let own = ("environment.docker_image", &file.environment.docker_image);
        let verifiers = file.steps.iter().filter_map(|step| step.verifier.environment.as_deref());
        let verifiers =
            verifiers.map(|own| ("verifier.environment.docker_image", &own.docker_image));
        for (key, image) in std::iter::once(own).chain(verifiers) {
            if let Some(image) = image {
                task.image(Path::new(TASK_FILE), key, None, image);
            }
        }
        let own = (&parts.context, &parts.compose);
        let verifiers =
            parts.steps.iter().map(|step| (&step.verifier_context, &step.verifier_compose));
        for (context, compose) in std::iter::once(own).chain(verifiers) {
            let Some(context) = context else { continue };
            task.dockerfile(context, Path::new(DOCKERFILE), &BTreeMap::new());
            if let Some(file) = compose {
                task.compose(context, &context.join(file));
            }
        }
    }
}

/// The check of one task.
struct TaskImages<'a> {
    rules: &'a ImageRules<'a>,
    dir: &'a Path,
    root: &'a ConfinedDir,
    /// Files that were checked, with the arguments of Dockerfiles.
    seen: BTreeSet<(PathBuf, BTreeMap<String, String>)>,
    /// Compose files that others extend, and that are not checked yet.
    extended: BTreeSet<PathBuf>,
    /// Number of files that were checked.
    files: usize,
    /// Findings so far: file, key, line and text.
    found: BTreeSet<(PathBuf, String, Option<usize>, String)>,
    problems: &'a mut Diagnostics,
}

impl TaskImages<'_> {
    /// Whether nothing else is to be found.
    fn is_done(&self) -> bool {
        self.is_full() || self.rules.lookups.is_cancelled()
    }

    /// Whether no other finding is recorded: those that are refuse the run.
    fn is_full(&self) -> bool {
        let of_run = self.rules.findings.get();
        self.found.len() >= MAX_FINDINGS || of_run >= MAX_FINDINGS_OF_RUN
    }

    fn refuse(&mut self, file: &Path, key: &str, line: Option<usize>, found: &str) {
        self.refuse_for((file, key, line), found, PUBLIC_IMAGES);
    }

    fn refuse_for(
        &mut self,
        (file, key, line): (&Path, &str, Option<usize>),
        found: &str,
        expected: &str,
    ) {
        let (key, found) = (shortened(key), shortened(found));
        let finding = (file.to_owned(), key.clone(), line, found.clone());
        if self.is_full() || !self.found.insert(finding) {
            return;
        }
        self.rules.findings.set(self.rules.findings.get() + 1);
        let location = SourceLocation { key, line };
        let file = self.dir.join(file);
        self.problems.error(location.error(&file, ErrorKind::BadValue, found, expected));
    }

    /// Whether a file is there, was not checked yet, and can be: a task has a limit of files.
    fn begins(&mut self, path: &Path, args: &BTreeMap<String, String>) -> bool {
        if self.is_done()
            || !self.seen.insert((path.to_owned(), args.clone()))
            || !self.root.has_file(path)
        {
            return false;
        }
        self.files += 1;
        if self.files > MAX_FILES {
            self.refuse_files(path);
        }
        self.files <= MAX_FILES
    }

    fn refuse_files(&mut self, path: &Path) {
        let found = format!("more than {MAX_FILES} builds and compose files");
        self.refuse(path, "", None, &found);
    }

    fn image(&mut self, file: &Path, key: &str, line: Option<usize>, image: &str) {
        let look_up = |registry: &str| self.rules.lookups.addresses(registry);
        if let Some(why) = self.rules.access.refusal(image, look_up) {
            self.refuse(file, key, line, &why.to_string());
        }
    }

    /// Checks a Dockerfile of a context, if it is there, and the one that some builders read in its place.
    fn dockerfile(&mut self, context: &Path, file: &Path, args: &BTreeMap<String, String>) {
        self.one_dockerfile(context, file, args);
        if let Some(other) = in_its_place(file) {
            self.one_dockerfile(context, &other, args);
        }
    }

    /// Whether there is a Dockerfile, or the one that some builders read in its place.
    fn has_dockerfile(&self, path: &Path) -> bool {
        let is_there = |path: &Path| self.root.has_file(path);
        is_there(path) || in_its_place(path).is_some_and(|other| is_there(&other))
    }

    fn one_dockerfile(&mut self, context: &Path, file: &Path, args: &BTreeMap<String, String>) {
        let path = &context.join(file);
        if self.root.has_file(path) && !self.has_inside(context, file) {
            // A builder has the files of the context alone, and ends the link at one of them.
            return self.refuse(path, "", None, "a Dockerfile through a link out of its context");
        }
        if !self.begins(path, args) {
            return;
        }
        if is_preprocessed(path) {
            let expected = "a Dockerfile whose name does not end in `.in`";
            let found = "a Dockerfile that some builders preprocess";
            return self.refuse_for((path, "", None), found, expected);
        }
        let Some(text) = read_task_text(self.dir, path, self.problems) else { return };
        for fetch in build_fetches(&text, args) {
            if self.is_done() {
                return;
            }
            let look_up = |registry: &str| self.rules.lookups.addresses(registry);
            if let Some(refused) = self.rules.access.build_refusal(&fetch, look_up) {
                let place = (path.as_path(), refused.key.as_str(), Some(fetch.line));
                let expected = refused.expected.unwrap_or(PUBLIC_IMAGES);
                self.refuse_for(place, &refused.refusal.to_string(), expected);
            }
        }
    }

    /// Whether a directory has a file, and no link on the way to the file leaves the directory.
    fn has_inside(&self, directory: &Path, file: &Path) -> bool {
        self.root.directory(directory).is_ok_and(|directory| directory.has_file(file))
    }

    /// Checks a compose file, and then those that it extends.
    fn compose(&mut self, context: &Path, path: &Path) {
        self.compose_file(context, path, false);
        while let Some(path) = self.extended.pop_first() {
            self.compose_file(context, &path, true);
        }
    }

    /// Checks a compose file alone. `is_extended`: another one extends it.
    fn compose_file(&mut self, context: &Path, path: &Path, is_extended: bool) {
        if !self.begins(path, &BTreeMap::new()) {
            return;
        }
        let Some(text) = read_task_text(self.dir, path, self.problems) else { return };
        match parse_yaml(&text) {
            Ok((_, faults)) if !faults.is_empty() => {
                for fault in faults {
                    let found =
                        format!("text that readers take in different ways: {}", fault.message);
                    self.refuse(path, "", Some(fault.line), &found);
                }
            }
            Ok((document, _)) => {
                let is_merged = is_extended || has_key(&document, "extends");
                let file = ComposeFile { context, path, is_merged };
                self.compose_node(file, (ComposePlace::Top, ""), &document);
            }
            Err(error) => {
                let found = format!("text that cannot be read: {}", error.message);
                self.refuse(path, "", Some(error.line), &found);
            }
        }
    }

    fn compose_node(
        &mut self,
        file: ComposeFile<'_>,
        (place, at): (ComposePlace, &str),
        node: &ConfigNode,
    ) {
        let entries = match &node.value {
            ConfigValue::Mapping(entries) => entries,
            ConfigValue::Sequence(items) => {
                return items.iter().for_each(|item| self.compose_node(file, (place, at), item));
            }
            _ => return,
        };
        for entry in entries {
            if self.is_done() {
                return;
            }
            let key = if at.is_empty() { entry.key.clone() } else { format!("{at}.{}", entry.key) };
            match (entry.key.as_str(), &entry.node.value) {
                ("image", ConfigValue::String(image)) if !OWN_IMAGES.contains(&image.as_str()) => {
                    self.image(file.path, &key, Some(entry.line), image);
                }
                ("build", ConfigValue::String(_) | ConfigValue::Mapping(_)) => {
                    let build = ServiceBuild::read(&entry.node);
                    self.build(file, &key, entry.line, build);
                }
                ("extends", ConfigValue::Mapping(_)) => {
                    if let Some(name) = text(&entry.node, "file") {
                        self.extend(file, (&key, entry.line), name);
                    }
                }
                // The host would send what is for these addresses to the task.
                ("ipam", value) if place == ComposePlace::Network && !is_empty(value) => {
                    let refused = (file.path, key.as_str(), Some(entry.line));
                    let expected = "a network whose addresses the engine chooses";
                    self.refuse_for(refused, "addresses of a network", expected);
                }
                (name @ ("ulimits" | "sysctls"), value) if place == ComposePlace::Service => {
                    if let Some(limit) = compose_limits::refused(name, keys(value)) {
                        let refused = (file.path, key.as_str(), Some(entry.line));
                        let found = format!("`{limit}`, which reaches beyond the container");
                        let expected = "limits and kernel parameters of the container alone, such as \
                                        `nofile` and `net.*`";
                        self.refuse_for(refused, &found, expected);
                    }
                }
                (name, _) if place.has_texts(name) => continue,
                _ => {}
            }
            let inner = (place.of_value(&entry.key), key.as_str());
            self.compose_node(file, inner, &entry.node);
        }
    }

    /// Notes a file that another one extends.
    fn extend(&mut self, by: ComposeFile<'_>, (key, line): (&str, usize), name: &str) {
        let below = in_context(name);
        // From the root, or above the directory that it begins at.
        let leaves =
            |part: Component<'_>| matches!(part, Component::RootDir | Component::ParentDir);
        if Path::new(below).components().any(leaves) || below.contains('$') {
            let found = format!("the file `{name}`, which cannot be told");
            return self.refuse(by.path, key, Some(line), &found);
        }
        let path = if below == name { by.base() } else { by.context }.join(below);
        if self.extended.len() < MAX_FILES {
            self.extended.insert(path);
        } else if !self.extended.contains(&path) {
            self.refuse_files(by.path);
        }
    }

    fn build(
        &mut self,
        compose: ComposeFile<'_>,
        key: &str,
        line: usize,
        build: Option<ServiceBuild<'_>>,
    ) {
        let path = compose.path;
        // The program reads `..` without a look at links, and a place from the root is outside.
        let is_below = |text: &str| {
            let below = |part| matches!(part, Component::Normal(_) | Component::CurDir);
            Path::new(text).components().all(below)
        };
        let is_plain = |text: &str| !text.contains(['$', ':']) && is_below(text);
        let build = build.filter(|build| is_plain(build.directory) && is_plain(build.file));
        // The keys of a service and of one that it extends become one build.
        let Some(build) = build.filter(|build| build.is_whole || !compose.is_merged) else {
            let found = "a build of a place, or with an argument, that cannot be told".to_owned();
            return self.refuse(path, key, Some(line), &found);
        };
        if build.args.contains_key(FRONTEND_ARGUMENT) {
            let found = format!("the build argument `{FRONTEND_ARGUMENT}`");
            self.refuse(path, key, Some(line), &found);
        }
        let contexts = BTreeSet::from([compose.context, compose.base()])
            .into_iter()
            .map(|base| base.join(build.directory));
        let mut is_there = false;
        for context in contexts {
            is_there |= self.has_dockerfile(&context.join(build.file));
            self.dockerfile(&context, Path::new(build.file), &build.args);
        }
        if !is_there {
            let found = format!("a build of `{}`, which is not there", build.file);
            self.refuse(path, key, Some(line), &found);
        }
    }
}

/// The file that some builders read in the place of a Dockerfile that is not there.
fn in_its_place(path: &Path) -> Option<PathBuf> {
    let is_default = path.file_name().is_some_and(|name| name == DOCKERFILE);
    is_default.then(|| path.with_file_name(DOCKERFILE.to_ascii_lowercase()))
}

/// The keys of a map, or of a list of texts `KEY=VALUE`.
fn keys(value: &ConfigValue) -> Vec<&str> {
    let key = |text: &str| text.find('=').unwrap_or(text.len());
    match value {
        ConfigValue::Mapping(entries) => entries.iter().map(|entry| entry.key.as_str()).collect(),
        ConfigValue::Sequence(items) => items
            .iter()
            .map(|item| match &item.value {
                ConfigValue::String(text) => &text[..key(text)],
                _ => "",
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn is_empty(value: &ConfigValue) -> bool {
    match value {
        ConfigValue::Null => true,
        ConfigValue::Mapping(entries) => entries.is_empty(),
        ConfigValue::Sequence(items) => items.is_empty(),
        _ => false,
    }
}

/// A compose file.
#[derive(Clone, Copy)]
struct ComposeFile<'a> {
    /// The build context of the task's environment.
    context: &'a Path,
    path: &'a Path,
    /// Whether its services extend others, or others extend them.
    is_merged: bool,
}

impl<'a> ComposeFile<'a> {
    /// The directory that its paths begin at.
    fn base(self) -> &'a Path {
        self.path.parent().unwrap_or(self.context)
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
