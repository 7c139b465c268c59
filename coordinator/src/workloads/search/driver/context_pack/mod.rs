//! The context pack of a node, shown to its generator of ideas beside earlier ideas: how the node
//! came to be, its improvements, and what did not help. A directory of files, `context/<node>`
//! below the run's directory.
//!
//! | File | Contents |
//! | --- | --- |
//! | `diff_from_root.patch`, `diff_from_parent.patch` | the changes of the node's commit |
//! | `recommendation.json` | both comparisons of the results that it was promoted for |
//! | `deltas.json` | the metrics that changed most |
//! | `siblings.md` | the ideas tried on its parent, and why they were not promoted |
//! | `history.md` | the ideas that led to it, from the root |
//!
//! The root has only the last two, without ideas. All of it is derived from the manifest and from
//! files that never change, so a rebuilt pack is the same.

mod deltas;
mod idea_history;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rollout_base::fs_make::make_below;
use rollout_protocol::digest::Digest;
use serde_json::json;

use super::directory::{remove_all, sync};
use super::{SearchBackend, SearchDirectory, SearchError};
use crate::workloads::search::manifest::{GeneratedFile, SearchEval, SearchManifest};
use rollout_protocol::search::NodeId;

/// Maximum size of one file in bytes when it is read: far above any written file.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Writes the context pack of a node unless it exists. Returns its files by name.
pub(super) fn ensure_context_pack<W: SearchBackend>(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    node: NodeId,
    backend: &mut W,
) -> Result<Vec<GeneratedFile>, SearchError> {
    let to = directory.context(node);
    if !to.is_dir() {
        let files = pack_files(directory, manifest, node, backend)?;
        write(directory, node, &files)?;
    }
    read(&to, &format!("context/{node}"))
}

/// The files of a node's context pack.
fn pack_files<W: SearchBackend>(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    id: NodeId,
    backend: &mut W,
) -> Result<Vec<(&'static str, Vec<u8>)>, SearchError> {
    let node = manifest.node(id);
    let mut files = vec![
        ("history.md", idea_history::history(directory, manifest, id).into_bytes()),
        ("siblings.md", idea_history::siblings(directory, manifest, id).into_bytes()),
    ];
    if let Some(parent) = node.parent_node_id {
        let mut diff = |from: &str| backend.diff(from, &node.commit);
        files.push(("diff_from_root.patch", diff(&manifest.root.root_commit)?));
        files.push(("diff_from_parent.patch", diff(&manifest.node(parent).commit)?));
    }
    if let Some(eval) = node.promoted_from_eval_id.and_then(|id| manifest.evaluations.get(&id)) {
        files.push(("recommendation.json", recommendation(eval)));
        let profile = &manifest.run_config.scoring_profile;
        let score = directory.eval(eval.eval_id).join(super::scoring::FILE);
        files.push(("deltas.json", text(&deltas::largest_changes(&score, profile))));
    }
    Ok(files)
}

fn recommendation(eval: &SearchEval) -> Vec<u8> {
    text(&json!({
        "eval_id": eval.eval_id,
        "idea_path": eval.idea_path,
        "parent_relative": eval.parent_relative,
        "root_relative": eval.root_relative,
    }))
}

fn text(value: &serde_json::Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// Writes the files to a staging directory and renames it when they are complete.
fn write(
    directory: &SearchDirectory,
    node: NodeId,
    files: &[(&'static str, Vec<u8>)],
) -> Result<(), SearchError> {
    let to = directory.context(node);
    let above = to.parent().unwrap_or(directory.root());
    let staging = above.join(format!(".new-{node}"));
    remove_all(&staging)?;
    make_below(directory.root(), &staging).map_err(SearchError::io("create", &staging))?;
    for (name, content) in files {
        let path = staging.join(name);
        let written = File::create_new(&path).and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        });
        written.map_err(SearchError::io("write", &path))?;
    }
    sync(&staging)?;
    fs::rename(&staging, &to).map_err(SearchError::io("rename", &staging))?;
    sync(above)
}

/// The files in a directory, by name.
fn read(path: &Path, name: &str) -> Result<Vec<GeneratedFile>, SearchError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(SearchError::io("list", path))? {
        let path = entry.map_err(SearchError::io("list", path))?.path();
        let Some(file) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let content = read_bounded(&path).map_err(SearchError::io("read", &path))?;
        let Some(content) = content else { continue };
        found.push(GeneratedFile {
            path: format!("{name}/{file}"),
            sha256: Digest::sha256(&content).hex(),
        });
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Reads a regular file; `None` if it is too large or not a regular file.
fn read_bounded(path: &PathBuf) -> std::io::Result<Option<Vec<u8>>> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_file() || found.len() > MAX_FILE_BYTES {
        return Ok(None);
    }
    fs::read(path).map(Some)
}
