//! Scripts whose lines end with CR and LF, as on Windows: a shell takes CR for a part of each command,
//! so that files get wrong names and rewards are lost.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use rollout_base::confined::ConfinedDir;

use super::{DatasetTask, TaskParts};
use crate::config::{ConfigError, ErrorKind, SourceLocation};

/// Bytes that are read of a script: more than the comments before its first command.
const BEGINNING_BYTES: u64 = 16 * 1024;

/// Why a script cannot run, for messages.
pub(super) const WHY: &str = "lines that end with CR, as on Windows, which a shell takes for a part \
                              of each command";

/// The scripts of a task that were written on Windows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WindowsScripts {
    /// Those that run under every agent.
    pub(super) of_task: Vec<PathBuf>,
    /// Those that only the oracle runs.
    pub(super) of_solution: Vec<PathBuf>,
}

/// Finds the scripts of a task whose first line and first command end with CR. In a comment alone CR does
/// no harm, and a script with such lines further on may have them on purpose, in a text that it writes.
pub(super) fn find(root: &ConfinedDir, parts: &TaskParts, are_verified: bool) -> WindowsScripts {
    let mut found = WindowsScripts::default();
    for step in &parts.steps {
        // Later directories override earlier ones.
        let tests = step.tests.iter().rev().map(|dir| dir.join("test.sh"));
        let tests = tests.into_iter().find(|file| root.has_file(file)).filter(|_| are_verified);
        let setup = step.workdir.iter().map(|dir| dir.join("setup.sh"));
        let solution = step.solution.iter().map(|dir| dir.join("solve.sh"));
        found.of_task.extend(tests.into_iter().chain(setup).filter(|file| is_windows(root, file)));
        found.of_solution.extend(solution.filter(|file| is_windows(root, file)));
    }
    for files in [&mut found.of_task, &mut found.of_solution] {
        files.sort();
        files.dedup();
    }
    found
}

/// The errors of scripts below a directory that were written on Windows.
pub(super) fn errors<'a>(
    dir: &'a Path,
    scripts: impl IntoIterator<Item = &'a PathBuf>,
) -> impl Iterator<Item = ConfigError> {
    scripts.into_iter().map(|script| {
        let location = SourceLocation { key: String::new(), line: Some(1) };
        location.error(&dir.join(script), ErrorKind::BadFile, WHY, "lines that end with LF")
    })
}

/// The errors of solutions of a task that were written on Windows. Those of other scripts are reported
/// when the task is loaded, whatever the agents.
pub(crate) fn solution_line_end_errors(task: &DatasetTask) -> Vec<ConfigError> {
    // A directory that cannot be opened is an error of loading.
    let Ok(root) = ConfinedDir::open(&task.dir) else { return Vec::new() };
    errors(&task.dir, &find(&root, &task.parts, false).of_solution).collect()
}

fn is_windows(root: &ConfinedDir, file: &Path) -> bool {
    let mut beginning = Vec::new();
    let read =
        root.file(file).and_then(|file| file.take(BEGINNING_BYTES).read_to_end(&mut beginning));
    // What cannot be read is an error of packing.
    read.is_ok() && has_windows_line_ends(&beginning)
}

/// Whether the first line of a text, and the first one that is no comment, end with CR and LF.
pub(crate) fn has_windows_line_ends(text: &[u8]) -> bool {
    let is_windows = |line: &[u8]| line.ends_with(b"\r\n");
    let mut lines = text.split_inclusive(|byte| *byte == b'\n');
    let is_code = |line: &&[u8]| !matches!(line.trim_ascii(), [] | [b'#', ..]);
    lines.clone().next().is_some_and(is_windows) && lines.find(is_code).is_some_and(is_windows)
}
