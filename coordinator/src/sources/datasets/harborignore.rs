//! `.harborignore`: which files of `tests/` and `solution/` stay on the host. The patterns are
//! those of `.gitignore`. A file at the root of the task is about all of it, one in a part about
//! that part; the last pattern that matches decides, those nearer to the file last.

use std::io;
use std::path::Path;

use rollout_worker::glob;

/// The file's name.
pub(super) const FILE_NAME: &str = ".harborignore";

/// Largest file that is read.
const FILE_BYTES: usize = 1024 * 1024;

/// Patterns for the files of one part of a task.
#[derive(Debug, Clone, Default)]
pub(super) struct Harborignore {
    patterns: Vec<Pattern>,
    /// The part's path in the task, a slash behind it.
    part: String,
}

#[derive(Debug, Clone)]
struct Pattern {
    takes_back: bool,
    directories_only: bool,
    /// Whether it is matched against the path from the root of the task, not of the part.
    from_root: bool,
    /// What the components of a path have to be.
    components: Vec<String>,
}

impl Harborignore {
    /// The patterns for the files of `part` of the task in `dir`. Absent files have none.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(super) fn read(dir: &Path, part: &Path) -> io::Result<Self> {
        let mut patterns = parse(&text(&dir.join(FILE_NAME))?, true);
        patterns.extend(parse(&text(&dir.join(part).join(FILE_NAME))?, false));
        Ok(Self { patterns, part: format!("{}/", part.display()) })
    }

    /// Whether `path`, relative to the part, stays out. Whoever walks does not go into directories
    /// that stay out: what is in them is out, too.
    pub(super) fn excludes(&self, path: &str, is_dir: bool) -> bool {
        let from_root = format!("{}{path}", self.part);
        let matching = self.patterns.iter().rfind(|pattern| {
            let path = if pattern.from_root { from_root.as_str() } else { path };
            (is_dir || !pattern.directories_only) && pattern.matches(path)
        });
        matching.is_some_and(|pattern| !pattern.takes_back)
    }
}

impl Pattern {
    fn matches(&self, path: &str) -> bool {
        let path: Vec<&str> = path.split('/').collect();
        path_matches(&self.components, &path)
    }
}

fn text(file: &Path) -> io::Result<String> {
    match std::fs::read(file) {
        Ok(bytes) if bytes.len() > FILE_BYTES => Err(io::ErrorKind::FileTooLarge.into()),
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

fn parse(text: &str, from_root: bool) -> Vec<Pattern> {
    text.lines().filter_map(|line| pattern(line, from_root)).collect()
}

fn pattern(line: &str, from_root: bool) -> Option<Pattern> {
    let line = without_blanks_at_the_end(line.trim_start_matches('\u{feff}'));
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (takes_back, line) = line.strip_prefix('!').map_or((false, line), |rest| (true, rest));
    let (directories_only, line) = match line.strip_suffix('/') {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let anchored = line.contains('/');
    let line = line.strip_prefix('/').unwrap_or(line);
    if line.is_empty() {
        return None;
    }
    let mut components: Vec<String> = line.split('/').map(str::to_owned).collect();
    if !anchored {
        components.insert(0, "**".to_owned());
    }
    Some(Pattern { takes_back, directories_only, from_root, components })
}

/// Blanks at the end count only behind a backslash.
fn without_blanks_at_the_end(line: &str) -> &str {
    let kept = line.trim_end_matches([' ', '\r']);
    let escapes = kept.len() - kept.trim_end_matches('\\').len();
    if escapes % 2 == 1 && kept.len() < line.len() { &line[..=kept.len()] } else { kept }
}

/// `**` stands for any number of components, at the end for at least one.
fn path_matches(pattern: &[String], path: &[&str]) -> bool {
    match pattern.split_first() {
        None => path.is_empty(),
        Some((first, [])) if first == "**" => !path.is_empty(),
        Some((first, rest)) if first == "**" => {
            (0..path.len()).any(|skipped| path_matches(rest, &path[skipped..]))
        }
        Some((first, rest)) => path.split_first().is_some_and(|(name, path)| {
            glob::matches_text(first, name, glob::SHELL) && path_matches(rest, path)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excluded(text: &str, path: &str, is_dir: bool) -> bool {
        let patterns = parse(text, false);
        let ignore = Harborignore { patterns, part: "tests/".to_owned() };
        // As whoever walks sees it: a directory that stays out is not gone into.
        let parents = path.match_indices('/').map(|(at, _)| &path[..at]);
        parents.into_iter().any(|dir| ignore.excludes(dir, true)) || ignore.excludes(path, is_dir)
    }

    #[test]
    fn patterns_match_as_git_matches_them() {
        for (text, path, expected) in [
            ("a", "a", true),
            ("a", "x/a", true),
            ("a", "x/a/b", true),
            ("/a", "x/a", false),
            ("x/a", "x/a", true),
            ("x/a", "y/x/a", false),
            ("a/", "a", false),
            ("a/", "a/b", true),
            ("*.log", "x/y.log", true),
            ("x/*.log", "x/y/z.log", false),
            ("**/z.log", "x/y/z.log", true),
            ("x/**", "x/y/z", true),
            ("x/**", "x", false),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/c/z", true),
            ("?.txt", "a.txt", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[!a-c]x", "dx", true),
            ("# x", "# x", false),
            (r"\#x", "#x", true),
            (r"\!x", "!x", true),
            ("a  ", "a", true),
            (r"a\ ", "a ", true),
            ("*.log\n!keep.log", "keep.log", false),
            ("*.log\n!keep.log", "x.log", true),
            ("d/\n!d/keep", "d/keep", true),
            ("d/*\n!d/keep", "d/keep", false),
            ("", "a", false),
        ] {
            assert_eq!(excluded(text, path, false), expected, "{text:?} on {path:?}");
        }
    }

    #[test]
    fn a_file_in_a_part_comes_after_the_one_of_the_task() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("tests")).expect("made");
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text);
        write(FILE_NAME, "/tests/a\n/b\n*.tmp\n").expect("written");
        write("tests/.harborignore", "!keep.tmp\n/c\n").expect("written");
        let ignore = Harborignore::read(dir.path(), Path::new("tests")).expect("read");
        for (path, expected) in
            [("a", true), ("b", false), ("c", true), ("x.tmp", true), ("keep.tmp", false)]
        {
            assert_eq!(ignore.excludes(path, false), expected, "{path}");
        }
    }
}
