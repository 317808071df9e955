/**
 * What a model thinks before it answers, apart from the answer: the text between `<think>` and `</think>` at its beginning. Where a
 * template begins the thought itself, the program writes the first tag, so that both are always there.
 */
export interface Parted {
  /** null where it did not think, or thought nothing. */
  thoughts: string | null
  answer: string
  /** It still thinks. */
  open: boolean
}

const OPENS = '<think>'
const CLOSES = '</think>'

export function parted(text: string): Parted {
  const start = text.trimStart()
  if (!start.startsWith(OPENS)) {
    // A tag that is only half there is no answer yet.
    const begins = start !== '' && OPENS.startsWith(start)
    return { thoughts: null, answer: begins ? '' : text, open: begins }
  }
  const rest = start.slice(OPENS.length)
  const end = rest.indexOf(CLOSES)
  const thoughts = (end < 0 ? rest : rest.slice(0, end)).trim()
  return {
    thoughts: thoughts === '' ? null : end < 0 ? withoutHalfTag(thoughts) : thoughts,
    answer: end < 0 ? '' : rest.slice(end + CLOSES.length).trimStart(),
    open: end < 0,
  }
}

/** The closing tag comes in pieces: its beginning is not a thought. */
function withoutHalfTag(text: string): string {
  for (let length = Math.min(CLOSES.length - 1, text.length); length > 0; length--)
    if (CLOSES.startsWith(text.slice(-length))) return text.slice(0, -length)
  return text
}
