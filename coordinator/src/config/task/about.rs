//! Facts of a task file for people and registries: no trial depends on them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::super::fields::{Field, Fields};

/// Facts of a task file for people and registries.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// `[task].name`, with the organization before a slash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `[task].version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `[task].description`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `[task].keywords`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keywords: Vec<String>,
    /// `source`: where the task comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// `[metadata]`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Json>,
}

/// `source`, `[metadata]` and `[task]`.
pub(super) fn read(fields: &mut Fields<'_>) -> About {
    let mut about = About { source: fields.take("source").string(), ..About::default() };
    let metadata = fields.take("metadata");
    if metadata.is_present() {
        about.metadata = metadata.json().unwrap_or_default();
    }
    let Some(mut fields) = fields.take("task").mapping() else { return about };
    let name = fields.take("name");
    if !name.is_present() {
        name.warn("absent: `[task]` should say `name = \"organization/name\"`");
    }
    about.name = name.name();
    about.version = fields.take("version").text();
    about.description = fields.take("description").string().filter(|text| !text.is_empty());
    for author in fields.take("authors").items().unwrap_or_default() {
        if let Some(mut author) = author.mapping() {
            author.take("name").string();
            author.take("email").string();
            author.finish();
        }
    }
    let keywords = fields.take("keywords").items().unwrap_or_default();
    about.keywords = keywords.iter().filter_map(Field::string).collect();
    fields.finish();
    about
}
