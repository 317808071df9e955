/** Which layers and heads hold a word: by layer numbers, in words, and as paths of a small matrix. */
import type { TokenSlots } from './contract'
import { spans, type Layer } from './layers'

/** Numbers of the layers of which all, some and no heads hold a word. */
export interface HoldingLayers {
  all: number[]
  some: number[]
  none: number[]
}

export interface Holders extends HoldingLayers {
  /** Columns of the matrix: the layers that can forget. */
  columns: number
  /** A square for every layer and head, and for those that hold it; one unit each, with gaps. */
  cells: string
  held: string
  /** `Layer 2: heads 1 and 4; layer 3: all heads`. */
  words: string
}

const GAP = 0.12

/** The layers of the map by how many of their heads hold a word. */
export function layersHolding(
  { perLayer, kvHeads }: Pick<TokenSlots, 'perLayer' | 'kvHeads'>,
  layers: readonly Layer[],
): HoldingLayers {
  const found: HoldingLayers = { all: [], some: [], none: [] }
  for (const { number, layer } of layers) {
    if (layer === null) continue
    const many = perLayer[layer] ?? 0
    ;(many >= kvHeads ? found.all : many > 0 ? found.some : found.none).push(number)
  }
  return found
}

/** `All heads of layer 2. Some heads of layers 1, 4.` */
export function headsHolding({ all, some }: HoldingLayers): string {
  const says = (heads: string, numbers: number[]) =>
    numbers.length > 0 ? [`${heads} heads of ${spans(numbers).toLowerCase()}.`] : []
  return [...says('All', all), ...says('Some', some)].join(' ')
}

export function holdersOf(slots: TokenSlots, layers: readonly Layer[]): Holders {
  const { heads, kvHeads } = slots
  const found: Holders = { ...layersHolding(slots, layers), columns: 0, cells: '', held: '', words: '' }
  const words: string[] = []
  const cell = (x: number, y: number) => `M${x + GAP} ${y + GAP}h${1 - 2 * GAP}v${1 - 2 * GAP}h${2 * GAP - 1}z`
  for (const { number, layer } of layers) {
    if (layer === null) continue
    const own = heads[layer] ?? []
    const x = found.columns++
    for (let head = 0; head < kvHeads; head++) found.cells += cell(x, head)
    for (const head of own) found.held += cell(x, head)
    if (own.length === kvHeads) words.push(`layer ${number}: all heads`)
    else if (own.length > 0)
      words.push(`layer ${number}: ${own.length === 1 ? 'head' : 'heads'} ${own.map((head) => head + 1).join(', ')}`)
  }
  found.words = words.length > 0 ? `Held by ${words.join('; ')}` : 'Held by no head'
  return found
}
