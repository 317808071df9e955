//! A sheet of a workbook: its cells row by row, without unused columns.

use std::collections::BTreeSet;

use super::writer::{Block, MAX_TEXT_BYTES, Writer};
use super::{ExtractResult, Failure};

/// The most columns of a sheet.
pub(super) const MAX_COLUMNS: usize = 16_384;
/// The most rows of a sheet.
pub(super) const MAX_ROWS: usize = 1 << 20;

/// The cells of a sheet that are not empty.
#[derive(Default)]
pub(super) struct Sheet {
    rows: Vec<Row>,
    open: Row,
    columns: BTreeSet<usize>,
    /// Bytes of all cells, with 16 for each.
    bytes: usize,
}

#[derive(Default, Clone)]
struct Row {
    /// How often the row occurs, one below the other.
    times: usize,
    /// Column, from 0, and text; in the order of the columns.
    cells: Vec<(usize, String)>,
}

impl Sheet {
    /// Adds a cell to the open row. Empty cells, and cells beyond [`MAX_COLUMNS`], are left out.
    ///
    /// # Errors
    /// [`Failure::TooMuch`] if the sheet has more text than [`MAX_TEXT_BYTES`].
    pub(super) fn cell(&mut self, column: usize, text: String) -> ExtractResult<()> {
        if text.is_empty() || column >= MAX_COLUMNS {
            return Ok(());
        }
        self.bytes += text.len() + 16;
        if self.bytes > MAX_TEXT_BYTES {
            return Err(Failure::TooMuch(MAX_TEXT_BYTES as u64));
        }
        self.columns.insert(column);
        self.open.cells.push((column, text));
        Ok(())
    }

    /// Ends the open row, which occurs `times` times.
    pub(super) fn end_row(&mut self, times: usize) {
        let mut row = std::mem::take(&mut self.open);
        if !row.cells.is_empty() {
            row.times = times.min(MAX_ROWS);
            row.cells.sort_by_key(|(column, _)| *column);
            self.rows.push(row);
        }
    }

    /// Writes the sheet as a page with its name as heading; nothing if it has no cells.
    pub(super) fn write(self, name: &str, out: &mut Writer) -> ExtractResult<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        out.begin_page();
        out.block(&Block::Heading(1, name.to_owned()))?;
        let columns: Vec<usize> = self.columns.into_iter().collect();
        for row in self.rows {
            let mut cells = row.cells.into_iter().peekable();
            let mut line = Vec::new();
            for column in &columns {
                let next = cells.next_if(|(at, _)| at == column);
                line.push(next.map(|(_, text)| text).unwrap_or_default());
                // Two cells with one address are both shown.
                while let Some((_, more)) = cells.next_if(|(at, _)| at == column) {
                    line.push(more);
                }
                if cells.peek().is_none() {
                    break;
                }
            }
            let block = Block::Row(line);
            for _ in 0..row.times {
                out.block(&block)?;
            }
        }
        Ok(())
    }
}
