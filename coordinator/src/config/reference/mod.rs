//! The reference of job, task and search files: every key with its type, default and meaning, one
//! table per file kind, built from the declarations beside the readers.

#[cfg(test)]
pub(crate) mod tests;

use rollout_protocol::spec::task::TaskFormat;
use serde::Serialize;

use super::keys::{KeyKind, KeyTableEntry};

/// A key of a file. Lists are written `key[]`, names chosen by the user `NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyRow {
    /// Key path, for instance `agents[].env.NAME`.
    pub key: String,
    /// Type of its value.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its default.
    pub default: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
    /// The task format that it comes from, if the other format lacks it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<TaskFormat>,
    /// Where a path in its value leads.
    #[serde(skip)]
    pub(crate) place: KeyKind,
}

impl KeyRow {
    /// Whether its value can be a path of the host that reads the file.
    pub fn may_be_of_host(&self) -> bool {
        self.place.may_be_of_host()
    }
}

/// The keys of one kind of file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyReference {
    /// Usual name of the file.
    pub file: &'static str,
    /// Its keys, in reading order.
    pub keys: Vec<KeyRow>,
    /// Tables with the keys of another table: their path, and the path where the keys are
    /// documented.
    pub equivalent_tables: &'static [(&'static str, &'static str)],
}

impl KeyReference {
    /// The reference of a kind of file: its usual name, its table, and its tables documented
    /// elsewhere.
    pub(crate) fn new(
        file: &'static str,
        table: &[KeyTableEntry],
        equivalent_tables: &'static [(&'static str, &'static str)],
    ) -> Self {
        let mut keys = Vec::new();
        add(&mut keys, table, "", None);
        Self { file, keys, equivalent_tables }
    }

    /// The key path at which a key is documented: its own, or one in an equivalent table.
    pub fn explained_at(&self, key: &str) -> String {
        let equivalent = self.equivalent_tables.iter().find_map(|(table, other)| {
            let rest = key.strip_prefix(table)?.strip_prefix('.')?;
            Some(format!("{other}.{rest}"))
        });
        equivalent.unwrap_or_else(|| key.to_owned())
    }

    /// The keys as a Markdown table.
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

    /// The tables that have a key of this name; the top level is empty.
    pub(crate) fn tables_with(&self, name: &str) -> Vec<&str> {
        let keys = self.keys.iter().map(|row| row.key.as_str());
        let split = keys.map(|key| key.rsplit_once('.').unwrap_or(("", key)));
        split.filter(|(_, last)| *last == name).map(|(table, _)| table).collect()
    }

    /// The row that documents a key.
    pub fn find(&self, key: &str) -> Option<&KeyRow> {
        let at = self.explained_at(key);
        self.keys.iter().find(|entry| entry.key == at)
    }
}

/// Adds the rows of a table at `path`; their format is `format` unless a key has its own.
fn add(rows: &mut Vec<KeyRow>, table: &[KeyTableEntry], path: &str, format: Option<TaskFormat>) {
    let below =
        |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    for part in table {
        match *part {
            KeyTableEntry::Key(key) => rows.push(KeyRow {
                key: below(key.name),
                kind: key.kind.words(),
                default: key.default,
                meaning: key.meaning,
                format: key.format.or(format),
                place: key.kind,
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
