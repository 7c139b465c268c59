//! JSON Lines: an object per row; empty cells are null.

use serde::ser::{Serialize, SerializeMap as _, Serializer};

use super::{Cell, Table};

/// Writes a row and a line end into `line`, replacing its content.
pub(in crate::results) fn write_line<T: Table>(row: &T::Row<'_>, line: &mut Vec<u8>) {
    line.clear();
    serde_json::to_writer(&mut *line, &JsonRow::<T>(row)).expect("cells serialize to JSON");
    line.push(b'\n');
}

struct JsonRow<'r, 'a, T: Table>(&'r T::Row<'a>);

impl<T: Table> Serialize for JsonRow<'_, '_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(Some(T::COLUMNS.len()))?;
        for column in T::COLUMNS {
            let Self(row) = self;
            match (column.cell)(row) {
                None => object.serialize_entry(column.name, &())?,
                Some(Cell::Text(text)) => object.serialize_entry(column.name, &text)?,
                Some(Cell::Json(value)) => object.serialize_entry(column.name, &value)?,
                Some(Cell::Integer(number)) => object.serialize_entry(column.name, &number)?,
                Some(Cell::Number(number)) => object.serialize_entry(column.name, &number)?,
                Some(Cell::Boolean(value)) => object.serialize_entry(column.name, &value)?,
                Some(Cell::Time(time)) => object.serialize_entry(column.name, &time)?,
            }
        }
        object.end()
    }
}
