//! Plain-text tables without borders, columns two spaces apart. On a terminal a table is not wider than
//! the screen: cells are wrapped between words and after slashes, and a table that is still too wide
//! becomes a list.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use console::measure_text_width;

use super::format::{widest_part, wrapped, wrapped_cell};

/// Columns between two columns of a table.
const GAP: usize = 2;

/// Least width of the last column of a table without header.
const MIN_TEXT: usize = 20;

/// Renders a table; aligns the first `left` columns to the left, the others to the right. Lines have at
/// most `width` columns, except for words that are longer.
pub fn aligned(
    header: &[&str],
    rows: Vec<Vec<String>>,
    left: usize,
    width: Option<usize>,
) -> String {
    let header: Vec<String> = header.iter().map(|&title| title.to_owned()).collect();
    match width {
        Some(width) if natural_width(&header, &rows) > width => narrowed(header, rows, left, width),
        _ => columns(&header, rows, left),
    }
}

/// Rows without header whose last cell is the path or the name of a file, a trial or a page. Where rows
/// do not fit, these cells are lines of their own, so that each can be copied.
pub fn with_places(mut rows: Vec<Vec<String>>, width: Option<usize>) -> String {
    if width.is_none_or(|width| natural_width(&[], &rows) <= width) {
        return columns(&[], rows, usize::MAX);
    }
    let places: Vec<String> = rows.iter_mut().map(|row| row.pop().unwrap_or_default()).collect();
    let texts = columns(&[], rows, usize::MAX);
    let lines = texts.lines().zip(places).map(|(text, place)| format!("{text}\n  {place}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// A table that is wider than the screen.
fn narrowed(
    mut header: Vec<String>,
    mut rows: Vec<Vec<String>>,
    left: usize,
    width: usize,
) -> String {
    if header.is_empty() {
        let widths = text_widths(&rows, width);
        return columns(&header, wrapped_facts(rows, &widths), left);
    }
    let left = drop_empty(&mut header, &mut rows, left);
    let Some(widths) = fitted_widths(&header, &rows, width) else {
        return lists(&header, rows, width);
    };
    let header = wrapped_cells(header, &widths);
    let rows = rows.into_iter().map(|row| wrapped_cells(row, &widths));
    columns(&header, rows.collect(), left)
}

fn columns(header: &[String], rows: Vec<Vec<String>>, left: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if !header.is_empty() {
        table.set_header(header);
    }
    table.add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if at >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// Header and rows, row by row.
fn all<'a>(header: &'a [String], rows: &'a [Vec<String>]) -> impl Iterator<Item = &'a [String]> {
    std::iter::once(header).chain(rows.iter().map(Vec::as_slice))
}

/// The greatest of a measure of the cells of every column.
fn column_measures(
    header: &[String],
    rows: &[Vec<String>],
    measure: impl Fn(&str) -> usize,
) -> Vec<usize> {
    let mut measures = Vec::new();
    for row in all(header, rows) {
        measures.resize(measures.len().max(row.len()), 0);
        for (greatest, cell) in measures.iter_mut().zip(row) {
            *greatest = measure(cell).max(*greatest);
        }
    }
    measures
}

fn with_gaps(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

fn natural_width(header: &[String], rows: &[Vec<String>]) -> usize {
    with_gaps(&column_measures(header, rows, measure_text_width))
}

/// Removes columns without a value in any row. Returns how many of the first `left` remain.
fn drop_empty(header: &mut Vec<String>, rows: &mut [Vec<String>], left: usize) -> usize {
    let has_value = |cell: &String| !matches!(cell.as_str(), "" | "-");
    let kept: Vec<bool> = (0..header.len())
        .map(|at| rows.iter().any(|row| row.get(at).is_some_and(has_value)))
        .collect();
    let keep = |cells: &mut Vec<String>| {
        let mut at = kept.iter();
        cells.retain(|_| at.next().copied().unwrap_or(true));
    };
    keep(header);
    rows.iter_mut().for_each(keep);
    kept.iter().take(left).filter(|kept| **kept).count()
}

/// The widths of columns that fit, none below that of its longest word; `None` without such widths.
fn fitted_widths(header: &[String], rows: &[Vec<String>], width: usize) -> Option<Vec<usize>> {
    let least = column_measures(header, rows, widest_part);
    let mut widths = column_measures(header, rows, measure_text_width);
    if with_gaps(&least) > width {
        return None;
    }
    while with_gaps(&widths) > width {
        let shrinkable = widths.iter_mut().zip(&least).filter(|(width, least)| **width > **least);
        let (widest, _) = shrinkable.max_by_key(|(width, _)| **width)?;
        *widest -= 1;
    }
    Some(widths)
}

/// The widths of columns without header: the last one has what the others leave.
fn text_widths(rows: &[Vec<String>], width: usize) -> Vec<usize> {
    let mut widths = column_measures(&[], rows, measure_text_width);
    if let Some(last) = widths.pop() {
        let others = with_gaps(&widths) + GAP;
        widths.push(last.min(width.saturating_sub(others).max(MIN_TEXT)));
    }
    widths
}

fn wrapped_cells(row: Vec<String>, widths: &[usize]) -> Vec<String> {
    row.into_iter().zip(widths).map(|(cell, width)| wrapped_cell(&cell, *width)).collect()
}

/// Rows without header, whose paths and names stay whole.
fn wrapped_facts(rows: Vec<Vec<String>>, widths: &[usize]) -> Vec<Vec<String>> {
    let wrap = |row: Vec<String>| {
        row.into_iter().zip(widths).map(|(cell, width)| wrapped(&cell, *width, 0)).collect()
    };
    rows.into_iter().map(wrap).collect()
}

/// A list for each row, with a line for each of its values.
fn lists(header: &[String], rows: Vec<Vec<String>>, width: usize) -> String {
    let list = |row: Vec<String>| {
        let facts = header.iter().cloned().zip(row).enumerate();
        let facts =
            facts.filter(|(at, (_, value))| *at == 0 || !matches!(value.as_str(), "" | "-"));
        let facts: Vec<_> = facts.map(|(_, (title, value))| vec![title, value]).collect();
        let widths = text_widths(&facts, width);
        columns(&[], wrapped_facts(facts, &widths), 2)
    };
    rows.into_iter().map(list).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(texts: &[[&str; 4]]) -> Vec<Vec<String>> {
        texts.iter().map(|row| row.map(str::to_owned).to_vec()).collect()
    }

    const HEADER: [&str; 4] = ["trial", "error", "worker", "tries"];

    #[test]
    fn table_without_width_or_with_enough_has_a_line_per_row() {
        let table = |width| aligned(&HEADER, rows(&[["a/b__1", "no answer", "w", "1"]]), 3, width);
        let expected = "trial   error      worker  tries\na/b__1  no answer  w           1";
        assert_eq!(table(None), expected);
        assert_eq!(table(Some(32)), expected);
    }

    #[test]
    fn cells_of_narrow_table_are_wrapped_between_words() {
        let row = ["a/b__1", "the server gave no answer", "w", "1"];
        let table = aligned(&HEADER, rows(&[row]), 3, Some(34));
        let expected = "trial   error       worker  tries\n\
                        a/b__1  the server  w           1\n        gave no\n        answer";
        assert_eq!(table, expected);
    }

    #[test]
    fn narrow_table_leaves_out_columns_without_values() {
        let row = ["a/b__1", "", "-", "1"];
        let table = aligned(&HEADER, rows(&[row]), 3, Some(20));
        assert_eq!(table, "trial   tries\na/b__1      1");
    }

    #[test]
    fn table_whose_words_do_not_fit_is_a_list_of_values() {
        let row = ["agent/dataset/task__1", "agent_failed: it ended", "w", "-"];
        let table = aligned(&HEADER, rows(&[row, row]), 3, Some(30));
        let one = "trial   agent/dataset/task__1\nerror   agent_failed: it ended\nworker  w";
        assert_eq!(table, format!("{one}\n\n{one}"));
    }

    #[test]
    fn place_that_does_not_fit_beside_its_row_is_a_line_of_its_own() {
        let row =
            |count: &str, place: &str| [count, "agent_failed", place].map(str::to_owned).to_vec();
        let rows = || vec![row("2", "jobs/j/a/b__1/error.txt"), row("11", "jobs/j/c__1/error.txt")];
        let beside = "2   agent_failed  jobs/j/a/b__1/error.txt\n\
                      11  agent_failed  jobs/j/c__1/error.txt";
        assert_eq!(with_places(rows(), Some(41)), beside);
        assert_eq!(with_places(rows(), None), beside);
        let below = "2   agent_failed\n  jobs/j/a/b__1/error.txt\n\
                     11  agent_failed\n  jobs/j/c__1/error.txt";
        assert_eq!(with_places(rows(), Some(40)), below);
        // A path that is longer than the screen stays whole.
        assert_eq!(with_places(rows(), Some(20)), below);
    }

    #[test]
    fn facts_without_header_keep_their_keys() {
        let facts = vec![
            vec!["state".to_owned(), "stopped by a user of this host".to_owned()],
            vec!["path".to_owned(), "/a/path/that/is/longer/than/the/screen/is".to_owned()],
        ];
        let expected = "state  stopped by a user of\n       this host\n\
                        path   /a/path/that/is/longer/than/the/screen/is";
        assert_eq!(aligned(&[], facts, 2, Some(30)), expected);
    }
}
