/**
 * The marks of Markdown inside a block: emphasis, code, links. On the page they have no width, as those of headings
 * (`headings.ts`): `**seven** [years](https://a.b)` is shown as `seven years`.
 */
import { Lexer, type Token, type Tokens } from 'marked'

/** Its width is zero. */
const NOTHING = '\u200b'

/** `words`, a block of Markdown without blocks of code, as shown, of the same length. */
export function withoutMarks(words: string): string {
  const shown = words.split('')
  const hide = (from: number, to: number) => shown.fill(NOTHING, from, to)

  const visit = (tokens: readonly Token[], start: number) => {
    let at = start
    for (const token of tokens) {
      const end = at + token.raw.length
      const [from, to] = visibleIn(token)
      hide(at, at + from)
      hide(at + to, end)
      if ('tokens' in token && token.tokens) visit(token.tokens, at + from)
      at = end
    }
  }
  visit(new Lexer().inlineTokens(words), 0)
  return shown.join('')
}

/** The range of a token's source that is shown. */
function visibleIn(token: Token): [number, number] {
  const { raw } = token
  const all: [number, number] = [0, raw.length]
  switch (token.type) {
    case 'strong':
    case 'em':
    case 'del': {
      const inner = lengthOf((token as Tokens.Strong).tokens)
      const mark = (raw.length - inner) / 2
      return [mark, mark + inner]
    }
    case 'codespan': {
      const mark = /^`+/.exec(raw)?.[0].length ?? 0
      return [mark, raw.length - mark]
    }
    case 'link': {
      const { tokens } = token as Tokens.Link
      const words = tokens.map(({ raw }) => raw).join('')
      if (raw.startsWith(`[${words}]`)) return [1, 1 + words.length]
      return raw.startsWith('<') ? [1, raw.length - 1] : all
    }
    case 'image': {
      const { text } = token as Tokens.Image
      return text !== '' && raw.startsWith(`![${text}]`) ? [2, 2 + text.length] : all
    }
    case 'escape':
      return [1, raw.length]
    case 'br':
      return [raw.length - 1, raw.length]
    default:
      return all
  }
}

function lengthOf(tokens: readonly Token[]): number {
  return tokens.reduce((sum, { raw }) => sum + raw.length, 0)
}
