//! Directories with skills that a job gives to its agents.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::limits::{SKILL_BYTES, SKILL_ENTRIES};
use rollout_protocol::name;
use rollout_protocol::spec::agent::AgentSkill;
use rollout_store::archive::{self, ArchiveError, ArchiveLimits, FilterDecision};

/// The file that makes a directory a skill.
const SKILL_FILE: &str = "SKILL.md";

const LIMITS: ArchiveLimits = ArchiveLimits { entries: SKILL_ENTRIES, bytes: SKILL_BYTES };

/// A skill and the archive of its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedSkill {
    /// Its name, that of its directory.
    pub name: String,
    /// The archive.
    pub archive: Bytes,
}

impl PackedSkill {
    /// As a part of an agent.
    pub(crate) fn spec(&self) -> AgentSkill {
        let archive = BlobRef::for_bytes(&self.archive, MediaType::Tar);
        AgentSkill { name: self.name.clone(), archive }
    }
}

/// Reads the skills in a directory: the directory itself if it is a skill, else the directories in it,
/// which must all be skills. Hidden ones are left out.
///
/// # Errors
/// Why it has none, or the one that cannot be read, in words.
pub(crate) fn read(dir: &Path) -> Result<Vec<PackedSkill>, String> {
    let dir = dir.canonicalize().map_err(|error| error.to_string())?;
    if is_skill(&dir) {
        return Ok(vec![pack(&dir)?]);
    }
    let inner = directories(&dir).map_err(|error| error.to_string())?;
    if inner.is_empty() {
        return Err(format!("it has no {SKILL_FILE}, and no directories with one"));
    }
    if let Some(other) = inner.iter().find(|dir| !is_skill(dir)) {
        return Err(format!("`{}` in it has no {SKILL_FILE}", file_name(other)));
    }
    inner.iter().map(|dir| pack(dir)).collect()
}

fn is_skill(dir: &Path) -> bool {
    dir.join(SKILL_FILE).is_file()
}

/// The directories in a directory that are not hidden, by name.
fn directories(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() && !file_name(&path).starts_with('.') {
            found.push(path);
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn pack(dir: &Path) -> Result<PackedSkill, String> {
    let name = file_name(dir);
    name::check(&name).map_err(|why| format!("it has the name {name:?}, which {why}"))?;
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let tar = scratch.path().join("skill.tar");
    let all = |_: &Path, _: bool| FilterDecision::Include;
    archive::pack(dir, &tar, LIMITS, &all).map_err(|error| match error {
        ArchiveError::Io { source, .. } => format!("{name}: {source}"),
        other => format!("{name}: {other}"),
    })?;
    let archive = fs::read(&tar).map_err(|error| error.to_string())?.into();
    Ok(PackedSkill { name, archive })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Result<Vec<String>, String> {
        Ok(read(dir)?.into_iter().map(|skill| skill.name).collect())
    }

    #[test]
    fn directory_is_a_skill_or_has_skills() {
        let root = tempfile::tempdir().expect("a directory");
        let dir = root.path().join("skills");
        for name in ["zebra", "gnu", ".git"] {
            fs::create_dir_all(dir.join(name)).expect("made");
        }
        assert_eq!(names(&dir), Err("`gnu` in it has no SKILL.md".to_owned()));
        for name in ["zebra", "gnu"] {
            fs::write(dir.join(name).join(SKILL_FILE), name).expect("written");
        }
        fs::write(dir.join("README.md"), "").expect("written");
        assert_eq!(names(&dir), Ok(vec!["gnu".to_owned(), "zebra".to_owned()]));
        assert_eq!(names(&dir.join("zebra")), Ok(vec!["zebra".to_owned()]));

        let before = read(&dir.join("zebra")).expect("a skill");
        fs::write(dir.join("zebra/more.md"), "").expect("written");
        assert_ne!(read(&dir.join("zebra")).expect("a skill"), before);
    }

    #[test]
    fn directory_without_skills_is_refused_with_reason() {
        let root = tempfile::tempdir().expect("a directory");
        let dir = root.path().join("skill");
        assert!(read(&dir).is_err(), "it is absent");
        fs::create_dir(&dir).expect("made");
        let none = "it has no SKILL.md, and no directories with one";
        assert_eq!(names(&dir), Err(none.to_owned()));
        let file = fs::File::create(dir.join(SKILL_FILE)).expect("made");
        file.set_len(SKILL_BYTES + 1).expect("made longer");
        let why = read(&dir).expect_err("it is too large");
        assert!(why.starts_with("skill: cannot pack "), "{why}");
    }
}
