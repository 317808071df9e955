/** Mock conversations; see `index.ts`. */
import type { AppEvent, ConversationEntry, FoundPassage, FoundPiece, Turn } from '../lib/contract'

export type Which = 'sample' | 'long'

interface Held {
  entry: ConversationEntry
  which: Which
  turns: Turn[]
}

interface Arguments {
  id: string | number
  title: string
  pinned: boolean
  query: string
}

const NAMES: Record<Which, string> = { sample: 'sample.txt', long: 'Harbour lease, 2019 renewal.pdf' }
/** Characters around the first hit of a passage. */
const AROUND = 50

const SEEDS: [Which, number, boolean, [string, string][]][] = [
  ['sample', 400, true, [['What colour is the flag of the ship Palova?', 'Crimson.'], ['And its captain?', 'Hugo Dremmen.']]],
  ['long', 0, false, [['Who pays for the quay wall after a storm?', 'The lessor, unless the tenant moored vessels above the agreed draught.']]],
  ['long', 1, false, [['How long does the tenant have to report a movement of the wall, and to whom is it reported?', 'Three days.']]],
  ['sample', 4, false, [['What is the market day of Saltmarrow?', 'Thursday.']]],
  ['long', 30, false, [['May the tenant sublet?', 'Only with consent in writing.']]],
] // prettier-ignore

function told(id: number, question: string, answer: string): Turn {
  return {
    id, question, answer, state: 'done', error: null, method: 'snapkv', parameters: {}, budget: null, cache: null, memory: null,
    model: 'mini', sources: [], facts: null, hasMap: false, thinking: false, windows: [],
  } // prettier-ignore
}

/** The text around the first hit, in pieces; null without one. */
function passageOf(text: string, words: string[]): FoundPiece[] | null {
  const lower = text.toLowerCase()
  if (!words.every((word) => lower.includes(word))) return null
  const at = lower.indexOf(words[0]!)
  const [start, end] = [Math.max(0, at - AROUND), Math.min(text.length, at + AROUND)]
  const cut = `${start > 0 ? '…' : ''}${text.slice(start, end).replace(/\s+/g, ' ')}${end < text.length ? '…' : ''}`
  const pattern = new RegExp(`(${words.map((word) => word.replace(/\W/g, '\\$&')).join('|')})`, 'i')
  return cut.split(pattern).flatMap((piece, i) => (piece === '' ? [] : [{ text: piece, hit: i % 2 === 1 }]))
}

/** `show` opens a document, or keeps the open one, with turns; `refuses` is why no other conversation can be opened now, or null. */
export function mockConversations(
  emit: (event: AppEvent) => void,
  textOf: (which: Which) => string,
  show: (turns: Turn[], which?: Which) => void,
  refuses: () => string | null,
) {
  let id = 0
  let held: Held[] = SEEDS.map(([which, days, pinned, asked], i) => ({
    entry: {
      id: ++id,
      title: asked[0]![0],
      document: NAMES[which],
      questions: asked.length,
      updated: Math.floor(Date.now() / 1000) - days * 86_400 - i,
      pinned,
    },
    which,
    turns: asked.map(([question, answer], j) => told(id * 10 + j, question, answer)),
  }))
  let current: Held | null = null
  let deleted: Held | null = null

  const list = () =>
    held.map((one) => ({ ...one.entry })).sort((a, b) => Number(b.pinned) - Number(a.pinned) || b.updated - a.updated)
  const tell = () => emit({ event: 'conversations', conversations: list(), current: current?.entry.id ?? null })
  const leave = () => {
    current = null
    tell()
  }

  /** A question about the open document. */
  function add(turn: Turn, which: Which): void {
    if (!current) {
      const entry = { id: ++id, title: turn.question, document: NAMES[which], questions: 0, updated: 0, pinned: false }
      held.push((current = { entry, which, turns: [] }))
    }
    current.turns.push(turn)
    Object.assign(current.entry, { questions: current.turns.length, updated: Math.floor(Date.now() / 1000) })
    tell()
  }

  function search(query: string): FoundPassage[] {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean)
    if (words.length === 0) return []
    return held.flatMap(({ entry, which, turns }) =>
      [
        ...turns.map((turn) => ({ turn: turn.id, pieces: passageOf(`${turn.question} ${turn.answer}`, words) })),
        { turn: null, pieces: passageOf(textOf(which), words) },
      ].flatMap(({ turn, pieces }) => (pieces ? [{ conversation: entry.id, turn, pieces }] : [])),
    )
  }

  function answer(name: string, args: Arguments): unknown {
    const one = held.find(({ entry }) => entry.id === args.id)
    const refusal = refuses()
    if (name === 'search_conversations') return search(args.query)
    if (name === 'export_conversation' || name === 'import_conversation') {
      const message = name === 'export_conversation' ? 'Saved to ~/conversation.md.' : 'There is no file here.'
      emit({ event: 'notice', kind: 'info', where: 'conversation', message })
    } else if (name === 'restore_conversation') {
      if (deleted?.entry.id !== args.id) throw 'This conversation is gone.'
      held.push(deleted)
      deleted = null
      tell()
    } else if (name === 'new_conversation') {
      if (refusal) throw refusal
      show([])
      leave()
    } else if (!one) throw 'This conversation is gone.'
    else if (name === 'open_conversation') {
      if (refusal) throw refusal
      current = one
      show(one.turns, one.which)
      tell()
    } else if (name === 'delete_conversation') {
      held = held.filter((other) => other !== one)
      deleted = one
      if (current === one) {
        show([])
        leave()
      } else tell()
    } else {
      if (name === 'rename_conversation') one.entry.title = args.title || one.turns[0]!.question
      else one.entry.pinned = args.pinned
      tell()
    }
    return null
  }

  return { list, leave, add, answer }
}
