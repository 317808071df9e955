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

/** The fence of the code that is open before `line`, given that of the code open before it. */
function fenceAfter(line: string, fence: string | null): string | null {
  const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1]
  if (!mark) return fence
  if (fence === null) return mark
  return mark[0] === fence[0] && mark.length >= fence.length ? null : fence
}

/** Where the finished blocks of `text` after `from` end, where a block begins: later text does not change them. */
export function finished(text: string, from = 0): number {
  let closed = from
  /** After the last empty line outside code; a list before it may go on. */
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
    fence = fenceAfter(line, fence)
    list ||= fence === null && ITEM.test(line)
    if (fence === null && line.trim() === '') {
      end = found + 1
      if (!list) closed = end
    }
    at = found + 1
  }
  return closed
}

/** A line that may be the beginning of a mark: of a list, a heading, a rule, code. */
const MARK = /^[\s>]*(?:[-*+_#=~`|]+|\d{1,9}[.)])?\s*$/
/** Likewise, where a list may go on. */
const NUMBER = /^\s*\d{1,9}$/

/**
 * The unfinished end of a growing answer as it is rendered, so that its marks do not come and go: what is open in the
 * last line (`**bold`) is closed, and what may be the beginning of a mark is left out.
 */
export function settled(text: string): string {
  const start = text.lastIndexOf('\n') + 1
  const [before, line] = [text.slice(0, start), text.slice(start)]
  const lines = before.split('\n')
  const list = lines.some((line) => ITEM.test(line))
  if (MARK.test(line) || (list && NUMBER.test(line))) return before
  if (lines.reduce<string | null>((fence, line) => fenceAfter(line, fence), null) !== null) return text
  const words = line.replace(/[*`]+$/, '').trimEnd()
  const open: string[] = []
  for (const { 0: mark, index } of words.matchAll(/\\.|`+|\*{1,3}/g)) {
    const last = open.at(-1)
    if (last === mark && (mark.startsWith('`') || /\S/.test(words[index - 1] ?? ' '))) open.pop()
    else if (last?.startsWith('`') || mark.startsWith('\\')) continue
    else if (mark.startsWith('`') || /\S/.test(words[index + mark.length] ?? ' ')) open.push(mark)
  }
  return before + words + open.reverse().join('')
}
