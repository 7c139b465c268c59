//! Rows of typed columns and their writers: JSON Lines and Parquet. Exports and analysis tables
//! are made of them.

mod json_lines;
mod output;
#[cfg(feature = "parquet")]
mod parquet;
mod stop;

use std::borrow::Cow;
use std::path::PathBuf;

use rollout_base::shown_path::shown;
use rollout_protocol::Timestamp;
use serde_json::Value;

use crate::results::files::FileError;
pub(super) use json_lines::write_line;
pub(super) use output::{RowOutput, parent};
#[cfg(feature = "parquet")]
pub(super) use parquet::ParquetRows;
pub use stop::until_stopped;

/// A kind of rows with the same columns.
pub(super) trait Table: Sized + 'static {
    /// Name of the table, and of the schema in Parquet.
    const NAME: &'static str;
    /// One row.
    type Row<'a>;
    /// Every column, in order. Add new columns only at the end.
    const COLUMNS: &'static [Column<Self>];
}

/// Type of a column's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnType {
    /// Text.
    Text,
    /// A JSON value.
    Json,
    /// An integer.
    Integer,
    /// A number.
    Number,
    /// True or false.
    Boolean,
    /// A time.
    Time,
}

/// A cell that is not empty.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell<'a> {
    Text(Cow<'a, str>),
    Json(Value),
    Integer(i64),
    Number(f64),
    Boolean(bool),
    Time(Timestamp),
}

/// A column.
pub(super) struct Column<T: Table> {
    /// Its name.
    pub(super) name: &'static str,
    /// The type of its cells.
    pub(super) kind: ColumnType,
    /// The cell of a row; `None` for an empty cell.
    pub(super) cell: for<'r, 'a> fn(&'r T::Row<'a>) -> Option<Cell<'r>>,
}

/// Declares columns: name, type, and the cell of a row as an option. Texts are `&str` or `String`.
macro_rules! columns {
    ($($name:literal: $kind:ident = |$row:ident| $cell:expr;)*) => {
        &[$($crate::results::rows::Column {
            name: $name,
            kind: $crate::results::rows::ColumnType::$kind,
            cell: |$row| $cell.map(|value| $crate::results::rows::cell!($kind, value)),
        }),*]
    };
}

/// A cell of a type. Integers are of every type that `i64` holds.
macro_rules! cell {
    (Text, $value:ident) => {
        $crate::results::rows::Cell::Text(std::borrow::Cow::from($value))
    };
    (Integer, $value:ident) => {
        $crate::results::rows::Cell::Integer(i64::from($value))
    };
    ($kind:ident, $value:ident) => {
        $crate::results::rows::Cell::$kind($value)
    };
}

pub(super) use {cell, columns};

/// Why rows could not be written.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A directory is in the place of the file.
    #[error("{} already exists", shown(.0))]
    OutputExists(PathBuf),
    /// The rows cannot be encoded or written.
    #[cfg(feature = "parquet")]
    #[error("cannot write the rows")]
    Parquet(#[from] ::parquet::errors::ParquetError),
}
