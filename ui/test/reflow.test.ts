/** Wrapped prose is shown without its line breaks; every other text as it is. */
import { mount, unmount, type Component } from 'svelte'
import { afterEach, describe, expect, it } from 'vitest'
import { Actions } from '../src/lib/actions'
import { AppState } from '../src/lib/app.svelte'
import { blocksOf, kindAt } from '../src/lib/blocks'
import * as calls from '../src/lib/calls'
import { Find } from '../src/lib/find.svelte'
import { MapView } from '../src/lib/map.svelte'
import { headingsOf } from '../src/lib/headings'
import { Reader } from '../src/lib/reader.svelte'
import { isProse, isSoftAt, shown, shownHeading, widthAt, wrapsOf } from '../src/lib/reflow'
import { TextStore } from '../src/lib/text.svelte'
import Block from '../src/parts/Block.svelte'
import Frame from './Frame.svelte'
import { documentFacts } from './given'

const SENTENCES = [
  'The keeper of the lower archive counts every page twice before the doors are opened in the morning.',
  'She writes the number in the margin with a soft pencil, and the visitors pretend that they have not seen it.',
  'Nobody remembers who asked for this, but the ledgers of the last hundred years agree with one another.',
  'When a page is missing, a bell is rung in the yard; it has been rung three times since the great flood.',
  'On such days the ferry waits, the bakers talk about the weather, and letters arrive a little later than usual.',
  'Her brother keeps the tower on the other side of the river and says that counting is for people without a view.',
]

/** A paragraph of `count` sentences, different for every `seed`. */
function paragraph(count: number, seed = 0): string {
  return Array.from({ length: count }, (_, i) => SENTENCES[(i * 5 + seed) % SENTENCES.length]).join(' ')
}

/** Wraps at `width` units; a letter has `units` of them. */
function wrap(text: string, width: number, units: (letter: string) => number = () => 1, end = '\n'): string {
  const size = (words: string) => [...words].reduce((sum, letter) => sum + units(letter), 0)
  const lines: string[] = []
  for (const word of text.split(' ')) {
    const last = lines.at(-1)
    if (last !== undefined && size(`${last} ${word}`) <= width) lines[lines.length - 1] = `${last} ${word}`
    else lines.push(word)
  }
  return lines.join(end)
}

/** Letters of a font with narrow and wide ones. */
const serif = (letter: string) => ("ijlt.,;' ".includes(letter) ? 0.55 : 'mwMWQ'.includes(letter) ? 1.6 : 1.02)

const book = (paragraphs: number, wrapped: (text: string) => string, between = '\n\n') =>
  Array.from({ length: paragraphs }, (_, i) => wrapped(paragraph(3 + (i % 4), i))).join(between)

/** The whole text as shown. */
function show(text: string): string {
  const result = shown(text, 0, text.length, widthAt(wrapsOf(text), 0))
  expect(result).toHaveLength(text.length)
  return result
}
const breaks = (text: string) => text.split('\n').length - 1

describe('wrapped prose', () => {
  it('loses the breaks inside its paragraphs, and only those', () => {
    const prose = book(12, (text) => wrap(text, 70))
    expect(wrapsOf(prose)).toEqual([{ start: 0, end: prose.length, width: expect.closeTo(69, -1) as number }])
    expect(show(prose)).toBe(book(12, (text) => text))
  })

  it('is also known from the different lengths of lines in a PDF', () => {
    const prose = book(12, (text) => wrap(text, 76, serif))
    const lengths = prose.split('\n\n').flatMap((lines) =>
      lines
        .split('\n')
        .slice(0, -1)
        .map((line) => line.length),
    )
    expect(Math.max(...lengths) - Math.min(...lengths)).toBeGreaterThan(12)
    expect(show(prose)).toBe(book(12, (text) => text))
  })

  it('may have many words with capitals, as German has', () => {
    const sentences = [
      'Der Mieter zahlt der Vermieterin die Miete, die Kosten der Heizung und die Gebühren für Wasser und Müll.',
      'Die Kaution liegt auf einem Sparbuch der Bank, und die Zinsen stehen dem Mieter zu.',
      'Schäden an Fenstern, Türen und Böden meldet der Mieter der Verwaltung am Tag der Entdeckung.',
      'Ein Umbau des Bades bedarf der Zustimmung der Eigentümer, der Haustiere wegen auch der Zustimmung der Nachbarn.',
    ]
    const prose = wrap(Array.from({ length: 24 }, (_, i) => sentences[(i * 3) % 4]).join(' '), 76)
    expect(breaks(prose)).toBeGreaterThan(20)
    expect(breaks(show(prose))).toBe(0)
  })

  it('keeps the ends of paragraphs without empty lines between them', () => {
    const prose = book(16, (text) => wrap(text, 76, serif), '\n')
    const lines = show(prose).split('\n')
    // A last line that happens to be full looks like any other.
    expect(lines.length).toBeGreaterThanOrEqual(13)
    for (const line of lines) expect(line).toMatch(/^[A-Z].*\.$/)
  })

  it('has breaks of two characters, and spaces at the ends of lines', () => {
    const plain = book(8, (text) => text, '\r\n\r\n')
    const windows = show(book(8, (text) => wrap(text, 70, undefined, '\r\n'), '\r\n\r\n'))
    expect(windows.replaceAll('\u200b', '')).toBe(plain)
    const trailing = show(book(8, (text) => wrap(text, 70, undefined, '  \n')))
    expect(trailing.replaceAll('\u200b', '')).toBe(plain.replaceAll('\r', ''))
  })

  it('may be a single paragraph, if it is long enough', () => {
    expect(breaks(show(wrap(paragraph(30), 70)))).toBe(0)
    const short = wrap(paragraph(5), 70)
    expect(show(short)).toBe(short)
    expect(show(paragraph(30))).toBe(paragraph(30))
  })

  it('keeps a hyphen, and shows no space after a soft one', () => {
    const lines = wrap(paragraph(30), 70).split('\n')
    const cut = (at: number, mark: string) => {
      lines[at] = lines[at]!.slice(0, -2) + mark
      lines[at + 1] = `nd${lines[at + 1]}`
    }
    cut(3, '-')
    cut(9, '\u00ad')
    const result = show(lines.join('\n'))
    expect(result).toContain('- nd')
    expect(result).toContain('\u00ad\u200bnd')
  })

  it('has no spaces between lines of Chinese', () => {
    const line = '看守人每天早上在开门之前把档案数两遍然后用铅笔把数字写在页边上'
    const text = Array.from({ length: 30 }, (_, i) => line.slice(i % 7) + line.slice(0, i % 7)).join('\n')
    expect(show(text)).toBe(text.replaceAll('\n', '\u200b'))
  })
})

describe('what stays as it is inside wrapped prose', () => {
  const prose = book(12, (text) => wrap(text, 70))
  const full = 'This line of a paragraph is as long as the others of the document are'
  const kept = (...lines: string[]) => {
    const text = lines.join('\n')
    const start = prose.length + 2
    expect(show(`${prose}\n\n${text}\n\n${prose}`).slice(start, start + text.length)).toBe(text)
  }

  it('is lists, also with long items', () => {
    kept('- the first key', '- the second key', '- the third')
    kept(`1. ${full}`, `2. ${full}`, `10) ${full}`)
    kept(`a) ${full}`, `• ${full}`, `– ${full}`)
  })

  it('is headings and page numbers', () => {
    kept(full, '3.2 The lower archive')
    kept(`${full}.`, 'THE LOWER ARCHIVE')
    kept(full, 'Chapter 4', `${full}.`)
    kept(full, '17')
  })

  it('is a table of contents, verse, dialogue and addresses', () => {
    kept(
      'The keeper .......................................................... 4',
      'The ferry ........................................................... 9',
    )
    kept(
      'I counted pages in the rain,',
      'and none of them was mine,',
      'I counted all of them again,',
      'and there were ninety-nine.',
    )
    kept('"Who rang the bell?" she asked.', '"Nobody," said the ferryman.', '"Then why do you wait?"')
    kept(`"${full.slice(0, -2)}."`, '"Is it?"')
    kept('Ada Quill', '12 Ferry Lane', 'Lower Archive')
  })

  it('is indented lines, quotes, code and tables', () => {
    kept(full, '    an indented line')
    kept(`> ${full}`, `> ${full}`)
    kept('```', 'let pages = count(archive).filter((page) => page.number !== missing);', '```')
    kept(
      '| name      | pages                                      | counted twice |',
      '| archive   | 412                                        | yes           |',
    )
    kept(
      'lower archive        412 pages          counted twice        no bell',
      'upper archive        298 pages          counted once         a bell',
    )
  })

  it('is a break after the last line of a paragraph', () => {
    kept('It ends in the middle of the page.', `${full}.`)
  })
})

describe('other texts', () => {
  const unchanged = (lines: string[]) => {
    const text = lines.join('\n')
    expect(wrapsOf(text)).toEqual([])
    expect(show(text)).toBe(text)
  }
  const many = (line: (i: number) => string, count = 60) => Array.from({ length: count }, (_, i) => line(i))

  it('are verse', () => {
    const verse = [
      'And when the river rose above the lower stair',
      'The keeper closed her book and rang the silver bell',
      'No ferry crossed, and nobody who waited there',
      'Had any letter left to read or news to tell',
      'So all of us remember how the water shone',
    ]
    unchanged(many((i) => verse[(i * 3) % 5]!))
    unchanged(many((i) => verse[(i * 3) % 5]!.toLowerCase().slice(0, 12 + ((i * 11) % 34))))
  })

  it('are lists and chats', () => {
    unchanged(many((i) => `- ${paragraph(1, i).slice(0, 40 + ((i * 7) % 40))}`))
    unchanged(many((i) => paragraph(1, i).slice(0, 20 + ((i * 13) % 70))))
    unchanged(many((i) => `[12:${10 + (i % 50)}] ada: ${paragraph(1, i).slice(0, 5 + ((i * 17) % 60))}`))
  })

  it('are tables and data', () => {
    unchanged(
      many((i) => `page ${String(i).padStart(4)}   ${String(i * 37).padStart(8)}   counted   ${'x'.repeat(20)}`),
    )
    unchanged(many((i) => `ada,archive,${1000 + i},lower-floor,counted-twice,no-bell,soft-pencil`))
    unchanged(many((i) => `user${i}:x:${100 + i}:${100 + i}:keeper:/home/user:/usr/sbin/nologin`))
  })

  it('are code', () => {
    const code = [
      'function count(pages) {',
      '  let sum = 0',
      '  for (const page of pages) sum += page.number',
      '  return sum',
      '}',
      'const total = count(archive.pages.filter((page) => !page.missing))',
    ]
    unchanged(many((i) => code[i % 6]!))
  })

  it('are those without wrapped lines', () => {
    unchanged([])
    unchanged([''])
    unchanged(many(() => ''))
    unchanged(many((i) => paragraph(6, i)))
    unchanged(many(() => '\r'))
  })

  it('are those of a monospaced kind', async () => {
    const text = book(12, (words) => wrap(words, 70))
    const store = new TextStore(async () => new TextEncoder().encode(text).buffer as ArrayBuffer)
    await store.show(documentFacts({ kind: 'code', length: text.length }))
    expect(store.current?.wraps).toEqual([])
    await store.show(documentFacts({ id: 9, kind: 'pdf', length: text.length }))
    expect(store.current?.wraps).toHaveLength(1)
    expect(['markdown', 'DOCX', 'code'].map(isProse)).toEqual([true, true, false])
  })
})

describe('several documents', () => {
  it('each have their width, and nothing between them has one', () => {
    const [a, b, c] = [book(12, (t) => wrap(t, 60)), book(12, (t) => t), book(12, (t) => wrap(t, 90))]
    const note = '\n\n(Here ends the document.)\n\n'
    const text = a + note + b + note + c
    const from = a.length + note.length
    const documents = [
      { name: 'a.txt', kind: 'text', start: 0, end: a.length, pages: 0 },
      { name: 'b.txt', kind: 'text', start: from, end: from + b.length, pages: 0 },
      { name: 'c.txt', kind: 'text', start: text.length - c.length, end: text.length, pages: 0 },
    ]
    const wraps = wrapsOf(text, documents)
    expect(wraps.map((wrap) => [wrap.start, wrap.end])).toEqual([
      [0, a.length],
      [text.length - c.length, text.length],
    ])
    expect(wraps[0]!.width).toBeLessThanOrEqual(60)
    expect(wraps[1]!.width).toBeGreaterThan(80)
    expect(widthAt(wraps, a.length + 4)).toBeNull()
    expect(widthAt(wraps, from)).toBeNull()
    // Source code among them is not prose.
    const [prose, ...others] = documents
    const mixed = [{ ...prose!, kind: 'code' }, ...others]
    expect(wrapsOf(text, mixed).map(({ start }) => start)).toEqual([text.length - c.length])
    const kinds = [0, a.length - 1, from, a.length].map((at) => kindAt({ kind: 'pdf', documents: mixed }, at))
    expect(kinds).toEqual(['code', 'code', 'text', 'pdf'])
  })
})

describe('blocks of wrapped prose', () => {
  it('end with a paragraph if they can, and are shown alone as in the whole text', () => {
    const text = book(60, (words) => wrap(words, 70), '\n')
    const wraps = wrapsOf(text)
    const whole = show(text)
    const blocks = blocksOf(text, [], [], 1000, (line) => isSoftAt(text, wraps, line))
    expect(blocks.length).toBeGreaterThan(10)
    for (const { start, end } of blocks) {
      expect(shown(text, start, end, wraps[0]!.width)).toBe(whole.slice(start, end))
      expect(text.slice(start, end)).toMatch(/^[A-Z][^]*\.$/)
      expect(end - start).toBeLessThanOrEqual(2000)
    }
    // A paragraph without an end is cut nevertheless.
    const endless = wrap(paragraph(200), 70)
    const cut = blocksOf(endless, [], [], 1000, () => true)
    for (const { start, end } of cut) expect(end - start).toBeLessThanOrEqual(2000)
    expect(cut.length).toBeGreaterThan(5)
  })

  it('take a long document in reasonable time, whatever is in it', () => {
    const prose = book(200, (words) => wrap(words, 70))
    const texts = [
      prose.repeat(Math.ceil(10_000_000 / prose.length)),
      'word '.repeat(2_000_000),
      ' '.repeat(10_000_000),
      'a\n'.repeat(5_000_000),
      `${'x'.repeat(100)}\n${' '.repeat(100_000)}\n`.repeat(100),
      `${'A '.repeat(60)}\n`.repeat(80_000),
    ]
    for (const text of texts) {
      const started = performance.now()
      const wraps = wrapsOf(text)
      blocksOf(text, [], [], undefined, (line) => isSoftAt(text, wraps, line))
      expect(performance.now() - started).toBeLessThan(5000)
    }
    expect(wrapsOf(texts[0]!)).toHaveLength(1)
  })

  it('have the same length and the same letters, whatever the text', () => {
    let seed = 7
    const random = (n: number) => (seed = (seed * 16807) % 2147483647) % n
    const pieces = [
      'the ',
      'archive ',
      'a',
      '\n',
      '\r\n',
      '\n\n',
      '  ',
      '\t',
      '- ',
      '😀',
      '看',
      '.',
      'A',
      '12',
      '\u00ad',
    ]
    for (let round = 0; round < 300; round++) {
      const text = Array.from({ length: random(300) }, () => pieces[random(pieces.length)]).join('')
      for (const width of [null, 5, 12, 40, 'markdown' as const]) {
        const result = shown(text, 0, text.length, width)
        expect(result).toHaveLength(text.length)
        const same = text.split('').every((_, i) => /\s/.test(text[i]!) || result[i] === text[i])
        expect(same).toBe(true)
      }
    }
  })
})

describe('a block on the page', () => {
  let part: Record<string, unknown> | null = null
  afterEach(async () => {
    if (part) await unmount(part)
    part = null
    document.body.replaceChildren()
  })

  it('is one text node without soft breaks', () => {
    const text = wrap(paragraph(6), 70)
    const app = new AppState()
    const given = {
      app, actions: new Actions(app), text: new TextStore(calls.documentText), find: new Find(), reader: new Reader(),
      map: new MapView(calls, () => {}), open: () => {}, compose: () => {},
    } // prettier-ignore
    const [block] = blocksOf(text, [])
    const props = { block, index: 0, text, mono: false, width: 70 }
    part = mount(Frame, { target: document.body, props: { given, part: Block as unknown as Component<never>, props } })
    const words = document.querySelector('[data-block]')!
    const nodes = [...words.childNodes].filter((node) => node.nodeType !== Node.COMMENT_NODE)
    expect(nodes.map(({ nodeName }) => nodeName)).toEqual(['#text'])
    expect(words.textContent).toBe(paragraph(6))
  })

  it('of Markdown has no marks and no breaks inside a paragraph, but those of code', () => {
    const app = new AppState()
    const given = {
      app, actions: new Actions(app), text: new TextStore(calls.documentText), find: new Find(), reader: new Reader(),
      map: new MapView(calls, () => {}), open: () => {}, compose: () => {},
    } // prettier-ignore
    const look = (text: string) => {
      const [block] = blocksOf(text, [])
      const markdown = { start: 0, end: text.length, code: false }
      const props = { block, index: 0, text, mono: false, width: 'markdown', markdown }
      part = mount(Frame, {
        target: document.body,
        props: { given, part: Block as unknown as Component<never>, props },
      })
      const words = document.querySelector('[data-block]')!.textContent
      void unmount(part)
      part = null
      expect(words).toHaveLength(text.length)
      return words.replaceAll('\u200b', '')
    }
    expect(look('> Plot 9 **stays\n> empty** until\\\n> May')).toBe('Plot 9 stays empty until\nMay')
    expect(look('- Plot 9 stays\n  _empty_\n- [x] Plot 10')).toBe('• Plot 9 stays empty\n☑ Plot 10')
    expect(look('    make\n    make install')).toBe('    make\n    make install')
  })
})

describe('headings', () => {
  const text = '# Lease #\nBetween two.\n\n## 1. Rent\n\nPaid *monthly*.\n```\n# a comment\n```\n#1 is no heading'
  const titles = (kind: string) => headingsOf(text, kind).map((one) => [one.level, text.slice(one.title, one.last)])

  it('are those of Markdown and of markup, not lines of code or of plain text', () => {
    const both = [
      [1, 'Lease'],
      [2, '1. Rent'],
    ]
    expect(titles('markdown')).toEqual(both)
    expect(titles('DOCX')).toEqual(both)
    expect([...titles('text'), ...titles('code'), ...titles('pdf')]).toEqual([])
  })

  it('are those of each of several documents', () => {
    const joined = text + '\n\n' + text
    const second = text.length + 2
    const documents = [
      { name: 'a.txt', kind: 'text', start: 0, end: text.length, pages: 0 },
      { name: 'b.docx', kind: 'DOCX', start: second, end: joined.length, pages: 0 },
    ]
    expect(headingsOf(joined, 'text', documents).map((one) => one.start - second)).toEqual([0, text.indexOf('##')])
  })

  it('are blocks of their own, shown without their marks', () => {
    const headings = headingsOf(text, 'markdown')
    const blocks = blocksOf(text, [], [], undefined, undefined, headings)
    expect(blocks.map((b) => [b.heading?.level ?? 0, text.slice(b.start, b.end).slice(0, 12), b.gap])).toEqual([
      [1, '# Lease #', false],
      [0, 'Between two.', false],
      [2, '## 1. Rent', true],
      [0, 'Paid *monthl', true],
    ])
    const line = shownHeading(text, headings[1]!)
    expect(line).toBe('\u200b\u200b\u200b1. Rent')
    expect(shownHeading(text, headings[0]!)).toBe('\u200b\u200bLease\u200b\u200b')
    expect(line.length).toBe(blocks[2]!.end - blocks[2]!.start)
  })
})
