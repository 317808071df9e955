/** The list of conversations: its groups, and the time of an entry. */
import type { ConversationEntry, StoredDocument } from './contract'
import { bytes, plural } from './format'

export interface Group {
  name: string
  /** About a document: pages, tokens, size in the vault, when it was last read. */
  facts: string
  entries: ConversationEntry[]
}

/** Calendar days from a time in seconds to `now` in milliseconds, both since 1970. */
function daysAgo(updated: number, now: number): number {
  const midnight = (time: number) => new Date(time).setHours(0, 0, 0, 0)
  // Rounded: a day of a clock change has 23 or 25 hours.
  return Math.round((midnight(now) - midnight(updated * 1000)) / 86_400_000)
}

/** `today`, `yesterday`, `12 Mar`, `12 Mar 2024`. */
export function when(updated: number, now: number): string {
  const days = daysAgo(updated, now)
  if (days <= 0) return 'today'
  if (days === 1) return 'yesterday'
  const date = new Date(updated * 1000)
  const day = date.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' })
  return date.getFullYear() === new Date(now).getFullYear() ? day : `${day} ${date.getFullYear()}`
}

/** `09:30` of today; any other day as in `when`. */
export function timeOrDay(updated: number, now: number): string {
  if (daysAgo(updated, now) > 0) return when(updated, now)
  return new Date(updated * 1000).toLocaleTimeString('en-GB', { timeStyle: 'short' })
}

/** `12 Mar 2024, 09:30`. */
export function exactly(updated: number): string {
  return new Date(updated * 1000).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'short' })
}

/** The pinned conversations, then the others by age; the order within a group is the given one. */
export function grouped(entries: readonly ConversationEntry[], now: number): Group[] {
  const groups: Group[] = ['Pinned', 'Today', 'Yesterday', 'Last 7 days', 'Older'].map((name) => ({
    name,
    facts: '',
    entries: [],
  }))
  for (const entry of entries) {
    const days = daysAgo(entry.updated, now)
    const group = entry.pinned ? 0 : days <= 0 ? 1 : days === 1 ? 2 : days <= 7 ? 3 : 4
    groups[group]!.entries.push(entry)
  }
  return groups.filter((group) => group.entries.length > 0)
}

/** The conversations by document; the order is that of the entries. */
export function byDocument(
  entries: readonly ConversationEntry[],
  stored: readonly StoredDocument[],
  now: number,
): Group[] {
  const groups = new Map<number, Group>()
  for (const entry of entries) {
    const { documentId, document, pages, pageNoun } = entry
    // All conversations without a document are one group.
    const id = document === '' ? -1 : documentId
    const known = groups.get(id)
    if (known) {
      known.entries.push(entry)
      continue
    }
    // A vault knows its document by name: of several of that name it is not clear which one it is of.
    const named = entries.filter((other) => other.document === document)
    const [vault, another] = stored.filter(({ name }) => name === document)
    const clear = vault && !another && named.every((other) => other.documentId === documentId)
    const facts = [
      ...(pages > 0 ? [plural(pages, pageNoun)] : []),
      ...(clear ? [`${bytes(vault.bytes)} in the vault`, `read ${when(vault.used, now)}`] : []),
    ]
    groups.set(id, { name: document || 'Without a document', facts: facts.join(' · '), entries: [entry] })
  }
  return [...groups.values()]
}
