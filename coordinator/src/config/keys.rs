//! Declarations of keys. A key is declared once, beside its reader, with its type, default and
//! meaning; `keys!` turns the declaration into the constant that the reader uses and the row in the
//! reference. A key that is not declared cannot be read, and a key without a [`KeyKind`] does not
//! compile.

use rollout_protocol::spec::task::TaskFormat;

use super::host_path::HostSource;

/// Kind of a key's value: where a path in it leads. The first text is its type, as shown in the
/// reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyKind {
    /// No path.
    Value(&'static str),
    /// A path in the environment of a trial or a command.
    EnvironmentPath(&'static str),
    /// A path below the results of a trial.
    ResultPath(&'static str),
    /// A path in the directory of a task.
    TaskPath(&'static str),
    /// A file or a directory of this host, whose content is read with the document. The second text
    /// says what does the same without it.
    HostFile(&'static str, &'static str),
    /// The same, or one of these names.
    NameOrHostFile(&'static str, &'static str, &'static [&'static str]),
    /// A directory of this host for results.
    HostOutput(&'static str),
    /// Tasks or other sources, which may be on this host.
    Source(&'static str, HostSource),
}

impl KeyKind {
    /// The type, as shown in the reference.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Value(words)
            | Self::EnvironmentPath(words)
            | Self::ResultPath(words)
            | Self::TaskPath(words)
            | Self::HostFile(words, _)
            | Self::NameOrHostFile(words, _, _)
            | Self::HostOutput(words)
            | Self::Source(words, _) => words,
        }
    }

    /// Whether a value can be a path of this host.
    pub(crate) const fn may_be_of_host(self) -> bool {
        match self {
            Self::Value(_) | Self::EnvironmentPath(_) | Self::ResultPath(_) | Self::TaskPath(_) => {
                false
            }
            Self::HostFile(..)
            | Self::NameOrHostFile(..)
            | Self::HostOutput(_)
            | Self::Source(..) => true,
        }
    }
}

/// The names that declarations use.
pub(crate) mod prelude {
    pub(crate) use super::super::host_path::HostSource;
    pub(crate) use super::KeyKind::{
        EnvironmentPath, HostFile, HostOutput, NameOrHostFile, ResultPath, Source, TaskPath, Value,
    };
}

/// A declared key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    /// Its name in its table.
    pub(crate) name: &'static str,
    /// Kind of its value, with the type that the reference shows.
    pub(crate) kind: KeyKind,
    /// Its default, as shown in the reference.
    pub(crate) default: &'static str,
    /// Its meaning.
    pub(crate) meaning: &'static str,
    /// The task format that it comes from, if the other format lacks it.
    pub(crate) format: Option<TaskFormat>,
}

/// An entry of a declared table, in the order of the reference.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KeyTableEntry {
    /// A key.
    Key(Key),
    /// The keys of another table, at this path below the table, or in the table itself if the path
    /// is empty.
    Table(&'static str, &'static [Self]),
}

impl KeyTableEntry {
    /// The key with this name in a table.
    pub(crate) fn find(table: &[Self], name: &str) -> Option<Key> {
        table.iter().find_map(|part| match part {
            Self::Key(key) if key.name == name => Some(*key),
            _ => None,
        })
    }
}

/// Declares tables of keys. A key is
/// `NAME [as "KEY"] [(FORMAT)]: KIND("TYPE"), DEFAULT, "MEANING"[, "PATH" => TABLE]…;`. `KEY` is its
/// name in files if that is not a Rust name, `KIND` a [`KeyKind`]; the rows of the tables follow that
/// of the key.
macro_rules! keys {
    ($($(#[$doc:meta])* $vis:vis table $table:ident { $($first:literal => $top:expr;)*
        $($name:ident $(as $word:literal)? $(($format:ident))?:
            $kind:expr, $default:expr, $meaning:literal $(, $path:literal => $inner:expr)*;)*
    })*) => {$(
        $(#[$doc])*
        $vis enum $table {}

        #[expect(non_upper_case_globals, reason = "constants are named as their keys")]
        impl $table {
            $($vis const $name: $crate::config::keys::Key = $crate::config::keys::Key {
                name: [$($word,)? stringify!($name)][0],
                kind: {
                    use $crate::config::keys::prelude::*;
                    $kind
                },
                default: $default,
                meaning: $meaning,
                format: [
                    $(Some(rollout_protocol::spec::task::TaskFormat::$format),)?
                    None,
                ][0],
            };)*

            /// The table, in the order of the reference.
            $vis const ALL: &'static [$crate::config::keys::KeyTableEntry] = &[
                $($crate::config::keys::KeyTableEntry::Table($first, $top),)*
                $(
                    $crate::config::keys::KeyTableEntry::Key(Self::$name),
                    $($crate::config::keys::KeyTableEntry::Table($path, $inner),)*
                )*
            ];
        }
    )*};
}
