/**
 * Which frame draws what. Without a GPU WebKitGTK draws the rectangle around everything that changed in a frame: page, pictures
 * and words together are the whole window. While something is dragged or played, a frame therefore draws one of them, and
 * the page most often.
 */
import { flushSync, untrack } from 'svelte'

/** The page has its slider with it; words are what is said below the page. */
type Part = 'page' | 'pictures' | 'words'

/** Who has nothing to draw gives its turn to the next. */
const TURNS: readonly Part[] = ['page', 'page', 'page', 'pictures', 'page', 'page', 'page', 'words']

const waiting: Record<Part, Map<unknown, () => void>> = { page: new Map(), pictures: new Map(), words: new Map() }
let moving = $state(0)
let turn = 0
let frame = 0

/** Something is dragged or played, until the returned function is called. */
export function moves(): () => void {
  untrack(() => moving++)
  return () => moving--
}

/** Draws in a frame, once for each key; returns how to cancel it. */
export function draw(part: Part, key: unknown, act: () => void): () => void {
  waiting[part].set(key, act)
  frame ||= requestAnimationFrame(next)
  return () => waiting[part].delete(key)
}

/** A value as a part shows it. Called where effects are made. */
export function shownIn<T>(part: Part, value: () => T): () => T {
  const now = $derived(value())
  let held = $state.raw(untrack(value))
  $effect(() => {
    const next = now
    return draw(part, {}, () => (held = next))
  })
  return () => (moving > 0 ? held : now)
}

function next(): void {
  frame = 0
  if (moving === 0) Object.values(waiting).forEach(run)
  else TURNS.some(() => run(waiting[TURNS[turn++ % TURNS.length]!]))
  if (Object.values(waiting).some(({ size }) => size > 0)) frame ||= requestAnimationFrame(next)
}

/** Whether there was something to draw. Also draws what is added meanwhile. */
function run(acts: Map<unknown, () => void>): boolean {
  const any = acts.size > 0
  for (const [key, act] of acts) {
    acts.delete(key)
    act()
    flushSync()
  }
  return any
}
