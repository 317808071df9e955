/** Mock conversations; see `index.ts`. */
import type { AppEvent, ConversationEntry, FoundPassage, FoundPiece, Turn } from '../lib/contract'

/** The sample, the long document, or a pasted text itself. */
export type Which = 'sample' | 'long' | (string & {})

interface Held {
  entry: ConversationEntry
  which: Which
  turns: Turn[]
}

interface Arguments {
  id: string | number
  turn: number
  title: string
  pinned: boolean
  query: string
}

/** The document of a conversation, as the list has it. */
function listed(which: Which): Pick<ConversationEntry, 'document' | 'documentId' | 'pages'> {
  const documentId = which === 'sample' ? 1 : which === 'long' ? 2 : 3
  return { document: nameOf(which), documentId, pages: which === 'long' ? 312 : 0 }
}

/** A document's name; a pasted text has that of its first line. */
export function nameOf(which: Which): string {
  if (which === 'sample') return 'sample.txt'
  if (which === 'long') return 'Harbour lease, 2019 renewal.pdf'
  return which.trim().split('\n', 1)[0]!.slice(0, 60)
}

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
    model: 'mini', sources: [], facts: null, hasMap: false, thinking: false, windows: [], versionOf: null, hasLift: false, hasReplay: false, levels: 0, levelsDone: false,
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

/**
 * `show` opens a document, or keeps the open one, with turns; `copy` is a turn for a branch; `refuses` is why no other
 * conversation can be opened now, or null.
 */
export function mockConversations(
  emit: (event: AppEvent) => void,
  textOf: (which: Which) => string,
  show: (turns: Turn[], which?: Which) => void,
  copy: (turn: Turn) => Turn,
  refuses: () => string | null,
) {
  let id = 0
  let held: Held[] = SEEDS.map(([which, days, pinned, asked], i) => ({
    entry: {
      id: ++id,
      title: asked[0]![0],
      ...listed(which),
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
      const entry = { id: ++id, title: turn.question, ...listed(which), questions: 0, updated: 0, pinned: false }
      held.push((current = { entry, which, turns: [] }))
    }
    current.turns.push(turn)
    changed(current)
  }

  function changed({ entry, turns }: Held): void {
    const questions = turns.filter(({ versionOf }) => versionOf === null).length
    Object.assign(entry, { questions, updated: Math.floor(Date.now() / 1000) })
    tell()
  }

  /** A question that waited is removed, and a conversation without any other. */
  function remove(turn: number): void {
    if (!current) return
    current.turns = current.turns.filter(({ id }) => id !== turn)
    if (current.turns.length > 0) return changed(current)
    held = held.filter((one) => one !== current)
    leave()
  }

  /** A conversation with the turns before the question of `turn`, and with `turn` itself unless an `edited` question follows. */
  function branch(turn: number, edited?: string): void {
    const refusal = refuses()
    if (refusal) throw refusal
    const from = current
    const known = from?.turns.find(({ id }) => id === turn)
    if (!from || !known) throw 'This question is gone.'
    const first = known.versionOf ?? known.id
    const kept = from.turns.filter((other) => (other.versionOf ?? other.id) < first)
    if (edited === undefined) kept.push({ ...known, versionOf: null })
    if (kept.length === 0) {
      show([])
      return leave()
    }
    const ids = new Map<number, number>()
    const turns = kept.map((old) => {
      const turn = copy(old)
      ids.set(old.id, turn.id)
      return { ...turn, versionOf: old.versionOf === null ? null : ids.get(old.versionOf)! }
    })
    const entry = { ...from.entry, id: ++id, title: edited ?? `${from.entry.title} (branch)`, pinned: false }
    held.push((current = { entry, which: from.which, turns }))
    show(turns)
    changed(current)
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
    } else if (name === 'branch_conversation') branch(args.turn)
    else if (!one) throw 'This conversation is gone.'
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

  return { list, leave, add, remove, branch, answer, turns: () => current?.turns ?? [] }
}
