//! Checks of the files that a compose file makes the program read. The program runs as the worker's
//! user, so a file of the host must not get into a service through `include`, `extends` or
//! `env_file`: every named file must lie in the build context, with links resolved.

use std::io;
use std::path::{Component, Path, PathBuf};

use rollout_protocol::limits;
use serde_json::{Map, Value};

use crate::confined::{ConfinedDir, leads_outside};
use crate::environment::compose::CONTEXT;
use crate::environment::compose_place::ComposePlace;
use crate::environment::{ComposeFile, Failure, FailureKind};

/// Depth limit of `extends` between files: more than real files use.
const DEPTH: usize = 8;

/// Checks the file and the files that it refers to, before any program reads them.
///
/// # Errors
/// [`Failure`] that names the file and the key that is refused.
pub fn check(compose: &ComposeFile) -> Result<(), Failure> {
    let root = compose.dir.canonicalize().map_err(|error| {
        Failure::local(FailureKind::Bug, "cannot read the build context", error)
    })?;
    let refuse = |ComposeFileError { kind, what }: ComposeFileError| {
        let text = format!("{}: {what}", compose.file.display());
        Failure::new(kind, text)
    };
    if root.join(".env").symlink_metadata().is_ok() {
        inside(&root, &root, ".env").map_err(|what| refuse(what.into()))?;
    }
    let name = compose
        .file
        .to_str()
        .ok_or_else(|| refuse(ComposeFileError::broken("its name is not UTF-8")))?;
    let file = inside(&root, &root, name).map_err(|what| refuse(what.into()))?;
    check_file(&root, &file, 0).map_err(refuse)
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

fn check_file(root: &Path, file: &Path, depth: usize) -> Result<(), ComposeFileError> {
    if depth > DEPTH {
        return Err(format!("`extends` is nested through more than {DEPTH} files").into());
    }
    let shown = file.strip_prefix(root).unwrap_or(file).display();
    let unread = |error: io::Error| match error.kind() {
        io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory => {
            let most = limits::CONFIG_FILE_BYTES;
            ComposeFileError::broken(format!("`{shown}` is not a file of at most {most} bytes"))
        }
        _ => ComposeFileError::broken(format!("cannot read `{shown}`: {error}")),
    };
    let text = ConfinedDir::open(root)
        .and_then(|dir| dir.read_text(file, limits::CONFIG_FILE_BYTES))
        .map_err(unread)?;
    let value: Value = serde_saphyr::from_str(&text)
        .map_err(|error| ComposeFileError::broken(format!("`{shown}`: {error}")))?;
    // The task's own file is read as if it were at the top.
    let base = if depth == 0 { root } else { file.parent().unwrap_or(root) };
    let Some(top) = value.as_object() else {
        return Err(ComposeFileError::broken(format!("`{shown}` is not a map")));
    };
    let mut others = Vec::new();
    let walk = ComposeFileWalk { root, base };
    walk.top(top)?;
    walk.map(top, (ComposePlace::Top, ""), &mut others)?;
    others.iter().try_for_each(|other| check_file(root, other, depth + 1))
}

struct ComposeFileWalk<'a> {
    root: &'a Path,
    /// Directory of the file.
    base: &'a Path,
}

impl ComposeFileWalk<'_> {
    fn top(&self, map: &Map<String, Value>) -> Result<(), String> {
        if map.contains_key("include") {
            return Err("`include` is not supported: write the services into one file".to_owned());
        }
        match map.get("<<").and_then(Value::as_object) {
            Some(merged) => self.top(merged),
            None => Ok(()),
        }
    }

    /// Checks a map wherever it is: parts of a file can be merged into others.
    fn map(
        &self,
        map: &Map<String, Value>,
        (place, at): (ComposePlace, &str),
        others: &mut Vec<PathBuf>,
    ) -> Result<(), String> {
        for (key, value) in map {
            let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
            let inner = (place.of_value(key), at.as_str());
            let with_key = |what: String| format!("`{at}`: {what}");
            match key.as_str() {
                _ if place.has_names() => self.value(value, inner, others)?,
                key if place.has_texts(key) => {}
                "env_file" | "label_file" => {
                    for name in names(value, "path") {
                        self.readable(name).map_err(with_key)?;
                    }
                }
                "extends" => {
                    if let Some(name) = value.get("file").and_then(Value::as_str) {
                        others.push(inside(self.root, self.base, name).map_err(with_key)?);
                    }
                }
                _ => self.value(value, inner, others)?,
            }
        }
        Ok(())
    }

    fn value(
        &self,
        value: &Value,
        at: (ComposePlace, &str),
        others: &mut Vec<PathBuf>,
    ) -> Result<(), String> {
        match value {
            Value::Object(map) => self.map(map, at, others),
            Value::Array(items) => items.iter().try_for_each(|item| self.value(item, at, others)),
            _ => Ok(()),
        }
    }

    /// A missing file is accepted: the program reports it where it matters.
    fn readable(&self, name: &str) -> Result<(), String> {
        let plain = !name.contains('$') && !Path::new(name).is_absolute();
        let path = self.base.join(name);
        let below = !Path::new(name).components().any(|part| part == Component::ParentDir);
        if plain && below && path.symlink_metadata().is_err() {
            return Ok(());
        }
        inside(self.root, self.base, name).map(drop)
    }
}

/// The names in a value: a text, or a list of texts or of maps with a text at `key`.
fn names<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    match value {
        Value::String(name) => vec![name],
        Value::Array(items) => items.iter().flat_map(|item| names(item, key)).collect(),
        Value::Object(map) => map.get(key).and_then(Value::as_str).into_iter().collect(),
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
