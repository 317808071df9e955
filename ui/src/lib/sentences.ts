/** The sentences of a document, and how much of each is remembered. */
import { isSpace, pageOf } from './blocks'
import type { DocumentFacts } from './contract'
import { mostIn, shareIn } from './minimap'
import { shown, widthAt } from './reflow'
import type { Tokens } from './runs'
import type { Text } from './text.svelte'

export interface Sentence {
  start: number
  end: number
}

export interface Remembered extends Sentence {
  /** Mean share of the slots that hold its tokens, 0 to 1. */
  share: number
  /** The same of what is drawn; because of the question, where that is shown: of its best tokens in a row. */
  drawn: number
}

/** Shorter pieces are numbers of lists; without a sign at their end they are headings up to the second length. */
const SHORTEST = 12
const HEADING = 60
const ENDED = /[.!?:;…。！？：；]["'”’»」』)\]]*$/u
/** Words whose full stop ends no sentence, as in `documents/src/passage.rs`: abbreviations, and initials. */
const ABBREVIATION =
  /(?:^|[\s(["“–—-])(?:al|approx|art|bzw|ca|capt|cf|chap|col|dept|dr|eds?|eq|esp|est|etc|e\.g|figs?|gen|gov|hon|i\.e|inc|jr|lt|ltd|messrs|mlle|mme|mrs?|ms|mt|nos?|nr|op|pp?|par|ph\.d|prof|rev|sec|sen|sgt|sr|st|vgl|vols?|vs|z\.b)\.\s*$/iu
const INITIAL = /(?:^|[\s(["“–—-])(?!I\.)\p{Lu}\.\s*$/u
/** The number of a German ordinal, as in `documents/src/passage.rs`: "im 3. Obergeschoss", "1. Oktober". */
const ORDINAL = /(?:^|\s)(?:beim|dem|des|im|vom|zum|zur)\s+\d{1,2}\.\s*$/i
const DATED = /(?:^|\s)\d{1,2}\.\s*$/
const MONTH =
  /^(?:Januar|Jänner|Februar|März|Mai|Juni|Juli|Oktober|Dezember|(?:April|August|September|November)(?=\s\d))/
const LONGEST_MONTH = 12
/** Milliseconds of work at once: the window must not stand still. */
const AT_ONCE = 12

const known = new WeakMap<Text, Promise<Sentence[]>>()

/** The sentences of a document, ascending; found once. */
export function sentencesOf(text: Text): Promise<Sentence[]> {
  let found = known.get(text)
  if (!found) known.set(text, (found = search(text)))
  return found
}

/** Whether the full stop at the end of `segment`, before `next`, stands inside a sentence. */
function isWithin(segment: string, next: string): boolean {
  if (ABBREVIATION.test(segment) || INITIAL.test(segment) || ORDINAL.test(segment)) return true
  return DATED.test(segment) && MONTH.test(next)
}

async function search({ text, blocks, wraps }: Text): Promise<Sentence[]> {
  const segmenter = new Intl.Segmenter(undefined, { granularity: 'sentence' })
  const found: Sentence[] = []
  let since = performance.now()
  for (const block of blocks) {
    // As shown: a soft line break does not end a sentence.
    const words = shown(text, block.start, block.end, widthAt(wraps, block.start))
    let begun = 0
    for (const { segment, index } of segmenter.segment(words)) {
      const until = index + segment.length
      if (until < words.length && isWithin(segment, words.slice(until, until + LONGEST_MONTH))) continue
      let start = block.start + begun
      let end = block.start + until
      begun = until
      while (start < end && isSpace(text.charCodeAt(start))) start++
      while (end > start && isSpace(text.charCodeAt(end - 1))) end--
      const ended = end - start > HEADING || ENDED.test(text.slice(start, end))
      if (end - start >= SHORTEST && ended) found.push({ start, end })
    }
    if (performance.now() - since < AT_ONCE) continue
    await new Promise((resolve) => setTimeout(resolve))
    since = performance.now()
  }
  return found
}

/** The sentences that the map covers, with their shares of all memory and of what is drawn. */
export function sharesOf(sentences: readonly Sentence[], all: Tokens, drawn: Tokens): Remembered[] {
  const last = all.ends.at(-1) ?? 0
  return sentences
    .filter(({ end }) => end <= last)
    .map(({ start, end }) => {
      const share = shareIn(all, start, end).mean
      return { start, end, share, drawn: all === drawn ? share : mostIn(drawn, start, end) }
    })
}

/** The best remembered first: what is drawn counts. */
export function best(sentences: readonly Remembered[]): Remembered[] {
  return sentences.filter(({ drawn }) => drawn > 0).sort((a, b) => b.drawn - a.drawn || a.start - b.start)
}

/** Those below the threshold, the least remembered first. */
export function forgotten(sentences: readonly Remembered[], threshold: number): Remembered[] {
  const gone = sentences.filter(({ share }) => share <= 0 || share < threshold)
  return gone.sort((a, b) => a.share - b.share || a.start - b.start)
}

/** A cell of a CSV file. A spreadsheet must not take words of a document for a formula. */
function cell(value: string | number | null): string {
  if (typeof value !== 'string') return value === null ? '' : String(value)
  const line = value.replace(/\s+/g, ' ')
  return `"${(/^[=+\-@]/.test(line) ? `'${line}` : line).replaceAll('"', '""')}"`
}

/** All sentences as comma-separated values. `lift`: what is drawn is because of the question. */
export function csvOf(
  text: string,
  document: DocumentFacts | null,
  sentences: readonly Remembered[],
  lift: boolean,
): string {
  const head = ['sentence', 'page', 'start', 'end', 'remembered', ...(lift ? ['because_of_question'] : [])]
  const rows = sentences.map(({ start, end, share, drawn }) =>
    [
      cell(text.slice(start, end)),
      cell(pageOf(document, start)),
      start,
      end,
      share.toFixed(4),
      ...(lift ? [drawn.toFixed(4)] : []),
    ].join(','),
  )
  return [head.join(','), ...rows, ''].join('\r\n')
}
