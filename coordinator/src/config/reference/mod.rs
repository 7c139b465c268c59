//! The reference of job and task files and files of searches: every key with its type, default and meaning, in one table
//! for each. A test holds the tables against the readers: a key that is read and not explained, or
//! explained and not read, fails it.

mod job;
mod task;
#[cfg(test)]
mod tests;
mod tree;

use rollout_protocol::spec::task::TaskFormat;
use serde::Serialize;

pub use job::JOB;
pub use task::TASK;
pub use tree::TREE;

/// A key of a file. Lists are written `key[]`, names that the user chooses `NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Key {
    /// Where it stands, for instance `agents[].env.NAME`.
    pub key: &'static str,
    /// What kind of value it takes.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What holds when it is absent.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// The format of tasks that it comes from, when the other does not have it by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<TaskFormat>,
}

/// The keys of one kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// The file's usual name.
    pub file: &'static str,
    /// Its keys, in the order in which they are best read.
    pub keys: &'static [Key],
    /// Tables that have keys of another table: where they are, and where those keys are explained.
    pub alike: &'static [(&'static str, &'static str)],
}

impl Reference {
    /// The place at which a key is explained: the same, or one in a table that is alike.
    pub fn explained_at(&self, key: &str) -> String {
        let alike = self.alike.iter().find_map(|(table, other)| {
            let rest = key.strip_prefix(table)?.strip_prefix('.')?;
            Some(format!("{other}.{rest}"))
        });
        alike.unwrap_or_else(|| key.to_owned())
    }

    /// The keys as a table in Markdown.
    pub fn markdown(&self) -> String {
        let has_formats = self.keys.iter().any(|entry| entry.format.is_some());
        let format = if has_formats { " Format |" } else { "" };
        let rule = if has_formats { " --- |" } else { "" };
        let mut text = format!(
            "| Key | Type | Default |{format} Meaning |\n| --- | --- | --- |{rule} --- |\n"
        );
        for entry in self.keys {
            let format = entry.format.map_or("both", TaskFormat::as_str);
            let format = if has_formats { format!(" {format} |") } else { String::new() };
            let [kind, default, meaning] =
                [entry.kind, entry.default, entry.meaning].map(|text| text.replace('|', "\\|"));
            text += &format!("| `{}` | {kind} | {default} |{format} {meaning} |\n", entry.key);
        }
        text
    }

    /// The entry of a key, wherever it is explained.
    pub fn find(&self, key: &str) -> Option<&'static Key> {
        let at = self.explained_at(key);
        self.keys.iter().find(|entry| entry.key == at)
    }
}

/// An entry of a table.
const fn key(
    key: &'static str,
    kind: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { key, kind, default, meaning, format: None }
}
