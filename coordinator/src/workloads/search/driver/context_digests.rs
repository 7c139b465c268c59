//! Digests of build contexts, compared when a search is resumed.

use std::path::Path;

use rollout_store::archive::{self, ArchiveLimits, FilterDecision};
use serde_json::{Map, Value};

use super::SearchError;
use crate::config::TreeFile;
use crate::workloads::search::backend::SearchPlanError;

/// Key of the digests in the stored configuration.
const KEY: &str = "context_digests";

/// Adds the digest of every build context, as it is packed, to the configuration of a search: the
/// contents of an image affect the results of ideas. Blocks.
///
/// # Errors
/// [`SearchPlanError`] if a context cannot be packed.
pub(super) fn add_context_digests(
    tree: &TreeFile,
    settings: &mut Value,
) -> Result<(), SearchError> {
    let named =
        tree.commands.named().filter_map(|(_, command)| command.environment.context.as_ref());
    let mut digests = Map::new();
    for path in named {
        let name = path.to_string_lossy().into_owned();
        if !digests.contains_key(&name) {
            digests.insert(name, digest(&tree.resolve_path(path))?.into());
        }
    }
    if let (Value::Object(settings), false) = (settings, digests.is_empty()) {
        settings.insert(KEY.to_owned(), digests.into());
    }
    Ok(())
}

fn digest(dir: &Path) -> Result<String, SearchPlanError> {
    let scratch = tempfile::tempdir()?;
    let to = scratch.path().join("context.tar");
    let packed = archive::pack(dir, &to, ArchiveLimits::BUNDLE, &|_, _| FilterDecision::Include);
    let packed =
        packed.map_err(|source| SearchPlanError::Context { path: dir.to_owned(), source })?;
    Ok(packed.digest.hex())
}

#[cfg(test)]
mod tests {
    use crate::config::{Diagnostics, TreeOptions, differences, read_tree};
    use crate::workloads::search::driver::opening::run_config;

    #[test]
    fn build_context_changed_is_config_difference() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("below")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write("base.csv", "config_id\n0\n");
        write("image/Dockerfile", "FROM a\n");
        write(
            "tree.yaml",
            "tree_run_id: run\nroot_baseline_csv: base.csv\nenvironment: {context: image}\n\
             commands: {ideas: {run: a}, implement: {run: b}, sweep: {run: c}}\n",
        );
        let is_set = |_: &str| true;
        let mut problems = Diagnostics::default();
        let file = dir.path().join("tree.yaml");
        let tree = read_tree(&file, &TreeOptions::for_command_line(&is_set), &mut problems);
        let tree = problems.finish(tree).expect("no faults").0.expect("a search");
        let settings = || run_config(&tree, false).expect("packed").settings;
        let before = settings();
        assert_eq!(differences(&before, &settings()), [""; 0]);
        write("image/Dockerfile", "FROM b\n");
        let found = differences(&before, &settings());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("context_digests.image: "), "{found:?}");
        std::fs::remove_dir_all(dir.path().join("image")).expect("removed");
        assert!(run_config(&tree, true).is_ok(), "simulated commands have no environment");
        assert!(run_config(&tree, false).is_err());
    }
}
