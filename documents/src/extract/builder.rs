//! Blocks and tables to the writer.
//!
//! Tables also serve as layout. A row with one cell, or whose cells have tables, headings or many paragraphs, is
//! layout: its contents are written one after the other. All other rows are lines.

use super::ExtractResult;
use super::writer::{Block, Writer};

/// Tables nested deeper are read as if their tags were not there.
const MAX_TABLE_DEPTH: usize = 24;
/// A cell with more blocks than this is layout.
const MAX_CELL_BLOCKS: usize = 6;

/// Writes blocks, and collects those in tables row by row.
pub(super) struct Builder {
    pub(super) out: Writer,
    tables: Vec<Table>,
    /// Tables that are open beyond [`MAX_TABLE_DEPTH`].
    ignored: usize,
    /// Number of headings of level 1.
    pub(super) top_headings: usize,
}

#[derive(Default)]
struct Table {
    /// The finished cells of the open row.
    row: Vec<Vec<Block>>,
    /// The blocks of the open cell.
    cell: Option<Vec<Block>>,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            out: Writer::new(),
            tables: Vec::new(),
            ignored: 0,
            top_headings: 0,
        }
    }

    /// A builder that collects blocks instead of writing them.
    pub(super) fn collector() -> Self {
        let mut builder = Self::new();
        builder.begin_table();
        builder.begin_cell();
        builder
    }

    /// The blocks of a [`collector`](Self::collector).
    pub(super) fn collected(mut self) -> ExtractResult<Vec<Block>> {
        while self.tables.len() > 1 || self.ignored > 0 {
            self.end_table()?;
        }
        let cell = self.tables.pop().and_then(|table| table.cell);
        Ok(cell.unwrap_or_default())
    }

    /// Whether text belongs to a table cell.
    pub(super) fn is_in_cell(&self) -> bool {
        self.tables.iter().any(|table| table.cell.is_some())
    }

    /// Writes a block into the innermost open cell, or into the text.
    pub(super) fn block(&mut self, block: Block) -> ExtractResult<()> {
        self.top_headings += usize::from(matches!(block, Block::Heading(1, _)));
        let mut cells = self
            .tables
            .iter_mut()
            .rev()
            .filter_map(|table| table.cell.as_mut());
        match cells.next() {
            Some(cell) => cell.push(block),
            None => self.out.block(&block)?,
        }
        Ok(())
    }

    pub(super) fn begin_table(&mut self) {
        if self.tables.len() < MAX_TABLE_DEPTH {
            self.tables.push(Table::default());
        } else {
            self.ignored += 1;
        }
    }

    /// Begins a row; an open row ends.
    pub(super) fn begin_row(&mut self) -> ExtractResult<()> {
        self.end_row()
    }

    /// Begins a cell; an open cell ends.
    pub(super) fn begin_cell(&mut self) {
        self.end_cell();
        if self.ignored == 0
            && let Some(table) = self.tables.last_mut()
        {
            table.cell = Some(Vec::new());
        }
    }

    pub(super) fn end_cell(&mut self) {
        if self.ignored == 0
            && let Some(table) = self.tables.last_mut()
            && let Some(cell) = table.cell.take()
        {
            table.row.push(cell);
        }
    }

    pub(super) fn end_row(&mut self) -> ExtractResult<()> {
        self.end_cell();
        if self.ignored > 0 {
            return Ok(());
        }
        let Some(table) = self.tables.last_mut() else {
            return Ok(());
        };
        let row = std::mem::take(&mut table.row);
        if row.iter().any(|cell| is_layout(cell)) {
            return row.into_iter().flatten().try_for_each(|b| self.block(b));
        }
        let cells: Vec<String> = row.iter().map(|cell| line(cell)).collect();
        self.block(Block::Row(cells))
    }

    pub(super) fn end_table(&mut self) -> ExtractResult<()> {
        if self.ignored > 0 {
            self.ignored -= 1;
            return Ok(());
        }
        self.end_row()?;
        self.tables.pop();
        Ok(())
    }

    /// Ends all tables that are still open.
    pub(super) fn finish(mut self) -> ExtractResult<Writer> {
        self.end_tables()?;
        Ok(self.out)
    }

    /// Ends all open tables.
    pub(super) fn end_tables(&mut self) -> ExtractResult<()> {
        while !self.tables.is_empty() {
            self.end_table()?;
        }
        Ok(())
    }
}

fn is_layout(cell: &[Block]) -> bool {
    let is_large = |block: &Block| {
        matches!(
            block,
            Block::Row(_) | Block::Heading(..) | Block::Verbatim(_)
        )
    };
    cell.len() > MAX_CELL_BLOCKS || cell.iter().any(is_large)
}

/// The blocks of a cell or a note in one line.
pub(super) fn line(cell: &[Block]) -> String {
    let texts: Vec<String> = (cell.iter())
        .map(|block| match block {
            Block::Item(_, mark, text) if mark != "-" => format!("{mark} {text}"),
            Block::Heading(_, text)
            | Block::Paragraph(text)
            | Block::Item(_, _, text)
            | Block::Verbatim(text) => text.clone(),
            Block::Row(cells) => cells.join(" | "),
        })
        .collect();
    texts.join(" ")
}
