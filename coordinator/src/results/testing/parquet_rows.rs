//! Comparison of Parquet files with JSON lines.

use std::fs::{self, File};
use std::path::Path;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use rollout_protocol::Timestamp;
use serde_json::{Value, json};

use crate::results::rows::{ColumnType, Table};

/// Fails unless both files of a table have the same columns and rows. Returns the number of rows.
#[track_caller]
pub(in crate::results) fn assert_same_rows<T: Table>(lines: &Path, parquet: &Path) -> usize {
    let reader = SerializedFileReader::new(File::open(parquet).expect("a file")).expect("Parquet");
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    let names: Vec<_> = schema.columns().iter().map(|column| column.name().to_owned()).collect();
    assert_eq!(names, T::COLUMNS.iter().map(|column| column.name).collect::<Vec<_>>());
    let rows: Vec<Value> = (reader.get_row_iter(None).expect("rows"))
        .map(|row| {
            let row = row.expect("a row");
            row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect()
        })
        .collect();
    let text = fs::read_to_string(lines).expect("a file");
    assert_eq!(rows.len(), text.lines().count(), "{}", T::NAME);
    for (row, line) in rows.iter().zip(text.lines()) {
        let line: Value = serde_json::from_str(line).expect("JSON");
        for column in T::COLUMNS {
            let expected = in_parquet(column.kind, &line[column.name]);
            assert_eq!(row[column.name], expected, "{}.{}", T::NAME, column.name);
        }
    }
    rows.len()
}

fn value(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(value) => json!(value),
        Field::Str(text) => json!(text),
        Field::Long(number) | Field::TimestampMicros(number) => json!(number),
        Field::Double(number) => json!(number),
        other => panic!("an unexpected field {other:?}"),
    }
}

/// The value in Parquet of a cell in JSON: documents are text, and times are microseconds.
fn in_parquet(kind: ColumnType, cell: &Value) -> Value {
    match (kind, cell) {
        (_, Value::Null) => Value::Null,
        (ColumnType::Json, document) => json!(document.to_string()),
        (ColumnType::Time, time) => {
            let time: Timestamp = time.as_str().and_then(|t| t.parse().ok()).expect("a time");
            json!(time.as_microsecond())
        }
        (_, cell) => cell.clone(),
    }
}
