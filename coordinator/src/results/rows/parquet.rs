//! Apache Parquet: rows in row groups of bounded size.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{
    Compression, ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical,
};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{Type, TypePtr};

use super::{Cell, ColumnType, Table};

/// Maximum number of rows in a group.
const GROUP_ROWS: usize = 10_000;

/// Approximate maximum of text bytes in a group.
const GROUP_BYTES: usize = 16 * 1024 * 1024;

/// A file under construction, of the rows of one table.
pub(in crate::results) struct ParquetRows<W: Write + Send> {
    file: SerializedFileWriter<W>,
    group: RowGroupBuffer,
}

impl<W: Write + Send> ParquetRows<W> {
    /// An empty file of `T`.
    pub(in crate::results) fn create<T: Table>(output: W) -> Result<Self, ParquetError> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("rollout ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let file = SerializedFileWriter::new(output, schema::<T>()?, Arc::new(properties))?;
        Ok(Self { file, group: RowGroupBuffer::new::<T>() })
    }

    /// Adds a row of the table that the file was created for.
    pub(in crate::results) fn add<T: Table>(
        &mut self,
        row: &T::Row<'_>,
    ) -> Result<(), ParquetError> {
        self.group.add::<T>(row);
        if self.group.is_full() { self.group.write(&mut self.file) } else { Ok(()) }
    }

    /// Completes the file and returns the output.
    pub(in crate::results) fn finish(mut self) -> Result<W, ParquetError> {
        self.group.write(&mut self.file)?;
        self.file.into_inner()
    }
}

fn schema<T: Table>() -> Result<TypePtr, ParquetError> {
    let fields = T::COLUMNS.iter().map(|column| {
        let (physical, logical) = match column.kind {
            ColumnType::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            ColumnType::Json => (Physical::BYTE_ARRAY, Some(LogicalType::Json)),
            ColumnType::Integer => (Physical::INT64, None),
            ColumnType::Number => (Physical::DOUBLE, None),
            ColumnType::Boolean => (Physical::BOOLEAN, None),
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
    Ok(Arc::new(Type::group_type_builder(T::NAME).with_fields(fields).build()?))
}

/// Rows of one group, by column.
struct RowGroupBuffer {
    columns: Vec<ColumnBuffer>,
    rows: usize,
    bytes: usize,
}

/// Cells of one column. Definition levels mark the empty ones.
struct ColumnBuffer {
    levels: Vec<i16>,
    values: ColumnValues,
}

enum ColumnValues {
    Texts(Vec<ByteArray>),
    Integers(Vec<i64>),
    Numbers(Vec<f64>),
    Booleans(Vec<bool>),
}

impl RowGroupBuffer {
    fn new<T: Table>() -> Self {
        let columns = T::COLUMNS.iter().map(|column| ColumnBuffer {
            levels: Vec::new(),
            values: match column.kind {
                ColumnType::Text | ColumnType::Json => ColumnValues::Texts(Vec::new()),
                ColumnType::Integer | ColumnType::Time => ColumnValues::Integers(Vec::new()),
                ColumnType::Number => ColumnValues::Numbers(Vec::new()),
                ColumnType::Boolean => ColumnValues::Booleans(Vec::new()),
            },
        });
        Self { columns: columns.collect(), rows: 0, bytes: 0 }
    }

    fn add<T: Table>(&mut self, row: &T::Row<'_>) {
        for (column, buffer) in T::COLUMNS.iter().zip(&mut self.columns) {
            let cell = (column.cell)(row);
            if let Some(Cell::Text(text)) = &cell {
                self.bytes += text.len();
            }
            buffer.levels.push(i16::from(cell.is_some()));
            if let Some(cell) = cell {
                buffer.values.push(&cell);
            }
        }
        self.rows += 1;
    }

    fn is_full(&self) -> bool {
        self.rows >= GROUP_ROWS || self.bytes >= GROUP_BYTES
    }

    /// Writes the rows, if there are any, and forgets them.
    fn write<W: Write + Send>(
        &mut self,
        file: &mut SerializedFileWriter<W>,
    ) -> Result<(), ParquetError> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = file.next_row_group()?;
        for buffer in &mut self.columns {
            let mut writer = group.next_column()?.expect("the schema has every column");
            buffer.write(&mut writer)?;
            writer.close()?;
        }
        group.close()?;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }
}

impl ColumnBuffer {
    /// Writes the cells and forgets them.
    fn write(&mut self, writer: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let levels = Some(&*self.levels);
        match &mut self.values {
            ColumnValues::Texts(values) => {
                writer.typed::<ByteArrayType>().write_batch(values, levels, None)?;
                values.clear();
            }
            ColumnValues::Integers(values) => {
                writer.typed::<Int64Type>().write_batch(values, levels, None)?;
                values.clear();
            }
            ColumnValues::Numbers(values) => {
                writer.typed::<DoubleType>().write_batch(values, levels, None)?;
                values.clear();
            }
            ColumnValues::Booleans(values) => {
                writer.typed::<BoolType>().write_batch(values, levels, None)?;
                values.clear();
            }
        }
        self.levels.clear();
        Ok(())
    }
}

impl ColumnValues {
    fn push(&mut self, cell: &Cell<'_>) {
        match (self, cell) {
            (Self::Texts(values), Cell::Text(text)) => push_text(values, text),
            (Self::Texts(values), Cell::Json(value)) => push_text(values, &value.to_string()),
            (Self::Integers(values), Cell::Integer(number)) => values.push(*number),
            (Self::Integers(values), Cell::Time(time)) => values.push(time.as_microsecond()),
            (Self::Numbers(values), Cell::Number(number)) => values.push(*number),
            (Self::Booleans(values), Cell::Boolean(value)) => values.push(*value),
            _ => unreachable!("a column has cells of its own type only"),
        }
    }
}

/// Adds a text. Texts that repeat, such as the name of the agent, share their bytes.
fn push_text(values: &mut Vec<ByteArray>, text: &str) {
    match values.last() {
        Some(last) if last.data() == text.as_bytes() => values.push(last.clone()),
        _ => values.push(text.into()),
    }
}
