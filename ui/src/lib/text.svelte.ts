/**
 * The open document's text and its blocks, fetched once for each document. Plain values behind one raw reference: the framework
 * never looks into them.
 */
import { blocksOf, type Block } from './blocks'
import type { DocumentFacts } from './contract'

export interface Text {
  id: number
  /** Another one for every text: a document that another was added to has a longer one. */
  key: string
  text: string
  blocks: Block[]
}

export class TextStore {
  current = $state.raw<Text | null>(null)
  error = $state<string | null>(null)
  #wanted: string | null = null
  #fetch: (id: number) => Promise<ArrayBuffer>

  constructor(fetch: (id: number) => Promise<ArrayBuffer>) {
    this.#fetch = fetch
  }

  /** Fetches the text if `document` is another one than before, or has grown. A late answer for an earlier document is dropped. */
  async show(document: DocumentFacts | null): Promise<void> {
    if (document === null) {
      this.#wanted = null
      this.current = null
      this.error = null
      return
    }
    const key = `${document.id}/${document.length}`
    if (this.#wanted === key) return
    this.#wanted = key
    this.error = null
    try {
      const answer = await this.#fetch(document.id)
      if (this.#wanted !== key) return
      // A byte order mark inside the text is a character like others: offsets count it.
      // A lone carriage return ends a line like any other line break, which is as long: offsets stay.
      const text = new TextDecoder('utf-8', { ignoreBOM: true }).decode(answer).replace(/\r(?!\n)/g, '\n')
      const blocks = blocksOf(text, document.pages, document.documents)
      this.current = { id: document.id, key, text, blocks }
    } catch (refusal) {
      if (this.#wanted !== key) return
      this.#wanted = null
      this.current = null
      this.error = String(refusal)
    }
  }
}
