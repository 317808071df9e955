/** Default values for the tests, with overrides. */
import type { ConversationEntry, DocumentFacts, Facts, Memory, Snapshot, Turn } from '../src/lib/contract'
import type { Painted } from '../src/lib/map.svelte'

export function turn(some: Partial<Turn> = {}): Turn {
  return {
    id: 1,
    question: 'Who pays?',
    answer: '',
    state: 'done',
    error: null,
    method: 'snapkv',
    parameters: {},
    budget: null,
    cache: null,
    memory: null,
    instructions: '',
    model: 'mini',
    sources: [],
    facts: null,
    hasMap: false,
    thinking: false,
    windows: [],
    versionOf: null,
    hasLift: false,
    hasReplay: false,
    levels: 0,
    levelsDone: false,
    ...some,
  }
}

/** A map of one layer with these counts; all that is remembered is drawn. */
export function painted(ends: number[], counts: number[], some: Partial<Painted> = {}): Painted {
  const all = { slots: 1, ends: new Uint32Array(ends), counts: new Uint16Array(counts) }
  return { turn: 1, layer: null, layers: 1, kvHeads: 1, mean: 0.5, ...all, all, ...some }
}

export function answerFacts(some: Partial<Facts> = {}): Facts {
  return {
    finish: 'end',
    promptTokens: 100,
    answerTokens: 9,
    rows: 25,
    keptBytes: 1,
    fullBytes: 4,
    firstTokenSeconds: 1,
    prefillSeconds: 1,
    decodeSeconds: 1,
    tokensPerSecond: 60,
    notes: [],
    chosen: null,
    tokensFromVault: 0,
    turnsSeen: 0,
    turnsKept: null,
    citations: [],
    streamed: false,
    cache: 'f16',
    doubt: null,
    ...some,
  }
}

export function documentFacts(some: Partial<DocumentFacts> = {}): DocumentFacts {
  return {
    id: 1,
    name: 'sample.txt',
    kind: 'text',
    sourceBytes: 10,
    length: 10,
    pageNoun: 'page',
    pages: [],
    documents: [],
    outline: [],
    notes: [],
    tokens: 100,
    tokensEstimated: false,
    tooLong: null,
    streaming: null,
    sample: true,
    beyondBox: false,
    suggestions: ['Who pays?'],
    ...some,
  }
}

export function entry(some: Partial<ConversationEntry> = {}): ConversationEntry {
  return {
    id: 1,
    title: 'Who pays?',
    document: 'sample.txt',
    documentId: 1,
    pages: 0,
    pageNoun: 'page',
    questions: 1,
    updated: 0,
    pinned: false,
    ...some,
  }
}

export function memory(some: Partial<Memory> = {}): Memory {
  return {
    weights: 400,
    kept: 10,
    keptFull: 100,
    tables: 0,
    scratch: 50,
    resident: null,
    available: 10_000,
    total: 20_000,
    ...some,
  }
}

export function snapshot(some: Partial<Snapshot> = {}): Snapshot {
  return {
    settings: { theme: 'light', model: 'mini', method: 'snapkv', parameters: {}, budget: null, maxTokens: 256, instructions: '', temperature: 0, repeatPenalty: null, zoom: 100, keep: 'q8_0', keepBudget: null, cache: null, memory: null, device: null, sidebar: null },
    models: [{ id: 'mini', label: 'mini', inBox: true, stretch: null }],
    model: {
      name: 'Kept mini', file: 'mini.gguf', quantisation: 'Q8_0', layers: 6, kvHeads: 2,
      context: 4096, parameters: 5e6, weightsBytes: 400,
      stretch: null, canThink: false, computesOn: 'the processor', whyProcessor: null,
    },
    modelError: null,
    methods: [
      { name: 'full', title: 'Full cache', paper: '', keeps: 'everything', acts: '', parameters: [], streams: false, seesQuestion: true },
      { name: 'snapkv', title: 'SnapKV', paper: '', keeps: 'a part', acts: '', parameters: [], streams: false, seesQuestion: true },
    ],
    document: documentFacts(),
    opening: null,
    pending: null,
    elsewhere: [],
    turns: [],
    conversations: [],
    conversation: null,
    comparison: null,
    drafts: {},
    thinking: false,
    worker: { state: 'ready', message: null },
    vault: null,
    unwritten: false,
    reading: null,
    gpus: { gpus: [], whyNone: 'No NVIDIA driver was found.' },
    saves: true,
    saveError: null,
    version: '0.1.0',
    ...some,
  }
} // prettier-ignore
