/** A long document of the mock: a lease, repeated, on numbered pages. */
import { pageAt } from '../../src/lib/blocks'
import type { OutlineEntry, PageRange } from '../../src/lib/contract'

const PARAGRAPHS = [
  'Save where the damage arises from want of ordinary care, the lessor shall bear the cost of structural repairs to the quay wall, the mooring posts and the slipway, whether occasioned by age, by the action of the sea or by storm. The tenant shall keep the decking, ladders and fenders in good order at its own expense and shall report any movement of the wall within three days of its discovery.',
  'Improvements made with consent become the property of the lessor at the end of the term. No compensation is due for them unless the parties have so agreed in writing before the work began, in which case the sum is reduced by one tenth for every year elapsed.',
  'Where vessels exceeding the agreed draught have been moored alongside, the cost of repairs to the wall is borne in equal parts, unless the tenant has given written notice of an expected storm not less than ten days before.',
  'The tenant may lay up to four boats on the slipway between the first of November and the last of March, provided that a clear way of three metres is left for the harbour master and that no varnish is removed there by flame.',
  'Rent is due on quarter days. A payment that reaches the lessor after the seventh day bears interest at two hundredths above the rate of the savings bank, counted from the day it fell due.',
]

export function longText(pages: number): string {
  const found: string[] = []
  for (let page = 1; page <= pages; page++) {
    const section = `${Math.ceil(page / 12)}.${(page % 12) + 1} Repairs and improvements, part ${page}`
    const paragraphs =
      page === 12 ? [] : Array.from({ length: 6 }, (_, i) => PARAGRAPHS[(page * 3 + i) % PARAGRAPHS.length])
    found.push(page === 12 ? '' : [section, ...paragraphs].join('\n\n'))
  }
  return found.join('\n\f')
}

export function pagesOf(text: string): PageRange[] {
  const pages: PageRange[] = []
  let start = 0
  for (const [i, page] of text.split('\f').entries()) {
    pages.push({ number: i + 1, start, end: start + page.length })
    start += page.length + 1
  }
  return pages
}

export function outlineOf(text: string, pages: PageRange[]): OutlineEntry[] {
  const headings = [...text.matchAll(/^(\d+)\.(\d*) .{1,60}$/gm)]
  return headings.map(({ 0: title, 2: part, index }) => ({
    level: part === '' ? 1 : 2,
    title,
    start: index,
    page: pages.length > 0 ? pageAt(pages, index) : null,
  }))
}
