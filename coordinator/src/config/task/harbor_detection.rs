//! Detection of Harbor tasks by their files, for a `task.toml` whose keys do not decide.

use std::io;
use std::path::{Path, PathBuf};

use rollout_base::confined::{ConfinedDir, is_absent};
use rustix::fs::FileType;

use super::script_commands;

/// Files and directories that only Harbor tasks have.
const HARBOR_ENTRIES: [&str; 8] = [
    "environment/docker-compose.yaml",
    "steps",
    "tests/Dockerfile",
    "tests/docker-compose.yaml",
    "trajectory.json",
    ".harborignore",
    // Scripts that these leave out of a run, and of an upload, decide nothing.
    "tests/.harborignore",
    "solution/.harborignore",
];

/// Directories of scripts that may use Harbor-only paths.
const SCRIPT_DIRS: [&str; 2] = ["tests", "solution"];

/// Words of commands in Harbor scripts. A path counts only at its beginning.
const HARBOR_WORDS: [&str; 4] = ["/solution", "/logs/artifacts", "reward.json", "ctrf.json"];

/// Largest file searched; scripts are smaller.
const FILE_BYTES: u64 = 1024 * 1024;

/// Largest number of entries searched below a directory of scripts.
const MAX_ENTRIES: usize = 1000;

/// A file or directory of the task that cannot be read.
#[derive(Debug)]
pub(super) struct TaskFileError {
    pub(super) path: PathBuf,
    pub(super) source: io::Error,
}

/// A description of the first evidence of Harbor.
///
/// # Errors
/// [`TaskFileError`].
pub(super) fn find_harbor_evidence(dir: &Path) -> Result<Option<String>, TaskFileError> {
    let root = match ConfinedDir::open(dir) {
        Err(error) if is_absent(&error) => return Ok(None),
        root => root.map_err(with_path(dir))?,
    };
    for entry in HARBOR_ENTRIES {
        if root.kind(Path::new(entry)).map_err(with_path(&dir.join(entry)))?.is_some() {
            return Ok(Some(format!("the task has `{entry}`")));
        }
    }
    let search = ScriptSearch { dir, root };
    for scripts in SCRIPT_DIRS {
        if let Some((file, word)) = search.find_word_below(Path::new(scripts))? {
            return Ok(Some(format!("a command of `{}` uses `{word}`", file.display())));
        }
    }
    Ok(None)
}

/// A search through the scripts of a task. Paths are those in the task.
struct ScriptSearch<'a> {
    /// The task's directory, for messages.
    dir: &'a Path,
    root: ConfinedDir,
}

impl ScriptSearch<'_> {
    /// The first script below a directory, by name, of which a command uses one of the words. Symlinks
    /// below it are not followed.
    fn find_word_below(
        &self,
        dir: &Path,
    ) -> Result<Option<(PathBuf, &'static str)>, TaskFileError> {
        let (mut dirs, mut seen) = (vec![dir.to_owned()], 0);
        while let Some(dir) = dirs.pop() {
            let (mut files, mut below) = (Vec::new(), Vec::new());
            let entries = match self.root.directory(&dir).and_then(|dir| dir.entries()) {
                Err(error) if is_absent(&error) => continue,
                entries => entries.map_err(with_path(&self.dir.join(&dir)))?,
            };
            for (name, kind) in entries {
                seen += 1;
                match kind {
                    FileType::Directory => below.push(dir.join(name)),
                    FileType::RegularFile => files.push(dir.join(name)),
                    _ => {}
                }
            }
            files.sort_unstable();
            for file in files {
                if let Some(word) = self.find_word_in(&file)? {
                    return Ok(Some((file, word)));
                }
            }
            if seen > MAX_ENTRIES {
                return Ok(None);
            }
            below.sort_unstable_by(|a, b| b.cmp(a));
            dirs.append(&mut below);
        }
        Ok(None)
    }

    fn find_word_in(&self, file: &Path) -> Result<Option<&'static str>, TaskFileError> {
        let bytes = match self.root.read(file, FILE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => return Ok(None),
            Err(error) => return Err(with_path(&self.dir.join(file))(error)),
        };
        if bytes.contains(&0) {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&bytes);
        let Some(commands) = script_commands::commands(file, &text) else { return Ok(None) };
        Ok(HARBOR_WORDS.into_iter().find(|word| contains_word(&commands, word)))
    }
}

/// Whether a text contains a word that is not part of a longer one.
fn contains_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        let begins = match word.strip_prefix('/') {
            // `/app/solution` is another path; `$ROOT/solution` can be any path.
            Some(_) => before.is_none_or(|c| !is_part(c) && !matches!(c, '/' | '}' | ')' | '~')),
            None => before.is_none_or(|c| !is_part(c)),
        };
        begins && after.is_none_or(|c| !is_part(c))
    })
}

fn with_path(path: &Path) -> impl FnOnce(io::Error) -> TaskFileError + use<> {
    let path = path.to_owned();
    move |source| TaskFileError { path, source }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn sign(files: &[(&str, &str)]) -> Option<String> {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        find_harbor_evidence(dir.path()).expect("readable")
    }

    #[test]
    fn harbor_format_is_detected_by_files_of_task() {
        for entry in HARBOR_ENTRIES {
            let file = if entry == "steps" { "steps/one/instruction.md" } else { entry };
            assert_eq!(sign(&[(file, "x")]), Some(format!("the task has `{entry}`")));
        }
        let plain = [("environment/Dockerfile", "FROM a"), ("tests/test.sh", "true")];
        assert_eq!(sign(&plain), None);
    }

    #[test]
    fn harbor_format_is_detected_by_whole_words_in_scripts() {
        for (text, found) in [
            ("bash /solution/solve.sh", true),
            ("cd \"/solution\"", true),
            ("x=/solution", true),
            ("echo '{}' > /logs/verifier/reward.json", true),
            ("open(path / 'reward.json')", true),
            ("cp a /logs/artifacts/", true),
            ("pytest --ctrf /logs/verifier/ctrf.json /tests", true),
            ("cat /app/solution", false),
            ("cat /app/solution.py", false),
            ("cat /solution.txt", false),
            ("cat /solutions/a", false),
            ("cat $DIR/solution ${DIR}/solution", false),
            ("cat myreward.json reward.jsonl", false),
            ("echo 1 > /logs/verifier/reward.txt", false),
        ] {
            assert_eq!(sign(&[("tests/deep/check.sh", text)]).is_some(), found, "{text}");
        }
        let said = sign(&[("solution/solve.sh", "cat /solution/a"), ("tests/test.sh", "true")]);
        assert_eq!(said.as_deref(), Some("a command of `solution/solve.sh` uses `/solution`"));
        for (file, text) in [
            ("tests/data.bin", "\0 reward.json"),
            ("tests/expected.json", "{\"file\": \"reward.json\"}"),
            ("tests/README.md", "Writes reward.json."),
            ("tests/test.sh", "# reward.json is not written\ntrue"),
            ("tests/check.py", "x = 1  # see /solution"),
        ] {
            assert_eq!(sign(&[(file, text)]), None, "{file}");
        }
    }

    #[test]
    fn harbor_format_detection_of_unreadable_path_fails() {
        let dir = Path::new("no\0path");
        let error = find_harbor_evidence(dir).expect_err("no path at all");
        assert!(error.path.starts_with(dir), "{error:?}");
    }
}
