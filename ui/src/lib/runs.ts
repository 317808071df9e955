/**
 * From tokens to runs: neighbouring characters whose tokens have the same kept share, in steps of 5 %. Only for the
 * blocks on the screen, by binary search; no colours, no DOM.
 *
 *     text    t h e   q u a y
 *     ends          3         8      token i is ends[i-1]..ends[i]
 *     counts        1        12      of 12 slots
 *     runs    [0,3) step 2, [3,8) step 20
 */

/** Number of steps of a share. */
export const STEPS = 20

export interface Run {
  start: number
  end: number
  /** 0 = not kept at all, 20 = in every slot. */
  step: number
}

/** The tokens of a text: `ends[i]` is the end of token `i`, ascending; equal to the previous one inside a character. */
export interface Tokens {
  ends: Uint32Array
  /** Slots that hold the token. */
  counts: Uint16Array
  /** Number of layer-head slots. */
  slots: number
}

/** Index of the first of `sorted` that is above `value`; their number if none is. */
export function firstAbove(sorted: ArrayLike<number>, value: number): number {
  let low = 0
  let high = sorted.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (sorted[middle]! > value) high = middle
    else low = middle + 1
  }
  return low
}

/** The first token that ends after `offset`; `ends.length` if none does. */
export const tokenAt: (ends: Uint32Array, offset: number) => number = firstAbove

/** The first token with text behind `offset`: also a piece of a character that a later token completes. */
export function firstTokenAt(ends: Uint32Array, offset: number): number {
  let token = tokenAt(ends, offset)
  // The pieces of one character: all but the last are empty and end with the token before the character.
  while (token > 0 && (token > 1 ? ends[token - 2]! : 0) === ends[token - 1]!) token--
  return token
}

/** The least count that is painted, for a least share of 0 to 1: what no slot holds never is. */
export function leastCount(slots: number, share: number): number {
  // Rounding errors must not hide a count that is exactly at the share.
  return Math.max(1, Math.ceil(share * slots - 1e-9))
}

/** Anything kept is at least step 1, and only full counts reach the last step. */
export function stepOf(count: number, slots: number): number {
  if (count <= 0 || slots <= 0) return 0
  if (count >= slots) return STEPS
  return Math.min(STEPS - 1, Math.max(1, Math.round((count / slots) * STEPS)))
}

/**
 * The runs that cover exactly `from..to`, none empty, neighbours of different steps. Tokens in fewer than `least` slots
 * count as forgotten.
 */
export function runsIn({ ends, counts, slots }: Tokens, from: number, to: number, least = 1): Run[] {
  const runs: Run[] = []
  const push = (start: number, end: number, step: number) => {
    if (end <= start) return
    const last = runs[runs.length - 1]
    if (last && last.step === step) last.end = end
    else runs.push({ start, end, step })
  }
  let token = firstTokenAt(ends, from)
  let at = from
  let most = 0
  for (; token < ends.length && at < to; token++) {
    const end = ends[token]!
    most = Math.max(most, counts[token] ?? 0)
    if (end <= at) {
      const start = token > 0 ? ends[token - 1]! : 0
      if (end > start) most = 0
      continue
    }
    push(at, Math.min(end, to), most < least ? 0 : stepOf(most, slots))
    at = Math.min(end, to)
    most = 0
  }
  push(at, to, 0)
  return runs
}

export interface Band {
  start: number
  end: number
}

/** Tokens of a band are in at least this share of the slots, and a band has at least that many tokens. */
const BAND_SHARE = 0.9
const BAND_TOKENS = 4

/**
 * What a method keeps for its place alone: the first tokens and the last ones, if they are almost fully remembered.
 * None if everything is.
 */
export function bandsOf({ ends, counts, slots }: Tokens): { first: Band | null; last: Band | null } {
  const least = leastCount(slots, BAND_SHARE)
  const many = counts.length
  let head = 0
  while (head < many && counts[head]! >= least) head++
  if (slots === 0 || head === many) return { first: null, last: null }
  let tail = many
  while (counts[tail - 1]! >= least) tail--
  return {
    first: head < BAND_TOKENS ? null : { start: 0, end: ends[head - 1]! },
    last: many - tail < BAND_TOKENS ? null : { start: ends[tail - 1]!, end: ends[many - 1]! },
  }
}

/** Mean share of slots that hold a token, over all tokens: 0 to 1. */
export function meanShare(tokens: Tokens): number {
  return meanOf(tokens, 0, tokens.counts.length)
}

/** Mean share of the slots over the tokens with text in `start..end`. */
export function meanShareIn(tokens: Tokens, start: number, end: number): number {
  return meanOf(tokens, tokenAt(tokens.ends, start), tokenAt(tokens.ends, end - 1) + 1)
}

function meanOf({ counts, slots }: Tokens, from: number, to: number): number {
  let sum = 0
  const last = Math.min(to, counts.length)
  for (let i = from; i < last; i++) sum += counts[i]!
  return last <= from || slots === 0 ? 0 : Math.min(1, sum / ((last - from) * slots))
}

export interface Region {
  start: number
  end: number
  /** The strongest token's share, 0 to 1. */
  share: number
}

/** Regions join tokens that are at most this far apart, and have at most that many tokens. */
const NEAR = 12
const LONGEST = 64

/**
 * The strongly kept regions, in order: the tokens in the most slots, at least half as many as the strongest and about
 * one in twenty-five of all, with neighbours joined.
 */
export function regionsOf({ ends, counts, slots }: Tokens): Region[] {
  let strongest = 0
  for (let i = 0; i < counts.length; i++) strongest = Math.max(strongest, counts[i]!)
  if (strongest === 0 || slots === 0) return []
  const least = threshold(counts, strongest)
  const regions: Region[] = []
  let first = -1
  let last = -1
  for (let i = 0; i < counts.length; i++) {
    const count = counts[i]!
    if (count < least) continue
    const share = Math.min(1, count / slots)
    const region = regions[regions.length - 1]
    if (region && i - last <= NEAR && i - first < LONGEST) {
      region.end = ends[i]!
      region.share = Math.max(region.share, share)
    } else {
      regions.push({ start: i > 0 ? ends[i - 1]! : 0, end: ends[i]!, share })
      first = i
    }
    last = i
  }
  return regions
}

/**
 * The smallest count, from half of `strongest` up, that at most one in twenty-five tokens reach (or 20 tokens, if
 * more); `strongest` if there is none.
 */
function threshold(counts: Uint16Array, strongest: number): number {
  const many = new Uint32Array(strongest + 1)
  for (let i = 0; i < counts.length; i++) many[counts[i]!]!++
  const most = Math.max(20, counts.length / 25)
  let reached = 0
  let least = strongest
  for (let count = strongest; count >= Math.max(1, strongest / 2); count--) {
    reached += many[count]!
    if (reached > most && count < strongest) break
    least = count
  }
  return least
}
