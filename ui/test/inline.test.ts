/** Marks of Markdown that have no width on the page. */
import { describe, expect, it } from 'vitest'
import { markdownOf } from '../src/lib/headings'
import { withoutMarks } from '../src/lib/inline'
import { shapeOf, withoutLineMarks } from '../src/lib/lines'

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
})
