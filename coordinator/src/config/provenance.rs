//! Provenance of a job's values.

use std::path::Path;

use rollout_base::shown_path::shown;
use serde::Serialize;

use super::cli_overrides::CliSetting;
use super::reader::join;
use super::value::{ConfigNode, ConfigValue, flag_index};

/// A key that is not at its default, and its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyProvenance {
    /// Key path.
    pub key: String,
    /// File and line, or command-line option.
    pub source: String,
}

/// The source of each value of a tree.
pub(super) fn collect(
    root: &ConfigNode,
    file: &Path,
    settings: &[CliSetting],
) -> Vec<KeyProvenance> {
    let mut found = Vec::new();
    let source = |line: usize| match flag_index(line).and_then(|index| settings.get(index)) {
        Some(setting) => setting.flag().to_owned(),
        None => format!("{}:{line}", shown(file)),
    };
    walk(root, String::new(), root.line, &source, &mut found);
    found
}

fn walk(
    node: &ConfigNode,
    key: String,
    line: usize,
    source: &dyn Fn(usize) -> String,
    found: &mut Vec<KeyProvenance>,
) {
    match &node.value {
        ConfigValue::Mapping(entries) if !entries.is_empty() => {
            for entry in entries {
                walk(&entry.node, join(&key, &entry.key), entry.line, source, found);
            }
        }
        ConfigValue::Sequence(nodes) if !nodes.is_empty() => {
            for (index, node) in nodes.iter().enumerate() {
                walk(node, format!("{key}[{index}]"), node.line, source, found);
            }
        }
        ConfigValue::Null => {}
        _ if key.is_empty() => {}
        _ => found.push(KeyProvenance { key, source: source(line) }),
    }
}
