"""The second half of `make_office_fixtures.py`: OpenDocument files, books, web pages, e-mails and subtitles."""

import io
import zipfile

from make_office_fixtures import HERE, expect, pack, repack, words

OFFICE = "application/vnd.oasis.opendocument."
NAMES = " ".join(
    f'xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
    for prefix, name in [
        ("office", "office"), ("text", "text"), ("table", "table"), ("draw", "drawing"),
        ("presentation", "presentation"), ("style", "style"), ("dc", "dc"),
    ]
)  # fmt: skip


def open_document(name, kind, content, styles=""):
    content = f'<?xml version="1.0" encoding="UTF-8"?><office:document-content {NAMES}>{content}</office:document-content>'
    parts = {"mimetype": OFFICE + kind, "content.xml": content}
    if styles:
        parts["styles.xml"] = f"<office:document-styles {NAMES}><office:styles>{styles}</office:styles></office:document-styles>"
    pack(name, parts)


def saved_odt():
    from odf import table, text
    from odf.opendocument import OpenDocumentText, load
    from odf.teletype import extractText

    document = OpenDocumentText()
    body = document.text
    body.addElement(text.H(outlinelevel=1, text="The Archive"))
    body.addElement(text.P(text="The keeper of the archive counts every page twice."))
    items = text.List()
    for sentence in ["Every door has a key.", "Every key has a number."]:
        item = text.ListItem()
        item.addElement(text.P(text=sentence))
        items.addElement(item)
    body.addElement(items)
    body.addElement(text.H(outlinelevel=2, text="Years"))
    rows = table.Table()
    for texts in [("Year", "Volumes"), ("1901", "12")]:
        row = table.TableRow()
        for each in texts:
            cell = table.TableCell()
            cell.addElement(text.P(text=each))
            row.addElement(cell)
        rows.addElement(row)
    body.addElement(rows)
    saved = io.BytesIO()
    document.save(saved)
    repack("report.odt", saved.getvalue())
    again = load(HERE / "report.odt")
    expect(
        "report.odt",
        """
# The Archive

The keeper of the archive counts every page twice.

- Every door has a key.
- Every key has a number.

## Years

Year | Volumes
1901 | 12
""",
        words(extractText(p) for p in again.getElementsByType(text.P)),
    )


def contract_odt():
    """What LibreOffice writes: numbered headings and lists, tracked changes, notes, comments, boxes, spaces."""
    content = """
<office:automatic-styles><text:list-style style:name="L1">
<text:list-level-style-number text:level="1" style:num-suffix=")" style:num-format="a"/>
<text:list-level-style-bullet text:level="2" text:bullet-char="•"/></text:list-style></office:automatic-styles>
<office:body><office:text><text:tracked-changes><text:changed-region><text:deletion><text:p>Never again.</text:p></text:deletion>
</text:changed-region></text:tracked-changes>
<text:h text:outline-level="1">Rent</text:h>
<text:p>The rent<text:change text:change-id="1"/> is <text:span>600</text:span>
  a month<text:note text:note-class="footnote"><text:note-citation>1</text:note-citation><text:note-body><text:p>Without heating.</text:p><text:p>In cash.</text:p></text:note-body></text:note>.<office:annotation><dc:creator>me</dc:creator><text:p>Really?</text:p></office:annotation></text:p>
<text:h text:outline-level="1">Term</text:h><text:h text:outline-level="2">Beginning</text:h>
<text:p>Two<text:s text:c="2"/>spaces,<text:tab/>a tab,<text:line-break/>a line.</text:p>
<text:list text:style-name="L1"><text:list-item><text:p>in writing</text:p><text:p>and signed</text:p>
<text:list><text:list-item><text:p>to the bank</text:p></text:list-item></text:list></text:list-item>
<text:list-item><text:p>in time</text:p></text:list-item></text:list>
<text:p>Between.</text:p>
<text:list text:style-name="L1" text:continue-numbering="true"><text:list-item><text:p>in May</text:p></text:list-item></text:list>
<text:p><draw:frame><draw:text-box><text:p>In a box.</text:p></draw:text-box></draw:frame>Beside it.</text:p>
<table:table><table:table-column table:number-columns-repeated="1000000000"/><table:table-row><table:table-cell><text:p>Key</text:p></table:table-cell><table:table-cell><text:p>Door</text:p><text:p>and floor</text:p></table:table-cell></table:table-row>
<table:table-row><table:covered-table-cell/><table:table-cell><text:p>cellar</text:p></table:table-cell></table:table-row></table:table>
</office:text></office:body>"""
    styles = """<text:outline-style style:name="Outline">
<text:outline-level-style text:level="1" style:num-format="1" style:num-suffix="."/>
<text:outline-level-style text:level="2" style:num-format="1" text:display-levels="2"/></text:outline-style>"""
    open_document("contract.odt", "text", content, styles)
    expect(
        "contract.odt",
        """
# 1. Rent

The rent is 600 a month[^1].

# 2. Term

## 2.1 Beginning

Two  spaces,\ta tab,
a line.

a) in writing

and signed

  - to the bank
b) in time

Between.

c) in May

In a box.

Beside it.

Key | Door and floor
 | cellar

[^1]: Without heating. In cash.
""",
    )


def sheets_and_slides():
    cell = '<table:table-cell office:value-type="%s" %s><text:p>%s</text:p></table:table-cell>'
    row = "<table:table-row %s>%s</table:table-row>"
    empty = '<table:table-cell table:number-columns-repeated="16382"/>'
    rows = [
        row % ("", cell % ("string", "", "Date") + cell % ("string", "", "Amount") + empty),
        row % ("", cell % ("date", 'office:date-value="2024-02-29"', "29.02.24") + cell % ("currency", 'office:value="1234.5"', "1.234,50 €")),
        row % ('table:number-rows-repeated="2"', cell % ("string", 'table:number-columns-repeated="2"', "same")),
        row % ('table:number-rows-repeated="1048000"', empty),
    ]
    tables = f'<table:table table:name="Budget">{"".join(rows)}</table:table><table:table table:name="Empty"/>'
    tables += f'<table:table table:name="Other">{rows[0]}</table:table>'
    open_document("book.ods", "spreadsheet", f"<office:body><office:spreadsheet>{tables}</office:spreadsheet></office:body>")
    expect("book.ods", "# Budget\n\nDate | Amount\n2024-02-29 | 1.234,50 €\nsame | same\nsame | same\n\n# Other\n\nDate | Amount")

    def frame(kind, inside):
        return f'<draw:frame presentation:class="{kind}"><draw:text-box>{inside}</draw:text-box></draw:frame>'

    items = "".join(f"<text:list-item><text:p>{t}</text:p></text:list-item>" for t in ["Every door has a key", "Every key has a number"])
    notes = f'<presentation:notes>{frame("notes", "<text:p>Speak slowly.</text:p>")}</presentation:notes>'
    slides = f'<draw:page>{frame("outline", f"<text:list>{items}</text:list>")}{frame("title", "<text:p>Doors</text:p>")}{notes}</draw:page>'
    slides += f'<draw:page>{frame("subtitle", "<text:p>The end</text:p>")}{frame("page-number", "<text:p>2</text:p>")}</draw:page>'
    open_document("slides.odp", "presentation", f"<office:body><office:presentation>{slides}</office:presentation></office:body>")
    text = "# Slide 1: Doors\n\n- Every door has a key\n- Every key has a number\n\nNotes: Speak slowly.\n\n# Slide 2\n\nThe end"
    expect("slides.odp", text)


def books():
    from ebooklib import epub

    book = epub.EpubBook()
    book.set_identifier("archive")
    book.set_title("The Archive")
    book.add_author("Ann Quill")
    book.add_author("Bo Marsh", uid="second")
    chapters = []
    for number, title in [(2, "Keys"), (1, "Doors & more")]:
        chapter = epub.EpubHtml(title=title, file_name=f"chapter {number}.xhtml")
        chapter.content = (
            f"<html><head><title>{title}</title></head><body><h1>{title.replace('&', '&amp;')}</h1>"
            f"<p>The keeper&nbsp;of\n the archive<a id='x'/> counts <i>every</i> page.</p><hr/><p>Chapter file {number}.</p></body></html>"
        )
        book.add_item(chapter)
        chapters.insert(0, chapter)
    book.add_item(epub.EpubNcx())
    book.add_item(epub.EpubNav())
    book.toc, book.spine = chapters, ["nav", *chapters]
    saved = io.BytesIO()
    epub.write_epub(saved, book)
    repack("book.epub", saved.getvalue())
    each = "# %s\n\nThe keeper\u00a0of the archive counts every page.\n\n* * *\n\nChapter file %d."
    expect("book.epub", "The Archive\n\nAnn Quill, Bo Marsh\n\n" + each % ("Doors & more", 1) + "\n\n" + each % ("Keys", 2))
    method = '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><EncryptedData><EncryptionMethod Algorithm="%s"/></EncryptedData></encryption>'
    with zipfile.ZipFile(HERE / "book.epub") as archive:
        parts = {i.filename: archive.read(i) for i in archive.infolist()}
    pack("drm.epub", {**parts, "META-INF/encryption.xml": method % "http://www.w3.org/2001/04/xmlenc#aes128-cbc"})
    pack("fonts.epub", {**parts, "META-INF/encryption.xml": method % "http://www.idpf.org/2008/embedding"})


PAGE = """<!DOCTYPE html>
<html><head><meta http-equiv="content-type" content="text/html; charset=windows-1251"><title>Архив</title>
<style>p { color: red }</style><script>if (1 < 2) document.write("<p>never</p>")</script></head>
<body><!-- a comment --><p>Хранительница считает <b>каждую</b>
   страницу&nbsp;&mdash; дважды.<p>Без конца<br>и края
<h2>Двери</h2><ul><li>ключ<li>замок<ol start=3><li><p>один</p><p>ещё</p></li><li>два</ol></li></ul>
<table><thead><tr><th>Год<th>Том</thead><tr><td>1901<td>12<tr><td><td>15</table>
<table><tr><td><h3>Слева</h3><p>Текст</td><td>Справа</td></tr></table>
<pre>
if x:
    y()  # z
</pre><blockquote>Цитата</blockquote><div style="display: none"><div>нет</div></div><p hidden-x>a &lt; b &amp; c &#1078;
<noscript>Включите</noscript><svg><text>рис</text></svg><ruby>扉<rt>とびら</ruby><script/></body></html>"""


def pages():
    (HERE / "page.html").write_bytes(PAGE.encode("windows-1251", "xmlcharrefreplace"))
    expect(
        "page.html",
        """
# Архив

Хранительница считает каждую страницу\u00a0— дважды.

Без конца
и края

## Двери

- ключ
- замок
  3. один

ещё

  4. два

Год | Том
1901 | 12
 | 15

### Слева

Текст

Справа

```
if x:
    y()  # z
```

> Цитата

a < b & c ж 扉
""",
    )


MAIL = """Received: from here\r
From: =?utf-8?q?Die_W=C3=A4rterin?= <keeper@example.org>\r
To: Anna <anna@example.org>, bob@example.org\r
Date: Mon, 1 Jan 2024 10:00:00 +0100\r
Subject: =?iso-8859-1?Q?Schl=FCssel?= and\r
 doors\r
MIME-Version: 1.0\r
Content-Type: multipart/mixed; boundary=outer\r
\r
--outer\r
Content-Type: multipart/alternative; boundary=inner\r
\r
--inner\r
Content-Type: text/plain; charset=utf-8\r
Content-Transfer-Encoding: quoted-printable\r
\r
Die T=C3=BCr ist offen, und zwar seit dem Morgen, als alle noch =\r
schliefen.\r
\r
> Is it open?\r
--inner\r
Content-Type: text/html\r
\r
<p>not this</p>\r
--inner--\r
--outer\r
Content-Type: application/pdf; name="plan.pdf"\r
Content-Disposition: attachment; filename*=utf-8''Pl%C3%A4ne.pdf\r
Content-Transfer-Encoding: base64\r
\r
JVBERi0xLjQK\r
--outer--\r
"""

WEB_MAIL = """From: keeper@example.org\r
Subject: Keys\r
MIME-Version: 1.0\r
Content-Type: text/html; charset=utf-8\r
Content-Transfer-Encoding: base64\r
\r
PGgxPktleXM8L2gxPjxwPkV2ZXJ5IGtleSBoYXMgYSBudW1iZXImaGVsbGlwOzwvcD48dGFibGU+\r
PHRyPjx0ZD5BPHRkPjEyPC90YWJsZT4=\r
"""


def mails():
    (HERE / "plain.eml").write_bytes(MAIL.encode())
    expect(
        "plain.eml",
        """
From: Die Wärterin <keeper@example.org>
To: Anna <anna@example.org>, bob@example.org
Date: Mon, 1 Jan 2024 10:00:00 +0100
Subject: Schlüssel and doors

Die Tür ist offen, und zwar seit dem Morgen, als alle noch schliefen.

> Is it open?

Attachment: Pläne.pdf
""",
    )
    (HERE / "web.eml").write_bytes(WEB_MAIL.encode())
    expect("web.eml", "From: keeper@example.org\nSubject: Keys\n\n# Keys\n\nEvery key has a number…\n\nA | 12")


SRT = """1
00:00:01,000 --> 00:00:03,000
<i>The keeper opens</i>
the door.

2
00:00:03,100 --> 00:00:05,000 X1:1
{\\an8}She takes the lamp.

3
00:00:20,000 --> 00:00:22,000
Nobody sees her.

4
00:00:23,000 --> 00:00:24,000
- Who is there?
- Me, with 3 < 4 keys.
"""

VTT = """WEBVTT - made up

NOTE not
spoken

STYLE
::cue { color: red }

intro
00:01.500 --> 00:04.000 align:start
<v.loud Anna>Hello &amp; welcome.</v>

01:00:00.000 --> 01:00:02.000
so this<00:00:01.000><c> is</c> new

01:00:02.000 --> 01:00:04.000
so this is new
and goes on
"""


def subtitles():
    (HERE / "film.srt").write_bytes(b"\xef\xbb\xbf" + SRT.replace("\n", "\r\n").encode())
    (HERE / "film.vtt").write_text(VTT)
    expect(
        "film.srt",
        """
[00:00:01] The keeper opens the door. She takes the lamp.

[00:00:20] Nobody sees her.

[00:00:23] - Who is there? - Me, with 3 < 4 keys.
""",
    )
    expect("film.vtt", "[00:00:01] Anna: Hello & welcome.\n\n[01:00:00] so this is new and goes on")


def main():
    saved_odt()
    contract_odt()
    sheets_and_slides()
    books()
    pages()
    mails()
    subtitles()
