//! Ideas as files: the ideas shown to the generator and those that it writes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use rollout_base::fs_make::make_below;
use rollout_base::regular_file;
use rollout_protocol::spec::ideas::{MAX_IDEA_BYTES, MAX_IDEAS, non_text_reason};

use super::directory::{remove_all, sync};
use super::{IdeasOrder, SearchDirectory, SearchError};
use crate::workloads::search::idea;
use crate::workloads::search::manifest::{ContextStrategy, IdeaFile, SearchManifest, StepCalls};
use rollout_protocol::search::NodeId;

/// File beside a node's ideas with the cost of writing them, if known. Hidden files are not ideas.
pub const COST_FILE: &str = ".cost";

/// File beside a node's ideas with the model calls of the agent that wrote them.
pub const CALLS_FILE: &str = ".calls";

/// Maximum size of that file in bytes.
const MAX_CALLS_BYTES: u64 = 4096;

/// Maximum size of the file with the cost in bytes.
const MAX_COST_BYTES: u64 = 64;

/// Earlier ideas shown to a node's generator.
pub(super) struct IdeaContext {
    /// The directories as the manifest names them.
    pub(super) names: Vec<String>,
    /// The existing directories.
    pub(super) paths: Vec<PathBuf>,
    /// The ideas in the directories.
    pub(super) files: Vec<IdeaFile>,
}

/// Collects the ideas to show to a node's generator: first the directories that the user named,
/// then those of the ancestors, from the root.
pub(super) fn idea_context(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    node: NodeId,
    extra: &[PathBuf],
) -> Result<IdeaContext, SearchError> {
    let config = &manifest.run_config;
    let nodes = match config.ideas_context_strategy {
        ContextStrategy::GlobalPriorIdeas => Vec::new(),
        ContextStrategy::NodeOnly => vec![node],
        ContextStrategy::NodePlusAncestors => manifest.path_to(node),
    };
    let own = nodes.iter().map(|id| {
        let name = &manifest.node(*id).node_ideas_dir;
        (name.clone(), directory.root().join(name))
    });
    let mut context = IdeaContext { names: Vec::new(), paths: Vec::new(), files: Vec::new() };
    for (name, path) in config.context_ideas_dirs.iter().zip(extra) {
        context.files.extend(user_idea_files(path, name));
        context.paths.extend(path.is_dir().then(|| path.clone()));
        context.names.push(name.clone());
    }
    for (name, path) in own {
        if path.is_dir() {
            context.files.extend(read(&path, &name, node)?);
            context.paths.push(path);
        }
        context.names.push(name);
    }
    Ok(context)
}

/// Builds the order for a node's ideas. They are written to an empty staging directory.
pub(super) fn ideas_order(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    node: NodeId,
    context: Vec<PathBuf>,
) -> Result<IdeasOrder, SearchError> {
    let into = staging(directory, node);
    remove_all(&into)?;
    make_below(directory.root(), &into).map_err(SearchError::io("create", &into))?;
    let count = manifest.run_config.ideas_per_node;
    let pack = directory.context(node);
    let round = manifest.idea_discards(node);
    Ok(IdeasOrder { node: manifest.node(node).clone(), into, count, context, pack, round })
}

/// Accepts the written ideas: from now on the node has them.
pub(super) fn accept(directory: &SearchDirectory, node: NodeId) -> Result<(), SearchError> {
    let from = staging(directory, node);
    let found = read(&from, "", node)?;
    if found.is_empty() {
        let reason = "the command wrote no file".to_owned();
        return Err(SearchError::Ideas { node, reason });
    }
    for IdeaFile { path, .. } in found {
        let name = path.trim_start_matches('/');
        let file = from.join(name);
        let content = fs::read(&file).map_err(SearchError::io("read", &file))?;
        if let Some(why) = non_text_reason(&content) {
            return Err(SearchError::Ideas { node, reason: format!("{name}: {why}") });
        }
    }
    let to = directory.ideas(node);
    fs::rename(&from, &to).map_err(SearchError::io("rename", &from))?;
    sync(to.parent().unwrap_or(directory.root()))
}

/// The ideas in a directory, by file name. Hidden files and anything but regular files are skipped.
pub(super) fn read(path: &Path, name: &str, node: NodeId) -> Result<Vec<IdeaFile>, SearchError> {
    let unusable = |reason| SearchError::Ideas { node, reason };
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(SearchError::io("list", path))? {
        let entry = entry.map_err(SearchError::io("list", path))?;
        let metadata = entry.path().symlink_metadata();
        let metadata = metadata.map_err(SearchError::io("inspect", &entry.path()))?;
        let Ok(file) = entry.file_name().into_string() else {
            return Err(unusable("a file name is not UTF-8".to_owned()));
        };
        if !metadata.is_file() || file.starts_with('.') {
            continue;
        }
        if metadata.len() > MAX_IDEA_BYTES {
            return Err(unusable(format!("{file} has more than {MAX_IDEA_BYTES} bytes")));
        }
        if found.len() == MAX_IDEAS {
            return Err(unusable(format!("there are more than {MAX_IDEAS} files")));
        }
        let content = fs::read(entry.path()).map_err(SearchError::io("read", &entry.path()))?;
        found.push(idea::idea_file(format!("{name}/{file}"), &content));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The ideas in a directory of the user, by file name.
fn user_idea_files(path: &Path, name: &str) -> Vec<IdeaFile> {
    let files = read_user_ideas(path).into_iter();
    files.map(|(file, content)| idea::idea_file(format!("{name}/{file}"), &content)).collect()
}

/// Reads the ideas in a directory that the user named, by file name. Invalid files are skipped with
/// a warning: the directory may also contain other files. Blocks.
pub fn read_user_ideas(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let warn_skipped = |what: &str, why: &str| {
        tracing::warn!("cannot use {what} in {} as ideas: {why}", path.display());
    };
    let entries = fs::read_dir(path).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>()
    });
    let mut entries = entries.unwrap_or_else(|error| {
        warn_skipped("everything", &error.to_string());
        Vec::new()
    });
    entries.sort();
    let mut found = BTreeMap::new();
    for entry in entries {
        let Some(file) = entry.to_str() else {
            warn_skipped(&entry.to_string_lossy(), "its name is not UTF-8");
            continue;
        };
        if file.starts_with('.') {
            continue;
        }
        if found.len() == MAX_IDEAS {
            warn_skipped(&format!("{file} and later files"), "there are too many files");
            break;
        }
        match read_user_idea(&path.join(file)) {
            Ok(Some(content)) => {
                found.insert(file.to_owned(), content);
            }
            Ok(None) => {}
            Err(why) => warn_skipped(file, &why),
        }
    }
    found
}

/// Reads an idea of the user; `None` unless it is a regular file.
fn read_user_idea(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let metadata = path.symlink_metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let content = regular_file::read(path, MAX_IDEA_BYTES).map_err(|error| error.to_string())?;
    if let Some(why) = non_text_reason(&content) {
        return Err(why);
    }
    Ok(Some(content))
}

/// The cost of writing a node's ideas, if known.
pub(super) fn cost(path: &Path) -> Result<Option<f64>, SearchError> {
    let path = path.join(COST_FILE);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(SearchError::io("open", &path)(error)),
    };
    let mut text = String::new();
    file.take(MAX_COST_BYTES).read_to_string(&mut text).map_err(SearchError::io("read", &path))?;
    Ok(text.trim().parse().ok().filter(|cost: &f64| cost.is_finite() && *cost >= 0.0))
}

/// The model calls of the agent that wrote a node's ideas. A damaged file counts as none.
pub(super) fn calls(path: &Path) -> Result<Vec<StepCalls>, SearchError> {
    let path = path.join(CALLS_FILE);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(SearchError::io("open", &path)(error)),
    };
    let mut text = String::new();
    file.take(MAX_CALLS_BYTES).read_to_string(&mut text).map_err(SearchError::io("read", &path))?;
    Ok(serde_json::from_str(&text).unwrap_or_default())
}

fn staging(directory: &SearchDirectory, node: NodeId) -> PathBuf {
    directory.root().join("node_ideas").join(format!(".new-{node}"))
}
