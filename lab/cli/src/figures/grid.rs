//! A table of results, independent of its output format: text here, HTML in the report.

use comfy_table::{CellAlignment, Table, presets};

/// A table. The first columns are words, the remaining columns right-aligned numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Grid {
    pub columns: Vec<Column>,
    pub rows: usize,
    /// Number of columns of words.
    pub words: usize,
}

/// A column: its title, and its cells, one per row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Column {
    pub title: String,
    pub cells: Vec<String>,
}

impl Grid {
    /// A table without columns.
    pub(super) fn new(rows: usize, words: usize) -> Self {
        Self { columns: Vec::new(), rows, words }
    }

    /// A table of rows under their header.
    pub(super) fn of_rows(
        words: usize,
        header: impl IntoIterator<Item = String>,
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Self {
        let column = |title| Column { title, cells: Vec::new() };
        let mut columns: Vec<Column> = header.into_iter().map(column).collect();
        let mut count = 0;
        for row in rows {
            count += 1;
            for (column, cell) in columns.iter_mut().zip(row) {
                column.cells.push(cell);
            }
        }
        Self { columns, rows: count, words }
    }

    /// Adds a column.
    ///
    /// # Panics
    /// If the column does not have a cell for each row.
    pub(super) fn add(&mut self, title: impl Into<String>, cells: Vec<String>) {
        assert_eq!(cells.len(), self.rows, "a cell for each row");
        self.columns.push(Column { title: title.into(), cells });
    }

    /// Adds a column, unless all of its cells are empty.
    pub(super) fn add_if_any(&mut self, title: impl Into<String>, cells: Vec<String>) {
        if cells.iter().any(|cell| !cell.is_empty()) {
            self.add(title, cells);
        }
    }

    /// The cells of a row.
    pub(super) fn row(&self, row: usize) -> impl Iterator<Item = &str> {
        self.columns.iter().map(move |column| column.cells[row].as_str())
    }

    /// The table as text, without a trailing line break.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header(self.columns.iter().map(|column| &column.title));
        for row in 0..self.rows {
            table.add_row(self.row(row));
        }
        for column in table.column_iter_mut().skip(self.words) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_set_to_the_right() {
        let mut grid = Grid::new(2, 1);
        grid.add("point", vec!["one".to_owned(), "other".to_owned()]);
        grid.add("txn/s", vec!["1,000".to_owned(), "2".to_owned()]);
        grid.add_if_any("nothing", vec![String::new(), String::new()]);
        let text = "| point | txn/s |\n|-------|-------|\n| one   | 1,000 |\n| other |     2 |";
        assert_eq!(grid.text(), text);
        let rows = [["one", "1,000"], ["other", "2"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(Grid::of_rows(1, ["point", "txn/s"].map(str::to_owned), rows), grid);
    }
}
