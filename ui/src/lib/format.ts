/** Numbers for display. Sizes are binary and labelled so (KiB, MiB, GiB), as in budgets; three significant figures. */

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB']

/** `0 B`, `812 KiB`, `4.9 GiB`. */
export function bytes(count: number): string {
  if (!Number.isFinite(count) || count <= 0) return '0 B'
  let unit = 0
  let value = count
  // 1023.5 would be shown as 1024.
  while (value >= 1023.5 && unit < UNITS.length - 1) {
    value /= 1024
    unit++
  }
  const digits = unit === 0 || value >= 99.95 ? 0 : 1
  return `${value.toFixed(digits)} ${UNITS[unit]}`
}

/** `128,440`. */
export function count(value: number): string {
  return Math.round(value).toLocaleString('en')
}

/** `1 page`, `312 pages`. */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`
}

/** `25 %`; below ten with one decimal. Only zero is shown as 0, and only everything as 100. */
export function percent(share: number): string {
  if (!Number.isFinite(share) || share <= 0) return '0 %'
  if (share >= 1) return '100 %'
  const value = share * 100
  if (value < 0.1) return '< 0.1 %'
  if (value < 9.95) return `${value.toFixed(1).replace(/\.0$/, '')} %`
  return `${Math.min(99, Math.round(value))} %`
}

/** `0.4 s`, `12 s`, `3 min 05 s`, `2 h 10 min`. */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds) || seconds < 0) return '0 s'
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`
  const whole = Math.round(seconds)
  if (whole < 60) return `${whole} s`
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, '0')} s`
  const minutes = Math.round(whole / 60)
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, '0')} min`
}

/** An expected time, in coarse steps that do not flicker: `3 s`, `40 s`, `2 min`, `2.5 h`. */
export function coarse(seconds: number): string {
  if (!Number.isFinite(seconds) || seconds < 0) return ''
  if (seconds < 10) return `${Math.max(1, Math.ceil(seconds))} s`
  if (seconds < 90) return `${Math.ceil(seconds / 5) * 5} s`
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`
  return `${(seconds / 3600).toFixed(1)} h`
}

/** `40 s left`. */
export function left(seconds: number): string {
  const time = coarse(seconds)
  return time === '' ? '' : `${time} left`
}

/** Tokens per second: `812`, `6.4`. */
export function rate(perSecond: number): string {
  if (!Number.isFinite(perSecond) || perSecond <= 0) return '0'
  return perSecond >= 9.95 ? count(perSecond) : perSecond.toFixed(1)
}

/** One line, cut at a word, with an ellipsis. */
export function shorten(text: string, most: number): string {
  const line = text.replace(/\s+/g, ' ').trim()
  if (line.length <= most) return line
  const space = line.lastIndexOf(' ', most)
  let end = space > most * 0.6 ? space : most
  const code = line.charCodeAt(end - 1)
  if (code >= 0xd800 && code <= 0xdbff) end--
  return `${line.slice(0, end).trimEnd()} …`
}

const WORDS = /[\p{L}\p{N}]{4,}|\p{N}+/gu
const wordsOf = (text: string): string[] => text.match(WORDS) ?? []
/** Names and numbers answer more often than other words. */
const weight = (word: string) => (/^\p{Lu}|\p{N}/u.test(word) ? 3 : 1)

/** The beginning stays unless another part shares so many times as many words. */
const FAR_MORE = 2

/** As `shorten`, but the part of `text` that shares the most words with `other`, above all names and numbers. */
export function excerpt(text: string, other: string, most: number): string {
  const line = text.replace(/\s+/g, ' ').trim()
  if (line.length <= most) return line
  const shared = new Set(wordsOf(other).map((word) => word.toLowerCase()))
  const from = (start: number) => (start === 0 ? shorten(line, most) : `… ${shorten(line.slice(start), most - 2)}`)
  const starts = [0, ...Array.from(line.matchAll(/ /g), ({ index }) => index + 1)]
  const found = starts.map((start) => {
    const words = [...new Set(wordsOf(from(start)))].filter((word) => shared.has(word.toLowerCase()))
    return words.reduce((sum, word) => sum + weight(word), 0)
  })
  const largest = Math.max(...found)
  const best = starts.filter((_, i) => found[i] === largest)
  const start = best[Math.floor(best.length / 2)]!
  const numbers = (start: number) => wordsOf(from(start)).filter((word) => /\p{N}/u.test(word) && shared.has(word))
  // The beginning says whom a sentence is about, unless a number of the other text stands elsewhere only.
  const same = numbers(0).length >= numbers(start).length
  return from(same && found[0]! * FAR_MORE >= largest ? 0 : start)
}

/** With a capital first letter. */
export function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1)
}
