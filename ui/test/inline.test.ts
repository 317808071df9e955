/** Marks of Markdown that have no width on the page. */
import { describe, expect, it } from 'vitest'
import { headingsOf, markdownOf } from '../src/lib/headings'
import { withoutMarks } from '../src/lib/inline'
import { shapeOf, withoutLineMarks } from '../src/lib/lines'
import { isSoftAt, shown, wrapsOf } from '../src/lib/reflow'
import { TextStore } from '../src/lib/text.svelte'
import { documentFacts } from './given'

/** As it looks; the length stays. */
function look(words: string): string {
  const shown = withoutMarks(words)
  expect(shown).toHaveLength(words.length)
  return shown.replaceAll('\u200b', '')
}

describe('the marks of Markdown', () => {
  it('have no width', () => {
    expect(look('The **company** keeps *its* `records` for __ten__ ~~nine~~ years.')).toBe(
      'The company keeps its records for ten nine years.',
    )
    expect(look('See [the **lease**](https://a.b/c "title"), <https://a.b> and ![a plan](plan.png).')).toBe(
      'See the lease, https://a.b and a plan.',
    )
    expect(look('**bold *and slanted* words**, 5 \\* 3')).toBe('bold and slanted words, 5 * 3')
  })
  it('are kept where they are no marks', () => {
    for (const words of [
      '2 * 3 * 4',
      'a_name_with_lines',
      'f(*args, **kwargs)',
      '* one\n* two',
      'x[0](1',
      '![](p.png)',
      'https://a.b',
    ])
      expect(look(words)).toBe(words)
    expect(look('`**not bold**` and ``a ` tick``')).toBe('**not bold** and a ` tick')
  })
  it('are those of Markdown outside of blocks of code', () => {
    const text = 'one\n\n```py\n**two**\n\n# three\n```\nfour\n'
    const [first, second] = [text.indexOf('```py'), text.indexOf('four')]
    expect(markdownOf(text, 'markdown')).toEqual([
      { start: 0, end: first, code: false },
      { start: first, end: second, code: true },
      { start: second, end: text.length, code: false },
    ])
    expect(markdownOf(text, 'text')).toEqual([])
    expect(markdownOf('one\n~~~\ntwo', 'markdown')).toEqual([
      { start: 0, end: 4, code: false },
      { start: 4, end: 11, code: true },
    ])
  })
})

/** The blocks of a Markdown text, between empty lines, as they look, and what each is. */
function blocks(text: string): [string, string][] {
  return markdownOf(text, 'markdown').flatMap((part) => {
    const found: [string, string][] = []
    for (const { index, 0: lines } of text.slice(part.start, part.end).matchAll(/(?:[^\n]*\S[^\n]*(?:\n|$))+/g)) {
      const words = lines.replace(/\n$/, '')
      const [start, end] = [part.start + index, part.start + index + words.length]
      const shape = shapeOf(text, start, end, part)
      const shown = withoutLineMarks(words, start, end, shape, part)
      expect(shown).toHaveLength(words.length)
      found.push([shape, shown.replaceAll('\u200b', '')])
    }
    return found
  })
}

describe('the lines of Markdown', () => {
  it('have bullets and boxes', () => {
    expect(blocks('- one\n* two\n  + three\n- [ ] call\n- [x] write\n1. first\n-5 degrees')).toEqual([
      ['text', '• one\n• two\n  • three\n☐ call\n☑ write\n1. first\n-5 degrees'],
    ])
  })
  it('are code without its fences', () => {
    expect(blocks('Run:\n\n```sh\nmake run\n\n- x\n```\nand\n\n    make test\n')).toEqual([
      ['text', 'Run:'],
      ['code', 'make run'],
      ['code', '- x'],
      ['text', 'and'],
      ['code', '    make test'],
    ])
    expect(blocks('```\r\nx\r\n```\r\n\r\n> y\r\n> z').map(([, words]) => words.replaceAll('\r', ''))).toEqual([
      'x',
      'y\nz',
    ])
    // Still open; and a fence of another kind inside.
    expect(blocks('~~~\n```\n- x')).toEqual([['code', '```\n- x']])
    expect(blocks('So:\n\n    a = __x__\n\n    b = __y__').map(([shape]) => shape)).toEqual(['text', 'code', 'code'])
    expect(blocks('- an item\n\n    its second paragraph')).toEqual([
      ['text', '• an item'],
      ['text', '    its second paragraph'],
    ])
  })
  it('are quotes without their marks', () => {
    expect(blocks('> What was said\n> > and **asked**\n>\n> after it')).toEqual([
      ['quote', 'What was said\nand **asked**\n\nafter it'],
    ])
    expect(blocks('5\n> 4')).toEqual([['text', '5\n> 4']])
  })
  it('are data at the beginning, which are no headings', () => {
    const text = '---\ntitle: Plots\n# no heading\n---\n# Plots\n'
    expect(markdownOf(text, 'markdown').map(({ end, code }) => [end, code])).toEqual([
      [text.indexOf('# Plots'), true],
      [text.length, false],
    ])
    expect(headingsOf(text, 'markdown').map(({ start }) => start)).toEqual([text.indexOf('# Plots')])
    expect(markdownOf('---\nNote: one\n\ntwo', 'markdown').map(({ code }) => code)).toEqual([false])
  })
})

describe('a paragraph of Markdown', () => {
  /** As it looks; the length stays. */
  function flow(text: string): string {
    const found = shown(text, 0, text.length, 'markdown', withoutMarks(text))
    expect(found).toHaveLength(text.length)
    return found.replaceAll('\u200b', '')
  }

  it('is one, however its lines break', () => {
    expect(flow('Plot 9 stays\nempty until **the\nsoil** test\r\nis back.')).toBe(
      'Plot 9 stays empty until the soil test is back.',
    )
    expect(flow('- Plot 9 stays\n  empty\n- Plot 10\n1. one\nline\n2. two')).toBe(
      '- Plot 9 stays empty\n- Plot 10\n1. one line\n2. two',
    )
    expect(flow('> Plot 9 stays\n> > not\n> > empty\n>\n> until')).toBe('> Plot 9 stays\n> > not empty\n>\n> until')
    expect(flow('The party is on\n22. June in the\nyear\n1924. Tasks:\n1. cake')).toBe(
      'The party is on 22. June in the year 1924. Tasks:\n1. cake',
    )
    expect(flow('土地\n空置')).toBe('土地空置')
  })
  it('keeps the breaks that are meant', () => {
    for (const text of [
      'Roses are red  \nViolets are blue  \r\nthe end',
      'Title\n=====\nText',
      'Title\n---\nText',
      'Item | Cost\n--- | ---\nOil | 33',
      '<div>\nText\n</div>',
      '[1]: https://a.b\n[2]: https://a.c',
      '> [!NOTE]\n> Text',
      '> ```\n> a = 1\n> b = 2\n> ```\n> # Title\n> Text',
      '      make\n      make install',
    ])
      expect(shown(text, 0, text.length, 'markdown')).toBe(text)
    expect(flow('one\\\ntwo')).toBe('one\ntwo')
    expect(flow('Then:\n2. two\n3. three\n\n')).toBe('Then: 2. two 3. three\n\n')
    expect(flow('2. two\n3. three')).toBe('2. two\n3. three')
  })
  it('ends where code begins, in lists too', async () => {
    const text =
      '# Run\nRun:\n```sh\nmake\nmake install\n```\nand\nwait.\n\n- so\n\n    ```\n    a\n\n    b\n    c\n    ```\n'
    const store = new TextStore(async () => new TextEncoder().encode(text).buffer as ArrayBuffer)
    await store.show(documentFacts({ kind: 'markdown', length: text.length }))
    const { blocks, wraps, markdown } = store.current!
    expect(blocks.map(({ start, end }) => text.slice(start, end))).toEqual([
      '# Run',
      'Run:',
      '```sh\nmake\nmake install\n```',
      'and\nwait.',
      '- so',
      '    ```\n    a',
      '    b\n    c\n    ```',
    ])
    expect(markdown.filter(({ code }) => code)).toHaveLength(2)
    const soft = [...text.matchAll(/\n/g)].map(({ index }) => index + 1).filter((line) => isSoftAt(text, wraps, line))
    expect(soft).toEqual([text.indexOf('wait.')])
    expect(wrapsOf(text, [], markdownOf(text, 'markdown'))).toEqual(wraps)
  })
})
