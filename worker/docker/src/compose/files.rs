//! The files that `docker compose` reads. It runs as the worker's user, so a file of the host must not
//! get into a service through `include`, `extends` or `env_file`: every named file must lie in the build
//! context, with links resolved.
//!
//! The program never reads a compose file of a task: its YAML reader differs from ours, so a key could
//! be hidden from the checks. It reads [what was checked](ComposeFiles), as JSON, in a directory that
//! has nothing else.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

use rollout_base::confined::{ConfinedDir, ConfinedKind, is_absent, leads_outside};
use rollout_environment::compose::{self, CONTEXT};
use rollout_environment::compose_place::ComposePlace;
use rollout_environment::{ComposeFile, Failure, FailureKind};
use rollout_protocol::limits;
use serde_json::{Map, Value};

/// Depth limit of `extends` between files: more than real files use.
const DEPTH: usize = 8;

/// Limit of compose files: links give one file any number of names.
const FILES: usize = 64;

/// Keys of a service that name files. The program reads the files when it resolves a service, but leaves
/// the key in some of them: in one that extends an empty one, for example.
const FILE_KEYS: [&str; 3] = ["env_file", "extends", "label_file"];

/// Name of the file with variables that a compose file can refer to.
const VARIABLES_FILE: &str = ".env";

/// Checks the file and the files that it refers to.
///
/// # Errors
/// [`Failure`] that names the file and the key that is refused.
pub(crate) fn check(compose: &ComposeFile) -> Result<(), Failure> {
    ComposeFiles::read(compose, Path::new("/")).map(drop)
}

/// The compose files of a task and of its job, and those that they extend, as they were read and
/// checked.
#[derive(Debug)]
pub(super) struct ComposeFiles {
    /// The files by the path of their copy in `directory`. Names of other compose files in them are those
    /// of copies, and names of files with variables are absolute.
    files: BTreeMap<PathBuf, Value>,
    copies: CopyNames,
    /// The copies of the task's own file and of those of the job, in the order in which they are merged.
    tops: Vec<PathBuf>,
    /// The text of the file with variables.
    variables: Option<String>,
    /// The directory that they are written to.
    directory: PathBuf,
}

/// Names of copies by those of the files. They are in the same directory, but their own names are ours:
/// a file may be called as a git repository, which the program would fetch. No file of the task has such
/// a name.
#[derive(Debug, Default)]
struct CopyNames {
    names: BTreeMap<PathBuf, PathBuf>,
    /// Number in the next name.
    next: usize,
}

impl CopyNames {
    /// The name of the copy of a file in `root`.
    fn of(&mut self, root: &Path, name: &Path) -> PathBuf {
        if let Some(copy) = self.names.get(name) {
            return copy.clone();
        }
        let copy = loop {
            let copy = name.with_file_name(format!("{}.yaml", self.next));
            self.next += 1;
            if root.join(&copy).symlink_metadata().is_err() {
                break copy;
            }
        };
        self.names.insert(name.to_owned(), copy.clone());
        copy
    }
}

/// What [`ComposeFiles::write`] wrote.
#[derive(Debug)]
pub(super) struct WrittenFiles {
    /// The task's own file and those of the job, in the order in which they are merged.
    pub(super) tops: Vec<PathBuf>,
    /// The file with variables.
    pub(super) variables: Option<PathBuf>,
}

impl ComposeFiles {
    /// Reads and checks the files, which are to be written to a directory.
    ///
    /// # Errors
    /// [`Failure`] that names the file and the key that is refused.
    pub(super) fn read(compose: &ComposeFile, directory: &Path) -> Result<Self, Failure> {
        let root = compose.dir.canonicalize().map_err(|error| {
            Failure::local(FailureKind::Bug, "cannot read the build context", error)
        })?;
        let refuse = |name: &str, ComposeFileError { kind, what }: ComposeFileError| {
            Failure::new(kind, format!("{name}: {what}"))
        };
        let shown = compose.name();
        let variables = variables(&root).map_err(|error| refuse(&shown, error))?;
        let directory = directory.to_owned();
        let (copies, tops) = (CopyNames::default(), Vec::new());
        let mut read = Self { files: BTreeMap::new(), copies, tops, variables, directory };
        if let Some(file) = &compose.file {
            read.add_own(&root, file).map_err(|error| refuse(&shown, error))?;
        }
        for (number, text) in (1..).zip(&compose.overlays) {
            let name = format!("compose file {number} of the job");
            let top = read.copies.of(&root, Path::new(&name));
            read.tops.push(top);
            let added = read.add_text((&root, &root), Path::new(&name), text, 0);
            added.map_err(|error| refuse(&name, error))?;
        }
        Ok(read)
    }

    /// Reads the task's own file.
    fn add_own(&mut self, root: &Path, file: &Path) -> Result<(), ComposeFileError> {
        let broken = || ComposeFileError::broken("its name is not UTF-8");
        let file = inside(root, root, file.to_str().ok_or_else(broken)?)?;
        let top = self.copies.of(root, &below(root, &file));
        self.tops.push(top);
        self.add(root, &file, 0)
    }

    /// Reads a file and those that it extends.
    fn add(&mut self, root: &Path, file: &Path, depth: usize) -> Result<(), ComposeFileError> {
        if depth > DEPTH {
            return Err(format!("`extends` is nested through more than {DEPTH} files").into());
        }
        if self.files.len() == FILES {
            return Err(format!("`extends` leads to more than {FILES} files").into());
        }
        let text = read_text(root, file)?;
        // The task's own file is read as if it were at the top.
        let base = if depth == 0 { root } else { file.parent().unwrap_or(root) };
        self.add_text((root, base), &below(root, file), &text, depth)
    }

    /// Adds a file by its text, and those that it extends. Paths in it begin at `base`.
    fn add_text(
        &mut self,
        (root, base): (&Path, &Path),
        name: &Path,
        text: &str,
        depth: usize,
    ) -> Result<(), ComposeFileError> {
        let shown = name.display();
        let mut value = compose::parse(text)
            .map_err(|error| ComposeFileError::broken(format!("`{shown}`: {error}")))?;
        let Some(top) = value.as_object_mut() else {
            return Err(ComposeFileError::broken(format!("`{shown}` is not a map")));
        };
        if top.contains_key("include") {
            let what = "`include` is not supported: write the services into one file";
            return Err(what.to_owned().into());
        }
        let mut found = FoundFiles { copies: &mut self.copies, others: Vec::new() };
        let walk = ComposeFileWalk { root, base, directory: &self.directory };
        walk.map(top, (ComposePlace::Top, ""), &mut found)?;
        let others = found.others;
        if json_text(&value).len() as u64 > limits::CONFIG_FILE_BYTES {
            let most = limits::CONFIG_FILE_BYTES;
            let what = format!("aliases make `{shown}` longer than {most} bytes");
            return Err(ComposeFileError::broken(what));
        }
        self.files.insert(self.copies.of(root, name), value);
        for other in others {
            if !self.files.contains_key(&self.copies.of(root, &below(root, &other))) {
                self.add(root, &other, depth + 1)?;
            }
        }
        Ok(())
    }

    /// The task's own file and those of the job.
    pub(super) fn tops(&self) -> impl Iterator<Item = &Value> {
        self.tops.iter().map(|copy| &self.files[copy])
    }

    /// The file that an `extends` in one of them names.
    pub(super) fn extended(&self, name: &str) -> Option<&Value> {
        let is_named = |copy: &Path| literal(&self.directory.join(copy)) == name;
        self.files.iter().find(|(copy, _)| is_named(copy)).map(|(_, file)| file)
    }

    /// Writes the files to their directory.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn write(&self) -> io::Result<WrittenFiles> {
        let path = |name: &Path| self.directory.join(name);
        std::fs::create_dir_all(&self.directory)?;
        for (name, value) in &self.files {
            let path = path(name);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(path, json_text(value))?;
        }
        // Beside the directory: nothing in it may be named by a task.
        let variables = match &self.variables {
            Some(text) => {
                let path = self.variables_file();
                std::fs::write(&path, text)?;
                Some(path)
            }
            None => None,
        };
        let tops = self.tops.iter().map(|copy| path(copy)).collect();
        Ok(WrittenFiles { tops, variables })
    }

    fn variables_file(&self) -> PathBuf {
        self.directory.with_extension("env")
    }

    /// Makes a resolved file name no copy: nothing reads a file for it again, and its paths are those in
    /// the build context `root`.
    pub(super) fn restore(&self, model: &mut Value, root: &Path) {
        let services = model.get_mut("services").and_then(Value::as_object_mut);
        for service in services.into_iter().flat_map(Map::values_mut) {
            let Some(service) = service.as_object_mut() else { continue };
            for key in FILE_KEYS {
                service.remove(key);
            }
            let build = service.get_mut("build").and_then(Value::as_object_mut);
            if let Some(Value::String(context)) = build.and_then(|build| build.get_mut("context")) {
                // Old versions leave the name of a directory that is not in the project directory.
                let is_path = !context.contains(':') && Path::new(context.as_str()).is_relative();
                if is_path {
                    *context = format!("{}/{context}", literal(root));
                }
            }
        }
        self.restore_paths(model, root);
    }

    /// Replaces the directory of the files by that of the originals, in all texts.
    fn restore_paths(&self, model: &mut Value, root: &Path) {
        match model {
            Value::String(text) => {
                if let Some(original) = self.original_path(text, root) {
                    *text = original;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.restore_paths(item, root)),
            Value::Object(map) => {
                map.values_mut().for_each(|value| self.restore_paths(value, root));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// The path in the place of one at the directory of the files, or beside it: a name may begin with `..`.
    fn original_path(&self, text: &str, root: &Path) -> Option<String> {
        let beside = self.directory.parent().zip(root.parent());
        let places = [Some((self.directory.as_path(), root)), beside];
        places.into_iter().flatten().find_map(|(copies, originals)| {
            let rest = Path::new(text).strip_prefix(literal(copies)).ok()?;
            let path = PathBuf::from(literal(originals)).join(rest);
            Some(path.components().collect::<PathBuf>().display().to_string())
        })
    }

    /// A message of the program, with the names of the originals.
    pub(super) fn restore_names(&self, message: &str) -> String {
        let copies = self.copies.names.iter().map(|(name, copy)| {
            (self.directory.join(copy).display().to_string(), name.display().to_string())
        });
        let variables = (self.variables_file().display().to_string(), VARIABLES_FILE.to_owned());
        copies
            .chain([variables])
            .fold(message.to_owned(), |text, (copy, name)| text.replace(&copy, &name))
    }
}

/// JSON that readers of YAML take for the same document. Some characters are line breaks for them, or
/// may not stand there.
pub(super) fn json_text(value: &Value) -> String {
    let text = value.to_string();
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{7f}'..='\u{9f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{feff}'
            | '\u{fffe}'
            | '\u{ffff}' => {
                escaped.push_str("\\u");
                let digit = |shift: u32| char::from_digit(u32::from(c) >> shift & 0xf, 16);
                escaped.extend([12, 8, 4, 0].into_iter().filter_map(digit));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// The path of a file in the build context.
fn below(root: &Path, file: &Path) -> PathBuf {
    file.strip_prefix(root).unwrap_or(file).to_owned()
}

/// The text of the file with variables. A directory of this name, such as one of Python, is none.
fn variables(root: &Path) -> Result<Option<String>, ComposeFileError> {
    let file = root.join(VARIABLES_FILE);
    let kind = ConfinedDir::open(root)
        .and_then(|dir| dir.kind(&file))
        .map_err(|error| refusal(VARIABLES_FILE, &error))?;
    match kind {
        None | Some(ConfinedKind::Directory) => Ok(None),
        Some(ConfinedKind::File(_) | ConfinedKind::Special) => read_text(root, &file).map(Some),
    }
}

/// The text of a file in the build context.
fn read_text(root: &Path, file: &Path) -> Result<String, ComposeFileError> {
    let name = below(root, file);
    let shown = name.display();
    let unread = |error: io::Error| match error.kind() {
        io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory => {
            let most = limits::CONFIG_FILE_BYTES;
            ComposeFileError::broken(format!("`{shown}` is not a file of at most {most} bytes"))
        }
        _ => ComposeFileError::broken(format!("cannot read `{shown}`: {error}")),
    };
    ConfinedDir::open(root)
        .and_then(|dir| dir.read_text(file, limits::CONFIG_FILE_BYTES))
        .map_err(unread)
}

/// The reason why a file is refused.
struct ComposeFileError {
    kind: FailureKind,
    what: String,
}

impl ComposeFileError {
    /// The file itself is wrong: no environment could use it.
    fn broken(what: impl Into<String>) -> Self {
        Self { kind: FailureKind::Refused, what: what.into() }
    }
}

impl From<String> for ComposeFileError {
    fn from(what: String) -> Self {
        Self { kind: FailureKind::Unsupported, what }
    }
}

/// The path of the file `name`, relative to `base`. Links in it stay: the paths in an extended file begin
/// at the directory of its name.
fn named(root: &Path, base: &Path, name: &str) -> Result<PathBuf, String> {
    let prefixes = [format!("${{{CONTEXT}}}/"), format!("${CONTEXT}/")];
    let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix.as_str()));
    let path = rest.map_or_else(|| base.join(name), |rest| root.join(rest));
    if rest.unwrap_or(name).contains('$') {
        return Err(format!("`{name}` contains variables, so it cannot be checked"));
    }
    // Versions of the program disagree about the base directory.
    if Path::new(name).components().any(|part| part == Component::ParentDir) {
        return Err(format!("`{name}` contains `..`"));
    }
    Ok(path.components().collect())
}

/// The path of the file `name`, relative to `base`, if it lies in `root` with links resolved.
fn inside(root: &Path, base: &Path, name: &str) -> Result<PathBuf, String> {
    let path = named(root, base, name)?;
    match ConfinedDir::open(root).and_then(|dir| dir.resolve(&path)) {
        Ok(_) => Ok(path),
        Err(error) => Err(refusal(name, &error)),
    }
}

fn refusal(name: &str, error: &io::Error) -> String {
    if leads_outside(error) {
        format!("`{name}` is outside the task's environment directory")
    } else {
        format!("cannot read `{name}`: {error}")
    }
}

/// The files that a walk finds.
struct FoundFiles<'a> {
    copies: &'a mut CopyNames,
    others: Vec<PathBuf>,
}

struct ComposeFileWalk<'a> {
    root: &'a Path,
    /// Directory of the file.
    base: &'a Path,
    /// Directory of the copies.
    directory: &'a Path,
}

impl ComposeFileWalk<'_> {
    /// Checks a map wherever it is, and replaces the names of files in it: parts of a file can be
    /// merged into others.
    fn map(
        &self,
        map: &mut Map<String, Value>,
        (place, at): (ComposePlace, &str),
        found: &mut FoundFiles<'_>,
    ) -> Result<(), String> {
        for (key, value) in map {
            let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
            let inner = (place.of_value(key), at.as_str());
            let with_key = |what: String| format!("`{at}`: {what}");
            match key.as_str() {
                _ if place.has_names() => self.value(value, inner, found)?,
                key if place.has_texts(key) => {}
                "env_file" | "label_file" => {
                    for name in names(value, "path") {
                        *name = literal(&self.readable(name).map_err(with_key)?);
                    }
                }
                "extends" => {
                    extends_texts(value).map_err(with_key)?;
                    if let Some(Value::String(name)) = value.get_mut("file") {
                        let path = inside(self.root, self.base, name).map_err(with_key)?;
                        let copy = found.copies.of(self.root, &below(self.root, &path));
                        *name = literal(&self.directory.join(copy));
                        found.others.push(path);
                    }
                }
                _ => self.value(value, inner, found)?,
            }
        }
        Ok(())
    }

    fn value(
        &self,
        value: &mut Value,
        at: (ComposePlace, &str),
        found: &mut FoundFiles<'_>,
    ) -> Result<(), String> {
        match value {
            Value::Object(map) => self.map(map, at, found),
            Value::Array(items) => {
                items.iter_mut().try_for_each(|item| self.value(item, at, found))
            }
            _ => Ok(()),
        }
    }

    /// The path of a file without links. A missing one is accepted: the program reports it where it
    /// matters.
    fn readable(&self, name: &str) -> Result<PathBuf, String> {
        let path = named(self.root, self.base, name)?;
        match ConfinedDir::open(self.root).and_then(|dir| dir.resolve(&path)) {
            Ok(resolved) => Ok(resolved),
            Err(error) if is_absent(&error) => Ok(path),
            Err(error) => Err(refusal(name, &error)),
        }
    }
}

/// Checks that an `extends` names its file and its service as texts. The program ends with the state of its
/// threads otherwise.
fn extends_texts(value: &Value) -> Result<(), String> {
    let Some(names) = value.as_object() else { return Ok(()) };
    if names.get("file").is_some_and(|file| !file.is_string() && !file.is_null()) {
        return Err("`file` is not a text".to_owned());
    }
    match names.get("service") {
        Some(service) if service.is_string() => Ok(()),
        Some(_) => Err("`service` is not a text".to_owned()),
        None => Err("`service` is missing".to_owned()),
    }
}

/// A path as a text in which nothing is replaced.
fn literal(path: &Path) -> String {
    path.display().to_string().replace('$', "$$")
}

/// The names in a value: a text, or a list of texts or of maps with a text at `key`.
fn names<'a>(value: &'a mut Value, key: &str) -> Vec<&'a mut String> {
    match value {
        Value::String(name) => vec![name],
        Value::Array(items) => items.iter_mut().flat_map(|item| names(item, key)).collect(),
        Value::Object(map) => match map.get_mut(key) {
            Some(Value::String(name)) => vec![name],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}
