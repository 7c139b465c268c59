//! Ideas: texts in files. Two that differ only in white space, bullets or case are equal.

use std::collections::BTreeMap;

use rollout_protocol::digest::Digest;

use super::manifest::{DedupeScope, DuplicateIdeas, IdeaFile, SearchManifest, SkippedIdea};
use rollout_protocol::search::NodeId;

/// Normalizes an idea: drops blank lines and white space around lines, and unifies bullets, case
/// and line ends.
pub fn normalize_idea(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines = lines.map(|line| match line.strip_prefix("* ") {
        Some(rest) => format!("- {rest}"),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n").to_lowercase()
}

/// Builds the file entry of an idea from its content.
pub fn idea_file(path: String, content: &[u8]) -> IdeaFile {
    let text = String::from_utf8_lossy(content);
    let hex = |digest: Digest| digest.hex();
    IdeaFile {
        path,
        sha256: hex(Digest::sha256(content)),
        normalized_sha256: hex(Digest::sha256(normalize_idea(&text).as_bytes())),
    }
}

/// Chooses the ideas to try on a node: in the order of their file names, without repeated ones, up
/// to the limit per node. `planned` are ideas chosen for other nodes of the same depth.
pub fn choose_ideas(
    manifest: &SearchManifest,
    node: NodeId,
    planned: &BTreeMap<String, String>,
) -> (Vec<IdeaFile>, DuplicateIdeas) {
    let policy = manifest.run_config.dedupe_scope;
    let mut known = known_ideas(manifest, node, policy, planned);
    let mut files = manifest.node(node).generated_idea_files.clone().unwrap_or_default();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let (mut chosen, mut skipped) = (Vec::new(), Vec::new());
    for file in files {
        if chosen.len() == manifest.run_config.ideas_per_node as usize {
            break;
        }
        let hash = file.normalized_sha256.clone();
        match known.get(&hash).filter(|_| policy != DedupeScope::None) {
            Some(repeats) => skipped.push(SkippedIdea {
                path: file.path,
                normalized_sha256: hash,
                repeats: repeats.clone(),
            }),
            None => {
                known.insert(hash, file.path.clone());
                chosen.push(file);
            }
        }
    }
    (chosen, DuplicateIdeas { policy, skipped })
}

/// Ideas that must not be repeated, with the file of each.
fn known_ideas(
    manifest: &SearchManifest,
    node: NodeId,
    policy: DedupeScope,
    planned: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let path = manifest.path_to(node);
    let is_known = |parent: NodeId| match policy {
        DedupeScope::None => false,
        DedupeScope::Node => parent == node,
        DedupeScope::NodePlusAncestors => path.contains(&parent),
        DedupeScope::Global => true,
    };
    let tried = manifest.evaluations.values().filter(|eval| is_known(eval.parent_node_id));
    let tried = tried.map(|eval| (eval.idea_normalized_sha256.clone(), eval.idea_path.clone()));
    let beside = planned.iter().filter(|_| policy == DedupeScope::Global);
    beside.map(|(hash, path)| (hash.clone(), path.clone())).chain(tried).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idea_text_is_normalized_in_case_bullets_and_line_ends() {
        let one = "Use a *Cache*\r\n\r\n* first\r\n   * second  \r\n";
        let other = "\nuse a *cache*\n- first\n- second";
        assert_eq!(normalize_idea(one), other.trim_start());
        assert_eq!(idea_file("a".into(), one.as_bytes()).normalized_sha256, {
            idea_file("b".into(), other.as_bytes()).normalized_sha256
        });
        assert_ne!(normalize_idea("a b"), normalize_idea("a  b"));
    }
}
