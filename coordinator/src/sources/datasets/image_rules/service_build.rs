//! Builds of services in compose files.

use std::collections::BTreeMap;

use super::DOCKERFILE;
use crate::config::{ConfigNode, ConfigValue};

/// Prefix of paths in compose files: the build context.
const CONTEXT_PREFIX: &str = "${CONTEXT_DIR}";

/// A build of a service.
pub(super) struct ServiceBuild<'a> {
    pub(super) directory: &'a str,
    pub(super) file: &'a str,
    pub(super) args: BTreeMap<String, String>,
    /// Whether it names its context alone.
    pub(super) is_whole: bool,
}

impl<'a> ServiceBuild<'a> {
    /// `None` if parts of it are merged from elsewhere, an argument has its value from there, or a place is
    /// no text or empty, which stands for one of docker compose's choice.
    pub(super) fn read(node: &'a ConfigNode) -> Option<Self> {
        if let ConfigValue::String(directory) = &node.value {
            let (directory, args) = (in_context(directory), BTreeMap::new());
            let build = Self { directory, file: DOCKERFILE, args, is_whole: true };
            return (!directory.is_empty()).then_some(build);
        }
        if has_key(node, "<<") {
            return None;
        }
        let place = |key, default| match value(node, key) {
            Some(_) => text(node, key).filter(|place| !place.is_empty()),
            None => Some(default),
        };
        Some(Self {
            directory: in_context(place("context", ".")?),
            file: place("dockerfile", DOCKERFILE)?,
            args: arguments(node)?,
            is_whole: keys(node).all(|key| key == "context"),
        })
    }
}

/// The keys of a mapping.
fn keys(node: &ConfigNode) -> impl Iterator<Item = &str> {
    let entries = match &node.value {
        ConfigValue::Mapping(entries) => entries.as_slice(),
        _ => &[],
    };
    entries.iter().map(|entry| entry.key.as_str())
}

/// Whether a key is anywhere in a document.
pub(super) fn has_key(node: &ConfigNode, key: &str) -> bool {
    match &node.value {
        ConfigValue::Mapping(entries) => {
            entries.iter().any(|entry| entry.key == key || has_key(&entry.node, key))
        }
        ConfigValue::Sequence(items) => items.iter().any(|item| has_key(item, key)),
        _ => false,
    }
}

/// A value of a mapping.
fn value<'a>(node: &'a ConfigNode, key: &str) -> Option<&'a ConfigNode> {
    let ConfigValue::Mapping(entries) = &node.value else { return None };
    entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
}

pub(super) fn text<'a>(node: &'a ConfigNode, key: &str) -> Option<&'a str> {
    match &value(node, key)?.value {
        ConfigValue::String(text) => Some(text),
        _ => None,
    }
}

/// The arguments of a build: a mapping, or a list of `NAME=value`. `None` if one has no value, or its name
/// or value has a variable: docker compose takes it from what is not known here.
fn arguments(node: &ConfigNode) -> Option<BTreeMap<String, String>> {
    match value(node, "args").map(|args| &args.value) {
        Some(ConfigValue::Mapping(entries)) => {
            let arguments =
                entries.iter().map(|entry| known_argument(&entry.key, scalar(&entry.node)?));
            arguments.collect()
        }
        Some(ConfigValue::Sequence(items)) => {
            let argument = |item: &ConfigNode| {
                let (name, value) = scalar(item)?.split_once('=')?;
                known_argument(name, value)
            };
            items.iter().map(argument).collect()
        }
        Some(ConfigValue::Null) | None => Some(BTreeMap::new()),
        Some(_) => None,
    }
}

fn known_argument(name: &str, value: &str) -> Option<(String, String)> {
    let is_known = !name.contains('$') && !value.contains('$');
    is_known.then(|| (name.to_owned(), value.to_owned()))
}

/// The text of a value that is no list, no mapping and not empty.
fn scalar(node: &ConfigNode) -> Option<&str> {
    match &node.value {
        ConfigValue::String(text)
        | ConfigValue::Bool { text, .. }
        | ConfigValue::Integer { text, .. }
        | ConfigValue::Float { text, .. } => Some(text),
        ConfigValue::Null | ConfigValue::Sequence(_) | ConfigValue::Mapping(_) => None,
    }
}

/// A path of a compose file, relative to the build context.
pub(super) fn in_context(path: &str) -> &str {
    path.strip_prefix(CONTEXT_PREFIX).map_or(path, |rest| rest.trim_start_matches('/'))
}
