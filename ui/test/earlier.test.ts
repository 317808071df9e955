/** The earlier turns below the document. */
import { mount, unmount, type Component } from 'svelte'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { AppState } from '../src/lib/app.svelte'
import { Paint } from '../src/lib/paint'
import type { Wish } from '../src/lib/pieces'
import Earlier from '../src/parts/Earlier.svelte'
import Frame from './Frame.svelte'
import { painted, snapshot } from './given'
import { keptOf } from './kept'

const TEXT = 'Who pays?\n\nAnn does.\n\nWhen?\n\nNever.'
const said = {
  text: TEXT,
  turns: [
    { number: 2, question: [0, 9] as [number, number], answer: [11, 20] as [number, number], kept: 1 },
    { number: 3, question: [22, 27] as [number, number], answer: [29, 35] as [number, number], kept: 0.25 },
  ],
  ends: [9, 20, 27, 35],
  counts: [4, 4, 2, 0],
  slots: 4,
}
const tokens = { ends: new Uint32Array(said.ends), counts: new Uint16Array(said.counts), slots: 4 }

let shown: Record<string, unknown> | null = null
afterEach(async () => {
  vi.restoreAllMocks()
  if (shown) await unmount(shown)
  document.body.replaceChildren()
})

function show(earlier: Parameters<typeof painted>[2]) {
  const wishes: Wish[] = []
  vi.spyOn(Paint.prototype, 'show').mockImplementation((wish) => void wishes.push(wish))
  const app = new AppState()
  app.load(snapshot())
  const kept = keptOf(app)
  kept.map.painted = painted([5], [0], earlier)
  shown = mount(Frame, { target: document.body, props: { given: kept, part: Earlier as Component<never> } })
  return wishes
}

describe('the earlier turns', () => {
  it('are a section of the page with their share in words, painted by the same steps', async () => {
    const wishes = show({ mean: 0.5, earlier: { ...said, tokens } })
    await Promise.resolve()
    const section = document.querySelector('section')!
    expect(document.getElementById(section.getAttribute('aria-labelledby')!)?.textContent).toBe(
      'Earlier in this conversation',
    )
    const words = [...section.querySelectorAll('h3, p')].map((e) => e.textContent.replace(/\u00a0/g, ' '))
    expect(words).toEqual([
      'Turn 2: 100 % remembered',
      'Who pays?',
      'Ann does.',
      'Turn 3: 25 % remembered',
      'When?',
      'Never.',
    ])
    expect(wishes.map(({ runs }) => runs)).toEqual([
      [{ start: 0, end: 9, step: 20 }],
      [{ start: 11, end: 20, step: 20 }],
      [{ start: 22, end: 27, step: 10 }],
      [{ start: 29, end: 35, step: 0 }],
    ])
    // The forgotten text fades.
    expect(wishes.every(({ runs, memory }) => memory === runs)).toBe(true)
  })

  it('are not painted where everything is remembered, and absent where there are none', () => {
    expect(show({ mean: 1, earlier: { ...said, tokens } }).every(({ runs }) => runs === null)).toBe(true)
    expect(document.querySelector('section')).not.toBeNull()
    document.body.replaceChildren()
    show({ mean: 0.5, earlier: null })
    expect(document.querySelector('section')).toBeNull()
  })
})
