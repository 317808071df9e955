import { describe, expect, it } from 'vitest'
import { label, slider, written } from '../src/lib/budget'
import { cividis, luminance, type Rgb } from '../src/lib/colours'
import { bytes, coarse, duration, excerpt, left, percent, plural, rate, shorten } from '../src/lib/format'
import { commandOf, isLost } from '../src/lib/keys'

describe('a passage', () => {
  const text =
    'The roof was mended by a slater from the next village, who had not been cheap and charged us 4,150 euros.'

  it('is shortened to what the answer says', () => {
    expect(excerpt(text, 'He charged 4,150 euros.', 40)).toBe('… and charged us 4,150 euros.')
    // Whom it is about stands first, also where the rest shares a little more.
    const clause = 'The Landlord shall keep the roof and the outer walls of the house in good repair.'
    expect(excerpt(clause, 'The Tenant shall keep the outer walls in good repair.', 50)).toBe(
      'The Landlord shall keep the roof and the outer …',
    )
    expect(excerpt(text, 'A slater mended it.', 40)).toBe('The roof was mended by a slater from the …')
    expect(excerpt(text, 'Nobody knows.', 40)).toBe(shorten(text, 40))
    expect(excerpt('Short.', 'x', 40)).toBe('Short.')
    const rent =
      'The rent for the flat and the cellar of the house is 940 euros and that of the parking space is 60 euros.'
    expect(excerpt(rent, 'The rent for the parking space of the house is 60 euros.', 60)).toContain('space is 60')
    const whole = 'The captain is Hugo Dremmen, by the last page of her log, though names above it were scratched out.'
    expect(excerpt(whole, whole, 50)).toBe('The captain is Hugo Dremmen, by the last page of …')
  })
})

describe('cividis', () => {
  it('has fixed ends, whatever is asked', () => {
    expect(cividis(0)).toEqual([0, 32, 81])
    expect(cividis(1)).toEqual([253, 234, 69])
    expect(cividis(-3)).toEqual(cividis(0))
    expect(cividis(7)).toEqual(cividis(1))
    expect(cividis(Number.NaN)).toEqual(cividis(0))
  })
  it('grows lighter all the way', () => {
    let last = -1
    for (let i = 0; i <= 100; i++) {
      const light = luminance(cividis(i / 100))
      expect(light).toBeGreaterThan(last)
      last = light
    }
  })
})

describe('colours on the page', () => {
  const css = import.meta.glob<string>('../src/tokens.css', { query: '?raw', import: 'default', eager: true })
  const [light = '', dark = ''] = Object.values(css)[0]!.split("[data-theme='dark']")
  const colour = (theme: string, name: string): Rgb => {
    const value = new RegExp(`${name}: ([^;]+);`).exec(theme)?.[1] ?? ''
    const hex = value.startsWith('#') ? [1, 3, 5].map((at) => Number.parseInt(value.slice(at, at + 2), 16)) : null
    return (hex ?? value.split(' ').map(Number)) as Rgb
  }
  const contrast = (theme: string, name: string, other = '--page') => {
    const [a, b] = [colour(theme, name), colour(theme, other)].map(luminance).sort((a, b) => b - a)
    return (a! + 0.05) / (b! + 0.05)
  }
  it('let forgotten text be read, fainter than the rest', () => {
    for (const theme of [light, dark]) {
      expect(contrast(theme, '--gone')).toBeGreaterThanOrEqual(4.5)
      expect(contrast(theme, '--ink')).toBeGreaterThan(2 * contrast(theme, '--gone'))
    }
  })
  it('let what is remembered be read on its strongest colour', () => {
    for (const theme of [light, dark]) {
      const strength = Number(/--mark-strength: ([^;]+);/.exec(theme)?.[1])
      const page = colour(theme, '--page')
      const mark = colour(theme, '--mark').map(
        (part, i) => part * strength + page[i]! * (1 - strength),
      ) as unknown as Rgb
      const [a, b] = [colour(theme, '--ink'), mark].map(luminance).sort((a, b) => b - a)
      expect((a! + 0.05) / (b! + 0.05)).toBeGreaterThanOrEqual(4.5)
    }
  })
  it('let the lines of the small picture be seen, also where they are dense', () => {
    const over = (theme: string) => {
      const strength = 0.6 * Number(/--lines-strength: ([^;]+);/.exec(theme)?.[1])
      const page = colour(theme, '--page')
      const line = colour(theme, '--lines').map((part, i) => part * strength + page[i]! * (1 - strength))
      const [a, b] = [page, line as unknown as Rgb].map(luminance).sort((a, b) => b - a)
      return (a! + 0.05) / (b! + 0.05)
    }
    expect(over(light)).toBeGreaterThan(1.25)
    // Light lines on a dark page look thinner.
    expect(over(dark)).toBeGreaterThan(1.8)
  })
  it('tell two memories apart, also from the page', () => {
    for (const theme of [light, dark])
      for (const name of ['--of-both', '--of-a', '--of-b'])
        expect(contrast(theme, name), name).toBeGreaterThanOrEqual(3)
  })
})

describe('numbers', () => {
  it('writes sizes', () => {
    expect([0, 1, 1023, 1024, 1536, 1048575, 5.24e6, 4.9 * 2 ** 30, 2 ** 40, -3, Number.NaN].map(bytes)).toEqual([
      '0 B', '1 B', '1023 B', '1.0 KiB', '1.5 KiB', '1.0 MiB', '5.0 MiB', '4.9 GiB', '1.0 TiB', '0 B', '0 B',
    ]) // prettier-ignore
  })
  it('writes shares, never 0 for something nor 100 for less than all', () => {
    expect([0, 0.0004, 0.016, 0.05, 0.25, 0.994, 0.9999, 1, 2].map(percent)).toEqual([
      '0 %', '< 0.1 %', '1.6 %', '5 %', '25 %', '99 %', '99 %', '100 %', '100 %',
    ]) // prettier-ignore
  })
  it('writes times', () => {
    expect([0, 1.42, 9.96, 59.4, 185, 7800, -1].map(duration)).toEqual([
      '0.0 s', '1.4 s', '10 s', '59 s', '3 min 05 s', '2 h 10 min', '0 s',
    ]) // prettier-ignore
    expect([0.2, 2.1, 33, 130, 9000].map(left)).toEqual([
      '1 s left',
      '3 s left',
      '35 s left',
      '2 min left',
      '2.5 h left',
    ])
    expect([coarse(40), coarse(Number.NaN), left(Infinity)]).toEqual(['40 s', '', ''])
    expect([0, 6.42, 812.3].map(rate)).toEqual(['0', '6.4', '812'])
    expect([plural(1, 'page'), plural(128440, 'token')]).toEqual(['1 page', '128,440 tokens'])
  })
  it('shortens at words and never inside a character', () => {
    expect(shorten('  who pays\nfor the wall ', 40)).toBe('who pays for the wall')
    expect(shorten('who pays for the quay wall', 16)).toBe('who pays for the …')
    expect(shorten('😀'.repeat(20), 7)).toBe('😀😀😀 …')
  })
})

describe('the text size', () => {
  it('is followed by all text of a question and its answer, also while it is typed', () => {
    const parts = import.meta.glob<string>('../src/parts/{Answer,Composer,Thoughts,Turn,TurnFoot,Versions}.svelte', {
      query: '?raw', import: 'default', eager: true,
    }) // prettier-ignore
    const fixed = Object.values(parts).flatMap((text) => text.match(/(?:font-size|line-height): [\d.]+px/g) ?? [])
    expect([Object.keys(parts).length, fixed]).toEqual([6, []])
  })
})

describe('budget', () => {
  it('reads what it shows', () => {
    for (const budget of [null, '25%', '2.5%', '512', '128440', '64MiB', '1.5GB']) {
      const shown = label(budget)
      expect(written(shown)?.replace(' ', '') ?? null).toBe(budget)
    }
    expect(label('1024')).toBe('1,024 rows')
    expect([written(''), written('  '), written('auto')]).toEqual([null, null, null])
    // A decimal comma.
    expect([written('0,5 %'), written('1,024')]).toEqual(['0.5 %', '1024'])
    // Unrecognised text goes to the program unchanged, which words the refusal.
    expect(written('ten')).toBe('ten')
  })
  it('puts the slider where the rows are', () => {
    expect(slider('10%', 999, 1000)).toBe(10)
    expect(slider('512', 512, 1024)).toBe(50)
    expect(slider(null, 256, 102400)).toBe(1)
    expect(slider('64MiB', null, null)).toBe(25)
  })
})

describe('keys', () => {
  const key = (init: KeyboardEventInit) => new KeyboardEvent('keydown', init)
  it('are combinations: a letter alone is text', () => {
    expect(['n', 'g', '/', '?'].map((name) => commandOf(key({ key: name })))).toEqual([null, null, null, null])
    expect(commandOf(key({ key: 'ArrowUp', altKey: true }))).toBe('previous')
    const control = (name: string) => commandOf(key({ key: name, ctrlKey: true }))
    expect(['o', ',', 'l', 'b', 'n', 'k', 't', 'g', 'd', 'm', 'c'].map(control)).toEqual([
      'open',
      'settings',
      'composer',
      'sidebar',
      'new',
      'search',
      'table',
      'grid',
      'compare',
      'models',
      null,
    ])
    expect(commandOf(key({ key: 'q', ctrlKey: true }))).toBe('quit')
    expect(commandOf(key({ key: 'F1' }))).toBe('shortcuts')
    expect(commandOf(key({ key: 'Escape' }))).toBe('stop')
  })
  it('writes what is typed outside of text fields into the question', () => {
    const typed = (some: KeyboardEventInit, target: Element = document.body) => {
      const event = key({ bubbles: true, ...some })
      target.dispatchEvent(event)
      return isLost(event)
    }
    expect([typed({ key: 'W' }), typed({ key: 'é' }), typed({ key: '?' })]).toEqual([true, true, true])
    expect(
      [{ key: ' ' }, { key: 'Tab' }, { key: 'c', ctrlKey: true }, { key: 'a', altKey: true }].map((k) => typed(k)),
    ).toEqual([false, false, false, false])
    expect(typed({ key: 'W' }, document.createElement('textarea'))).toBe(false)
  })
})
