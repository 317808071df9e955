/** The keys and the mouse in the whole window: highlights, the context menu, the width of the conversation. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount } from 'svelte'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import App from '../src/App.svelte'
import { Reader } from '../src/lib/reader.svelte'
import { documentFacts, snapshot, turn } from './given'

/** Sixty tokens of five characters in four slots. */
const TEXT = Array.from({ length: 60 }, (_, i) => `w${String(i).padStart(3, '0')} `).join('')
const ENDS = Uint32Array.from({ length: 60 }, (_, i) => (i + 1) * 5)

let shown: Record<string, unknown> | null = null
let counts: Uint16Array
let called: string[] = []

beforeEach(() => {
  counts = new Uint16Array(60)
  for (const token of [0, 20, 40]) counts[token] = 3
})
afterEach(async () => {
  if (shown) await unmount(shown)
  shown = null
  clearMocks()
  document.body.replaceChildren()
})
const one = (id: string) => document.querySelector<HTMLElement>(`[data-testid=${id}]`)

async function start() {
  const answers: Record<string, (args: Record<string, unknown>) => unknown> = {
    snapshot: () => snapshot({ document: documentFacts({ length: TEXT.length }), turns: [turn({ hasMap: true })] }),
    save_settings: (args) => args['settings'],
    document_text: () => new TextEncoder().encode(TEXT).buffer,
    map_ends: () => ENDS.buffer,
    map_counts: () => counts.buffer,
    map_token: () => ({
      start: 0, end: 5, kept: 3, slots: 4, perLayer: [2, 1], kvHeads: 2, tokens: 1, page: null, document: null,
    }), // prettier-ignore
  }
  called = []
  mockIPC((name, args) => {
    called.push(name)
    return answers[name]?.((args ?? {}) as Record<string, unknown>) ?? null
  })
  const report = (kind: string, problem: unknown) => expect.fail(`${kind}: ${String(problem)}`)
  shown = mount(App, { target: document.body, props: { report } })
  for (let i = 0; i < 100 && !one('compressed-for'); i++) {
    await new Promise((resolve) => setTimeout(resolve, 10))
    flushSync()
  }
}

describe('the border between document and conversation', () => {
  const widthNow = () => document.querySelector('main')!.style.getPropertyValue('--conversation')

  it('moves with the pointer and the arrow keys, stays at the next start, and goes back', async () => {
    localStorage.clear()
    await start()
    let border = one('splitter')!
    expect(widthNow()).toBe('')
    let captured = false
    border.setPointerCapture = () => (captured = true)
    border.hasPointerCapture = () => captured
    const point = (kind: string, clientX: number) => {
      border.dispatchEvent(new MouseEvent(`pointer${kind}`, { clientX, button: 0, bubbles: true }))
      flushSync()
    }
    point('move', innerWidth - 350)
    expect(widthNow(), 'only pointed at').toBe('')
    point('down', innerWidth - 300)
    point('move', innerWidth - 350)
    expect(widthNow()).toBe('350px')
    point('move', innerWidth - 10)
    expect(widthNow(), 'the least').toBe('300px')
    point('move', 0)
    const most = Math.round(innerWidth * 0.6)
    expect(widthNow(), 'the most').toBe(`${most}px`)
    point('up', 0)

    await unmount(shown!)
    document.body.replaceChildren()
    await start()
    expect(widthNow()).toBe(`${most}px`)
    border = one('splitter')!
    border.getBoundingClientRect = () => new DOMRect()
    border.nextElementSibling!.getBoundingClientRect = () => new DOMRect(0, 0, most, 10)
    border.dispatchEvent(new MouseEvent('dblclick', { bubbles: true }))
    flushSync()
    expect([widthNow(), localStorage.getItem('conversation width')]).toEqual(['', null])
    border.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }))
    flushSync()
    expect(widthNow()).toBe(`${most - 24}px`)
    expect(border.getAttribute('aria-valuemax')).toBe(String(most))
  })
})

describe('the line below a view that covers the document', () => {
  it('has only the way back, and the button has the focus again', async () => {
    await start()
    const ids = () =>
      [...document.querySelectorAll<HTMLElement>('footer [data-testid]')].map((element) => element.dataset['testid'])
    const before = ids()
    expect(before).toContain('layer-filter')
    for (const leave of ['compare-button', 'compare-close']) {
      one('compare-button')!.focus()
      one('compare-button')!.click()
      flushSync()
      expect([ids(), one('compare-button')!.textContent]).toEqual([['compare-button'], 'Back to the document'])
      // WebKitGTK shows a tooltip over the page below.
      expect([one('compare-button')!.title, one('compare-close')!.title]).toEqual(['', ''])
      one(leave)!.click()
      flushSync()
      expect([ids(), one('comparison')]).toEqual([before, null])
      expect(document.activeElement).toBe(one('compare-button'))
    }
  })
})

describe('Alt with ↓ and ↑', () => {
  const press = (way: 'Down' | 'Up') => {
    const init = { key: `Arrow${way}`, altKey: true, bubbles: true, cancelable: true }
    document.body.dispatchEvent(new KeyboardEvent('keydown', init))
    flushSync()
    return one('highlight')?.textContent
  }

  it('go round the highlights both ways, and say which one it is', async () => {
    await start()
    expect(one('highlight')).toBeNull()
    expect((['Down', 'Down', 'Down', 'Down', 'Up', 'Up'] as const).map(press)).toEqual([
      'Highlight 1 of 3',
      'Highlight 2 of 3',
      'Highlight 3 of 3',
      'Highlight 1 of 3',
      'Highlight 3 of 3',
      'Highlight 2 of 3',
    ])
    expect(one('announcement')?.textContent).toBe('Highlight 2 of 3: “w020”, up to 75 % remembered')
  })

  it('go to nothing that is not drawn', async () => {
    await start()
    one('threshold')!.dispatchEvent(new KeyboardEvent('keydown', { key: 'End', bubbles: true, cancelable: true }))
    expect([press('Down'), one('announcement')?.textContent]).toEqual([undefined, 'Nothing is highlighted'])
  })

  it('say that nothing is highlighted where everything is remembered', async () => {
    counts.fill(4)
    await start()
    expect([press('Down'), one('announcement')?.textContent]).toEqual([
      undefined,
      'Everything is remembered: nothing is highlighted',
    ])
  })
})

describe('a key without a text field', () => {
  const press = (target: Element, key: string, some: KeyboardEventInit = {}) => {
    const event = new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true, ...some })
    target.dispatchEvent(event)
    flushSync()
    return event.defaultPrevented
  }
  const focused = () => document.activeElement?.getAttribute('data-testid')

  it('goes to the question, and opens nothing', async () => {
    await start()
    for (const target of [document.body, one('document')!, one('settings-button')!]) {
      ;(document.activeElement as HTMLElement).blur()
      // The browser writes it where the focus is by then.
      expect([press(target, 'm'), focused(), one('models')]).toEqual([false, 'composer', null])
    }
    one('document')!.focus()
    press(one('document')!, ' ')
    expect(focused()).toBe('document')
    press(document.body, 'm', { ctrlKey: true })
    one('document')!.focus()
    press(document.body, 'w')
    expect([one('models') !== null, focused()]).toEqual([true, 'document'])
  })

  it('with Ctrl begins a conversation, or searches them', async () => {
    await start()
    one('document')!.focus()
    press(document.body, 'n', { ctrlKey: true })
    await new Promise((resolve) => setTimeout(resolve, 10))
    expect([called.includes('new_conversation'), focused()]).toEqual([true, 'composer'])
    press(document.body, 'k', { ctrlKey: true })
    await new Promise((resolve) => setTimeout(resolve, 10))
    expect(focused()).toBe('conversation-search')
  })
})

describe('another width of the window', () => {
  it('leaves what is at the top there', async () => {
    await start()
    const paper = one('document')!
    const sheet = paper.firstElementChild!
    let wide = 640
    Object.defineProperty(sheet, 'clientWidth', { get: () => wide })
    paper.dispatchEvent(new Event('scroll'))
    // Until the next look.
    await new Promise((resolve) => setTimeout(resolve, 80))
    const stay = vi.spyOn(Reader.prototype, 'stay')
    dispatchEvent(new Event('resize'))
    expect(stay).not.toHaveBeenCalled()
    wide = 480
    dispatchEvent(new Event('resize'))
    expect(stay).toHaveBeenCalledOnce()
    stay.mockRestore()
  })
})

describe('the browser’s context menu', () => {
  const prevented = (target: Element, at: [number, number] = [5, 5]) => {
    const event = new MouseEvent('contextmenu', { bubbles: true, cancelable: true, clientX: at[0], clientY: at[1] })
    target.dispatchEvent(event)
    return event.defaultPrevented
  }

  it('is for text fields and selected text only', async () => {
    await start()
    expect([one('document')!, one('settings-button')!, one('budget')!].map((e) => prevented(e))).toEqual([
      true,
      true,
      true,
    ])
    expect([one('composer')!, one('budget-field')!].map((e) => prevented(e))).toEqual([false, false])
    Range.prototype.getClientRects = () => [new DOMRect(0, 0, 50, 20)] as unknown as DOMRectList
    getSelection()!.selectAllChildren(one('document')!)
    expect([prevented(one('document')!), prevented(one('document')!, [80, 5])]).toEqual([false, true])
    getSelection()!.removeAllRanges()
    expect(prevented(one('document')!)).toBe(true)
  })
})
