/** The grid as a picture to share: one layout, as SVG or drawn into a canvas. */
import { cividis } from './colours'
import { heat } from './figures'
import { namedRows, shareAt, type Picture, type Row } from './grid'

export interface Sheet {
  title: string
  /** Below the title, one line each. */
  lines: string[]
  rows: readonly Row[]
  layers: Picture
  heads: Picture | null
  kvHeads: number
  most: number
  /** Name of a row. */
  nameOf: (row: Row) => string
  /** Below the left and the right end of the picture, and between them. */
  axis: string[]
  /** At the two ends of the scale. */
  ends: [string, string]
}

const WIDTH = 1200
const LEFT = 76
const RIGHT = 24
const LINE = 20
const TEXT = '"Inter", "DejaVu Sans", sans-serif'
const PAPER = '#ffffff'
const INK = '#1f2328'
const SOFT = '#5f6770'

interface Words {
  x: number
  y: number
  words: string
  size: number
  bold?: boolean
  anchor?: 'start' | 'middle' | 'end'
  colour: string
}

function layout({ title, lines, rows, nameOf, axis, ends }: Sheet) {
  const top = 52 + lines.length * LINE
  const tall = Math.max(4, Math.min(24, Math.floor(720 / Math.max(1, rows.length))))
  const wide = WIDTH - LEFT - RIGHT
  const bottom = top + tall * rows.length
  const height = bottom + 84
  const texts: Words[] = [
    { x: LEFT, y: 36, words: title, size: 20, bold: true, colour: INK },
    ...lines.map((words, i) => ({ x: LEFT, y: 60 + i * LINE, words, size: 13, colour: SOFT })),
  ]
  for (const { row, i } of namedRows(rows, Math.ceil(12 / tall)))
    texts.push({
      x: LEFT - 8,
      y: top + (i + 0.5) * tall + 4,
      words: nameOf(row),
      size: 11,
      anchor: 'end',
      colour: SOFT,
    })
  axis.forEach((words, i) => {
    const share = axis.length > 1 ? i / (axis.length - 1) : 0
    const anchor = i === 0 ? 'start' : i === axis.length - 1 ? 'end' : 'middle'
    texts.push({ x: LEFT + share * wide, y: bottom + 18, words, size: 11, anchor, colour: SOFT })
  })
  const key = { x: LEFT + 140, y: bottom + 44, width: 200, height: 12 }
  texts.push({ x: key.x - 8, y: key.y + 10, words: ends[0], size: 12, anchor: 'end', colour: SOFT })
  texts.push({ x: key.x + key.width + 8, y: key.y + 10, words: ends[1], size: 12, colour: SOFT })
  return { height, texts, key, picture: { x: LEFT, y: top, width: wide, height: tall * rows.length } }
}

const escaped = (words: string) =>
  words.replace(/[&<>"]/g, (sign) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[sign]!)

/** Cells of a vector picture: more make a file that few programs open. */
const MOST_CELLS = 60_000

export function toSvg(sheet: Sheet): string {
  const { height, texts, key, picture } = layout(sheet)
  const { rows, layers, heads, kvHeads, most } = sheet
  const together = Math.max(1, Math.ceil((rows.length * layers.columns) / MOST_CELLS))
  const columns = Math.ceil(layers.columns / together)
  const shares = rows.map((row) =>
    Array.from({ length: columns }, (_, column) => {
      let [sum, many] = [0, 0]
      for (let i = column * together; i < Math.min(layers.columns, (column + 1) * together); i++, many++)
        sum += shareAt(layers, heads, kvHeads, row, i)
      return sum / many / most
    }),
  )
  const cells = heat(shares).map(({ d, colour }) => `<path d="${d}" fill="${colour}"/>`)
  const words = texts.map(
    ({ x, y, words, size, bold, anchor, colour }) =>
      `<text x="${x}" y="${y}" font-size="${size}"${bold ? ' font-weight="600"' : ''} fill="${colour}" text-anchor="${anchor ?? 'start'}">${escaped(words)}</text>`,
  )
  const stops = Array.from({ length: 12 }, (_, i) => {
    const [r, g, b] = cividis(i / 11)
    return `<stop offset="${((i / 11) * 100).toFixed(1)}%" stop-color="rgb(${r} ${g} ${b})"/>`
  })
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" font-family='${TEXT}'>
<title>${escaped(sheet.title)}</title>
<rect width="100%" height="100%" fill="${PAPER}"/>
<defs><linearGradient id="scale">${stops.join('')}</linearGradient></defs>
<g transform="translate(${picture.x} ${picture.y}) scale(${picture.width / Math.max(1, columns)} ${picture.height / Math.max(1, rows.length)})" shape-rendering="crispEdges">${cells.join('')}</g>
<rect x="${key.x}" y="${key.y}" width="${key.width}" height="${key.height}" fill="url(#scale)"/>
${words.join('\n')}
</svg>
`
}

/** The picture as PNG, base64; `image` has a pixel for each cell. Null if the browser has no canvas. */
export function toPng(sheet: Sheet, image: HTMLCanvasElement, factor = 2): string | null {
  const { height, texts, key, picture } = layout(sheet)
  const canvas = document.createElement('canvas')
  canvas.width = WIDTH * factor
  canvas.height = height * factor
  const context = canvas.getContext('2d')
  if (!context) return null
  context.scale(factor, factor)
  context.fillStyle = PAPER
  context.fillRect(0, 0, WIDTH, height)
  context.imageSmoothingEnabled = false
  context.drawImage(image, picture.x, picture.y, picture.width, picture.height)
  const gradient = context.createLinearGradient(key.x, 0, key.x + key.width, 0)
  for (let i = 0; i < 12; i++) gradient.addColorStop(i / 11, `rgb(${cividis(i / 11).join(',')})`)
  context.fillStyle = gradient
  context.fillRect(key.x, key.y, key.width, key.height)
  for (const { x, y, words, size, bold, anchor, colour } of texts) {
    context.font = `${bold ? '600 ' : ''}${size}px ${TEXT}`
    context.textAlign = anchor === 'middle' ? 'center' : (anchor ?? 'start')
    context.fillStyle = colour
    context.fillText(words, x, y, WIDTH - RIGHT)
  }
  return canvas.toDataURL('image/png').replace(/^data:image\/png;base64,/, '')
}
