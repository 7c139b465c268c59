//! The reference of job and task files and files of searches: every key with its type, default and
//! meaning, in one table for each, made of the declarations beside the readers.

#[cfg(test)]
mod tests;

use rollout_protocol::spec::task::TaskFormat;
use serde::Serialize;

use super::keys::KeyTableEntry;

/// A key of a file. Lists are written `key[]`, names that the user chooses `NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyRow {
    /// Where it stands, for instance `agents[].env.NAME`.
    pub key: String,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyReference {
    /// The file's usual name.
    pub file: &'static str,
    /// Its keys, in the order in which they are best read.
    pub keys: Vec<KeyRow>,
    /// Tables that have keys of another table: where they are, and where those keys are explained.
    pub alike: &'static [(&'static str, &'static str)],
}

impl KeyReference {
    /// The reference of a kind of file: its usual name, its table, and tables that are alike.
    pub(crate) fn new(
        file: &'static str,
        table: &[KeyTableEntry],
        alike: &'static [(&'static str, &'static str)],
    ) -> Self {
        let mut keys = Vec::new();
        add(&mut keys, table, "", None);
        Self { file, keys, alike }
    }

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
        for entry in &self.keys {
            let format = entry.format.map_or("both", TaskFormat::as_str);
            let format = if has_formats { format!(" {format} |") } else { String::new() };
            let [kind, default, meaning] =
                [entry.kind, entry.default, entry.meaning].map(|text| text.replace('|', "\\|"));
            text += &format!("| `{}` | {kind} | {default} |{format} {meaning} |\n", entry.key);
        }
        text
    }

    /// The entry of a key, wherever it is explained.
    pub fn find(&self, key: &str) -> Option<&KeyRow> {
        let at = self.explained_at(key);
        self.keys.iter().find(|entry| entry.key == at)
    }
}

/// Adds the rows of a table at `path`, whose keys come from `format` unless they say another.
fn add(rows: &mut Vec<KeyRow>, table: &[KeyTableEntry], path: &str, format: Option<TaskFormat>) {
    let below =
        |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    for part in table {
        match *part {
            KeyTableEntry::Key(key) => rows.push(KeyRow {
                key: below(key.name),
                kind: key.kind,
                default: key.default,
                meaning: key.meaning,
                format: key.format.or(format),
            }),
            KeyTableEntry::Table("", inner) => add(rows, inner, path, format),
            KeyTableEntry::Table(name, inner) => {
                let path = below(name);
                let key = path.trim_end_matches("[]");
                let of_key = rows.iter().find(|row| row.key == key).and_then(|row| row.format);
                add(rows, inner, &path, of_key.or(format));
            }
        }
    }
}
