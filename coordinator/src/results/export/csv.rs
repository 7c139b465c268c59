//! CSV export (RFC 4180): a line per trial. Each reward key has a column `reward.<key>` instead of
//! one column for all rewards.

use std::borrow::Cow;

use super::ExportError;
use super::columns::{COLUMNS, ExportRow, ExportTable};
use super::source::{ExportSource, SettledTrial};
use crate::results::escape;
use crate::results::rows::{Cell, Column, ColumnType, RowOutput};

/// Writes the header line and every trial.
pub(super) async fn write(
    source: &ExportSource,
    output: &mut RowOutput,
) -> Result<(), ExportError> {
    let (run, job) = (source.header.run, source.header.job.clone());
    let keys = source.keys();
    let mut line = CsvLine::default();
    for column in columns() {
        line.add(column.name);
    }
    for key in &keys {
        line.add(&escape::cell(&format!("reward.{key}")));
    }
    output.write_bytes(line.end().as_bytes())?;
    for index in 0..source.len() {
        let trial = source.trial(index).await?;
        let row = ExportRow::new(run, &job, &trial);
        for column in columns() {
            line.add(&text((column.cell)(&row)));
        }
        for key in &keys {
            line.add(&number(&trial, key));
        }
        output.write_bytes(line.end().as_bytes())?;
    }
    Ok(())
}

/// All columns but `rewards`, which has a column per key.
fn columns() -> impl Iterator<Item = &'static Column<ExportTable>> {
    COLUMNS.iter().filter(|column| !(column.kind == ColumnType::Json && column.name == "rewards"))
}

/// Escapes text, which is untrusted; numbers and times cannot be formulas.
fn text(cell: Option<Cell<'_>>) -> String {
    match cell {
        None => String::new(),
        Some(Cell::Text(text)) => escape::cell(&text).into_owned(),
        Some(Cell::Json(value)) => escape::cell(&value.to_string()).into_owned(),
        Some(Cell::Integer(number)) => number.to_string(),
        Some(Cell::Number(number)) => number.to_string(),
        Some(Cell::Boolean(value)) => value.to_string(),
        Some(Cell::Time(time)) => time.to_string(),
    }
}

fn number(trial: &SettledTrial, key: &str) -> String {
    let mut numbers = trial.settlement.verdict.numbers();
    let found = numbers.find(|(known, _)| *known == key);
    found.map_or_else(String::new, |(_, number)| number.to_string())
}

/// A line under construction.
#[derive(Default)]
struct CsvLine {
    text: String,
    has_cells: bool,
}

impl CsvLine {
    fn add(&mut self, cell: &str) {
        if self.has_cells {
            self.text.push(',');
        }
        self.has_cells = true;
        self.text.push_str(&quoted(cell));
    }

    /// Ends the line, returns it and starts a new one.
    fn end(&mut self) -> String {
        self.has_cells = false;
        self.text.push_str("\r\n");
        std::mem::take(&mut self.text)
    }
}

fn quoted(cell: &str) -> Cow<'_, str> {
    if cell.contains([',', '"', '\r', '\n']) {
        return Cow::Owned(format!("\"{}\"", cell.replace('"', "\"\"")));
    }
    Cow::Borrowed(cell)
}
