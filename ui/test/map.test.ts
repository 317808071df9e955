import { flushSync } from 'svelte'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { bytes } from '../src/lib/calls'
import type { EarlierTurns, TokenSlots } from '../src/lib/contract'
import { MapView, type MapCalls } from '../src/lib/map.svelte'
import { Paint, paintAll } from '../src/lib/paint'
import { fadedOf, piecesOf, type Passage, type Wish } from '../src/lib/pieces'
import { offsetIn, rangeIn } from '../src/lib/places'
import type { Run } from '../src/lib/runs'
import { TextStore } from '../src/lib/text.svelte'
import { documentFacts } from './given'

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
})
afterEach(() => {
  vi.useRealTimers()
})
const later = (ms = 120) => vi.advanceTimersByTimeAsync(ms)

/** A program with three tokens in two layers of two heads; the first `layers` have arrived. */
class Program implements MapCalls {
  layers = 2
  asked: string[] = []
  hold: Promise<void> | null = null
  async mapEnds(turn: number) {
    this.asked.push(`ends ${turn}`)
    return new Uint32Array([3, 5, 9]).buffer
  }
  async mapCounts(turn: number, layer: number | null, lift: boolean) {
    this.asked.push(`counts ${turn} ${layer}`)
    await this.hold
    if (lift && this.lift) return this.lift.slice().buffer
    return new Uint16Array(layer === null ? [this.layers * 2, turn, 0] : [2, 1, 0]).buffer
  }
  async mapToken(_turn: number, token: number): Promise<TokenSlots> {
    return {
      start: 0,
      end: 3,
      kept: token,
      slots: this.layers * 2,
      perLayer: [2, 1],
      heads: [[0, 1], [1]],
      kvHeads: 2,
      tokens: 1,
      page: null,
      document: null,
    }
  }
  async mapTable() {
    return []
  }
  async mapLayers() {
    return []
  }
  async mapEarlier(_turn: number, layer: number | null): Promise<EarlierTurns | null> {
    if (!this.earlier) return null
    const slots = layer === null ? this.layers * 2 : 2
    return { ...this.earlier, counts: this.earlier.counts.map((share) => share * slots), slots }
  }
  /** With shares as counts. */
  earlier: Omit<EarlierTurns, 'slots'> | null = null
  async mapAttended() {
    return []
  }
  async mapEvictions() {
    return new ArrayBuffer(8)
  }
  async mapLevels() {
    return new Uint8Array([2, 5, 50, 0, 51, 0, 255, 102, 0]).buffer
  }
  lift: Uint16Array | null = null
  count = (what: string) => this.asked.filter((a) => a.startsWith(what)).length
}

function view() {
  const program = new Program()
  return { program, map: new MapView(program, (problem) => expect.fail(String(problem))) }
}

describe('the map', () => {
  it('paints a turn, one layer of it, and nothing', async () => {
    const { map } = view()
    map.show(1)
    await later()
    expect(map.painted).toMatchObject({ turn: 1, layer: null, slots: 4, layers: 2, kvHeads: 2 })
    expect([...map.painted!.counts]).toEqual([4, 1, 0])
    expect(map.painted!.mean).toBeCloseTo(5 / 12)
    map.choose(1)
    await later()
    expect(map.painted).toMatchObject({ layer: 1, slots: 2 })
    map.show(null)
    expect(map.painted).toBeNull()
    expect(map.earlier).toBeNull()
  })

  it('has the earlier turns that the question saw, over all layers or in one, and none with less memory', async () => {
    const { map, program } = view()
    program.earlier = {
      text: 'Who?\n\nAnn.',
      turns: [{ number: 3, question: [0, 4], answer: [6, 10], kept: 0.5 }],
      ends: [4, 8, 10],
      counts: [1, 0, 0.5],
    }
    map.show(1)
    await later()
    expect(map.earlier).toMatchObject({ turns: [{ number: 3 }], tokens: { slots: 4 } })
    // By words, as in the document.
    expect([...map.marksEarlier()!.counts]).toEqual([4, 2, 2])
    map.choose(1)
    await later()
    expect(map.earlier!.tokens).toMatchObject({ slots: 2, counts: new Uint16Array([2, 0, 1]) })
    map.choose(null)
    await later()
    await map.fetchLevels()
    map.wanted = 5
    expect(map.earlier).toBeNull()
  })

  it('is no map before the first layer, nor of a layer that is not read yet', async () => {
    const { map, program } = view()
    program.layers = 0
    map.show(1)
    await later()
    expect(map.painted).toBeNull()
    program.layers = 1
    map.refresh()
    await later()
    expect(map.painted?.slots).toBe(2)
    map.choose(1)
    await later()
    expect(map.painted).toBeNull()
    program.layers = 2
    map.refresh()
    await later()
    expect(map.painted).toMatchObject({ layer: 1, slots: 2 })
  })

  it('knows all that is remembered beside what is because of the question', async () => {
    const { map, program } = view()
    const text = 'the wall.'
    program.lift = new Uint16Array([0, 1, 0])
    map.show(1, true)
    await later()
    expect(map.painted).toMatchObject({ mean: null, slots: 8, all: { slots: 4 } })
    expect([...map.painted!.because!]).toEqual([0, 1, 0])
    expect([...map.marks(text)!.counts]).toEqual([0, 16, 16])
    expect([...map.memory(text)!.counts]).toEqual([4, 1, 1])
    expect(map.bands()).toEqual({ first: null, last: null })
    map.view(false)
    await later()
    expect(map.memory(text)).toBe(map.marks(text))
  })

  it('draws nothing below the threshold, the same share in both views', async () => {
    const { map } = view()
    expect([map.threshold, map.leastOf({ ends: new Uint32Array(), counts: new Uint16Array(), slots: 10 })]).toEqual([
      0.25, 3,
    ])
    map.threshold = 0
    expect(map.leastOf({ ends: new Uint32Array(), counts: new Uint16Array(), slots: 10 })).toBe(1)
    map.threshold = 0.95
    expect(map.leastOf({ ends: new Uint32Array(), counts: new Uint16Array(), slots: 20 })).toBe(19)
  })

  it('asks for the ends again after another turn or none', async () => {
    const { map, program } = view()
    map.show(1)
    await later()
    map.show(null)
    map.show(1)
    await later()
    expect(program.count('ends')).toBe(2)
  })

  it('asks at most about ten times a second while layers come, and the ends once', async () => {
    const { map, program } = view()
    map.show(1)
    for (let i = 0; i < 100; i++) {
      map.refresh()
      await later(10)
    }
    await later()
    expect(program.count('counts')).toBeLessThanOrEqual(11)
    expect(program.count('counts')).toBeGreaterThanOrEqual(8)
    expect(program.count('ends')).toBe(1)
  })

  it('never shows a late answer for a turn that is no longer shown', async () => {
    const { map, program } = view()
    let release = () => {}
    program.hold = new Promise((resolve) => (release = resolve))
    map.show(1)
    await later()
    map.show(2)
    program.hold = null
    release()
    await later(400)
    flushSync()
    expect(map.painted?.turn).toBe(2)
    expect(map.painted?.counts[1]).toBe(2)
  })

  it('takes the last wish that came while it was fetching', async () => {
    const { map, program } = view()
    let release = () => {}
    program.layers = 1
    program.hold = new Promise((resolve) => (release = resolve))
    map.show(1)
    await later()
    map.refresh()
    program.layers = 2
    program.hold = null
    release()
    await later(400)
    expect(map.painted?.slots).toBe(4)
    expect(program.count('counts')).toBe(2)
  })
})

describe('the text', () => {
  const utf8 = (text: string) => new TextEncoder().encode(text).buffer as ArrayBuffer

  it('is fetched once for a document, a byte order mark counted like any character', async () => {
    let fetched = 0
    const store = new TextStore(async () => (fetched++, utf8('\ufeffa\0é😀')))
    await store.show(documentFacts({ id: 3 }))
    await store.show(documentFacts({ id: 3, tokens: 5 }))
    expect(fetched).toBe(1)
    expect(store.current?.text).toBe('\ufeffa\0é😀')
    await store.show(null)
    expect(store.current).toBeNull()
  })

  it('ends a line at a lone carriage return, without moving an offset', async () => {
    const store = new TextStore(async () => utf8('a\rb\r\nc'))
    await store.show(documentFacts())
    expect(store.current?.text).toBe('a\nb\r\nc')
  })

  it('shows no text under the name of another document for long', async () => {
    vi.useFakeTimers()
    const due: ((text: string) => void)[] = []
    const store = new TextStore(() => new Promise((resolve) => due.push((text) => resolve(utf8(text)))))
    const first = store.show(documentFacts({ id: 1, length: 1 }))
    due[0]!('a')
    await first
    const longer = store.show(documentFacts({ id: 1, length: 2 }))
    vi.advanceTimersByTime(1000)
    expect(store.current?.text).toBe('a')
    due[1]!('ab')
    await longer
    const other = store.show(documentFacts({ id: 2, length: 3 }))
    vi.advanceTimersByTime(100)
    expect(store.current?.text).toBe('ab')
    vi.advanceTimersByTime(1000)
    expect(store.current).toBeNull()
    due[2]!('xyz')
    await other
    expect(store.current?.text).toBe('xyz')
    vi.useRealTimers()
  })

  it('drops a late answer for an earlier document', async () => {
    const waiting: ((text: string) => void)[] = []
    const store = new TextStore(() => new Promise((resolve) => waiting.push((text) => resolve(utf8(text)))))
    const first = store.show(documentFacts({ id: 1 }))
    const second = store.show(documentFacts({ id: 2 }))
    waiting[1]!('second')
    waiting[0]!('first')
    await Promise.all([first, second])
    expect(store.current?.text).toBe('second')
  })

  it('says why it could not be fetched, and can be asked again', async () => {
    let refuse = true
    const store = new TextStore(async () => {
      if (refuse) throw 'The document is no longer open.'
      return utf8('x')
    })
    await store.show(documentFacts())
    expect(store.error).toBe('The document is no longer open.')
    refuse = false
    await store.show(documentFacts())
    expect(store.current?.text).toBe('x')
  })

  it('takes raw answers in either shape', () => {
    expect(new Uint8Array(bytes([1, 2, 255]))).toEqual(new Uint8Array([1, 2, 255]))
  })
})

describe('painting', () => {
  const text = 'the quay wall, and more'
  const runs = [
    { start: 0, end: 3, step: 0 },
    { start: 3, end: 8, step: 20 },
    { start: 8, end: 13, step: 5 },
    { start: 13, end: text.length, step: 0 },
  ]
  /** Letters are 10 wide and 20 tall, 12 per line. */
  beforeEach(() => {
    Range.prototype.getClientRects = function (this: Range) {
      const rects: DOMRect[] = []
      for (let at = this.startOffset; at < this.endOffset;) {
        const to = Math.min(this.endOffset, at - (at % 12) + 12)
        rects.push(new DOMRect(100 + (at % 12) * 10, 50 + Math.floor(at / 12) * 20, (to - at) * 10, 20))
        at = to
      }
      return rects as unknown as DOMRectList
    }
  })
  function sheet() {
    const words = document.createElement('p')
    const layer = document.createElement('div')
    words.append(text)
    for (const element of [words, layer]) element.getBoundingClientRect = () => new DOMRect(100, 50, 120, 40)
    return { words, layer, paint: new Paint(words, layer) }
  }
  function painted(passage: Passage | null = null) {
    const all = sheet()
    all.paint.show({ text, start: 0, end: text.length, runs, passage })
    paintAll()
    return all
  }
  const place = (e: Element) => {
    const { left, top, width, height } = (e as HTMLElement).style
    return [left, top, width, height].map(parseFloat)
  }

  it('makes one element for a run behind the text, none for what is not kept, and leaves spaces plain', () => {
    const { words, layer } = painted()
    expect([...layer.children].map((c) => [(c as HTMLElement).dataset['share'], ...place(c)])).toEqual([
      ['100', 40, -2, 40, 24],
      ['25', 90, -2, 30, 24],
    ])
    // `wall` continues in the next line: one element covers both.
    expect([...layer.children[1]!.children].map(place)).toEqual([[-90, 20, 10, 24]])
    expect([words.childNodes.length, words.textContent]).toEqual([1, text])
  })

  it('has no seam where runs of one word meet', () => {
    const all = sheet()
    const halves = [
      { start: 0, end: 4, step: 0 },
      { start: 4, end: 6, step: 20 },
      { start: 6, end: 8, step: 5 },
      { start: 8, end: text.length, step: 0 },
    ]
    // Letters between pixels.
    const { getClientRects } = Range.prototype
    Range.prototype.getClientRects = function (this: Range) {
      const rects = [...getClientRects.call(this)].map((r) => new DOMRect(r.x + 0.3, r.y, r.width, r.height))
      return rects as unknown as DOMRectList
    }
    all.paint.show({ text, start: 0, end: text.length, runs: halves, passage: null })
    paintAll()
    const runs = [...all.layer.children].map((c) => [...place(c).slice(0, 3), (c as HTMLElement).style.borderRadius])
    expect(runs).toEqual([
      [40, -2, 20, '2px 0 0 2px'],
      [60, -2, 20, '0 2px 2px 0'],
    ])
  })

  it('never touches the text, and the paint only when it changed', () => {
    const { words, layer, paint } = painted()
    const [node, first] = [words.firstChild, layer.firstChild]
    paint.show({ text, start: 0, end: text.length, runs, passage: null })
    paintAll()
    expect(layer.firstChild).toBe(first)
    paint.show({ text, start: 0, end: text.length, runs: null, passage: null })
    paintAll()
    expect(layer.children).toHaveLength(0)
    expect(words.firstChild).toBe(node)
  })

  it('measures all blocks before it draws one', () => {
    const order: string[] = []
    for (const { paint } of [sheet(), sheet()]) {
      const { measure, draw } = paint
      paint.measure = () => (order.push('measure'), measure.call(paint))
      paint.draw = (boxes) => (order.push('draw'), draw.call(paint, boxes))
      paint.show({ text, start: 0, end: text.length, runs, passage: null })
    }
    paintAll()
    expect(order).toEqual(['measure', 'measure', 'draw', 'draw'])
  })

  it('underlines what the answer stands on, and once where the user went', () => {
    const steps = (wish: Partial<Wish>) =>
      piecesOf({ text, start: 0, end: text.length, runs: null, passage: null, ...wish }).map((p) => [
        p.start,
        p.end,
        p.step,
      ])
    const used = [
      { start: 3, end: 8 },
      { start: 14, end: 18 },
      { start: 90, end: 99 },
    ]
    expect(steps({ used })).toEqual([
      [4, 8, -3],
      [15, 18, -3],
    ])
    expect(steps({ used, passage: { start: 3, end: 8 } })).toEqual([
      [15, 18, -3],
      [4, 8, 0],
    ])
    const { layer } = painted()
    expect(layer.querySelector('.used')).toBeNull()
    const all = sheet()
    all.paint.show({ text, start: 0, end: text.length, runs: null, passage: null, used })
    paintAll()
    expect([...all.layer.querySelectorAll('[data-testid=used]')].map(place)).toEqual([
      [40, -2, 40, 24],
      [30, 18, 30, 24],
    ])
  })

  it('labels a line in the margin', () => {
    const all = sheet()
    all.paint.show({
      text,
      start: 0,
      end: text.length,
      runs: null,
      passage: null,
      notes: [{ at: 8, label: 'always kept' }],
    })
    paintAll()
    const note = all.layer.querySelector<HTMLElement>('.note')!
    expect([note.textContent, note.style.top]).toEqual(['always kept', '0px'])
  })

  it('fades what is forgotten: not what is remembered, found, or beyond the map', () => {
    const faded = (wish: Partial<Wish>) => {
      const full = { text, start: 0, end: text.length, runs, passage: null, ...wish }
      return fadedOf(full, piecesOf(full)).map(({ start, end }) => text.slice(start, end))
    }
    expect(faded({})).toEqual([])
    expect(faded({ memory: runs })).toEqual(['the', ', and more'])
    // Painted because of the question, and remembered whatever is asked.
    const memory = [
      { start: 0, end: 13, step: 0 },
      { start: 13, end: text.length, step: 9 },
    ]
    expect(faded({ memory })).toEqual(['the'])
    expect(faded({ memory: runs, mapped: 18 })).toEqual(['the', ', and'])
    expect(faded({ memory: runs, found: [{ start: 14, end: 18, current: false }] })).toEqual(['the', ',', 'more'])
    // A clicked or used passage that is forgotten is seen as both.
    expect(faded({ memory: runs, used: [{ start: 14, end: 18 }] })).toEqual(['the', ', and more'])
  })

  it('underlines a passage across runs, without the space around it', () => {
    const { layer } = painted({ start: 4, end: 14 })
    const marked = [...layer.querySelectorAll('.passage')]
    expect(marked.map(place)).toEqual([[40, -2, 80, 24]])
    expect(marked.flatMap((e) => [...e.children]).map(place)).toEqual([[-40, 20, 20, 24]])
    expect(layer.querySelectorAll('[data-testid=run]')).toHaveLength(2)
  })

  it('has no border inside what is seen as one character', () => {
    const pieces = (text: string, runs: Run[]) =>
      piecesOf({ text, start: 0, end: text.length, runs, passage: null }).map((p) => [p.start, p.end, p.step])
    const accented = 'ae\u0301\u0302b'
    expect(
      pieces(accented, [
        { start: 0, end: 2, step: 3 },
        { start: 2, end: 3, step: 9 },
        { start: 3, end: 5, step: 0 },
      ]),
    ).toEqual([
      [0, 1, 3],
      [1, 4, 9],
    ])
    const family = '👩\u200d👧!'
    expect(
      pieces(family, [
        { start: 0, end: 2, step: 0 },
        { start: 2, end: 3, step: 5 },
        { start: 3, end: 6, step: 2 },
      ]),
    ).toEqual([
      [0, 5, 5],
      [5, 6, 2],
    ])
  })

  it('finds offsets again, there and back', () => {
    const { words } = painted()
    for (let at = 0; at < text.length; at++) {
      const range = rangeIn(words, at, at + 1)!
      expect(range.toString()).toBe(text[at])
      expect(offsetIn(words, range.startContainer, range.startOffset)).toBe(at)
    }
    expect(rangeIn(words, text.length + 3, text.length + 4)).toBeNull()
    expect(offsetIn(words, document.body, 0)).toBeNull()
  })
})
