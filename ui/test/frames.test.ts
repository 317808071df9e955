/** Which frame draws what. */
import { describe, expect, it } from 'vitest'
import { draw, moves } from '../src/lib/frames.svelte'

const frame = () => new Promise((next) => requestAnimationFrame(next))

/** What each frame draws if everything changes in every frame. */
async function drawn(frames: number): Promise<string[]> {
  const found: string[] = []
  for (let i = 0; i < frames; i++) {
    let here = ''
    for (const part of ['page', 'pictures', 'words'] as const) draw(part, part, () => (here += part[1]))
    await frame()
    found.push(here)
  }
  return found
}

describe('frames', () => {
  it('draw everything', async () => {
    expect(await drawn(2)).toEqual(['aio', 'aio'])
  })

  it('draw one part each while something moves, the page most often, and the rest when it has nothing', async () => {
    const end = moves()
    const all = await drawn(8)
    expect(all.filter((part) => part === 'a')).toHaveLength(6)
    expect([...all].sort().slice(6)).toEqual(['i', 'o'])
    const rest: string[] = []
    draw('words', 1, () => rest.push('late'))
    draw('words', 1, () => rest.push('last'))
    const cancel = draw('pictures', 2, () => rest.push('cancelled'))
    cancel()
    for (let i = 0; i < 3; i++) await frame()
    expect(rest).toEqual(['last'])
    end()
  })
})
