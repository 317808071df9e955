/**
 * Citations: numbers behind the sentences of an answer, for the passages that they stand on. Offsets are UTF-16 units of
 * the turn's whole answer, with thoughts.
 */
import type { Citation, DocumentFacts, Source, Turn } from './contract'
import { renderedWords } from './attended'
import { kindAt, pageName } from './blocks'
import { plainOf } from './table'
import { parted } from './thoughts'

/** Signs that belong to the word before them, and a unit behind a number. */
const SIGNS = /^(?:[^\s\p{L}\p{N}]|\s(?=[\p{Sc}%‰°]))+/u

/** Whether the cards of two passages would be the same: nothing tells them apart but their place in the text. */
function alike(one: Source, other: Source): boolean {
  const words = ({ text }: Source) => text.replace(/\s+/g, ' ').trim()
  return one.page === other.page && one.document === other.document && words(one) === words(other)
}

/** The passages of an answer as they are listed and numbered: of those that are alike, the first. */
export function passagesOf({ sources }: Pick<Turn, 'sources'>): Source[] {
  return sources.filter((one, i) => sources.findIndex((other) => alike(other, one)) === i)
}

/** The words of a passage, without the marks of Markdown. */
export function plain({ start, text }: Source, document: Pick<DocumentFacts, 'kind' | 'documents'> | null): string {
  return document !== null && kindAt(document, start) === 'markdown' ? plainOf(text) : text
}

/** The answer without thoughts, and its citations as offsets in it, by the passages as they are listed. */
export function cited(turn: Turn): { answer: string; citations: Citation[] } {
  const { answer } = parted(turn.answer)
  const before = turn.answer.length - answer.length
  const all = turn.facts?.citations ?? []
  const passages = passagesOf(turn)
  const listed = (source: number) => {
    const passage = turn.sources[source]
    return passage ? passages.findIndex((other) => alike(other, passage)) : source
  }
  const moved = all.map(({ end, source }) => ({ end: end - before, source: listed(source) }))
  return { answer, citations: moved.filter(({ end }) => end > 0 && end <= answer.length) }
}

/** The passages that answers stand on: those that they cite, else the one that they used most. */
export function standsOn(...turns: readonly (Turn | null | undefined)[]): Source[] {
  const found = turns.flatMap((turn) => {
    const cited = (turn?.facts?.citations ?? []).flatMap(({ source }) => turn!.sources[source] ?? [])
    return cited.length > 0 ? cited : (turn?.sources.slice(0, 1) ?? [])
  })
  return found.filter((one, i) => found.findIndex((other) => other.start === one.start) === i)
}

/** The button of a passage. */
function button(source: number, passage: Source, show: (source: number) => void): HTMLButtonElement {
  const button = document.createElement('button')
  button.className = 'cite num'
  button.dataset['testid'] = 'citation'
  button.textContent = String(source + 1)
  button.title = passage.text
  button.setAttribute('aria-label', `Passage ${source + 1}`)
  button.onclick = () => show(source)
  return button
}

/**
 * Sets a button behind every cited sentence of an answer rendered from `answer`: behind its last word and the signs after
 * that; in code behind the whole block.
 */
export function withButtons(
  root: DocumentFragment,
  answer: string,
  citations: readonly Citation[],
  sources: readonly Source[],
  show: (source: number) => void,
): void {
  const words = renderedWords(root, answer)
  // From the last one on: a button splits the text before later ones.
  for (const { end, source } of [...citations].reverse()) {
    const passage = sources[source]
    const word = words.filter(({ from }) => from < end).at(-1)
    if (!passage || !word) continue
    const sign = button(source, passage, show)
    const block = word.node.parentElement?.closest('pre')
    if (block) {
      if (!block.nextElementSibling?.isEqualNode(sign)) block.after(sign)
      continue
    }
    let { node, end: at } = word
    for (;;) {
      at += SIGNS.exec(node.data.slice(at))?.[0].length ?? 0
      const next = at === node.length ? following(node) : null
      if (!next || !SIGNS.test(next.data)) break
      node = next
      at = 0
    }
    if (at < node.length || !node.nextSibling?.isEqualNode(sign)) node.splitText(at).before(sign)
  }
}

/** The text node behind `node` in the same paragraph, list item or cell. */
function following(node: Text): Text | null {
  const block = node.parentElement?.closest('p, li, td, th, h1, h2, h3, h4, h5, h6, blockquote')
  if (!block) return null
  const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT)
  walker.currentNode = node
  return walker.nextNode() as Text | null
}

/**
 * An answer with bracketed numbers, what is said below it, and its passages, for the clipboard. They are numbered if the
 * answer cites some.
 */
export function withSources(
  turn: Turn,
  document: Pick<DocumentFacts, 'kind' | 'documents' | 'pageNoun'> | null = null,
  notes: readonly string[] = [],
): string {
  const { answer, citations } = cited(turn)
  let text = ''
  let from = 0
  for (const { end, source } of citations) {
    text += `${answer.slice(from, end)} [${source + 1}]`
    from = end
  }
  text += answer.slice(from)
  const lines = passagesOf(turn).map((source, i) => {
    const place = [source.document, source.page === null ? null : pageName(document, source.page)].filter(
      (p) => p !== null,
    )
    const words = plain(source, document).replace(/\s+/g, ' ').trim()
    const sign = citations.length > 0 ? `[${i + 1}]` : '-'
    return `${sign} ${place.length > 0 ? `${place.join(', ')}: ` : ''}${words}`
  })
  return [text.trimEnd(), notes.join('\n'), lines.join('\n')].filter((part) => part !== '').join('\n\n') + '\n'
}
