//! Rules for the images and image builds of tasks whose author may not use the network of an engine.
//! The engine fetches images, frontends and the sources of `ADD` from wherever it runs.

mod service_build;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rollout_worker::confined::ConfinedDir;
use rollout_worker::environment::descriptor;
use rollout_worker::environment::dockerfile::{BuildFetch, BuildFetchKind, build_fetches};

use self::service_build::{ServiceBuild, has_key, in_context, text};
use super::TaskParts;
use super::discover::TASK_FILE;
use crate::config::{
    ConfigNode, ConfigValue, Diagnostics, ErrorKind, FetchAccess, ImageAccess, Job,
    RegistryLookups, SourceLocation, TaskFile, parse_yaml, read_task_text,
};

/// Findings of a task that are recorded: its files may have any number of them.
const MAX_FINDINGS: usize = 20;

/// Findings of all tasks that are recorded.
const MAX_FINDINGS_OF_RUN: usize = 1000;

/// Longest text of a finding, in characters: an image or an address may be as long as its file.
const MAX_TEXT: usize = 500;

/// Files of a task that are checked: compose files, and Dockerfiles with each set of arguments.
const MAX_FILES: usize = 64;

/// The frontends that do only what a Dockerfile says.
const STANDARD_FRONTEND: &str = "docker/dockerfile";

/// Images of compose files that stand for the environment's own.
const OWN_IMAGES: [&str; 4] =
    ["${MAIN_IMAGE_NAME}", "$MAIN_IMAGE_NAME", "${PREBUILT_IMAGE_NAME}", "$PREBUILT_IMAGE_NAME"];

/// Name of a Dockerfile that is not named.
const DOCKERFILE: &str = "Dockerfile";

/// Build argument that names a frontend.
const FRONTEND_ARGUMENT: &str = "BUILDKIT_SYNTAX";

/// Maps of compose files whose keys are names chosen by the user.
const USER_KEYED_MAPS: [&str; 4] = ["environment", "labels", "args", "annotations"];

/// The images of a job's tasks, each registry looked up once.
pub(super) struct ImageRules<'a> {
    access: &'a ImageAccess,
    lookups: RegistryLookups<'a>,
    /// Number of findings so far.
    findings: Cell<usize>,
}

impl<'a> ImageRules<'a> {
    pub(super) fn new(access: &'a ImageAccess, fetch: &'a FetchAccess) -> Self {
        Self { access, lookups: RegistryLookups::new(fetch), findings: Cell::new(0) }
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
            task.dockerfile(&context.join(DOCKERFILE), &BTreeMap::new());
            if let Some(file) = compose {
                task.compose(context, &context.join(file));
            }
        }
    }

    fn refusal(&self, image: &str) -> Option<String> {
        self.access.refusal(image, |registry| self.lookups.addresses(registry))
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
        let (key, found) = (shortened(key), shortened(found));
        let finding = (file.to_owned(), key.clone(), line, found.clone());
        if self.is_full() || !self.found.insert(finding) {
            return;
        }
        self.rules.findings.set(self.rules.findings.get() + 1);
        let location = SourceLocation { key, line };
        let expected = "images of public registries, and builds that fetch nothing else, or a \
                        registry that the operator lists with `--allow-image-registry`";
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
        if let Some(why) = self.rules.refusal(image) {
            self.refuse(file, key, line, &why);
        }
    }

    /// Checks a Dockerfile of the task, if it is there, and the one that some builders read in its place.
    fn dockerfile(&mut self, path: &Path, args: &BTreeMap<String, String>) {
        self.one_dockerfile(path, args);
        if path.file_name().is_some_and(|name| name == DOCKERFILE) {
            self.one_dockerfile(&path.with_file_name(DOCKERFILE.to_ascii_lowercase()), args);
        }
    }

    fn one_dockerfile(&mut self, path: &Path, args: &BTreeMap<String, String>) {
        if !self.begins(path, args) {
            return;
        }
        let Some(text) = read_task_text(self.dir, path, self.problems) else { return };
        for BuildFetch { line, kind, source } in build_fetches(&text, args) {
            if self.is_done() {
                return;
            }
            match kind {
                BuildFetchKind::Image => self.image(path, "", Some(line), &source),
                BuildFetchKind::Frontend
                    if is_standard(&source) || self.rules.access.lists(&source) => {}
                BuildFetchKind::Frontend => {
                    let found = format!("the frontend `{source}`, which may fetch anything");
                    self.refuse(path, "syntax", Some(line), &found);
                }
                BuildFetchKind::Unclear => {
                    let found =
                        format!("a form of `{source}` that builders read in different ways");
                    self.refuse(path, &source, Some(line), &found);
                }
                BuildFetchKind::Address => {
                    let found = format!("the source `{source}`, which the engine would fetch");
                    self.refuse(path, "ADD", Some(line), &found);
                }
            }
        }
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
            Ok((document, _)) => {
                let is_merged = is_extended || has_key(&document, "extends");
                let file = ComposeFile { context, path, is_merged };
                self.compose_node(file, "", &document);
            }
            Err(error) => {
                let found = format!("text that cannot be read: {}", error.message);
                self.refuse(path, "", Some(error.line), &found);
            }
        }
    }

    fn compose_node(&mut self, file: ComposeFile<'_>, at: &str, node: &ConfigNode) {
        let entries = match &node.value {
            ConfigValue::Mapping(entries) => entries,
            ConfigValue::Sequence(items) => {
                return items.iter().for_each(|item| self.compose_node(file, at, item));
            }
            _ => return,
        };
        // The keys here are names chosen by the user: a service may be called `labels`.
        let names_services = at.split('.').rfind(|part| *part != "<<") == Some("services");
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
                        let base =
                            if in_context(name) == name { file.base() } else { file.context };
                        self.extend(file, &base.join(in_context(name)));
                    }
                }
                (name, _) if USER_KEYED_MAPS.contains(&name) && !names_services => continue,
                _ => {}
            }
            self.compose_node(file, &key, &entry.node);
        }
    }

    /// Notes a file that another one extends.
    fn extend(&mut self, by: ComposeFile<'_>, path: &Path) {
        if self.extended.len() < MAX_FILES {
            self.extended.insert(path.to_owned());
        } else if !self.extended.contains(path) {
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
        let is_plain = |text: &str| !text.contains('$') && !text.contains(':');
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
        for base in BTreeSet::from([compose.context, compose.base()]) {
            self.dockerfile(&base.join(build.directory).join(build.file), &build.args);
        }
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

fn is_standard(frontend: &str) -> bool {
    let image = frontend.trim_start_matches("docker.io/");
    image.split([':', '@']).next() == Some(STANDARD_FRONTEND)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::{JobOptions, job_from_settings};

    /// The places and findings of a task with these files.
    fn found(files: &[(&str, &str)], access: &ImageAccess) -> Vec<String> {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        let mut problems = Diagnostics::default();
        let options = JobOptions::for_command_line(&|_| true);
        let job = job_from_settings(&options, &mut Diagnostics::default()).expect("a job");
        fs::write(dir.path().join(TASK_FILE), files[0].1).expect("written");
        let file = dir.path().join(TASK_FILE);
        let file = crate::config::read_task(&file, Default::default(), &mut problems);
        let file = file.expect("a task");
        let compose = files.iter().any(|(name, _)| name.ends_with("docker-compose.yaml"));
        let parts = TaskParts {
            context: Some("environment".into()),
            compose: compose.then(|| "docker-compose.yaml".to_owned()),
            steps: Vec::new(),
        };
        let root = ConfinedDir::open(dir.path()).expect("a directory");
        let fetch = FetchAccess::default();
        let rules = ImageRules::new(access, &fetch);
        rules.check(&job, (dir.path(), &root), (&file, &parts), &mut problems);
        let (errors, _) = problems.into_parts();
        errors.iter().map(|error| error.found.clone()).collect()
    }

    fn dockerfile(text: &str) -> Vec<String> {
        let files = [("task.toml", "version = '1.0'\n"), ("environment/Dockerfile", text)];
        found(&files, &ImageAccess::default())
    }

    #[test]
    fn dockerfile_that_fetches_from_the_network_of_the_engine_is_refused() {
        for good in [
            "FROM debian:12\nADD files/* /x\nCOPY --from=0 /a /b\n",
            "# syntax=docker/dockerfile:1.7\nARG V=12\nFROM debian:$V AS base-a\nFROM base-a\n",
            "FROM debian\nADD [\"a b\", \"/x\"]\nADD <<EOF /x\nhttp://127.0.0.1/\nEOF\n",
        ] {
            assert_eq!(dockerfile(good), [""; 0], "{good}");
        }
        for bad in [
            "FROM 127.0.0.1:5000/x\n",
            "ARG R=127.0.0.1:5000\nFROM $R/x\n",
            "ARG R=127.0.0.1\nFROM ${R#a}/x\n",
            "FROM debian\nCOPY --from=localhost:5000/x /a /b\n",
            "FROM debian\nRUN --mount=type=bind,from=localhost:5000/x,target=/x true\n",
            "FROM debian\nADD http://127.0.0.1/x /x\n",
            "FROM debian\nADD https://example.com/x /x\n",
            "FROM debian\nADD git@127.0.0.1:x /x\n",
            "FROM debian\nARG U=http://127.0.0.1\nADD $U/x /x\n",
            "FROM debian\nADD [\"http://127.0.0.1/x\", \"/x\"]\n",
            "FROM debian\nONBUILD ADD http://127.0.0.1/x /x\n",
            "FROM debian\nADD h\"tt\"p://127.0.0.1/x /x\n",
            "FROM 127.0.0.1:5000/x-$TARGETARCH\n",
            "# syntax=127.0.0.1:5000/x\nFROM debian\n",
            "# syntax=someone/frontend\nFROM debian\n",
            "// syntax=someone/frontend\nFROM debian\n",
            "#!/bin/x\n{\"syntax\": \"someone/frontend\"}\n",
        ] {
            assert!(!dockerfile(bad).is_empty(), "{bad}");
        }
    }

    #[test]
    fn dockerfile_in_lower_case_is_checked() {
        let bad = "FROM 127.0.0.1:5000/x\n";
        let own = [("task.toml", "version = '1.0'\n"), ("environment/dockerfile", bad)];
        let of_service = [
            ("task.toml", "version = '1.0'\n"),
            ("environment/docker-compose.yaml", "services: {db: {build: db}}\n"),
            ("environment/db/dockerfile", bad),
        ];
        for files in [&own[..], &of_service[..]] {
            assert_eq!(found(files, &ImageAccess::default()).len(), 1, "{files:?}");
        }
    }

    #[test]
    fn images_of_task_and_services_are_checked_unless_listed() {
        let compose = "services:\n  main: {image: '${MAIN_IMAGE_NAME}'}\n  db: {image: \
                       '127.0.0.1:5000/db'}\n  web:\n    build: {context: web, args: {R: \
                       '127.0.0.1:5000'}}\n";
        let files = [
            ("task.toml", "[environment]\ndocker_image = '127.0.0.1:5000/main'\n"),
            ("environment/docker-compose.yaml", compose),
            ("environment/web/Dockerfile", "ARG R=docker.io\nFROM $R/web\n"),
        ];
        let extends = "services: {own: {extends: {file: other.yaml, service: x}}}\n";
        let extended = [
            ("task.toml", "version = '1.0'\n"),
            ("environment/docker-compose.yaml", extends),
            ("environment/other.yaml", "services: {x: {image: '127.0.0.1:5000/other'}}\n"),
        ];
        let rule = "127.0.0.1:5000".parse().expect("a rule");
        let hosts = rollout_worker::egress::AllowedHosts::public(vec![rule]);
        let listed = ImageAccess::Guarded(hosts);
        for (files, refused) in [(&files[..], 3), (&extended[..], 1)] {
            let found_of = |access: &ImageAccess| found(files, access);
            assert_eq!(found_of(&ImageAccess::default()).len(), refused, "{files:?}");
            assert_eq!(found_of(&ImageAccess::Everything), [""; 0]);
            assert_eq!(found_of(&listed), [""; 0]);
        }
    }

    #[test]
    fn image_of_service_is_checked_wherever_it_is_written() {
        for compose in [
            "services: {labels: {image: 'localhost/x'}}",
            "services: {image: {image: 'localhost/x'}}",
            "x-part: &part {image: 'localhost/x'}\nservices: {main: {<<: *part}}",
            "x: &x {environment: {image: 'localhost/x'}}\nservices: {<<: *x}",
        ] {
            let files =
                [("task.toml", "version = '1.0'\n"), ("environment/docker-compose.yaml", compose)];
            assert!(!found(&files, &ImageAccess::default()).is_empty(), "{compose}");
        }
    }

    #[test]
    fn build_that_another_service_changes_is_refused() {
        let inner = "FROM 127.0.0.1:5000/x\n";
        let chosen = "ARG BASE=debian\nFROM $BASE\n";
        for (compose, other, dockerfile) in [
            (
                "services: {a: {extends: {file: sub/o.yaml, service: b}}}",
                "services: {b: {build: .}}",
                inner,
            ),
            (
                "services: {a: {extends: {service: b}, build: {args: {BASE: localhost/x}}}, b: {build: sub}}",
                "",
                chosen,
            ),
            (
                "services: {a: {extends: {file: sub/o.yaml, service: b}}}",
                "services: {b: {build: {context: ., dockerfile: Other}}}",
                chosen,
            ),
            (
                "x: &x {context: sub}\nservices: {a: {build: {<<: *x, args: {BASE: localhost/x}}}}",
                "",
                chosen,
            ),
        ] {
            let files = [
                ("task.toml", "version = '1.0'\n"),
                ("environment/docker-compose.yaml", compose),
                ("environment/sub/o.yaml", other),
                ("environment/sub/Dockerfile", dockerfile),
            ];
            assert!(!found(&files, &ImageAccess::default()).is_empty(), "{compose}");
        }
        let files = [
            ("task.toml", "version = '1.0'\n"),
            (
                "environment/docker-compose.yaml",
                "services: {a: {extends: {file: sub/o.yaml, service: b}, build: sub}}",
            ),
            ("environment/sub/o.yaml", "services: {b: {build: {context: .}}}"),
            ("environment/sub/Dockerfile", chosen),
        ];
        assert_eq!(found(&files, &ImageAccess::default()), [""; 0]);
    }

    #[test]
    fn build_that_cannot_be_told_is_refused() {
        for build in [
            "{context: 'https://example.com/x.git'}",
            "'git@h:x'",
            "{context: '${WHERE}'}",
            "{context: sub, dockerfile: ''}",
            "{context: sub, dockerfile: null}",
            "{context: ''}",
            "''",
            "{context: ., args: [BUILDKIT_SYNTAX=someone/frontend]}",
            "{context: ., args: [BASE]}",
            "{context: ., args: {BASE: }}",
            "{context: ., args: {BASE: [debian]}}",
        ] {
            let compose = format!("services: {{main: {{build: {build}}}}}\n");
            let files = [
                ("task.toml", "version = '1.0'\n"),
                ("environment/docker-compose.yaml", &*compose),
            ];
            assert_eq!(found(&files, &ImageAccess::default()).len(), 1, "{build}");
        }
    }

    #[test]
    fn argument_that_is_no_text_is_its_text() {
        let compose = "services: {main: {build: {context: ., args: {A: 127.1, B: 1, C: true}}}}\n";
        for (base, refused) in [("$A/x", 1), ("debian:$B", 0), ("a:$C", 0), ("debian:$D", 0)] {
            let dockerfile = format!("ARG A=docker.io\nARG B\nARG C\nFROM {base}\n");
            let files = [
                ("task.toml", "version = '1.0'\n"),
                ("environment/docker-compose.yaml", compose),
                ("environment/Dockerfile", &*dockerfile),
            ];
            assert_eq!(found(&files, &ImageAccess::default()).len(), refused, "{base}");
        }
    }

    #[test]
    fn findings_and_files_of_a_task_have_a_limit() {
        let lines = (0..1000).map(|n| format!("FROM 127.0.0.1:{n}/a\n")).collect::<String>();
        assert_eq!(dockerfile(&lines).len(), MAX_FINDINGS);
        let long = format!("FROM debian\nADD http://h/{} /x\n", "ä".repeat(10_000));
        assert_eq!(dockerfile(&long)[0].chars().count(), MAX_TEXT + 1);
        let services = (0..1000)
            .map(|n| format!("  s{n}: {{build: {{context: ., args: {{A: {n}}}}}}}\n"))
            .collect::<String>();
        let around = "services: {a: {extends: {file: sub/../o.yaml, service: a}}}\n";
        for (compose, text) in
            [(format!("services:\n{services}"), ""), (around.replace("sub/../", ""), around)]
        {
            let files = [
                ("task.toml", "version = '1.0'\n"),
                ("environment/docker-compose.yaml", &*compose),
                ("environment/o.yaml", text),
                ("environment/sub/x", ""),
                ("environment/Dockerfile", "FROM debian\n"),
            ];
            let found = found(&files, &ImageAccess::default());
            assert_eq!(found, ["more than 64 builds and compose files"], "{text}");
        }
    }
}
