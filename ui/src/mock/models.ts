/** Mock models and downloads; see `index.ts`. */
import type { AppEvent, CatalogueModel, Download, FoundModel, HubOffer, Inspection, Library } from '../lib/contract'

const GIB = 2 ** 30

function found(some: Partial<FoundModel>): FoundModel {
  return {
    id: 'f0', name: 'model.gguf', title: null, architecture: 'llama', quantisation: 'Q4_K_M', bytes: 4.58 * GIB, parts: 1,
    parameters: 8.03e9, context: 131072, place: 'hub cache', lies: '~/.cache/huggingface/hub', reason: null, chats: true, choice: null,
    inBox: false, removable: true, ...some,
  } // prettier-ignore
}

function entry(some: Partial<CatalogueModel>): CatalogueModel {
  return {
    name: 'SmolLM2 1.7B', reference: 'HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:smollm2-1.7b-instruct-q4_k_m.gguf', aboutBytes: 1.06e9,
    needsBytes: 2 * GIB, parameters: 1.7e9, context: 8192, licence: 'Apache-2.0', goodFor: 'Short documents on any machine.',
    suits: 'fits', pagesPerMinute: 19.4, here: null, ...some,
  } // prettier-ignore
}

const library: Library = {
  found: [
    found({ id: 'mini', name: 'mini', choice: 'mini', inBox: true, removable: false }),
    found({ id: 'f1', name: 'bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf', choice: 'm1' }),
    found({ id: 'f2', name: 'qwen3:4b', architecture: 'qwen3', bytes: 2.6e9, parameters: 4e9, place: 'Ollama', removable: false }),
    found({ id: 'f3', name: 'mixtral-8x7b.gguf', reason: 'The architecture ‘mixtral’ is not supported; Kept opens llama, qwen2, qwen3, phi3, gemma2, gemma3 and smollm3.', place: 'LM Studio', removable: false }),
  ], // prettier-ignore
  unfinished: [{ id: 'f9', name: 'Qwen/Qwen3-4B-GGUF', bytes: 1.2e9, place: 'hub cache', ours: true }],
  troubles: [],
  folders: [{ id: 'f8', path: '~/models' }],
  catalogue: [
    entry({}),
    entry({ name: 'Qwen3 4B', reference: 'Qwen/Qwen3-4B-GGUF:q', suits: 'tight' }),
    entry({ name: 'Gemma 3 27B', reference: 'g/g:g', suits: 'tooLarge', aboutBytes: 16.5e9, licence: 'Gemma' }),
  ],
  freeMemory: 21.4e9,
  freeDisk: 12e9,
  offline: false,
}

const inspection: Inspection = {
  layers: 32, slidingLayers: 0, recurrentLayers: 0, window: null, context: 131072, weightsBytes: 4.58 * GIB, kvBytesPerThousand: 131e6, windowBytes: 0,
  canThink: true, freeBytes: 21.4e9, missingBytes: 0,
  lines: [
    { rows: null, tokens: 98304, pages: 245, peak_bytes: 21.2e9, whole_context: false },
    { rows: 2048, tokens: 131071, pages: 327, peak_bytes: 7.9e9, whole_context: true },
    { rows: 512, tokens: 131071, pages: 327, peak_bytes: 7.6e9, whole_context: true },
  ],
} // prettier-ignore

interface Arguments {
  id: string | number
  reference: string
}

export function mockModels(emit: (event: AppEvent) => void): (name: string, args: Arguments) => unknown {
  let downloads: Download[] = []
  const tell = () => emit({ event: 'downloads', downloads: structuredClone(downloads) })
  const change = (id: string | number, some: Partial<Download>) => {
    downloads = downloads.map((d) => (d.id === id ? { ...d, ...some } : d))
    tell()
  }
  setInterval(() => {
    const running = downloads.find((d) => d.state === 'downloading')
    if (!running) return
    const bytesDone = running.bytesDone + 1.2e7
    if (bytesDone < running.bytesTotal)
      return change(running.id, { bytesDone, bytesPerSecond: 1.2e8, secondsLeft: (running.bytesTotal - bytesDone) / 1.2e8 })
    change(running.id, { bytesDone: running.bytesTotal, state: 'finished', model: 'f2' })
  }, 100) // prettier-ignore
  return (name, args) => {
    switch (name) {
      case 'look_for_models':
        emit({ event: 'library', library })
        tell()
        return null
      case 'inspect_model':
        return new Promise((resolve) => setTimeout(() => resolve(inspection), 300))
      case 'hub_offers':
        return ['Q4_K_M', 'Q8_0'].map((quantisation, i): HubOffer => ({
          reference: `a/b:m-${quantisation}.gguf`, file: `m-${quantisation}.gguf`, bytes: (i + 1) * 2.2e9, parts: 1, quantisation,
          suits: 'fits', meant: false, here: null,
        })) // prettier-ignore
      case 'start_download':
        downloads.push({
          id: downloads.length + 1, reference: args.reference, state: 'downloading', bytesDone: 0, bytesTotal: 1.06e9,
          bytesPerSecond: null, secondsLeft: null, part: 1, parts: 1, message: null, model: null,
        }) // prettier-ignore
        tell()
        return downloads.length
      case 'pause_download':
        change(args.id, { state: 'paused' })
        return null
      case 'resume_download':
        change(args.id, { state: 'downloading' })
        return null
      case 'cancel_download':
        downloads = downloads.filter((d) => d.id !== args.id)
        tell()
        return null
      default:
        return null
    }
  }
}
