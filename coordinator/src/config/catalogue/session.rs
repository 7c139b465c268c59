//! How the session files of an agent count its model calls.

use globset::GlobBuilder;
use rollout_protocol::spec::agent::SessionFormat;
use serde::Deserialize;

/// The table `session_calls` of an entry, with the keys of [`SessionFormat`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionEntry {
    files: String,
    #[serde(default)]
    lists: Vec<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    input_tokens: Vec<String>,
    output_tokens: Vec<String>,
}

impl SessionEntry {
    /// The format for the worker.
    pub fn format(&self) -> SessionFormat {
        SessionFormat {
            files: self.files.clone(),
            lists: self.lists.clone(),
            id: self.id.clone(),
            input_tokens: self.input_tokens.clone(),
            output_tokens: self.output_tokens.clone(),
        }
    }
}

/// Why a format cannot be used; `None` if it can.
pub(crate) fn session_fault(format: &SessionFormat) -> Option<String> {
    if let Err(error) = GlobBuilder::new(&format.files).literal_separator(true).build() {
        return Some(format!("`files` is no pattern: {error}"));
    }
    if format.output_tokens.is_empty() {
        return Some("no `output_tokens`".to_owned());
    }
    let places = format.lists.iter().chain(&format.id);
    let mut pointers = places.chain(&format.input_tokens).chain(&format.output_tokens);
    let wrong = pointers.find(|pointer| !pointer.starts_with('/'));
    wrong.map(|pointer| format!("`{pointer}`, which does not begin with `/`"))
}
