/** The engine's device, in words. */
import type { Gpus, ModelFacts } from './contract'
import { bytes } from './format'

/** The choices, by the setting's value; a chosen GPU that no longer exists remains in the list. */
export function choices({ gpus }: Gpus, chosen: string | null): { value: string; words: string }[] {
  const all = [
    { value: '', words: 'Automatic' },
    { value: 'cpu', words: 'Processor' },
    ...gpus.map((gpu) => ({
      value: gpu.device,
      words: `${gpu.name} (${bytes(gpu.free)} of ${bytes(gpu.memory)} free)`,
    })),
  ]
  if (chosen !== null && !all.some((one) => one.value === chosen))
    all.push({ value: chosen, words: `${chosen} (not found)` })
  return all
}

/** One line: the device in use, and why it is not a GPU. */
export function computes(model: ModelFacts | null, { gpus, whyNone }: Gpus, chosen: string | null): string {
  const now = model && model.computesOn !== '' ? `Runs on ${model.computesOn}.` : ''
  const why = chosen === 'cpu' ? null : (model?.whyProcessor ?? (gpus.length === 0 ? whyNone : null))
  return [now, why === null ? '' : why].filter((part) => part !== '').join(' ')
}
