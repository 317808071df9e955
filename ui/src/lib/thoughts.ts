/**
 * Separates a model's thoughts from its answer: the text between `<think>` and `</think>` at the beginning. Where a
 * template begins the thought itself, the program adds the first tag, so that both tags always occur.
 */
export interface Parted {
  /** null if the model did not think, or the thought is empty. */
  thoughts: string | null
  answer: string
  /** The thought is not finished. */
  open: boolean
}

const OPENS = '<think>'
const CLOSES = '</think>'

export function parted(text: string): Parted {
  const start = text.trimStart()
  if (!start.startsWith(OPENS)) {
    // A partial tag is not an answer yet.
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

/** The closing tag arrives in pieces: its beginning is not part of the thought. */
function withoutHalfTag(text: string): string {
  for (let length = Math.min(CLOSES.length - 1, text.length); length > 0; length--)
    if (CLOSES.startsWith(text.slice(-length))) return text.slice(0, -length)
  return text
}
