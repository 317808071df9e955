//! Tables of a PDF page: rows of cells become lines with ` | ` between the cells, as of other documents.
//!
//! A PDF has no tables, only drawn text. Programs draw a table row by row, and within a row cell by cell.
//!
//! ```text
//!   Party          Obligation             Due        pieces: text without a wide gap, in drawing order
//!   The Supplier   Deliver all goods to   30 days    rows:   pieces on one baseline; a jump up and right to the
//!                  the warehouse.                            baseline of a row continues this row
//!   The Customer                          14 days    tables: neighbouring rows whose cells stand in common columns
//! ```

use std::ops::Range;

use crate::hyphens::CELL_LINE;

/// Minimum gap between two cells, in em. Smaller ones stand in justified text too.
pub(crate) const CELL: f64 = 1.0;
/// Pieces whose baselines differ by less, in em, are on one line.
const LINE: f64 = 0.6;
/// The largest distance in em between two lines of a cell, between two rows, and between a row and one with a single
/// cell.
const CELL_PITCH: f64 = 1.9;
const ROW_PITCH: f64 = 4.0;
const TITLE_PITCH: f64 = 2.5;
/// The most lines of a cell: a taller one is a column of the page.
const MAX_LINES: usize = 12;
/// The most rows with a single cell between two rows with several.
const MAX_TITLES: usize = 2;
const MAX_COLUMNS: usize = 64;
/// The least rows with several cells, and the largest share of them that do not fit the columns.
const MIN_ROWS: usize = 2;
const MAX_MISFITS: f64 = 0.25;
/// Distance in em up to which the edges or middles of two cells count as one line.
const ALIGNED: f64 = 0.5;
/// The longest mark of a list item, in bytes.
const MAX_MARK: usize = 8;
/// Dots that lead to a page number.
const LEADER: &str = ". . . .";
const BETWEEN: &str = " | ";

/// Text without a wide gap, on one line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    /// First byte in the page's text; the piece ends before the white space in front of the next one.
    pub(crate) start: usize,
    /// Distances from the left, in points.
    pub(crate) left: f64,
    pub(crate) right: f64,
    /// Distance of the baseline from the top, in points, from any origin.
    pub(crate) down: f64,
    /// Height of the font, in points.
    pub(crate) em: f64,
    /// Whether it runs from left to right.
    pub(crate) is_upright: bool,
}

/// The pieces of one cell, which stand one below the other.
#[derive(Debug)]
struct Cell {
    pieces: Vec<usize>,
    left: f64,
    right: f64,
    /// Baseline of the last line.
    bottom: f64,
}

impl Cell {
    fn new(index: usize, piece: &Piece) -> Self {
        Self {
            pieces: vec![index],
            left: piece.left,
            right: piece.right,
            bottom: piece.down,
        }
    }

    fn overlaps(&self, other: &Cell) -> bool {
        self.left < other.right && other.left < self.right
    }
}

/// Cells from left to right.
#[derive(Debug)]
struct Row {
    cells: Vec<Cell>,
    /// Baseline of the first line.
    top: f64,
    em: f64,
}

impl Row {
    fn bottom(&self) -> f64 {
        let bottoms = self.cells.iter().map(|cell| cell.bottom);
        bottoms.fold(self.top, f64::max)
    }

    /// Whether `below`, one line, may be the next line of this row's last cell.
    fn is_continued_by(&self, below: &Row) -> bool {
        let ([.., last], [line]) = (&*self.cells, &*below.cells) else {
            return false;
        };
        let distance = below.top - last.bottom;
        0.0 < distance && distance <= CELL_PITCH * below.em && last.overlaps(line)
    }

    /// Adds the next line of the last cell.
    fn add_line(&mut self, below: Row) {
        if let Some(last) = self.cells.last_mut() {
            for line in below.cells {
                last.left = last.left.min(line.left);
                last.right = last.right.max(line.right);
                last.bottom = line.bottom;
                last.pieces.extend(line.pieces);
            }
        }
    }
}

/// Writes the tables of a page. `at` are places in `text`, ascending, which move with the text.
pub(crate) fn write(text: String, pieces: &[Piece], at: &mut [(usize, u32)]) -> String {
    let rows = rows(pieces);
    let tables = tables(&rows, |cell| cell_text(cell, &text, pieces));
    if tables.is_empty() {
        return text;
    }
    let before = text[..pieces[0].start].trim_end();
    let mut out = Output {
        written: before.to_owned(),
        starts: vec![0; pieces.len()],
        text: &text,
        pieces,
    };
    let mut next = 0;
    for (table, columns) in &tables {
        out.copy(next..first_piece(&rows[table.start]));
        next = out.table(&rows[table.clone()], columns);
    }
    out.copy(next..pieces.len());
    let mut piece = 0;
    for (at, _) in at {
        while pieces.get(piece + 1).is_some_and(|next| next.start <= *at) {
            piece += 1;
        }
        *at = out.starts[piece] + (*at - pieces[piece].start);
    }
    out.written
}

fn first_piece(row: &Row) -> usize {
    row.cells[0].pieces[0]
}

/// The text of a piece.
fn piece_text<'a>(index: usize, text: &'a str, pieces: &[Piece]) -> &'a str {
    let end = pieces.get(index + 1).map_or(text.len(), |next| next.start);
    text[pieces[index].start..end].trim_end()
}

fn cell_text(cell: &Cell, text: &str, pieces: &[Piece]) -> String {
    let texts = cell.pieces.iter().map(|&i| piece_text(i, text, pieces));
    texts.collect::<Vec<_>>().join(" ")
}

/// Pieces to rows, in drawing order.
fn rows(pieces: &[Piece]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let cell = Cell::new(index, piece);
        let continued = match index.checked_sub(1).map(|last| &pieces[last]) {
            Some(last) if piece.is_upright && last.is_upright => continued(&rows, last, piece),
            _ => None,
        };
        match continued {
            Some(row) => {
                // The lines since then belong to the row's last cell.
                for line in rows.split_off(row + 1) {
                    rows[row].add_line(line);
                }
                rows[row].cells.push(cell);
            }
            None => rows.push(Row {
                cells: vec![cell],
                top: piece.down,
                em: piece.em,
            }),
        }
    }
    let mut whole: Vec<Row> = Vec::with_capacity(rows.len());
    for row in rows {
        match whole.last_mut() {
            Some(above) if is_line_of_last_column(above, &row) => above.add_line(row),
            _ => whole.push(row),
        }
    }
    whole
}

/// Whether `row` is the next line of the last cell of `above`, right of the first cell.
fn is_line_of_last_column(above: &Row, row: &Row) -> bool {
    above.cells.len() >= 2 && above.is_continued_by(row) && above.cells[0].right < row.cells[0].left
}

/// The row that `piece` continues: the last one if it stands to the right on the same line; an earlier one if the lines
/// since then are those of its last cell.
fn continued(rows: &[Row], last: &Piece, piece: &Piece) -> Option<usize> {
    let em = last.em.max(piece.em);
    let down = piece.down - last.down;
    if down.abs() <= LINE * em {
        return (piece.left > last.right).then(|| rows.len() - 1);
    }
    for (index, row) in rows.iter().enumerate().rev().take(MAX_LINES) {
        if down > 0.0 || piece.left <= row.cells.last()?.right {
            return None;
        }
        if (row.top - piece.down).abs() <= LINE * em {
            return Some(index);
        }
        if !rows.get(index.checked_sub(1)?)?.is_continued_by(row) {
            return None;
        }
    }
    None
}

/// Columns of a table: left and right.
type Columns = Vec<(f64, f64)>;

/// Finds the tables: ranges of rows, and their columns.
fn tables(rows: &[Row], text: impl Fn(&Cell) -> String) -> Vec<(Range<usize>, Columns)> {
    let mut found = Vec::new();
    let mut start = 0;
    while start < rows.len() {
        let end = end_of_run(rows, start, &text);
        if let Some(columns) = columns(&rows[start..end], &text) {
            found.push((start..end, columns));
        }
        start = end.max(start + 1);
    }
    found
}

/// The end of the rows from `start` on that may be one table; the first and the last have several cells.
fn end_of_run(rows: &[Row], start: usize, text: impl Fn(&Cell) -> String) -> usize {
    let mut end = start;
    for (index, row) in rows.iter().enumerate().skip(start) {
        // A table of contents is text.
        if row.cells.len() > MAX_COLUMNS || row.cells.iter().any(|c| text(c).contains(LEADER)) {
            break;
        }
        let has_one = row.cells.len() < 2;
        if index > start {
            let above = &rows[index - 1];
            let pitch = match has_one || above.cells.len() < 2 {
                true => TITLE_PITCH,
                false => ROW_PITCH,
            };
            let distance = row.top - above.bottom();
            if distance <= 0.0 || distance > pitch * row.em.max(above.em) {
                break;
            }
        }
        if !has_one {
            let after_title = end > start && index > end;
            if after_title && !is_aligned(row, &rows[start..end]) {
                break;
            }
            end = index + 1;
        } else if index - end >= MAX_TITLES || end == start {
            break;
        }
    }
    end
}

/// Whether a row begins where a row above a title does, and at least half of its cells stand as cells of those rows do;
/// otherwise the title is that of another table.
fn is_aligned(row: &Row, above: &[Row]) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= ALIGNED * row.em;
    let cells = || above.iter().flat_map(|row| &row.cells);
    let stands = |cell: &&Cell| {
        cells().any(|other| {
            let middles = (cell.left + cell.right, other.left + other.right);
            near(cell.left, other.left)
                || near(cell.right, other.right)
                || near(middles.0 / 2.0, middles.1 / 2.0)
        })
    };
    let begins = |other: &Row| near(row.cells[0].left, other.cells[0].left);
    above.iter().any(begins) && 2 * row.cells.iter().filter(stands).count() >= row.cells.len()
}

/// The columns of a run of rows, if it is a table.
fn columns(rows: &[Row], text: impl Fn(&Cell) -> String) -> Option<Columns> {
    let mut by_cells: Vec<&Row> = rows.iter().filter(|row| row.cells.len() >= 2).collect();
    by_cells.sort_by_key(|row| std::cmp::Reverse(row.cells.len()));
    let mut columns = Columns::new();
    let mut misfits = 0;
    for row in &by_cells {
        let mut fits = true;
        for cell in &row.cells {
            let mut over = columns
                .iter_mut()
                .filter(|column| cell.left < column.1 && column.0 < cell.right);
            match (over.next(), over.next()) {
                (None, _) => columns.push((cell.left, cell.right)),
                (Some(one), None) => *one = (one.0.min(cell.left), one.1.max(cell.right)),
                (Some(_), Some(_)) => fits = false,
            }
        }
        misfits += usize::from(!fits);
        if columns.len() > MAX_COLUMNS {
            return None;
        }
    }
    columns.sort_by(|a, b| a.0.total_cmp(&b.0));
    let is_list = columns.len() == 2 && by_cells.iter().all(|row| is_mark(&text(&row.cells[0])));
    let is_table = by_cells.len() >= MIN_ROWS
        && misfits as f64 <= MAX_MISFITS * by_cells.len() as f64
        && !is_list;
    is_table.then_some(columns)
}

/// Whether a text is the mark of a list item: a bullet, `1.2`, `(a)`, `iv.`, a line number.
fn is_mark(text: &str) -> bool {
    let inside = text.trim_matches(|c: char| !c.is_alphanumeric());
    let parts = inside.split('.');
    let is_part = |part: &str| {
        part.chars().all(|c| c.is_ascii_digit()) && part.len() <= 3
            || part.chars().all(|c| "ivxIVX".contains(c))
            || part.chars().count() == 1 && inside.len() < text.len()
    };
    inside.is_empty() || text.len() <= MAX_MARK && parts.into_iter().all(is_part)
}

/// The new text of a page.
struct Output<'a> {
    written: String,
    /// Where each piece begins in `written`.
    starts: Vec<usize>,
    text: &'a str,
    pieces: &'a [Piece],
}

impl Output<'_> {
    /// The white space in front of a piece as it is.
    fn before(&mut self, piece: usize) {
        let end = self.pieces.get(piece).map_or(self.text.len(), |p| p.start);
        let start = self.text[..end].trim_end().len();
        self.written.push_str(&self.text[start..end]);
    }

    fn piece(&mut self, piece: usize) {
        self.starts[piece] = self.written.len();
        self.written
            .push_str(piece_text(piece, self.text, self.pieces));
    }

    /// Pieces outside tables as they are.
    fn copy(&mut self, pieces: Range<usize>) {
        for piece in pieces {
            self.before(piece);
            self.piece(piece);
        }
    }

    /// A table, and the index of the next piece.
    fn table(&mut self, rows: &[Row], columns: &Columns) -> usize {
        let mut next = 0;
        for (index, row) in rows.iter().enumerate() {
            let is_of_table = |row: &Row| row.cells.len() >= 2;
            match index > 0 && is_of_table(row) && is_of_table(&rows[index - 1]) {
                true => self.written.push('\n'),
                false => self.before(first_piece(row)),
            }
            let mut column = None;
            for cell in &row.cells {
                let place = columns.iter().position(|column| cell.left < column.1);
                let place = place.unwrap_or(columns.len() - 1);
                let blanks = match column {
                    Some(last) => place.saturating_sub(last).max(1),
                    None if is_of_table(row) => place,
                    None => 0,
                };
                column = column.max(Some(place));
                (0..blanks).for_each(|_| self.written.push_str(BETWEEN));
                for (line, &piece) in cell.pieces.iter().enumerate() {
                    match line > 0 {
                        // `hyphens` joins divided words.
                        true if self.written.ends_with('-') => self.written.push(CELL_LINE),
                        true => self.written.push(' '),
                        false => {}
                    }
                    self.piece(piece);
                    next = piece + 1;
                }
            }
        }
        next
    }
}
