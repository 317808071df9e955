/** Versions of a question: turns with the same first version are one card of the conversation. */
import type { MethodFacts, Turn } from './contract'
import { modelName } from './models'
import { described } from './parameters'

export interface Card {
  /** Id of the first version. */
  first: number
  /** In the order in which they were asked. */
  versions: Turn[]
}

/** Id of the first version of its question. */
export const firstOf = (turn: Turn) => turn.versionOf ?? turn.id

/** The cards, each in the place of its first version. */
export function cardsOf(turns: readonly Turn[]): Card[] {
  const cards = new Map<number, Card>()
  for (const turn of turns) {
    const first = firstOf(turn)
    const card = cards.get(first)
    if (card) card.versions.push(turn)
    else cards.set(first, { first, versions: [turn] })
  }
  return [...cards.values()]
}

/** The version with this id, else the newest. */
export function shownOf(versions: readonly Turn[], id: number | undefined): Turn {
  return versions.find((turn) => turn.id === id) ?? versions.at(-1)!
}

/** The newest version of the same question as `turn`, else the newest turn; of those that do not wait if possible. */
export function newestOf(turns: readonly Turn[], turn?: Turn): Turn | null {
  const same = turn ? turns.filter((other) => firstOf(other) === firstOf(turn)) : []
  const among = same.length > 0 ? same : turns
  return among.findLast(({ state }) => state !== 'waiting') ?? among.at(-1) ?? null
}

/** How each version was made; versions that were made alike are numbered. */
export function labelsOf(versions: readonly Turn[], methods: MethodFacts[]): string[] {
  const models = new Set(versions.map(({ model }) => model))
  const followsUp = versions.some(({ facts }) => (facts?.turnsSeen ?? 0) > 0)
  const used = new Map<string, number>()
  return versions.map((turn) => {
    const how = described(turn, methods, turn.facts?.chosen?.method)
    const alone = followsUp && turn.facts?.turnsSeen === 0 ? ', without earlier questions' : ''
    const label = `${how}${models.size > 1 ? `, ${modelName(turn.model)}` : ''}${alone}`
    const number = (used.get(label) ?? 0) + 1
    used.set(label, number)
    return number > 1 ? `${label} (${number})` : label
  })
}
