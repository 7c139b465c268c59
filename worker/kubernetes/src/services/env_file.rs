//! Files of variables: `env_file` of services, and `.env`.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Component, Path};

use rollout_base::confined::{ConfinedDir, leads_outside};
use rollout_protocol::limits;

use super::size::VariableBytes;

/// A file of variables, if it exists.
type EnvFile = Option<BTreeMap<String, String>>;

/// Reads a file in the build context, whose links are resolved. Its length is taken from `bytes`.
///
/// # Errors
/// The reason why it cannot be used.
pub(super) fn read(root: &Path, name: &str, bytes: &VariableBytes) -> Result<EnvFile, String> {
    let (dir, path) = (ConfinedDir::open(root), Path::new(name));
    let leaves = path.components().any(|part| part == Component::ParentDir);
    let unread = |error: io::Error| format!("cannot read `{name}`: {error}");
    let opened = match dir.and_then(|dir| dir.file(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !leaves => return Ok(None),
        Err(error) if !leads_outside(&error) => return Err(unread(error)),
        opened => opened.ok().filter(|_| !leaves),
    };
    let Some(file) = opened else {
        return Err(format!("`{name}` is outside the task's environment directory"));
    };
    let length = file.metadata().map_err(unread)?.len();
    if length > limits::CONFIG_FILE_BYTES {
        return Err(format!("`{name}` is larger than {} bytes", limits::CONFIG_FILE_BYTES));
    }
    bytes.spend(length)?;
    let mut text = String::new();
    file.take(length).read_to_string(&mut text).map_err(unread)?;
    parse(&text).map(Some).map_err(|(line, why)| format!("`{name}`, line {line}: {why}"))
}

/// The variables of a text, one a line.
fn parse(text: &str) -> Result<BTreeMap<String, String>, (usize, String)> {
    let mut variables = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        let value = unquoted(value.trim()).map_err(|why| (number + 1, why.to_owned()))?;
        variables.insert(name.trim().to_owned(), value);
    }
    Ok(variables)
}

fn unquoted(value: &str) -> Result<String, &'static str> {
    if let Some(rest) = value.strip_prefix('\'') {
        let (inside, _) = rest.split_once('\'').ok_or("a quote is not closed")?;
        return Ok(inside.to_owned());
    }
    let inside = match value.strip_prefix('"') {
        Some(rest) => rest.split_once('"').ok_or("a quote is not closed")?.0,
        None => value.split_once(" #").map_or(value, |(value, _)| value).trim_end(),
    };
    if inside.contains(['$', '\\']) {
        return Err("variables and escapes in such a file are not supported");
    }
    Ok(inside.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_file_is_read() {
        let text = "# note\nA=1 # x\nexport B='a # $b'\nC=\"d e\"\n\nD=\n";
        let expected = [("A", "1"), ("B", "a # $b"), ("C", "d e"), ("D", "")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(parse(text), Ok(expected.into()));
        for wrong in ["A=$B", "A='x", "A=\"a\\n\""] {
            assert_eq!(parse(wrong).expect_err(wrong).0, 1);
        }
    }

    #[test]
    fn variables_file_outside_context_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("there");
        std::os::unix::fs::symlink("/etc/passwd", root.join("link")).expect("linked");
        let bytes = VariableBytes::default();
        assert_eq!(read(&root, "none.env", &bytes), Ok(None));
        for name in ["link", "/etc/passwd", "../x"] {
            assert!(read(&root, name, &bytes).is_err(), "{name}");
        }
    }

    #[test]
    fn variables_files_have_limited_bytes_in_total() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("there");
        let most = limits::CONFIG_FILE_BYTES as usize;
        std::fs::write(root.join("a.env"), "#".repeat(most / 2)).expect("written");
        let bytes = VariableBytes::default();
        for _ in 0..2 {
            assert_eq!(read(&root, "a.env", &bytes), Ok(Some(BTreeMap::new())));
        }
        assert!(read(&root, "a.env", &bytes).expect_err("too many").contains("in total"));
    }
}
