//! JSON Lines export: an object per trial; empty cells are null.

use serde::ser::{Serialize, SerializeMap as _, Serializer};

use super::ExportError;
use super::columns::{COLUMNS, ExportCell, ExportRow};
use super::output::ExportOutput;
use super::source::ExportSource;

/// Writes every trial.
pub(super) async fn write(
    source: &mut ExportSource,
    output: &mut ExportOutput,
) -> Result<(), ExportError> {
    let (run, job) = (source.header.run, source.header.job.clone());
    let mut line = Vec::new();
    for index in 0..source.len() {
        let trial = source.trial(index).await?;
        line.clear();
        let object = JsonRow(ExportRow::new(run, &job, &trial));
        serde_json::to_writer(&mut line, &object).expect("cells serialize to JSON");
        line.push(b'\n');
        output.write_bytes(&line)?;
    }
    Ok(())
}

struct JsonRow<'a>(ExportRow<'a>);

impl Serialize for JsonRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(Some(COLUMNS.len()))?;
        for column in COLUMNS {
            let Self(row) = self;
            match (column.cell)(row) {
                None => object.serialize_entry(column.name, &())?,
                Some(ExportCell::Text(text)) => object.serialize_entry(column.name, &text)?,
                Some(ExportCell::Json(value)) => object.serialize_entry(column.name, &value)?,
                Some(ExportCell::Integer(number)) => {
                    object.serialize_entry(column.name, &number)?;
                }
                Some(ExportCell::Number(number)) => object.serialize_entry(column.name, &number)?,
                Some(ExportCell::Time(time)) => object.serialize_entry(column.name, &time)?,
            }
        }
        object.end()
    }
}
