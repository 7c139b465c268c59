//! Summary of a sweep's CSV file, read once: the mean of every column, and completeness.
//!
//! The file comes from a program that an agent may have written. Anything not listed here is an
//! error, and memory is bounded by a record, a number per column and a bit per configuration:
//! * A header is required; a duplicate column is an error. A byte order mark is ignored.
//! * A row with fewer cells than the header has blanks at its end; extra cells are ignored.
//! * A cell counts for its column's mean if it is a finite number; blanks, text, `nan` and `inf`
//!   are skipped. A column without any such cell has no mean.
//! * A configuration's number is a whole number of at least 0, also written `3.0`. A row with any
//!   other value there (`3.5`, `-1`, text, blank) has none.
//! * With a limit N, the rows whose configuration is below N are used, whatever their status. If
//!   there are none, or no such column, the first N rows are used.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{self, Read};

use super::completeness::{ConfigGaps, RowCounter, SweepCompleteness};
use crate::config::ScoringProfile;

/// Maximum number of columns: far above any sweep, so that a file of one endless line is an error.
const MAX_COLUMNS: usize = 4096;

/// Maximum size of a sweep in bytes.
const MAX_SWEEP_BYTES: u64 = 512 * 1024 * 1024;

/// Maximum size of a record in bytes, with blank lines in front of it. The CSV reader keeps a record,
/// and for each of its cells several times the size of a comma.
const MAX_RECORD_BYTES: usize = 1024 * 1024;

/// Summary of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepSummary {
    /// Number of rows in the file.
    pub rows: u64,
    /// Number of rows used.
    pub rows_used: u64,
    /// The mean of every column that has one, over the rows used.
    pub means: BTreeMap<String, f64>,
    /// Completeness; `None` without the columns that it needs.
    pub completeness: Option<SweepCompleteness>,
    /// Missing ones of those columns; that of configurations is needed only with a limit.
    pub missing_columns: Vec<String>,
    /// Names of all columns, in order.
    pub columns: Vec<String>,
    /// Configurations that make it incomplete.
    pub gaps: ConfigGaps,
    /// Successful rows without a number in a metric of the profile.
    pub numberless: NumberlessRows,
}

/// Rows that succeeded, but lack a finite number in a metric whose column the file has. The metric's
/// mean is that of the other rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumberlessRows {
    /// Number of such rows.
    pub rows: u64,
    /// The columns, in the order of the file.
    pub columns: Vec<String>,
}

impl SweepSummary {
    /// Metrics of a profile without a mean here, the primary one first.
    pub fn absent_metrics(&self, profile: &ScoringProfile) -> Vec<String> {
        let metrics = profile.columns().into_iter();
        metrics.filter(|name| !self.means.contains_key(*name)).map(str::to_owned).collect()
    }
}

/// An unreadable sweep.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The file is empty.
    #[error("the file is empty: expected a header with column names")]
    Empty,
    /// A duplicate column.
    #[error("the column `{column}` is in the header twice")]
    DuplicateColumn {
        /// Name of the column.
        column: String,
    },
    /// Too many columns.
    #[error("the file has {found} columns, more than {MAX_COLUMNS}")]
    TooManyColumns {
        /// Number of columns.
        found: usize,
    },
    /// The file is too large.
    #[error("the file has more than {MAX_SWEEP_BYTES} bytes")]
    TooLarge,
    /// A record is too large.
    #[error("a record of the file has more than {MAX_RECORD_BYTES} bytes")]
    LargeRecord,
    /// Not CSV, or not UTF-8.
    #[error("the file is not CSV")]
    Csv(#[source] csv::Error),
    /// The system did not read the file: nothing is known of its content.
    #[error("the file cannot be read")]
    Io(#[source] io::Error),
}

/// Reads a sweep.
///
/// # Errors
/// [`SweepError`].
pub fn summarize(
    file: impl Read,
    profile: &ScoringProfile,
    limit: Option<u64>,
) -> Result<SweepSummary, SweepError> {
    let bounded = BoundedRecords { file: file.take(MAX_SWEEP_BYTES + 1), of_record: 0 };
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(bounded);
    let columns = columns(reader.headers().map_err(record_error)?)?;
    reader.get_mut().of_record = 0;
    let position = |name: &str| columns.iter().position(|column| column == name);
    let (id, status) = (position(&profile.id_column), position(&profile.status_column));
    let metrics: Vec<usize> = profile.columns().into_iter().filter_map(position).collect();
    let (mut numberless_rows, mut numberless_columns) = (0, BTreeSet::new());
    let mut counter = RowCounter::new(limit);
    let (mut first, mut by_id) = (ColumnMeans::new(columns.len()), ColumnMeans::new(columns.len()));
    let (mut rows, mut row) = (0, csv::StringRecord::new());
    while reader.read_record(&mut row).map_err(record_error)? {
        reader.get_mut().of_record = 0;
        let config = id.and_then(|id| config_id(row.get(id)?));
        if limit.is_none_or(|limit| rows < limit) {
            first.add(&row);
        }
        if limit.is_some_and(|limit| config.is_some_and(|config| config < limit)) {
            by_id.add(&row);
        }
        let word = status.and_then(|status| row.get(status)).unwrap_or_default().trim();
        let is_ok = profile.ok_values.iter().any(|ok| ok.eq_ignore_ascii_case(word));
        if counter.add(config, is_ok) && is_ok {
            let lacking = metrics.iter().copied().filter(|at| number(row.get(*at)).is_none());
            let lacking: Vec<usize> = lacking.collect();
            numberless_rows += u64::from(!lacking.is_empty());
            numberless_columns.extend(lacking);
        }
        rows += 1;
    }
    if reader.get_ref().file.limit() == 0 {
        return Err(SweepError::TooLarge);
    }
    let used = if by_id.rows > 0 { by_id } else { first };
    // Without a limit the configuration of a row is not needed.
    let id_needed = (&profile.id_column, id.is_none() && limit.is_some());
    let missing = [id_needed, (&profile.status_column, status.is_none())];
    let missing: Vec<_> =
        missing.into_iter().filter(|(_, gone)| *gone).map(|(name, _)| name.clone()).collect();
    let name = |at: usize| columns[at].clone();
    let numberless = NumberlessRows {
        rows: numberless_rows,
        columns: numberless_columns.into_iter().map(name).collect(),
    };
    Ok(SweepSummary {
        numberless,
        rows,
        rows_used: used.rows,
        means: used.by_name(&columns),
        gaps: counter.gaps(),
        completeness: missing.is_empty().then(|| counter.finish()),
        missing_columns: missing,
        columns,
    })
}

/// The bytes of a file. An error takes the place of the rest of a record that is too large: its
/// reader would keep all of it.
struct BoundedRecords<R> {
    file: io::Take<R>,
    /// Bytes read since the end of a record.
    of_record: usize,
}

impl<R: Read> Read for BoundedRecords<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.of_record > MAX_RECORD_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let read = self.file.read(buffer)?;
        self.of_record += read;
        Ok(read)
    }
}

fn record_error(error: csv::Error) -> SweepError {
    if !error.is_io_error() {
        return SweepError::Csv(error);
    }
    match error.into_kind() {
        csv::ErrorKind::Io(source) if source.kind() != io::ErrorKind::FileTooLarge => {
            SweepError::Io(source)
        }
        // The error of `BoundedRecords`.
        _ => SweepError::LargeRecord,
    }
}

fn columns(header: &csv::StringRecord) -> Result<Vec<String>, SweepError> {
    if header.len() > MAX_COLUMNS {
        return Err(SweepError::TooManyColumns { found: header.len() });
    }
    let clean = |name: &str| name.trim_start_matches('\u{feff}').trim().to_owned();
    let columns: Vec<_> = header.iter().map(clean).collect();
    if columns.iter().all(String::is_empty) {
        return Err(SweepError::Empty);
    }
    let mut seen = HashSet::new();
    match columns.iter().find(|name| !name.is_empty() && !seen.insert(name.as_str())) {
        Some(column) => Err(SweepError::DuplicateColumn { column: column.clone() }),
        None => Ok(columns),
    }
}

/// Parses the number of a configuration: whole and at least 0.
fn config_id(cell: &str) -> Option<u64> {
    let cell = cell.trim();
    if let Ok(id) = cell.parse::<u64>() {
        return Some(id);
    }
    let id = cell.parse::<f64>().ok()?;
    // Floats are exact up to here.
    let whole = (0.0..9_007_199_254_740_992.0).contains(&id) && id.fract() == 0.0;
    whole.then_some(id as u64)
}

/// The finite number in a cell.
fn number(cell: Option<&str>) -> Option<f64> {
    cell?.trim().parse::<f64>().ok().filter(|value| value.is_finite())
}

/// Sums of columns, each with its compensation for rounding.
struct ColumnMeans {
    rows: u64,
    columns: Vec<ColumnSum>,
}

#[derive(Clone, Copy, Default)]
struct ColumnSum {
    sum: f64,
    lost: f64,
    count: u64,
}

impl ColumnMeans {
    fn new(columns: usize) -> Self {
        Self { rows: 0, columns: vec![ColumnSum::default(); columns] }
    }

    fn add(&mut self, row: &csv::StringRecord) {
        self.rows += 1;
        for (sum, cell) in self.columns.iter_mut().zip(row) {
            if let Some(value) = number(Some(cell)) {
                sum.add(value);
            }
        }
    }

    fn by_name(&self, names: &[String]) -> BTreeMap<String, f64> {
        let named = names.iter().zip(&self.columns).filter(|(name, _)| !name.is_empty());
        named.filter_map(|(name, sum)| Some((name.clone(), sum.mean()?))).collect()
    }
}

impl ColumnSum {
    /// Adds by Neumaier's algorithm: the error stays that of one rounding, in any order.
    fn add(&mut self, value: f64) {
        let sum = self.sum + value;
        self.lost += if self.sum.abs() >= value.abs() {
            (self.sum - sum) + value
        } else {
            (value - sum) + self.sum
        };
        self.sum = sum;
        self.count += 1;
    }

    fn mean(&self) -> Option<f64> {
        let mean = (self.sum + self.lost) / self.count as f64;
        (self.count > 0 && mean.is_finite()).then_some(mean)
    }
}
