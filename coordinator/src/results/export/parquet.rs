//! Apache Parquet export: a row per trial, in row groups of bounded size.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{
    Compression, ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical,
};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{Type, TypePtr};

use super::ExportError;
use super::columns::{COLUMNS, ColumnType, ExportCell, ExportRow};
use super::output::ExportOutput;
use super::source::ExportSource;

/// Maximum number of rows in a group.
const GROUP_ROWS: usize = 10_000;

/// Approximate maximum of text bytes in a group.
const GROUP_BYTES: usize = 16 * 1024 * 1024;

/// Writes every trial.
pub(super) async fn write(
    source: &mut ExportSource,
    output: &mut ExportOutput,
) -> Result<(), ExportError> {
    let (run, job) = (source.header.run, source.header.job.clone());
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(concat!("rollout ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    let mut file = SerializedFileWriter::new(output.writer(), schema()?, Arc::new(properties))?;
    let mut group = RowGroupBuffer::default();
    for index in 0..source.len() {
        let trial = source.trial(index).await?;
        group.add(&ExportRow::new(run, &job, &trial));
        if group.is_full() {
            std::mem::take(&mut group).write(&mut file)?;
        }
    }
    group.write(&mut file)?;
    file.close()?;
    Ok(())
}

fn schema() -> Result<TypePtr, ParquetError> {
    let fields = COLUMNS.iter().map(|column| {
        let (physical, logical) = match column.kind {
            ColumnType::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            ColumnType::Json => (Physical::BYTE_ARRAY, Some(LogicalType::Json)),
            ColumnType::Integer => (Physical::INT64, None),
            ColumnType::Number => (Physical::DOUBLE, None),
            ColumnType::Time => {
                (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS)))
            }
        };
        let field = Type::primitive_type_builder(column.name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical)
            .with_converted_type(ConvertedType::NONE)
            .build()?;
        Ok(Arc::new(field))
    });
    let fields = fields.collect::<Result<Vec<_>, ParquetError>>()?;
    Ok(Arc::new(Type::group_type_builder("trial").with_fields(fields).build()?))
}

/// Rows of one group, as the cells of each column.
#[derive(Default)]
struct RowGroupBuffer {
    columns: Vec<Vec<Option<ExportCell>>>,
    rows: usize,
    bytes: usize,
}

impl RowGroupBuffer {
    fn add(&mut self, row: &ExportRow<'_>) {
        self.columns.resize_with(COLUMNS.len(), Vec::new);
        for (column, cells) in COLUMNS.iter().zip(&mut self.columns) {
            let cell = (column.cell)(row);
            if let Some(ExportCell::Text(text)) = &cell {
                self.bytes += text.len();
            }
            cells.push(cell);
        }
        self.rows += 1;
    }

    fn is_full(&self) -> bool {
        self.rows >= GROUP_ROWS || self.bytes >= GROUP_BYTES
    }

    fn write<W: Write + Send>(
        self,
        file: &mut SerializedFileWriter<W>,
    ) -> Result<(), ParquetError> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = file.next_row_group()?;
        for (column, cells) in COLUMNS.iter().zip(self.columns) {
            let mut writer = group.next_column()?.expect("the schema has every column");
            write_column(&mut writer, column.kind, cells)?;
            writer.close()?;
        }
        group.close()?;
        Ok(())
    }
}

/// Writes the cells of a column. Definition levels mark the empty ones.
fn write_column(
    writer: &mut SerializedColumnWriter<'_>,
    kind: ColumnType,
    cells: Vec<Option<ExportCell>>,
) -> Result<(), ParquetError> {
    let levels: Vec<i16> = cells.iter().map(|cell| i16::from(cell.is_some())).collect();
    let cells = cells.into_iter().flatten();
    match kind {
        ColumnType::Text | ColumnType::Json => {
            let values: Vec<ByteArray> = cells.map(|cell| text(cell).as_str().into()).collect();
            writer.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?
        }
        ColumnType::Integer | ColumnType::Time => {
            let values: Vec<i64> = cells.map(|cell| integer(&cell)).collect();
            writer.typed::<Int64Type>().write_batch(&values, Some(&levels), None)?
        }
        ColumnType::Number => {
            let values: Vec<f64> = cells.map(|cell| number(&cell)).collect();
            writer.typed::<DoubleType>().write_batch(&values, Some(&levels), None)?
        }
    };
    Ok(())
}

fn text(cell: ExportCell) -> String {
    match cell {
        ExportCell::Text(text) => text,
        ExportCell::Json(value) => value.to_string(),
        _ => unreachable!("text columns have no other cells"),
    }
}

fn integer(cell: &ExportCell) -> i64 {
    match cell {
        ExportCell::Integer(number) => *number,
        ExportCell::Time(time) => time.as_microsecond(),
        _ => unreachable!("integer and time columns have no other cells"),
    }
}

fn number(cell: &ExportCell) -> f64 {
    match cell {
        ExportCell::Number(number) => *number,
        _ => unreachable!("number columns have no other cells"),
    }
}
