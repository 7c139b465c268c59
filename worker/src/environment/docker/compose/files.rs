//! The files that `docker compose` reads. It runs as the worker's user, so a file of the host must not
//! get into a service through `include`, `extends` or `env_file`: every named file must lie in the build
//! context, with links resolved.
//!
//! The program never reads a compose file of a task: its YAML reader differs from ours, so a key could
//! be hidden from the checks. It reads [what was checked](ComposeFiles), as JSON, in a directory that
//! has nothing else.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

use rollout_protocol::limits;
use serde_json::{Map, Value};

use crate::confined::{ConfinedDir, leads_outside};
use crate::environment::compose::{self, CONTEXT};
use crate::environment::compose_place::ComposePlace;
use crate::environment::{ComposeFile, Failure, FailureKind};

/// Depth limit of `extends` between files: more than real files use.
const DEPTH: usize = 8;

/// Name of the file with variables that a compose file can refer to.
const VARIABLES_FILE: &str = ".env";

/// Checks the file and the files that it refers to.
///
/// # Errors
/// [`Failure`] that names the file and the key that is refused.
pub fn check(compose: &ComposeFile) -> Result<(), Failure> {
    ComposeFiles::read(compose, Path::new("/")).map(drop)
}

/// A compose file of a task and those that it extends, as they were read and checked.
#[derive(Debug)]
pub(super) struct ComposeFiles {
    /// The files by the path of their copy in `directory`. Names of other compose files in them are those
    /// of copies, and names of files with variables are absolute.
    files: BTreeMap<PathBuf, Value>,
    copies: CopyNames,
    /// The copy of the task's own file.
    own: PathBuf,
    /// The text of the file with variables.
    variables: Option<String>,
    /// The directory that they are written to.
    directory: PathBuf,
}

/// Names of copies by those of the files. They are in the same directory, but their own names are ours:
/// a file may be called as a git repository, which the program would fetch.
#[derive(Debug, Default)]
struct CopyNames(BTreeMap<PathBuf, PathBuf>);

impl CopyNames {
    fn of(&mut self, name: &Path) -> &Path {
        let number = self.0.len();
        let new = || name.with_file_name(format!("{number}.yaml"));
        self.0.entry(name.to_owned()).or_insert_with(new)
    }
}

/// What [`ComposeFiles::write`] wrote.
#[derive(Debug)]
pub(super) struct WrittenFiles {
    /// The task's own file.
    pub(super) own: PathBuf,
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
        let refuse = |ComposeFileError { kind, what }: ComposeFileError| {
            let text = format!("{}: {what}", compose.file.display());
            Failure::new(kind, text)
        };
        let variables = variables(&root).map_err(refuse)?;
        let name = compose
            .file
            .to_str()
            .ok_or_else(|| refuse(ComposeFileError::broken("its name is not UTF-8")))?;
        let file = inside(&root, &root, name).map_err(|what| refuse(what.into()))?;
        let mut copies = CopyNames::default();
        let own = copies.of(&below(&root, &file)).to_owned();
        let directory = directory.to_owned();
        let mut read = Self { files: BTreeMap::new(), copies, own, variables, directory };
        read.add(&root, &file, 0).map_err(refuse)?;
        Ok(read)
    }

    /// Reads a file and those that it extends.
    fn add(&mut self, root: &Path, file: &Path, depth: usize) -> Result<(), ComposeFileError> {
        if depth > DEPTH {
            return Err(format!("`extends` is nested through more than {DEPTH} files").into());
        }
        let name = below(root, file);
        let shown = name.display();
        let text = read_text(root, file)?;
        let mut value = compose::parse(&text)
            .map_err(|error| ComposeFileError::broken(format!("`{shown}`: {error}")))?;
        // The task's own file is read as if it were at the top.
        let base = if depth == 0 { root } else { file.parent().unwrap_or(root) };
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
        self.files.insert(self.copies.of(&name).to_owned(), value);
        for other in others {
            if !self.files.contains_key(self.copies.of(&below(root, &other))) {
                self.add(root, &other, depth + 1)?;
            }
        }
        Ok(())
    }

    /// The task's own file.
    pub(super) fn own(&self) -> &Value {
        &self.files[&self.own]
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
                let path = self.directory.with_extension("env");
                std::fs::write(&path, text)?;
                Some(path)
            }
            None => None,
        };
        Ok(WrittenFiles { own: path(&self.own), variables })
    }

    /// Replaces the directory of the files by that of the originals, in all texts of a resolved file.
    pub(super) fn restore_paths(&self, model: &mut Value, root: &Path) {
        match model {
            Value::String(text) => {
                let Ok(rest) = Path::new(text.as_str()).strip_prefix(&self.directory) else {
                    return;
                };
                let original =
                    if rest == Path::new("") { root.to_owned() } else { root.join(rest) };
                *text = original.display().to_string();
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.restore_paths(item, root)),
            Value::Object(map) => {
                map.values_mut().for_each(|value| self.restore_paths(value, root));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
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

/// The text of the file with variables.
fn variables(root: &Path) -> Result<Option<String>, ComposeFileError> {
    if root.join(VARIABLES_FILE).symlink_metadata().is_err() {
        return Ok(None);
    }
    let file = inside(root, root, VARIABLES_FILE)?;
    read_text(root, &file).map(Some)
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

/// The file or directory `name`, relative to `base`, if it lies in `root`.
pub(super) fn inside(root: &Path, base: &Path, name: &str) -> Result<PathBuf, String> {
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
    ConfinedDir::open(root).and_then(|dir| dir.resolve(&path)).map_err(|error| {
        if leads_outside(&error) { outside(name) } else { format!("cannot read `{name}`: {error}") }
    })
}

fn outside(name: &str) -> String {
    format!("`{name}` is outside the task's environment directory")
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
                    if let Some(Value::String(name)) = value.get_mut("file") {
                        let path = inside(self.root, self.base, name).map_err(with_key)?;
                        let copy = found.copies.of(&below(self.root, &path));
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

    /// The path of a file. A missing one is accepted: the program reports it where it matters.
    fn readable(&self, name: &str) -> Result<PathBuf, String> {
        let plain = !name.contains('$') && !Path::new(name).is_absolute();
        let path = self.base.join(name);
        let below = !Path::new(name).components().any(|part| part == Component::ParentDir);
        if plain && below && path.symlink_metadata().is_err() {
            return Ok(path);
        }
        inside(self.root, self.base, name)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(files: &[(&str, &str)]) -> Result<(), String> {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).expect("linked");
        let compose = ComposeFile { dir: dir.path().to_owned(), file: "compose.yaml".into() };
        check(&compose).map_err(|failure| failure.message)
    }

    #[test]
    fn compose_file_invalid_is_refused_or_unsupported() {
        for (text, kind) in [
            ("services: {main: {image: [", FailureKind::Refused),
            ("- a\n- list\n", FailureKind::Refused),
            ("services: {main: {env_file: /etc/passwd}}", FailureKind::Unsupported),
            ("include: [other.yaml]", FailureKind::Unsupported),
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            std::fs::write(dir.path().join("compose.yaml"), text).expect("written");
            let compose = ComposeFile { dir: dir.path().to_owned(), file: "compose.yaml".into() };
            assert_eq!(check(&compose).expect_err(text).kind, kind, "{text}");
        }
    }

    #[test]
    fn compose_file_inside_context_is_accepted() {
        let main = "x-common: &common {env_file: a.env}\nservices:\n  main:\n    <<: *common\n    \
                    environment: {env_file: /etc/passwd, include: x}\n  db:\n    extends: {file: \
                    other.yaml, service: db}\n    env_file: [{path: missing.env, required: false}]\n";
        let other = "services: {db: {image: x, env_file: ['${CONTEXT_DIR}/a.env']}}\n";
        let files = [("compose.yaml", main), ("other.yaml", other), ("a.env", "A=b\n")];
        assert_eq!(checked(&files), Ok(()));
    }

    /// The files below a directory, and the names in it.
    fn written(files: &[(&str, &str)]) -> (tempfile::TempDir, tempfile::TempDir, ComposeFiles) {
        let [dir, copies] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("below")).expect("created");
            std::fs::write(path, text).expect("written");
        }
        let compose = ComposeFile { dir: dir.path().to_owned(), file: "compose.yaml".into() };
        let read = ComposeFiles::read(&compose, &copies.path().join("project")).expect("valid");
        (dir, copies, read)
    }

    fn json_of(path: &Path) -> Value {
        let text = std::fs::read_to_string(path).expect("written");
        serde_json::from_str(&text).expect("JSON")
    }

    #[test]
    fn copies_name_each_other_and_the_variables_of_the_context() {
        let main = "services: {main: {extends: {file: 'sub/git@h:r.git', service: x}, env_file: [a.env, \
                    {path: '~/b.env', required: false}], build: {context: sub}}}\n";
        let other = "services: {x: {env_file: c.env, volumes: ['./d:/d']}}\n";
        let files = [
            ("compose.yaml", main),
            ("sub/git@h:r.git", other),
            ("sub/c.env", ""),
            ("a.env", ""),
            (".env", "A=b\n"),
        ];
        let (dir, copies, read) = written(&files);
        let root = dir.path().canonicalize().expect("a path");
        let project = copies.path().join("project");
        let names = read.write().expect("written");
        assert_eq!(names.own, project.join("0.yaml"));
        let variables = names.variables.expect("there are some");
        assert!(!variables.starts_with(&project));
        assert_eq!(std::fs::read_to_string(variables).expect("text"), "A=b\n");
        let main = &json_of(&names.own)["services"]["main"];
        let extended = project.join("sub/1.yaml");
        assert_eq!(main["extends"]["file"], extended.display().to_string());
        assert_eq!(main["env_file"][0], root.join("a.env").display().to_string());
        let missing = root.join("~/b.env").display().to_string();
        assert_eq!(main["env_file"][1]["path"], missing, "no home directory is named");
        let service = &json_of(&extended)["services"]["x"];
        assert_eq!(service["env_file"], root.join("sub/c.env").display().to_string());
        let mut model = serde_json::json!({
            "source": project.join("sub/d"), "context": project, "text": "/project",
        });
        read.restore_paths(&mut model, &root);
        let expected =
            serde_json::json!({"source": root.join("sub/d"), "context": root, "text": "/project"});
        assert_eq!(model, expected);
    }

    #[test]
    fn copies_have_only_what_was_checked() {
        for end in ['\u{85}', '\u{2028}', '\u{2029}'] {
            let text = format!(
                "services:\n  main:\n    image: x # a{end}    env_file: /etc/passwd\n    command: \
                 |\n      a{end}    image: y\n# b{end}include: [/x.yaml]\n"
            );
            let (_dir, _copies, read) = written(&[("compose.yaml", &text)]);
            let written = std::fs::read_to_string(read.write().expect("written").own);
            let written = written.expect("text");
            assert!(written.is_ascii(), "{written}");
            let value: Value = serde_json::from_str(&written).expect("JSON");
            let command = format!("a{end}    image: y\n");
            let main = serde_json::json!({"image": "x", "command": command});
            assert_eq!(value, serde_json::json!({"services": {"main": main}}));
        }
    }

    #[test]
    fn file_that_aliases_make_too_long_is_refused() {
        let mut text = format!("a0: &a0 [{}]\n", vec!["xxxxxxxxxx"; 100].join(", "));
        for n in 1..4 {
            let before = n - 1;
            let items = vec![format!("*a{before}"); 40].join(", ");
            text.push_str(&format!("a{n}: &a{n} [{items}]\n"));
        }
        let refused = checked(&[("compose.yaml", &text)]).expect_err("too long");
        assert!(refused.contains("aliases") || refused.contains("budget"), "{refused}");
    }

    #[test]
    fn compose_file_outside_context_is_refused() {
        for (text, word) in [
            ("services: {main: {env_file: /etc/passwd}}", "services.main.env_file"),
            ("services: {main: {env_file: link}}", "outside"),
            ("services: {labels: {env_file: /etc/passwd}}", "services.labels.env_file"),
            ("services: {extends: {env_file: link}}", "outside"),
            ("services: {services: {env_file: /etc/passwd}}", "services.services.env_file"),
            ("services: {a.services: {env_file: link}}", "outside"),
            ("services: {services: {extends: {file: link, service: x}}}", "outside"),
            ("x: &x {args: {env_file: link}}\nservices: {<<: *x}", "outside"),
            ("services: {main: {env_file: [{path: ../../../etc/passwd}]}}", "`..`"),
            ("services: {}\n---\nservices: {main: {env_file: /etc/passwd}}", "compose.yaml"),
            ("services: {main: {env_file: '${HOME}/.netrc'}}", "variables"),
            ("services: {main: {extends: {file: /etc/compose.yaml, service: x}}}", "outside"),
            ("services: {main: {extends: {file: link, service: x}}}", "outside"),
            ("x: &x {env_file: /etc/passwd}\nservices: {main: {<<: *x}}", "main.env_file"),
            ("include: [/etc/compose.yaml]", "include"),
            ("services: [", "compose.yaml"),
            ("- a", "not a map"),
        ] {
            let refused = checked(&[("compose.yaml", text)]).expect_err(text);
            assert!(refused.contains(word), "{text}: {refused}");
        }
    }
}
