/** Marks of Markdown that have no width on the page. */
import { describe, expect, it } from 'vitest'
import { markdownOf } from '../src/lib/headings'
import { withoutMarks } from '../src/lib/inline'

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
