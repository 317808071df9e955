/** The engine's device: the choices, the status line, and why it is not a GPU. */
import { describe, expect, it } from 'vitest'
import type { Gpus } from '../src/lib/contract'
import { choices, computes } from '../src/lib/devices'
import { snapshot } from './given'

const NONE: Gpus = { gpus: [], whyNone: 'No NVIDIA driver was found.' }
const ONE: Gpus = {
  gpus: [{ device: 'cuda:0', name: 'NVIDIA RTX 4090', capability: '8.9', memory: 24 * 2 ** 30, free: 22 * 2 ** 30 }],
  whyNone: null,
}
const model = (computesOn: string, whyProcessor: string | null = null) => ({
  ...snapshot().model!,
  computesOn,
  whyProcessor,
})

describe('what the engine computes on', () => {
  it('is chosen from what there is, and one that is gone is not forgotten in silence', () => {
    const words = (gpus: Gpus, chosen: string | null) => choices(gpus, chosen).map((one) => one.words)
    expect(words(NONE, null)).toEqual(['Automatic', 'Processor'])
    expect(words(ONE, 'cuda:0')).toEqual(['Automatic', 'Processor', 'NVIDIA RTX 4090 (22.0 GiB of 24.0 GiB free)'])
    expect(words(NONE, 'cuda:0')).toEqual(['Automatic', 'Processor', 'cuda:0 (not found)'])
  })

  it('is said in a line, with the reason where it is no GPU', () => {
    expect(computes(model('the processor'), NONE, null)).toBe('Runs on the processor. No NVIDIA driver was found.')
    expect(computes(model('NVIDIA RTX 4090'), ONE, null)).toBe('Runs on NVIDIA RTX 4090.')
    expect(computes(model('the processor', 'The model needs 40 GiB of a GPU.'), ONE, null)).toBe(
      'Runs on the processor. The model needs 40 GiB of a GPU.',
    )
    // The CPU was chosen: no reason is needed.
    expect(computes(model('the processor'), NONE, 'cpu')).toBe('Runs on the processor.')
    expect(computes(null, NONE, null)).toBe('No NVIDIA driver was found.')
    expect(computes(null, { gpus: [], whyNone: null }, null)).toBe('')
  })
})
