//! Task metadata for users and registries; no trial depends on it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::super::reader::{Field, Fields};

keys! {
    /// The metadata keys.
    pub(crate) table AboutKeys {
        source: Value("text"), "none", "Source of the task, informational.";
        metadata: Value("table"), "empty", "Any metadata, informational.";
        task (Harbor): Value("table"), "absent", "Registry metadata of the task, informational.",
            "task" => TaskTableKeys::ALL;
    }

    /// The keys of `task`.
    pub(crate) table TaskTableKeys {
        name: Value("text"), "none",
            "`organization/name`; `task_name` in Harbor exports. Elsewhere the directory name is used.";
        version: Value("text"), "none", "Version of the task.";
        description: Value("text"), "none", "Description of the task.";
        authors: Value("list"), "empty", "Authors of the task.", "authors[]" => AuthorKeys::ALL;
        keywords: Value("list of text"), "empty", "Search keywords.";
    }

    /// The keys of an author.
    pub(crate) table AuthorKeys {
        name: Value("text"), "none", "Name.";
        email: Value("text"), "none", "Email address.";
    }
}

/// Metadata of a task file, for users and registries.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskMetadata {
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

/// Reads `source`, `[metadata]` and `[task]`.
pub(super) fn read(fields: &mut Fields<'_>) -> TaskMetadata {
    let mut about =
        TaskMetadata { source: fields.take(AboutKeys::source).string(), ..TaskMetadata::default() };
    let metadata = fields.take(AboutKeys::metadata);
    if metadata.is_present() {
        about.metadata = metadata.json().unwrap_or_default();
    }
    let Some(mut fields) = fields.take(AboutKeys::task).mapping() else { return about };
    let name = fields.take(TaskTableKeys::name);
    if !name.is_present() {
        name.warn("missing: set `name = \"organization/name\"` in `[task]`");
    }
    about.name = name.non_empty_string();
    about.version = fields.take(TaskTableKeys::version).text();
    about.description =
        fields.take(TaskTableKeys::description).string().filter(|text| !text.is_empty());
    for author in fields.take(TaskTableKeys::authors).items().unwrap_or_default() {
        if let Some(mut author) = author.mapping() {
            author.take(AuthorKeys::name).string();
            author.take(AuthorKeys::email).string();
            author.finish();
        }
    }
    let keywords = fields.take(TaskTableKeys::keywords).items().unwrap_or_default();
    about.keywords = keywords.iter().filter_map(Field::string).collect();
    fields.finish();
    about
}
