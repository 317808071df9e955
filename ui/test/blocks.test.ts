import { describe, expect, it } from 'vitest'
import { blockAt, blocksOf, pageAt, type Block } from '../src/lib/blocks'

function whole(text: string, blocks: Block[]) {
  let at = 0
  for (const block of blocks) {
    expect(block.start).toBeGreaterThanOrEqual(at)
    expect(block.end).toBeGreaterThanOrEqual(block.start)
    // Only white space lies between two blocks.
    expect(text.slice(at, block.start).replace(/[\s\uFEFF]/g, '')).toBe('')
    at = block.end
  }
  expect(text.slice(at).replace(/[\s\uFEFF]/g, '')).toBe('')
}

describe('blocksOf', () => {
  it('cuts at empty lines and keeps the lines of a paragraph together', () => {
    const text = 'one\ntwo\n\n\nthree\n'
    const blocks = blocksOf(text, [])
    expect(blocks.map((b) => text.slice(b.start, b.end))).toEqual(['one\ntwo', 'three'])
    expect(blocks.map((b) => b.gap)).toEqual([false, true])
  })

  it('begins a block at every page, also at one without text', () => {
    const text = 'first page\fthird'
    const blocks = blocksOf(text, [
      { number: 1, start: 0, end: 10 },
      { number: 2, start: 11, end: 11 },
      { number: 3, start: 11, end: 16 },
    ])
    expect(blocks.map((b) => [b.page, text.slice(b.start, b.end)])).toEqual([
      [1, 'first page\f'],
      [2, ''],
      [3, 'third'],
    ])
  })

  it('keeps the indentation of code', () => {
    const text = 'fn main() {\n    let x = 1;\n}\n'
    const [block] = blocksOf(text, [])
    expect(text.slice(block!.start, block!.end)).toBe('fn main() {\n    let x = 1;\n}')
  })

  it('cuts a very long line at white space, near the size, never inside a character', () => {
    const words = 'word '.repeat(5000)
    const blocks = blocksOf(words, [], [], 2000)
    whole(words, blocks)
    for (const b of blocks) expect(b.end - b.start).toBeLessThanOrEqual(2000)
    for (const b of blocks.slice(1)) expect(words.slice(b.start, b.start + 4)).toBe('word')
    const faces = '😀'.repeat(3001)
    const cut = blocksOf(faces, [], [], 2001)
    whole(faces, cut)
    for (const b of cut) expect(faces.charCodeAt(b.start)).toBe(0xd83d)
  })

  it('takes every text: empty, white, with null bytes, of any length', () => {
    expect(blocksOf('', [])).toEqual([])
    expect(blocksOf(' \n\t\n ', [])).toEqual([])
    whole('a\0b\n\n\0', blocksOf('a\0b\n\n\0', []))
    let seed = 5
    const random = (n: number) => (seed = (seed * 16807) % 2147483647) % n
    for (let round = 0; round < 200; round++) {
      const text = Array.from({ length: random(400) }, () => 'ab \n\n\t😀é'[random(9)]).join('')
      const blocks = blocksOf(text, [], [], 20 + random(40))
      whole(text, blocks)
    }
  })
})

describe('blockAt and pageAt', () => {
  it('finds the block that holds an offset', () => {
    const text = 'aaa\n\nbbb\n\nccc'
    const blocks = blocksOf(text, [])
    expect([0, 2, 4, 5, 9, 10, 99].map((at) => blockAt(blocks, at))).toEqual([0, 0, 0, 1, 1, 2, 2])
    expect(blockAt([], 3)).toBe(0)
  })
  it('finds the page', () => {
    const pages = [
      { number: 4, start: 10, end: 20 },
      { number: 5, start: 21, end: 30 },
    ]
    expect([0, 10, 20, 21, 99].map((at) => pageAt(pages, at))).toEqual([null, 4, 4, 5, 5])
    expect(pageAt([], 3)).toBeNull()
  })
})
