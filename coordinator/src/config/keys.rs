//! Declarations of keys. A key is declared once, beside its reader, with its type, default and
//! meaning; `keys!` turns the declaration into the constant that the reader uses and the row in the
//! reference. A key that is not declared cannot be read.

use rollout_protocol::spec::task::TaskFormat;

/// A declared key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    /// Its name in its table.
    pub(crate) name: &'static str,
    /// Its type, as shown in the reference.
    pub(crate) kind: &'static str,
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
/// `NAME [as "KEY"] [(FORMAT)]: TYPE, DEFAULT, "MEANING"[, "PATH" => TABLE]…;`. `KEY` is its
/// name in files if that is not a Rust name; the rows of the tables follow that of the key.
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
                kind: $kind,
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
