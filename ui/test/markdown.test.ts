import { describe, expect, it } from 'vitest'
import { AnswerFlow } from '../src/lib/answer'
import { finished, render, settled } from '../src/lib/markdown'

function html(text: string): string {
  const box = document.createElement('div')
  box.append(render(text))
  return box.innerHTML
}

describe('hostile Markdown', () => {
  const CASES = [
    '<script>window.hurt = 1</script>',
    '<img src=x onerror="window.hurt = 1">',
    '<svg/onload=alert(1)>',
    '[click](javascript:alert(1))',
    '[click](https://example.com "title")',
    '![pixel](https://example.com/pixel.gif)',
    '<https://example.com>',
    'https://example.com',
    '<a href="https://example.com">x</a>',
    '<style>*{display:none}</style>',
    '<iframe srcdoc="<script>1</script>"></iframe>',
    '<form action="https://example.com"><input name=q></form>',
    '<math><mtext></table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=alert(1)&gt;">',
    '[a]: https://example.com\n\n[a]',
    '`<img src=x>`',
    '```html" onclick="x\n<img src=x onerror=1>\n```',
    '<div style="position:fixed;inset:0">over everything</div>',
    '&lt;img src=x onerror=alert(1)&gt;',
    '<x onclick=1>**bold**</x>',
    '[![a](https://e.example/a.png)](https://e.example)',
    '| a |\n|---|\n| <img src=x onerror=1> |',
  ]
  it.each(CASES)('cannot load, open or run: %s', (text) => {
    const box = document.createElement('div')
    box.append(render(text))
    const all = [...box.querySelectorAll('*')]
    for (const element of all) {
      expect(['P', 'CODE', 'PRE', 'EM', 'STRONG', 'BR', 'TABLE', 'THEAD', 'TBODY', 'TR', 'TH', 'TD']).toContain(
        element.tagName,
      )
      expect(element.attributes).toHaveLength(0)
    }
  })

  it('shows raw HTML as text', () => {
    expect(html('a <b>bold</b> word')).toBe('<p>a &lt;b&gt;bold&lt;/b&gt; word</p>\n')
    const box = document.createElement('div')
    box.append(render('<script>window.hurt = 1</script>'))
    expect(box.textContent).toContain('<script>window.hurt = 1</script>')
  })

  it('writes links as words', () => {
    expect(html('[the lease](https://example.com/?a=1&b=2)')).toBe(
      '<p>the lease (https://example.com/?a=1&amp;b=2)</p>\n',
    )
    expect(html('https://example.com/?a=1&b=2')).toBe('<p>https://example.com/?a=1&amp;b=2</p>\n')
    expect(html('![a quay](q.png)')).toBe('<p>a quay</p>\n')
  })

  it('keeps ordinary Markdown', () => {
    expect(html('**a** *b* `c`\n\n- d\n- e')).toBe(
      '<p><strong>a</strong> <em>b</em> <code>c</code></p>\n<ul>\n<li>d</li>\n<li>e</li>\n</ul>\n',
    )
  })

  it('takes null bytes, right-to-left text and great lengths', () => {
    expect(html('a\0b')).toContain('a')
    expect(html('מי משלם?')).toContain('מי משלם?')
    expect(html('long '.repeat(20_000)).length).toBeGreaterThan(90_000)
    expect(html('*'.repeat(5_000) + '['.repeat(2_000))).toContain('[')
  })
})

describe('a growing answer', () => {
  it('knows where finished blocks end', () => {
    expect(finished('one')).toBe(0)
    expect(finished('one\n')).toBe(0)
    expect(finished('one\n\ntwo')).toBe(5)
    expect(finished('```\na\n\nb')).toBe(0)
    expect(finished('```\na\n\nb\n```\n\nc')).toBe(14)
    expect(finished('~~~\n```\n\n~~~\n\nc')).toBe(14)
    // A list is closed by a line that is neither an item nor part of one.
    expect(finished('1. a\n\n')).toBe(0)
    for (const next of ['2. b', '2', '-', '  more', '']) expect(finished(`1. a\n\n${next}`)).toBe(0)
    for (const next of ['last', '**b**', '2 of']) expect(finished(`1. a\n\n${next}`)).toBe(6)
    expect(finished('1. a\n\nlast\n\n2. b\n\n')).toBe(12)
  })

  it('closes what is open in the last line, and leaves out what may be the beginning of a mark', () => {
    for (const [text, shown] of [
      ['3. **The To', '3. **The To**'],
      ['3. **The ', '3. **The**'],
      ['3. **', '3.'],
      ['a **b*', 'a **b**'],
      ['a **b** c', 'a **b** c'],
      ['a **b *c', 'a **b *c***'],
      ['a `b*', 'a `b`'],
      ['a ``b` c', 'a ``b` c``'],
      ['2 * 3', '2 * 3'],
      ['a \\*b', 'a \\*b'],
      ['one\n-', 'one\n'],
      ['one\n> ##', 'one\n'],
      ['1. one\n2', '1. one\n'],
      ['one\n2', 'one\n2'],
      ['42', '42'],
      ['1. one\n12.', '1. one\n'],
      ['```\na **b', '```\na **b'],
      ['```\na\n``', '```\na\n'],
      ['```\na\n```\n**b', '```\na\n```\n**b**'],
    ] as const)
      expect(settled(text)).toBe(shown)
  })

  it('is Markdown to its last word, which no mark makes jump', () => {
    const box = document.createElement('div')
    const flow = new AnswerFlow(box)
    const text = 'Two:\n\n1. **The Quay** is old.\n2. **The `Town` of Ash** is not.'
    for (let at = 0; at <= text.length; at++) {
      flow.update(text.slice(0, at), false)
      expect(box.textContent).not.toMatch(/[*`]|^\d\./m)
    }
    expect([...box.querySelectorAll('strong')].map((strong) => strong.textContent)).toEqual([
      'The Quay',
      'The Town of Ash',
    ])
    // The cursor stands behind the last word.
    expect(box.querySelector('.cursor')?.parentElement).toBe(box.querySelectorAll('li')[1])
    flow.update(text, true)
    expect(box.innerHTML).toBe(html(text))
  })

  it('numbers a list with empty lines while it grows', () => {
    const items = Array.from({ length: 12 }, (_, i) => `${i + 1}. item **${i + 1}**`)
    const box = document.createElement('div')
    const flow = new AnswerFlow(box)
    const text = `First:\n\n${items.join('\n\n')}\n\nLast.\n\n1. one\n\n`
    for (let at = 0; at < text.length + 7; at += 7) {
      flow.update(text.slice(0, at), false)
      const lists = [...box.children].filter((element) => element.tagName === 'OL')
      expect(lists.length).toBeLessThanOrEqual(text.slice(0, at).includes('Last.\n\n1.') ? 2 : 1)
    }
    expect([...box.querySelectorAll('ol')].map((list) => list.children.length)).toEqual([12, 1])
    expect(box.textContent?.match(/First:/g)).toHaveLength(1)
  })

  it('never touches finished blocks, whatever the pieces, and ends as if drawn at once', () => {
    const text = 'First **one**.\n\nSecond:\n\n```\ncode\n\nmore\n```\n\n- a\n- b\n\nlast'
    for (let piece = 1; piece < 9; piece++) {
      const box = document.createElement('div')
      const flow = new AnswerFlow(box)
      let first: Element | null = null
      for (let at = 0; at <= text.length; at += piece) {
        flow.update(text.slice(0, at), false)
        if (first) expect(box.firstElementChild).toBe(first)
        else if (text.slice(0, at).includes('\n\n')) first = box.firstElementChild
      }
      flow.update(text, true)
      expect(box.innerHTML).toBe(html(text))
    }
  })

  it('starts again when the answer is another one', () => {
    const box = document.createElement('div')
    const flow = new AnswerFlow(box)
    flow.update('one\n\ntwo', false)
    flow.update('three', false)
    expect(box.textContent).toBe('three\n')
    flow.update('three', true)
    flow.update('', false)
    expect(box.textContent).toBe('')
  })
})
