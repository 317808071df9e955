/**
 * Citations: numbers behind the sentences of an answer, for the passages that they stand on. Offsets are UTF-16 units of
 * the turn's whole answer, with thoughts.
 */
import type { Citation, Source, Turn } from './contract'
import { pageName } from './blocks'
import { parted } from './thoughts'

/** Private-use characters stand for the numbers while Markdown is parsed: `MARK` + index of the source. */
const MARK = 0xe000
const MARKS = /[\uE000-\uE0FF]/

/** The answer without thoughts, and its citations as offsets in it. */
export function cited(turn: Turn): { answer: string; citations: Citation[] } {
  const { answer } = parted(turn.answer)
  const before = turn.answer.length - answer.length
  const all = turn.facts?.citations ?? []
  const moved = all.map(({ end, source }) => ({ end: end - before, source }))
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

/** `text` with `sign(source)` behind every cited sentence. */
function inserted(text: string, citations: readonly Citation[], sign: (source: number) => string): string {
  let found = ''
  let from = 0
  for (const { end, source } of citations) {
    found += text.slice(from, end) + sign(source)
    from = end
  }
  return found + text.slice(from)
}

/** `text` with a mark behind every cited sentence, for `withButtons`. */
export function marked(text: string, citations: readonly Citation[]): string {
  const plain = text.replace(new RegExp(MARKS, 'g'), '\uFFFD')
  return inserted(plain, citations, (source) => String.fromCharCode(MARK + source))
}

/** Replaces the marks in rendered Markdown by buttons. */
export function withButtons(root: DocumentFragment, sources: readonly Source[], show: (source: number) => void): void {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT)
  const texts: Text[] = []
  while (walker.nextNode()) texts.push(walker.currentNode as Text)
  for (let text of texts) {
    for (let at = text.data.search(MARKS); at >= 0; at = text.data.search(MARKS)) {
      const rest = text.splitText(at)
      const source = rest.data.charCodeAt(0) - MARK
      rest.deleteData(0, 1)
      const passage = sources[source]
      if (passage) {
        const button = document.createElement('button')
        button.className = 'cite num'
        button.dataset['testid'] = 'citation'
        button.textContent = String(source + 1)
        button.title = passage.text
        button.setAttribute('aria-label', `Passage ${source + 1}`)
        button.onclick = () => show(source)
        rest.before(button)
      }
      text = rest
    }
  }
}

/** An answer with bracketed numbers and its numbered passages, for the clipboard. */
export function withSources(turn: Turn, document: { pageNoun: string } | null = null): string {
  const { answer, citations } = cited(turn)
  const text = inserted(answer, citations, (source) => ` [${source + 1}]`)
  const lines = turn.sources.map((source, i) => {
    const place = [source.document, source.page === null ? null : pageName(document, source.page)].filter(
      (p) => p !== null,
    )
    return `[${i + 1}] ${place.length > 0 ? `${place.join(', ')}: ` : ''}${source.text.replace(/\s+/g, ' ').trim()}`
  })
  return `${text.trimEnd()}\n\n${lines.join('\n')}\n`
}
