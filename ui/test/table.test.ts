/** Tables in columns. */
import { describe, expect, it } from 'vitest'
import { blocksOf } from '../src/lib/blocks'
import { columnsOf, isRow, rowsOf } from '../src/lib/table'

/** The cells of each row as they look; their characters are those of the row. */
function look(table: string, framed: boolean): string[][] {
  const rows = rowsOf(table, framed)
  const lengths = rows.map(({ cells }) => cells.join('').length)
  expect(lengths).toEqual(table.split('\n').map(({ length }) => length))
  return rows.map(({ cells }) => cells.map((cell) => cell.replaceAll('\u200b', '')))
}

function blocks(text: string, kind: string) {
  return blocksOf(text, [], [], undefined, undefined, [], (line, end) => isRow(text.slice(line, end), kind))
}

const widths = (text: string, kind: string) => [...columnsOf(text, blocks(text, kind), { kind, documents: [] })]

describe('rows', () => {
  it('of Markdown have frames', () => {
    expect(look('| a | b |\n|---|:-:|\n|1|x \\| y  |\n|| 2 |\n| open', true)).toEqual([
      ['a', 'b'],
      [''],
      ['1', 'x \\| y'],
      ['', '2'],
      ['open'],
    ])
    expect(rowsOf('| a |\n|---|', true).map(({ line }) => line)).toEqual([false, true])
  })
  it('of other documents do not, and may begin with an empty cell', () => {
    expect(look('Date | Item\n | 70 |  | x\n| y |', false)).toEqual([
      ['Date', 'Item'],
      ['', '70', '', 'x'],
      ['', 'y'],
    ])
  })
})

describe('columns', () => {
  it('have the widths of their longest cells, in all blocks of a table', () => {
    const row = (i: number) => `${i} | ${'w'.repeat(i % 30)} | x`
    const sheet = Array.from({ length: 200 }, (_, i) => row(i)).join('\n')
    const text = `Costs\n\n${sheet}\n\nb | c`
    const all = widths(text, 'XLSX')
    expect(new Set(all.map(([, widths]) => widths.join()))).toEqual(new Set(['3,29,1', '1,1']))
    expect(all.length).toBe(blocks(text, 'XLSX').length - 1)
    expect(all.length).toBeGreaterThan(3)
  })
  it('are narrower if the table would be too wide, or there are none', () => {
    const long = 'w'.repeat(100)
    expect(widths(`${long} | 12 | ${long}`, 'DOCX')).toEqual([[0, [25, 2, 25]]])
    expect(widths(Array.from({ length: 9 }, () => long).join(' | '), 'DOCX')).toEqual([])
  })
  it('are not in text, code, headings or prose', () => {
    expect(widths('a | b', 'text')).toEqual([])
    expect(widths('a | b', 'code')).toEqual([])
    expect(widths('a | b', 'markdown')).toEqual([])
    expect(widths('| a |', 'markdown')).toEqual([[0, [1]]])
    expect(widths('Prices\na | b\nand prose', 'DOCX')).toEqual([[1, [1, 1]]])
    expect(widths('x|y', 'DOCX')).toEqual([])
  })
})
