/**
 * The open document's text and its blocks, fetched once per document. Plain values behind one raw reference: the
 * framework does not track their contents.
 */
import { blockAt, blocksOf, type Block } from './blocks'
import type { DocumentFacts } from './contract'
import { headingsOf, markdownOf, type MarkdownPart } from './headings'
import { columnsOf, isRowAt, stylesOf, type Columns } from './table'
import { isProse, isSoftAt, wrapsOf, type Wrap } from './reflow'

export interface Text {
  id: number
  /** Different for every text: an added document makes the text longer. */
  key: string
  text: string
  blocks: Block[]
  /** Where it is wrapped prose. */
  wraps: Wrap[]
  markdown: MarkdownPart[]
  /** The columns of the blocks that are tables. */
  columns: ReadonlyMap<number, Columns>
}

/** How long the earlier document's text stays, and nothing is said of the next one, in ms. */
export const PATIENCE = 200

export class TextStore {
  current = $state.raw<Text | null>(null)
  error = $state<string | null>(null)
  #wanted: string | null = null
  #fetch: (id: number) => Promise<ArrayBuffer>

  constructor(fetch: (id: number) => Promise<ArrayBuffer>) {
    this.#fetch = fetch
  }

  /**
   * Fetches the text if `document` differs from the last one, or is longer. A late reply for an earlier document is
   * dropped.
   */
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
    // No text is shown under the name of another document for long; nor is there a flash of nothing.
    const late = setTimeout(() => {
      if (this.#wanted === key && this.current?.id !== document.id) this.current = null
    }, PATIENCE)
    try {
      const answer = await this.#fetch(document.id)
      if (this.#wanted !== key) return
      // A byte order mark inside the text is an ordinary character: offsets count it. A lone carriage return becomes a
      // line feed of the same length: offsets are unchanged.
      const text = new TextDecoder('utf-8', { ignoreBOM: true }).decode(answer).replace(/\r(?!\n)/g, '\n')
      const markdown = markdownOf(text, document.kind, document.documents)
      const wraps = isProse(document.kind) ? wrapsOf(text, document.documents, markdown) : []
      const isSoft = (line: number) => isSoftAt(text, wraps, line)
      const headings = headingsOf(text, document.kind, document.documents)
      const styles = stylesOf(text, document, markdown)
      const groupOf = (line: number, end: number) =>
        isRowAt(text, styles, line, end) ? 'table' : markdown[blockAt(markdown, line)]?.start
      const blocks = blocksOf(text, document.pages, document.documents, undefined, isSoft, headings, groupOf)
      const columns = columnsOf(text, blocks, styles)
      this.current = { id: document.id, key, text, blocks, wraps, markdown, columns }
    } catch (refusal) {
      if (this.#wanted !== key) return
      this.#wanted = null
      this.current = null
      this.error = String(refusal)
    } finally {
      clearTimeout(late)
    }
  }
}
