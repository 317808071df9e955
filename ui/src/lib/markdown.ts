/**
 * An answer's Markdown as a fragment that cannot run, load or open anything: raw HTML is shown as text, links and
 * pictures become words, and the rest is restricted to a short list of elements without attributes.
 */
import DOMPurify from 'dompurify'
import { Marked, type Tokens } from 'marked'

const TAGS = [
  'p', 'br', 'hr', 'em', 'strong', 'del', 'code', 'pre', 'blockquote', 'ul', 'ol', 'li',
  'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'table', 'thead', 'tbody', 'tr', 'th', 'td',
] // prettier-ignore

function escape(text: string): string {
  return text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`)
}

const marked = new Marked({
  gfm: true,
  async: false,
  renderer: {
    html({ text }: Tokens.HTML | Tokens.Tag) {
      return escape(text)
    },
    link({ href, text, tokens }: Tokens.Link) {
      const words = this.parser.parseInline(tokens)
      const bare = href === text || href === `mailto:${text}` || href === `http://${text}`
      return bare ? words : `${words} (${escape(href)})`
    },
    image({ text, href }: Tokens.Image) {
      return escape(text || href)
    },
    checkbox({ checked }: Tokens.Checkbox) {
      return checked ? '☑ ' : '☐ '
    },
  },
})

/** The fragment for `text`; plain text in one paragraph if the parser fails. */
export function render(text: string): DocumentFragment {
  let html: string
  try {
    html = marked.parse(text) as string
  } catch {
    html = `<p>${escape(text)}</p>`
  }
  return DOMPurify.sanitize(html, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: [],
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  })
}

/** The first line of a list item. */
const ITEM = /^ {0,3}(?:\d{1,9}[.)]|[*+-])(?:\s|$)/
/** A line, or the beginning of one, that may belong to the list before it. */
const OF_LIST = /^(?:\s|\d{0,9}$|(?:\d{1,9}[.)]|[*+-])(?:\s|$))/

/** Ends of the finished blocks of a growing answer. */
export interface Finished {
  /** Later text does not change how the part before is parsed. */
  closed: number
  /** After the last empty line outside a code fence; the part from `closed` has a list that later items continue. */
  end: number
}

/** The finished blocks of `text` after `from`, where a block begins. */
export function finished(text: string, from = 0): Finished {
  let closed = from
  let end = from
  let fence: string | null = null
  let list = false
  let at = from
  while (at < text.length) {
    const found = text.indexOf('\n', at)
    const line = text.slice(at, found < 0 ? text.length : found)
    if (list && end === at && !OF_LIST.test(line)) {
      list = false
      closed = end
    }
    if (found < 0) break
    const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1]
    if (mark) {
      if (fence === null) fence = mark
      else if (mark[0] === fence[0] && mark.length >= fence.length) fence = null
    }
    list ||= fence === null && ITEM.test(line)
    if (fence === null && line.trim() === '') {
      end = found + 1
      if (!list) closed = end
    }
    at = found + 1
  }
  return { closed, end }
}
