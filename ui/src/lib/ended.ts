/** How a turn ended, in words: the same below an answer and where another conversation is read. */
import type { Finish, Turn } from './contract'
import { parted } from './thoughts'

const ENDINGS: Partial<Record<Finish, string>> = {
  length: 'The answer reached the maximum length set in Settings.',
  context: 'The answer ended because the model’s context is full.',
  repetition:
    'The answer began to repeat itself and was stopped: ask in other words, or set a repetition penalty in Settings.',
}

/** Why there is no whole answer; null if there is, or if it is still to come. */
export function brokenOff({ state, error }: Turn): string | null {
  if (state === 'stopped') return 'Stopped.'
  return state === 'failed' ? (error ?? 'This question failed.') : null
}

/** What is said below an answer: why it is cut off, and its own notes, but for those of the answer `above` it. */
export function notesOf({ answer, facts, state }: Turn, above: readonly string[] = []): string[] {
  if (!facts) return []
  const said = parted(answer)
  const ending = state === 'done' ? ENDINGS[facts.finish] : undefined
  return [
    ...(said.open ? ['The model did not finish thinking: allow a longer answer in Settings.'] : ending ? [ending] : []),
    // An empty answer needs its reason, even the same as above.
    ...facts.notes.filter((note) => said.answer === '' || !above.includes(note)),
  ]
}
