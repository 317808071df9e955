import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Download, FoundModel, Inspection, Library } from '../src/lib/contract'
import { AppState } from '../src/lib/app.svelte'
import { alwaysHeld, layersOf, numberOf, spans, windowsOf } from '../src/lib/layers'
import {
  distinct,
  doing,
  figures,
  kind,
  lineWords,
  modelName,
  notChosen,
  parameters,
  referenceParts,
  readingSpeed,
  recommended,
  shortName,
  stretchWords,
  verdict,
} from '../src/lib/models'
import { parted } from '../src/lib/thoughts'
import Models from '../src/parts/models/Models.svelte'
import Frame from './Frame.svelte'
import { snapshot } from './given'
import { keptOf } from './kept'

function model(some: Partial<FoundModel> = {}): FoundModel {
  return {
    id: 'f1', name: 'maker/tiny-GGUF:tiny-Q8_0.gguf', title: null, architecture: 'llama', quantisation: 'Q8_0', bytes: 3 << 20, parts: 1,
    parameters: 8.03e9, context: 8192, place: 'hub cache', lies: '~/hub', reason: null, chats: true, choice: null, inBox: false, removable: true, ...some,
  } // prettier-ignore
}
const mini = model({ id: 'mini', name: 'mini', choice: 'mini', inBox: true, removable: false })

function download(some: Partial<Download> = {}): Download {
  return {
    id: 1, reference: 'maker/tiny-GGUF:tiny-Q8_0.gguf', state: 'downloading', bytesDone: 512 << 20, bytesTotal: 1 << 30,
    bytesPerSecond: 10 << 20, secondsLeft: 51.2, part: 1, parts: 1, message: null, model: null, ...some,
  } // prettier-ignore
}

function library(some: Partial<Library> = {}): Library {
  return { found: [mini, model()], unfinished: [], troubles: [], folders: [], catalogue: [], freeMemory: 8e9, freeDisk: 9e9, offline: false, ...some }
} // prettier-ignore

const inspection: Inspection = {
  layers: 6, slidingLayers: 0, recurrentLayers: 0, window: null, context: 8192, weightsBytes: 3 << 20, kvBytesPerThousand: 1e6, windowBytes: 0,
  canThink: false, freeBytes: 8e9, missingBytes: 0, lines: [{ rows: null, tokens: 8191, pages: 20, peak_bytes: 9e6, whole_context: true }],
} // prettier-ignore

it('rounds the speed of reading to what is known of it', () => {
  expect(readingSpeed(0.3)).toBe('reads about a page a minute here')
  expect(readingSpeed(7.6)).toBe('reads about 8 pages a minute here')
  expect(readingSpeed(187)).toBe('reads about 185 pages a minute here')
})

describe('thoughts', () => {
  it('are apart from the answer', () => {
    expect(parted('Just so.')).toEqual({ thoughts: null, answer: 'Just so.', open: false })
    expect(parted('<think>\nHm.\n</think>\n\nJust so.')).toEqual({ thoughts: 'Hm.', answer: 'Just so.', open: false })
    expect(parted('<think>\n\n</think>\n\nJust so.')).toEqual({ thoughts: null, answer: 'Just so.', open: false })
    expect(parted('It says <think> here.').answer).toBe('It says <think> here.')
  })
  it('never show half a tag while they come', () => {
    const whole = '<think>Hm, < 3.</think>So.'
    for (let length = 0; length <= whole.length; length++) {
      const { thoughts, answer } = parted(whole.slice(0, length))
      expect(`${thoughts ?? ''}${answer}`).not.toMatch(/<\/?t|think|\/$/)
    }
    expect(parted('<think>Hm').open).toBe(true)
    expect(parted('  <th')).toEqual({ thoughts: null, answer: '', open: true })
    expect(parted('')).toEqual({ thoughts: null, answer: '', open: false })
  })
})

describe('layers', () => {
  it('keep the model’s numbers beside those of the map', () => {
    const windows = [512, 512, null, 512, null]
    expect(layersOf(windows, 2).map((l) => [l.number, l.layer, l.window])).toEqual([
      [1, null, 512],
      [2, null, 512],
      [3, 0, null],
      [4, null, 512],
      [5, 1, null],
    ])
    expect([numberOf(windows, 0), numberOf(windows, 1)]).toEqual([3, 5])
    expect(windowsOf(windows)).toEqual([512])
    expect([alwaysHeld([]), alwaysHeld(windows), alwaysHeld([null, 1024])]).toEqual([
      null,
      '3 layers that always hold their last 512 tokens',
      '1 layer that always holds its last 1,024 tokens',
    ])
    expect(layersOf([], 3).map((l) => l.layer)).toEqual([0, 1, 2])
    expect(numberOf([], 2)).toBe(3)
    expect([[4], [2, 3, 4, 5], [1, 2, 4], [1, 3, 5, 7, 9]].map(spans)).toEqual([
      'Layer 4',
      'Layers 2–5',
      'Layers 1–2, 4',
      '5 layers',
    ])
  })
})

describe('words about models', () => {
  it('say what one is and where', () => {
    expect(shortName(model())).toBe('tiny-Q8_0')
    expect(shortName(model({ name: 'llama3.2:1b' }))).toBe('llama3.2:1b')
    expect(['mini', 'a.b-q4_k_m.gguf', 'a.GGUF (usb)', 'a.gguf.bak'].map(modelName)).toEqual([
      'mini',
      'a.b-q4_k_m',
      'a (usb)',
      'a.gguf.bak',
    ])
    expect(referenceParts('maker/tiny-GGUF:tiny.gguf')).toEqual({ file: 'tiny', repository: 'maker/tiny-GGUF' })
    expect(referenceParts('tiny.gguf')).toEqual({ file: 'tiny', repository: '' })
    expect(kind(model())).toBe('llama · Q8_0 · 8 billion parameters · reads 8,192 tokens')
    expect([parameters(362e6), parameters(1.7e9), parameters(12.2e9)]).toEqual([
      '362 million parameters',
      '1.7 billion parameters',
      '12 billion parameters',
    ])
    expect(stretchWords('yarn:4')).toBe('YaRN, 4 times as long')
  })
  it('offer what is on this computer, the largest that fits first', () => {
    const found = [
      mini,
      model({ id: 'chosen', choice: 'm1' }),
      model({ id: 'refused', reason: 'It is of an unknown kind.' }),
      model({ id: 'huge', bytes: 90e9 }),
      model({ id: 'base', bytes: 7e9, chats: false }),
      model({ id: 'small', bytes: 1e9 }),
      model({ id: 'large', bytes: 6e9 }),
    ]
    expect(notChosen(library({ found })).map(({ id }) => id)).toEqual(['large', 'small', 'huge', 'base'])
    expect(notChosen(null)).toEqual([])
  })
  it('offer the one that reads a long document at once, also one that was chosen before', () => {
    const found = [
      model({ id: 'short', context: 32_768, bytes: 7e9 }),
      model({ id: 'base', context: 131_072, chats: false }),
      model({ id: 'long', context: 131_072, choice: 'm1' }),
    ]
    expect(recommended(library({ found }), 40_000)?.id).toBe('long')
    expect(recommended(library({ found }), 125_000)).toBeNull()
    expect(recommended(null, 40_000)).toBeNull()
  })
  it('recommend the largest that answers and fits, also one that was chosen before, and never one that does not answer', () => {
    const found = [
      mini,
      model({ id: 'base', bytes: 7e9, chats: false }),
      model({ id: 'small', bytes: 1e8 }),
      model({ id: 'large', bytes: 1e9, choice: 'm1', context: null }),
      model({ id: 'huge', bytes: 90e9 }),
    ]
    expect(recommended(library({ found }))?.id).toBe('large')
    expect(recommended(library({ found: found.slice(0, 2) }))).toBeNull()
  })

  it('say how far a download is', () => {
    expect(doing(download())).toBe('Downloading, 50 %')
    expect(figures(download())).toBe('512 MiB of 1.0 GiB · 10.0 MiB/s · 55 s left')
    expect(figures(download({ state: 'paused' }))).toBe('512 MiB of 1.0 GiB')
    expect(figures(download({ bytesTotal: 0, state: 'asking' }))).toBe('')
    expect(doing(download({ state: 'checking' }))).toBe('Checking the downloaded part, 50 %')
  })
  it('say whether it fits', () => {
    expect(verdict(inspection)).toBe('It fits, with its whole context of 8,192 tokens.')
    expect(verdict({ ...inspection, missingBytes: 3 * 2 ** 30 })).toContain('3.0 GiB more memory')
    expect(verdict({ ...inspection, freeBytes: null })).toContain('does not say')
    const line = (rows: number | null, tokens: number, peak_bytes: number) => ({
      ...inspection.lines[0]!,
      rows,
      tokens,
      peak_bytes,
    })
    const lines = [
      line(null, 5000, 100),
      line(4096, 8000, 100),
      line(2048, 8000, 95),
      line(1024, 8000, 80),
      line(512, 8000, 79),
    ]
    expect(distinct(lines).map(({ rows }) => rows)).toEqual([null, 4096, 1024])
    expect(lineWords({ rows: 512, tokens: 300, pages: 0, peak_bytes: 1, whole_context: false })).toEqual({
      keeps: '512 tokens',
      reads: '300 tokens',
      pages: 'less than a page',
      ends: 'then memory is full',
    })
  })
})

describe('the page of models', () => {
  let asked: { name: string; args: Record<string, unknown> }[]
  let answers: Record<string, (args: Record<string, unknown>) => unknown>
  let shown: Record<string, unknown> | null = null

  beforeEach(() => {
    asked = []
    answers = { inspect_model: () => inspection }
    mockIPC((name, args) => {
      asked.push({ name, args: (args ?? {}) as Record<string, unknown> })
      return answers[name]?.((args ?? {}) as Record<string, unknown>) ?? null
    })
  })
  afterEach(async () => {
    if (shown) await unmount(shown)
    shown = null
    clearMocks()
    document.body.replaceChildren()
  })

  function show(some: Partial<Library> = {}, downloads: Download[] = []): AppState {
    const app = new AppState()
    app.load(snapshot())
    app.apply({ event: 'library', library: library(some) })
    app.apply({ event: 'downloads', downloads })
    const given = keptOf(app)
    const part = Models as unknown as Component<never>
    shown = mount(Frame, { target: document.body, props: { given, part, props: { close: () => {} } } })
    flushSync()
    return app
  }
  const all = (testid: string) => [...document.querySelectorAll<HTMLElement>(`[data-testid=${testid}]`)]
  const named = (name: string) => asked.filter((call) => call.name === name).map((call) => call.args)
  async function click(testid: string, at = 0) {
    all(testid)[at]!.click()
    await settle()
  }
  async function settle() {
    await new Promise((resolve) => setTimeout(resolve, 0))
    flushSync()
  }

  it('looks when it opens, marks the one in use, and uses another by its id', async () => {
    show()
    expect(named('look_for_models')).toHaveLength(1)
    expect(all('found').map((row) => row.dataset['inUse'])).toEqual(['true', 'false'])
    expect(all('found')[1]!.textContent).toMatch(/^\s*tiny-Q8_0 [^]*hub cache · maker\/tiny-GGUF/)
    await click('use-model', 1)
    expect(named('use_model')).toEqual([{ id: 'f1', stretch: null }])
  })

  it('says why a model cannot be opened, and does not offer it', () => {
    show({ found: [mini, model({ reason: 'The architecture ‘x’ is not supported.' })] })
    expect(all('found-reason')[0]!.textContent).toContain('not supported')
    expect((all('use-model')[1] as HTMLButtonElement).disabled).toBe(true)
  })

  it('asks what a model can read when its row is opened, and again stretched', async () => {
    show()
    await click('found-more', 1)
    expect(all('verdict')[0]!.textContent).toContain('It fits')
    const stretch = all('stretch')[0] as HTMLSelectElement
    stretch.value = 'yarn:4'
    stretch.dispatchEvent(new Event('change', { bubbles: true }))
    await settle()
    expect(named('inspect_model')).toEqual([
      { id: 'f1', stretch: null },
      { id: 'f1', stretch: 'yarn:4' },
    ])
    await click('use-stretched')
    expect(named('use_model')).toEqual([{ id: 'f1', stretch: 'yarn:4' }])
  })

  it('removes and gives up only after a second click', async () => {
    show({}, [download({ state: 'paused' })])
    await click('download-cancel')
    expect(named('cancel_download')).toEqual([])
    await click('download-cancel')
    expect(named('cancel_download')).toEqual([{ id: 1 }])
    await click('found-more', 1)
    await click('remove-model')
    expect(named('remove_model')).toEqual([])
    await click('remove-model')
    expect(named('remove_model')).toEqual([{ id: 'f1' }])
  })

  it('keeps the button that removes where it is when the header of the file has been read', async () => {
    show()
    await click('found-more', 1)
    const place = all('verdict')[0]!.compareDocumentPosition(all('remove-model')[0]!)
    expect(place & Node.DOCUMENT_POSITION_PRECEDING).toBeTruthy()
  })

  it('tells a screen reader once when a download has ended', () => {
    const app = show({}, [download()])
    app.apply({ event: 'downloads', downloads: [download({ state: 'finished', model: 'f1' })] })
    expect(app.announcement).toBe('tiny-Q8_0 is downloaded')
    app.announcement = ''
    app.apply({ event: 'downloads', downloads: [download({ state: 'finished', model: 'f1' })] })
    expect(app.announcement).toBe('')
  })

  it('says of recommended models how fast they read here, and what the disk cannot take', () => {
    const entry = {
      name: 'M', reference: 'a/b:m.gguf', aboutBytes: 1e9, needsBytes: 2e9, parameters: 1.2e9, context: 8192, licence: 'MIT',
      goodFor: 'All.', suits: 'fits' as const, pagesPerMinute: null, here: null,
    } // prettier-ignore
    const catalogue = [
      { ...entry, pagesPerMinute: 34.4 },
      { ...entry, reference: 'a/c:m.gguf', aboutBytes: 20e9 },
    ]
    const app = show({ catalogue: null })
    expect(all('catalogue-entry')).toEqual([])
    expect(all('measuring')[0]!.textContent).toContain('how fast this computer reads')
    app.apply({ event: 'library', library: library({ catalogue }) })
    flushSync()
    expect(all('measuring')).toEqual([])
    const [small, large] = all('catalogue-entry')
    expect(small!.textContent).toContain('reads about 35 pages a minute here')
    expect(small!.textContent).not.toContain('on the disk')
    expect(large!.textContent).not.toContain('pages a minute')
    expect(large!.textContent).toContain('free on the disk')
  })

  it('asks the hub for a name, and says a refusal beside it', async () => {
    show()
    answers['hub_offers'] = () => {
      throw 'There is no repository ‘a/b’.'
    }
    const field = all('hub-name')[0] as HTMLInputElement
    field.value = ' a/b '
    field.dispatchEvent(new InputEvent('input', { bubbles: true }))
    flushSync()
    await click('hub-ask')
    expect(named('hub_offers')).toEqual([{ name: 'a/b' }])
    expect(all('hub-problem')[0]!.textContent).toContain('no repository')
    expect(field.getAttribute('aria-invalid')).toBe('true')
  })
})
