import { describe, expect, it, vi } from 'vitest'
import { cited, withButtons, withSources } from '../src/lib/citations'
import { render } from '../src/lib/markdown'
import { answerFacts, documentFacts, turn } from './given'

const source = (text: string, page: number | null = null) => ({
  start: 0,
  end: 5,
  page,
  document: null,
  text,
  weight: 0.5,
  kept: 1,
})

describe('citations', () => {
  const answer = '<think>hm.</think>\n\nThe code is **4711**. It is old.'
  const of = (citations: { end: number; source: number }[]) =>
    turn({ answer, sources: [source('The  code\nis 4711.', 3), source('Old.')], facts: answerFacts({ citations }) })

  it('are offsets in the answer without thoughts', () => {
    const at = answer.indexOf(' It')
    const found = cited(
      of([
        { end: 10, source: 1 },
        { end: at, source: 0 },
        { end: answer.length, source: 1 },
      ]),
    )
    expect(found.answer).toBe('The code is **4711**. It is old.')
    expect(found.citations).toEqual([
      { end: 21, source: 0 },
      { end: 32, source: 1 },
    ])
  })

  it('are buttons behind their sentences', () => {
    const { answer: said, citations } = cited(
      of([
        { end: answer.indexOf(' It'), source: 0 },
        { end: answer.length, source: 7 },
      ]),
    )
    const root = render(said)
    const show = vi.fn()
    withButtons(root, said, citations, [source('a')], show)
    expect(root.textContent.trim()).toBe('The code is 4711.1 It is old.')
    const button = root.querySelector('button')!
    expect(button.getAttribute('aria-label')).toBe('Passage 1')
    button.click()
    expect(show).toHaveBeenCalledExactlyOnceWith(0)
  })

  it('of one sentence stand side by side in their order', () => {
    const end = answer.indexOf(' It')
    const two = of([
      { end, source: 1 },
      { end, source: 0 },
    ])
    const { answer: said, citations } = cited(two)
    const root = render(said)
    withButtons(root, said, citations, two.sources, vi.fn())
    expect(root.textContent.trim()).toBe('The code is 4711.21 It is old.')
    expect(withSources(two)).toContain('**4711**. [2] [1] It is old.')
  })

  it('stand behind the unit of a number', () => {
    for (const said of ['It costs 1.248,60 €.', 'It is 12 %, as said.', 'It is 21 °C.']) {
      const root = render(said)
      withButtons(root, said, [{ end: said.length, source: 0 }], [source('a')], vi.fn())
      expect(root.textContent.trim()).toBe(`${said}1`)
    }
  })

  it('leave tables and code as they are', () => {
    const said = '| a | b |\n|---|---|\n| One. | Two. |\n\n```py\nx = "One. Two."\n```\nThree.'
    const ends = [
      said.indexOf('\n'),
      said.indexOf('\n| One'),
      said.indexOf(' | Two'),
      said.lastIndexOf(' Two'),
      said.length,
    ]
    const root = render(said)
    withButtons(
      root,
      said,
      ends.map((end) => ({ end, source: 0 })),
      [source('a')],
      () => {},
    )
    const shown = (tag: string) => [...root.querySelectorAll(tag)].map((found) => found.textContent)
    expect(shown('th')).toEqual(['a', 'b1'])
    expect(shown('td')).toEqual(['One.1', 'Two.'])
    expect(shown('code')).toEqual(['x = "One. Two."\n'])
    expect(root.querySelector('pre + button')).not.toBeNull()
    expect(shown('p')).toEqual(['Three.1'])
  })

  it('are copied with their passages', () => {
    const text = withSources(of([{ end: answer.indexOf(' It'), source: 0 }]))
    expect(text).toBe('The code is **4711**. [1] It is old.\n\n[1] page 3: The code is 4711.\n[2] Old.\n')
    const table = turn({ answer: 'Yes.', sources: [source('| Oil | **33** |\n|---|---|\n| Gas | 9 |')] })
    expect(withSources(table, documentFacts({ kind: 'markdown' }))).toBe('Yes.\n\n- Oil · 33 Gas · 9\n')
    const noted = withSources(of([]), null, ['A number stands nowhere in the document: 7.'])
    expect(noted).toBe(
      'The code is **4711**. It is old.\n\nA number stands nowhere in the document: 7.\n\n- page 3: The code is 4711.\n- Old.\n',
    )
  })
})
