/** What the engine computes on, in words. */
import type { Cards, ModelFacts } from './contract'
import { bytes } from './format'

/** What can be chosen, by the setting's value; a card that was chosen and is not there any more stays in the list. */
export function choices({ cards }: Cards, chosen: string | null): { value: string; words: string }[] {
  const all = [
    { value: '', words: 'Automatic' },
    { value: 'cpu', words: 'Processor' },
    ...cards.map((card) => ({
      value: card.device,
      words: `${card.name} (${bytes(card.free)} of ${bytes(card.memory)} free)`,
    })),
  ]
  if (chosen !== null && !all.some((one) => one.value === chosen))
    all.push({ value: chosen, words: `${chosen} (not found)` })
  return all
}

/** One line: what computes now, and why it is no graphics card. */
export function computes(model: ModelFacts | null, { cards, whyNone }: Cards, chosen: string | null): string {
  const now = model && model.computesOn !== '' ? `Runs on ${model.computesOn}.` : ''
  const why = chosen === 'cpu' ? null : (model?.whyProcessor ?? (cards.length === 0 ? whyNone : null))
  return [now, why === null ? '' : why].filter((part) => part !== '').join(' ')
}
