/** Tables in columns. */
import { describe, expect, it } from 'vitest'
import { blocksOf } from '../src/lib/blocks'
import { markdownOf } from '../src/lib/headings'
import { withoutMarks } from '../src/lib/inline'
import { columnsOf, isRowAt, rowsOf, stylesOf, type Style } from '../src/lib/table'

/** The cells of each row as they look; their characters are those of the row. */
function look(table: string, style: Style): string[][] {
  const rows = rowsOf(table, style)
  const lengths = rows.map(({ cells }) => cells.join('').length)
  expect(lengths).toEqual(table.split('\n').map(({ length }) => length))
  return rows.map(({ cells }) => cells.map((cell) => cell.replaceAll('\u200b', '')))
}

function tables(text: string, kind: string, name: string) {
  const styles = stylesOf(text, { kind, name, documents: [] }, markdownOf(text, kind))
  const isRow = (line: number, end: number) => isRowAt(text, styles, line, end)
  const blocks = blocksOf(text, [], [], undefined, undefined, [], isRow)
  return { blocks, columns: [...columnsOf(text, blocks, styles)] }
}

const widths = (text: string, kind: string, name = '') =>
  tables(text, kind, name).columns.map(([block, { widths }]) => [block, widths])

describe('rows', () => {
  it('of Markdown have frames', () => {
    expect(look('| a | b |\n|---|:-:|\n|1|x \\| y  |\n|| 2 |\n| open', 'framed')).toEqual([
      ['a', 'b'],
      [''],
      ['1', 'x \\| y'],
      ['', '2'],
      ['open'],
    ])
    expect(rowsOf('| a |\n|---| ', 'framed').map(({ line }) => line)).toEqual([false, true])
    const table = '| **a** \\| b | c |'
    const [row] = rowsOf(table, 'framed', withoutMarks(table))
    expect(row?.cells.map((cell) => cell.replaceAll('\u200b', ''))).toEqual(['a | b', 'c'])
  })
  it('may end with a carriage return', () => {
    const trimmed = (table: string, style: Style) => look(table, style).map((cells) => cells.map((cell) => cell.trim()))
    expect(trimmed('| a | b |\r\n|---|---|\r\n| 1 | 2 |\r', 'framed')).toEqual([['a', 'b'], [''], ['1', '2']])
    expect(trimmed('a | b\r\n1 |\r', 'bars')).toEqual([['a', 'b'], ['1']])
    expect(widths('| a | b |\r\n|---|---|\r\n| 1 | 2 |\r\n', 'markdown')).toEqual([[0, [1, 1]]])
  })
  it('of other documents do not, and may begin with an empty cell', () => {
    expect(look('Date | Item\n | 70 |  | x\n| y |\na|b | c', 'bars')).toEqual([
      ['Date', 'Item'],
      ['', '70', '', 'x'],
      ['', 'y'],
      ['a|b', 'c'],
    ])
  })
})

describe('CSV', () => {
  it('has separators outside quotes', () => {
    expect(look('a,"b, ""c""",\n"",d "e" f,"open', ',')).toEqual([
      ['a', 'b, "c"', ''],
      ['', 'd "e" f', 'open'],
    ])
    expect(look('1,5;x', ';')).toEqual([['1,5', 'x']])
  })
  it('is a table by its name', () => {
    expect(widths('Item,"Cost; net"\nOil,33.10\n', 'code', 'a.csv')).toEqual([[0, [4, 9]]])
    expect(widths('Item;Cost, net\nOil;33,10', 'code', 'a.CSV')).toEqual([[0, [4, 9]]])
    expect(widths('Item\tCost', 'code', 'a.tsv')).toEqual([[0, [4, 4]]])
    expect(widths('f(a, b)', 'code', 'a.py')).toEqual([])
    expect(widths('one column\n', 'code', 'a.csv')).toEqual([])
  })
})

describe('columns', () => {
  it('have the widths of their longest cells, in all blocks of a table', () => {
    const row = (i: number) => `${i} | ${'w'.repeat(i % 30)} | x`
    const sheet = Array.from({ length: 200 }, (_, i) => row(i)).join('\n')
    const text = `Costs\n\n${sheet}\n\nb | c\nd | e`
    const all = widths(text, 'XLSX')
    expect(new Set(all.map(([, widths]) => String(widths)))).toEqual(new Set(['3,29,1', '1,1']))
    expect(all.length).toBe(tables(text, 'XLSX', '').blocks.length - 1)
    expect(all.length).toBeGreaterThan(3)
  })
  it('are narrower if the table would be too wide, or there are none', () => {
    const long = 'w'.repeat(100)
    expect(widths(`${long} | 12 | ${long}\na | b | c`, 'DOCX')).toEqual([[0, [25, 2, 25]]])
    expect(widths(`${Array.from({ length: 12 }, () => long).join(' | ')}\na | b`, 'DOCX')).toEqual([])
  })
  it('have smaller letters if words would be broken or the table is too wide', () => {
    const sizes = (text: string, kind: string, name = '') =>
      tables(text, kind, name).columns.map(([, { size }]) => size)
    const titles = ['Invoice', 'Date', 'Customer', 'Item', 'Quantity', 'Unit price', 'Total', 'Paid']
    const values = ['INV-2401', '2024-01-01', 'Nordlicht GmbH', 'Whiteboard', '2', '180', '360', 'no']
    const sheet = [titles, values].map((row) => row.join(' | ')).join('\n')
    expect(widths(sheet, 'XLSX')).toEqual([[0, [8, 10, 9, 10, 8, 9, 5, 4]]])
    expect(sizes(sheet, 'XLSX')).toEqual([11])
    expect(sizes(sheet.replaceAll(' | ', ','), 'code', 'invoices.csv')).toEqual([11])
    expect(sizes(titles.slice(0, 6).join(' | ') + '\n' + values.slice(0, 6).join(' | '), 'XLSX')).toEqual([12])
    expect(sizes('a | b\nc | d', 'XLSX')).toEqual([13])
    // Twelve months in figures; and what fits only with broken words.
    const months = Array.from({ length: 12 }, (_, i) => String(1000 + i)).join(' | ')
    expect(sizes(`${months}\n${months}`, 'XLSX')).toEqual([11])
    expect(widths(`${Array.from({ length: 7 }, () => 'w'.repeat(30)).join(' | ')}\na | b`, 'XLSX')).toEqual([
      [0, Array.from({ length: 7 }, () => 8)],
    ])
  })
  it('are not in text, code, headings or prose', () => {
    expect(widths('a | b', 'text')).toEqual([])
    expect(widths('a | b', 'code')).toEqual([])
    expect(widths('a | b', 'markdown')).toEqual([])
    expect(widths('| a |\n|---|', 'markdown')).toEqual([[0, [1]]])
    expect(widths('| a [b](https://a.b/c) |\n|---|', 'markdown')).toEqual([[0, [3]]])
    expect(widths('Prices\na | b\nc | d\nand prose', 'DOCX')).toEqual([[1, [1, 1]]])
    // Bars in prose and in code.
    expect(widths('where P(A | B) is the probability', 'pdf')).toEqual([])
    expect(widths('|x| is the size', 'markdown')).toEqual([])
    expect(widths('|---|---|', 'markdown')).toEqual([])
    expect(widths('```\n| x |\n|---|\n```', 'markdown')).toEqual([])
    expect(widths('x|y', 'DOCX')).toEqual([])
  })
})
