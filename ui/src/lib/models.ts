/** The models page in words and figures: texts of a model, a download, a budget. No calls and no DOM. */
import type { Download, DownloadState, Fit, FitLine, FoundModel, Inspection, Library } from './contract'
import { bytes, count, left, percent, plural } from './format'

/** A model's label as it is shown: without the ending of its file, which may stand before a remark in brackets. */
export const modelName = (label: string): string => label.replace(/\.gguf(?=$| \()/i, '')

/** The name of a model's file, without owner and repository of a model in the hub's cache. */
export function shortName({ name }: Pick<FoundModel, 'name'>): string {
  return modelName(name.replace(/^[^:]*\/[^:]*:(?:.*\/)?/, ''))
}

/**
 * Models on this computer that can be opened: those that answer before those that only continue a text, then the largest
 * that fits the free memory.
 */
function usable(library: Library | null): FoundModel[] {
  const free = library?.freeMemory ?? Infinity
  const fits = (model: FoundModel) => model.bytes < free
  const found = library?.found.filter((model) => !model.inBox && model.reason === null) ?? []
  return found.toSorted(
    (a, b) =>
      Number(b.chats) - Number(a.chats) ||
      Number(fits(b)) - Number(fits(a)) ||
      (fits(a) ? b.bytes - a.bytes : a.bytes - b.bytes),
  )
}

/** The usable models that were not chosen yet. */
export function notChosen(library: Library | null): FoundModel[] {
  return usable(library).filter((model) => model.choice === null)
}

/**
 * The best usable model that answers and reads this many tokens at once, also one that was chosen before; tokenizers
 * differ by a few percent.
 */
export function recommended(library: Library | null, tokens = 0): FoundModel | null {
  return usable(library).find((model) => model.chats && (model.context ?? 0) >= 1.1 * tokens) ?? null
}

/** `8 B`, `360 M`: number of a model's parameters, in the usual short form. */
export function parameters(number: number): string {
  if (number >= 1e9) return `${(number / 1e9).toFixed(number >= 9.95e9 ? 0 : 1).replace(/\.0$/, '')} billion parameters`
  return `${count(number / 1e6)} million parameters`
}

/** How fast this computer reads with a model: about as many pages as a minute. */
export function readingSpeed(pagesPerMinute: number): string {
  const pages = pagesPerMinute < 20 ? Math.round(pagesPerMinute) : Math.round(pagesPerMinute / 5) * 5
  return pages < 2 ? 'reads about a page a minute here' : `reads about ${count(pages)} pages a minute here`
}

/** Kind of a model: architecture, quantisation, context length. */
export function kind(model: FoundModel): string {
  const words = [model.architecture, model.quantisation].filter((word) => word !== null)
  if (model.parameters !== null) words.push(parameters(model.parameters))
  if (model.context !== null) words.push(`reads ${count(model.context)} tokens`)
  if (model.parts > 1) words.push(plural(model.parts, 'file'))
  if (!model.chats) words.push('no chat template: continues a text rather than answering')
  return words.join(' · ')
}

export const SUITS: Record<Fit, string> = {
  fits: 'Fits',
  tight: 'Tight',
  tooLarge: 'Too large',
  unknown: '',
}

/** Explanation of a verdict, with the free memory. */
export function suitsMeaning(suits: Fit, free: number | null): string {
  const now = free === null ? '' : `: ${bytes(free)} are free`
  return {
    fits: `There is enough memory${now}`,
    tight: `The model fits, but little memory is left for the document${now}`,
    tooLarge: `The model alone needs more memory than there is${now}`,
    unknown: 'The system does not say how much memory is free',
  }[suits]
}

const MOVING: readonly DownloadState[] = ['asking', 'checking', 'downloading', 'waiting', 'queued']

/** Whether a download can be paused. */
export function moves(download: Download): boolean {
  return MOVING.includes(download.state)
}

/** Downloaded share, 0 to 1; null if unknown. */
export function share(download: Download): number | null {
  return download.bytesTotal > 0 ? Math.min(1, download.bytesDone / download.bytesTotal) : null
}

/** The figures of a download: size, rate, time left. */
export function figures(download: Download): string {
  const { bytesDone, bytesTotal, bytesPerSecond, secondsLeft } = download
  if (bytesTotal === 0) return ''
  const words = [`${bytes(bytesDone)} of ${bytes(bytesTotal)}`]
  if (download.state === 'downloading' || download.state === 'checking') {
    if (bytesPerSecond !== null) words.push(`${bytes(bytesPerSecond)}/s`)
    if (secondsLeft !== null) words.push(left(secondsLeft))
  }
  if (download.parts > 1 && download.part > 0) words.push(`file ${download.part} of ${download.parts}`)
  return words.join(' · ')
}

/** State of a download, in a few words. */
export function doing(download: Download): string {
  const done = share(download)
  const far = done === null ? '' : `, ${percent(done)}`
  return {
    queued: 'Waiting for its turn',
    asking: 'Contacting Hugging Face',
    checking: `Checking the downloaded part${far}`,
    downloading: `Downloading${far}`,
    waiting: 'Waiting',
    stopping: 'Stopping',
    paused: 'Paused',
    finished: 'Downloaded and checked',
    failed: 'Not finished',
  }[download.state]
}

/** `HuggingFaceTB/SmolLM2:model.gguf` as name of the model and repository. */
export function referenceParts(reference: string): { file: string; repository: string } {
  const colon = reference.indexOf(':')
  return { file: modelName(reference.slice(colon + 1)), repository: reference.slice(0, Math.max(0, colon)) }
}

/** Context stretches that the page offers; the engine accepts others too. */
export const STRETCHES = ['yarn:2', 'yarn:4', 'yarn:8', 'linear:2', 'linear:4'] as const

/** `YaRN, 4 times as long`. */
export function stretchWords(stretch: string): string {
  const [how, factor] = stretch.split(':')
  return `${how === 'yarn' ? 'YaRN' : 'Linear'}, ${factor} times as long`
}

/** Another line is shown if it needs at most this share of the memory of the line before it. */
const LESS = 0.9

/** The lines that differ: each reads more than the one shown before it, or needs clearly less memory. */
export function distinct(lines: readonly FitLine[]): FitLine[] {
  const shown: FitLine[] = []
  for (const line of lines) {
    const last = shown.at(-1)
    if (!last || line.tokens > last.tokens || line.peak_bytes <= last.peak_bytes * LESS) shown.push(line)
  }
  return shown
}

/** The result of one budget, in the words of a table. */
export function lineWords(line: FitLine): { keeps: string; reads: string; pages: string; ends: string } {
  return {
    keeps: line.rows === null ? 'Everything' : `${count(line.rows)} tokens`,
    reads: line.tokens === 0 ? 'Nothing' : plural(line.tokens, 'token'),
    pages: line.tokens === 0 ? '' : line.pages === 0 ? 'less than a page' : plural(line.pages, 'page'),
    ends: line.whole_context ? 'its whole context' : 'then memory is full',
  }
}

/** Whether a model fits the free memory, in a sentence. */
export function verdict(inspection: Inspection): string {
  const { freeBytes, missingBytes, lines } = inspection
  if (freeBytes === null) return 'The system does not say how much memory is free.'
  if (missingBytes > 0)
    return `${bytes(missingBytes)} more memory is needed: close other programs, or choose a smaller quantisation.`
  const full = lines.find((line) => line.rows === null)
  if (full?.whole_context) return `It fits, with its whole context of ${count(inspection.context)} tokens.`
  const most = Math.max(0, ...lines.map((line) => line.tokens))
  return `It fits. Remembering everything it reads ${plural(full?.pages ?? 0, 'page')}; remembering less, up to ${count(most)} tokens.`
}
