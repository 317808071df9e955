import { describe, expect, it } from 'vitest'
import { cellsOf, glowOf, lookersOf, trailOf, withWords, wordsIn } from '../src/lib/attended'
import { withButtons } from '../src/lib/citations'
import { render } from '../src/lib/markdown'

const text = 'The locker code is 4711.\nBring it.'
// "The", " lock", "er", " code", " is", " 47", "11", ".\n", "Bring", " it", "."
const ends = Uint32Array.from([3, 8, 10, 15, 18, 21, 23, 25, 30, 33, 34])
const tokens = { ends, counts: new Uint16Array(ends.length), slots: 4 }
// The answer "It is **4711**."
const answer = 'It is **4711**.'
const attended = [
  { said: 0, cells: [[8, 40]] as [number, number][] },
  { said: 2, cells: [] },
  { said: 5, cells: [[5, 255], [1, 51]] as [number, number][] }, // prettier-ignore
  { said: 10, cells: [[6, 204], [2, 102]] as [number, number][] }, // prettier-ignore
  { said: 12, cells: [] },
]

describe('what an answer looked at', () => {
  it('is a word of the document, by its strongest token', () => {
    const cells = cellsOf(attended, 8, 12, answer.length)
    const found = glowOf(cells, text, tokens)
    expect(found.map(({ start, end }) => text.slice(start, end))).toEqual(['4711', 'locker'])
    expect(found.map(({ weight }) => Math.round(weight * 100))).toEqual([100, 40])
  })

  it('is nothing beyond the map', () => {
    expect(glowOf([[99, 255]], text, tokens)).toEqual([])
  })

  it('names the words that looked at a word, each once', () => {
    expect(lookersOf(attended, answer, 5, 7)).toEqual(['4711'])
    expect(lookersOf(attended, answer, 8, 9)).toEqual(['It'])
    expect(lookersOf(attended, answer, 3, 4)).toEqual([])
  })

  it('fades while further pieces are written', () => {
    const once = trailOf([], [[3, 200]])
    expect(once).toEqual([[3, 200]])
    expect(trailOf(once, [[4, 255]])).toEqual([[3, 150], [4, 255]]) // prettier-ignore
    expect(trailOf([[3, 30]], [])).toEqual([])
  })
})

describe('the words of an answer', () => {
  it('have their places in the Markdown, after thoughts too', () => {
    const root = render(answer)
    const passage = { start: 0, end: 1, page: null, document: null, text: 'x', weight: 1, kept: 1 }
    withButtons(root, answer, [{ end: answer.length, source: 0 }], [passage], () => {})
    withWords(root, answer, 20)
    const words = [...root.querySelectorAll<HTMLElement>('.said')]
    expect(words.map((word) => [word.textContent, word.dataset['from'], word.dataset['to']])).toEqual([
      ['It', '20', '22'],
      ['is', '23', '25'],
      ['4711', '28', '32'],
    ])
    expect(root.textContent).toContain('It is 4711.')
    expect(root.querySelector('button')?.textContent).toBe('1')
  })

  it('are found without spaces between them', () => {
    expect(wordsIn('今日は晴れ').length).toBeGreaterThan(1)
  })
})
