#!/usr/bin/env python3
"""Makes the office files, books, web pages, e-mails and subtitles in documents/tests/fixtures, with their texts.

Microsoft's formats are here, all others in `make_open_fixtures.py`, which this script runs too.

Run rarely, by hand; the results are committed:
    pip install python-docx python-pptx openpyxl odfpy ebooklib
    python documents/tests/make_office_fixtures.py

Each `.expected` file is written by hand below, from what a reader sees. The files that libraries make are read again
with the same libraries, and all words that these find must be in the expected text. All sentences are our own.
"""

import datetime
import io
import pathlib
import re
import zipfile

HERE = pathlib.Path(__file__).parent / "fixtures"
W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
R = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
RELS = '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">%s</Relationships>'


def pack(name, parts):
    """A ZIP archive with fixed times. `parts`: name -> text or bytes."""
    with zipfile.ZipFile(HERE / name, "w") as archive:
        for part, content in parts.items():
            entry = zipfile.ZipInfo(part, (2024, 1, 1, 0, 0, 0))
            kept = part == "mimetype"
            entry.compress_type = zipfile.ZIP_STORED if kept else zipfile.ZIP_DEFLATED
            archive.writestr(entry, content, compresslevel=9)


def repack(name, saved):
    """Packs what a library has saved, with fixed times and without the contents of pictures and themes."""
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        parts = {i.filename: archive.read(i) for i in archive.infolist()}
    now = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
    for part in [part for part in parts if part.endswith(("core.xml", "opf"))]:
        parts[part] = now.sub(b"2024-01-01T00:00:00Z", parts[part])
    unused = re.compile(r"\.jpeg$|\.bin$|/theme/|WithEffects")
    pack(name, {part: b"" if unused.search(part) else content for part, content in parts.items()})


def expect(name, text, words=()):
    text = text.strip("\n") + "\n"
    (HERE / f"{name}.expected").write_text(text)
    for word in words:
        assert word in text, (name, word)


def words(texts):
    return [word for text in texts for word in re.findall(r"\w+", text or "")]


def relations(*targets):
    each = (f'<Relationship Id="r{i}" Type="{REL}/{kind}" Target="{target}"/>' for i, (kind, target) in enumerate(targets, 1))
    return RELS % "".join(each)


def office(main, parts, *targets):
    folder, file = main.rsplit("/", 1)
    return {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>',
        "_rels/.rels": relations(("officeDocument", main)),
        f"{folder}/_rels/{file}.rels": relations(*targets),
        **parts,
    }


def saved_docx():
    import docx

    document = docx.Document()
    document.add_heading("The Archive", 0)
    document.add_paragraph("The keeper of the archive counts every page twice.")
    document.add_heading("Doors", 1)
    document.add_paragraph("Every door has a key.", style="List Bullet")
    document.add_paragraph("Every key has a number.", style="List Bullet")
    document.add_heading("Opening", 2)
    document.add_paragraph("Turn the key.", style="List Number")
    document.add_paragraph("Take the lamp.", style="List Number")
    paragraph = document.add_paragraph("First line")
    paragraph.add_run().add_break()
    paragraph.add_run("second line, ").bold = True
    paragraph.add_run("über alles & <mehr>")
    table = document.add_table(rows=0, cols=3)
    for row in [("Year", "Volumes", "Pages"), ("1901", "12", "3400"), ("1902", "", "4100"), ("1903", "15", "")]:
        for cell, text in zip(table.add_row().cells, row):
            cell.text = text
    saved = io.BytesIO()
    document.save(saved)
    repack("report.docx", saved.getvalue())
    again = docx.Document(HERE / "report.docx")
    cells = [cell.text for table in again.tables for row in table.rows for cell in row.cells]
    expect(
        "report.docx",
        """
# The Archive

The keeper of the archive counts every page twice.

# Doors

- Every door has a key.
- Every key has a number.

## Opening

1. Turn the key.
2. Take the lamp.

First line
second line, über alles & <mehr>

Year | Volumes | Pages
1901 | 12 | 3400
1902 |  | 4100
1903 | 15
""",
        words([p.text for p in again.paragraphs] + cells),
    )


def contract_docx():
    """What Word writes and python-docx does not: computed numbers, changes, notes, boxes, hidden text, layout tables."""

    def p(inside, style="", more=""):
        style = f'<w:pStyle w:val="{style}"/>' if style else ""
        return f"<w:p><w:pPr>{style}{more}</w:pPr>{inside}</w:p>"

    def t(text, more=""):
        return f'<w:r><w:rPr>{more}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'

    def note(kind, number):
        return f'<w:r><w:{kind}Reference w:id="{number}"/></w:r>'

    def item(level, numbers=2):
        return f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{numbers}"/></w:numPr>'

    def level(number, form, mark):
        return f'<w:lvl w:ilvl="{number}"><w:start w:val="1"/><w:numFmt w:val="{form}"/><w:lvlText w:val="{mark}"/></w:lvl>'

    def table(*rows):
        cells = ("".join(f"<w:tc>{cell}</w:tc>" for cell in row) for row in rows)
        return "<w:tbl>" + "".join(f"<w:tr>{row}</w:tr>" for row in cells) + "</w:tbl>"

    box = (
        '<w:r><mc:AlternateContent><mc:Choice><w:txbxContent>%s</w:txbxContent></mc:Choice>'
        "<mc:Fallback><w:txbxContent>%s</w:txbxContent></mc:Fallback></mc:AlternateContent></w:r>"
    ) % (p(t("In a box.")), p(t("In a box.")))
    body = [
        p(t("Lease"), "Titel"),
        p(t("Rent"), "berschrift1"),
        p(t("The rent is ") + f'<w:del w:id="1"><w:r><w:delText>500</w:delText></w:r></w:del><w:ins w:id="2">{t("600")}</w:ins>' + t(" a month") + note("footnote", 7) + t(".")),
        p(t("Term"), "berschrift1"),
        p(t("Beginning"), "berschrift2"),
        p(t("The lease begins ") + t("secretly ", "<w:vanish/>") + t("in May.") + note("endnote", 3) + box),
        p(t("Notice"), "berschrift2"),
        p(t("The landlord says so")) + p(t("in writing"), more=item(0)) + p(t("to the tenant"), more=item(1)) + p(t("to the bank"), more=item(1)) + p(t("in time"), more=item(0)),
        p(t("A list that begins again"), more=item(0, 3)),
        p("<m:oMath><m:sSup><m:e><m:r><m:t>x</m:t></m:r></m:e><m:sup><m:r><m:t>2</m:t></m:r></m:sup></m:sSup><m:r><m:t>=1</m:t></m:r></m:oMath>"),
        p(t("This sentence is "), more="<w:rPr><w:del/></w:rPr>") + p(t("in one piece.")),
        p('<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>PAGEREF x</w:instrText></w:r><w:r><w:fldChar w:fldCharType="separate"/></w:r>' + t("See ") + '<w:hyperlink r:id="r9">' + t("the rules") + "</w:hyperlink>" + "<w:r><w:tab/></w:r>" + t("page&#160;4")),
        table((p(t("Key")), p(t("Door")) + p(t("and floor"))), (p(t("A")), p(t("cellar")))),
        table((p(t("Signed"), "berschrift1") + p(t("here")), p(t("there")))),
        f'<w:sdt><w:sdtPr/><w:sdtContent>{p(t("In a control."))}</w:sdtContent></w:sdt>',
        "<w:sectPr/>",
    ]
    styles = (
        '<w:style w:type="paragraph" w:styleId="Titel"><w:name w:val="Title"/></w:style>'
        '<w:style w:type="paragraph" w:styleId="berschrift1"><w:name w:val="heading 1"/><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr></w:style>'
        '<w:style w:type="paragraph" w:styleId="Basis"><w:name w:val="Mine"/><w:pPr><w:numPr><w:ilvl w:val="1"/><w:numId w:val="1"/></w:numPr><w:outlineLvl w:val="1"/></w:pPr></w:style>'
        '<w:style w:type="paragraph" w:styleId="berschrift2"><w:name w:val="Section"/><w:basedOn w:val="Basis"/></w:style>'
    )
    numbering = (
        '<w:abstractNum w:abstractNumId="5">' + level(0, "decimal", "§ %1") + level(1, "decimal", "%1.%2") + "</w:abstractNum>"
        '<w:abstractNum w:abstractNumId="6">' + level(0, "lowerLetter", "%1)") + level(1, "bullet", "\uf0b7") + "</w:abstractNum>"
        '<w:num w:numId="1"><w:abstractNumId w:val="5"/></w:num><w:num w:numId="2"><w:abstractNumId w:val="6"/></w:num>'
        '<w:num w:numId="3"><w:abstractNumId w:val="6"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="1"/></w:lvlOverride></w:num>'
    )
    footnotes = f'<w:footnote w:id="-1" w:type="separator">{p(t("line"))}</w:footnote><w:footnote w:id="7">{p(t("Without heating."))}{p(t("In cash."))}</w:footnote>'
    endnotes = f'<w:endnote w:id="3">{p(t("At noon."))}</w:endnote>'
    mc = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    mc += ' xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
    parts = {
        "word/document.xml": f'<?xml version="1.0"?><w:document {W} {R} {mc}><w:body>{"".join(body)}</w:body></w:document>',
        "word/styles2.xml": f"<w:styles {W}>{styles}</w:styles>",
        "word/numbering.xml": f"<w:numbering {W}>{numbering}</w:numbering>",
        "word/footnotes.xml": f"<w:footnotes {W}>{footnotes}</w:footnotes>",
        "word/endnotes.xml": f"<w:endnotes {W}>{endnotes}</w:endnotes>",
    }
    targets = [("styles", "styles2.xml"), ("numbering", "numbering.xml"), ("footnotes", "/word/footnotes.xml"), ("endnotes", "endnotes.xml")]
    pack("contract.docx", office("word/document.xml", parts, *targets))
    expect(
        "contract.docx",
        """
# Lease

# § 1 Rent

The rent is 600 a month[^1].

# § 2 Term

## 2.1 Beginning

The lease begins in May.[^2]

In a box.

## 2.2 Notice

The landlord says so

a) in writing
  - to the tenant
  - to the bank
b) in time
a) A list that begins again

x^2=1

This sentence is in one piece.

See the rules\tpage\u00a04

Key | Door and floor
A | cellar

# § 3 Signed

here

there

In a control.

[^1]: Without heating. In cash.

[^2]: At noon.
""",
    )


def saved_pptx():
    import pptx

    deck = pptx.Presentation()
    first = deck.slides.add_slide(deck.slide_layouts[0])
    first.shapes.title.text, first.placeholders[1].text = "The Archive", "A short history"
    second = deck.slides.add_slide(deck.slide_layouts[1])
    second.shapes.title.text = "Doors"
    frame = second.placeholders[1].text_frame
    frame.text = "Every door has a key"
    for level, text in [(1, "of iron"), (0, "Every key has a number")]:
        paragraph = frame.add_paragraph()
        paragraph.text, paragraph.level = text, level
    second.notes_slide.notes_text_frame.text = "Speak slowly.\nShow the key."
    third = deck.slides.add_slide(deck.slide_layouts[6])
    table = third.shapes.add_table(2, 2, 0, 0, 99, 99).table
    for i, text in enumerate(["Year", "Volumes", "1901", "12"]):
        table.cell(i // 2, i % 2).text = text
    third.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "Source: the keeper"
    # The order of the presentation is not that of the file names.
    slides = deck.slides._sldIdLst
    slides.insert(0, slides[2])
    saved = io.BytesIO()
    deck.save(saved)
    repack("slides.pptx", saved.getvalue())
    again = pptx.Presentation(HERE / "slides.pptx")
    texts = [shape.text_frame.text for slide in again.slides for shape in slide.shapes if shape.has_text_frame]
    expect(
        "slides.pptx",
        """
# Slide 1

Year | Volumes
1901 | 12

Source: the keeper

# Slide 2: The Archive

A short history

# Slide 3: Doors

- Every door has a key
  - of iron
- Every key has a number

Notes: Speak slowly.

Show the key.
""",
        words(texts),
    )


def saved_xlsx():
    import openpyxl

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Budget 2024"
    sheet.append(["Date", "Item", "Amount", "Share"])
    sheet.append([datetime.date(2024, 2, 29), "Lamp & oil", 1234.5, 0.125])
    sheet.append([datetime.datetime(2024, 3, 1, 18, 30), "Keys\n(iron)", -70, 1])
    sheet["C2"].number_format = '#,##0.00 "EUR"'
    sheet["D2"].number_format = "0.0%"
    sheet["F9"] = True
    sheet["XFD1048576"] = "far away"
    book.create_sheet("Empty")
    other = book.create_sheet("Größen")
    other.append([0.1 + 0.2, 1e21, "00123"])
    saved = io.BytesIO()
    book.save(saved)
    repack("book.xlsx", saved.getvalue())
    again = openpyxl.load_workbook(HERE / "book.xlsx")
    shown = [cell.value for sheet in again for row in sheet.iter_rows(max_row=9, max_col=9) for cell in row if isinstance(cell.value, str)]
    expect(
        "book.xlsx",
        """
# Budget 2024

Date | Item | Amount | Share
2024-02-29 | Lamp & oil | 1,234.50 EUR | 12.5%
2024-03-01 18:30 | Keys (iron) | -70 | 1
 |  |  |  | TRUE
 |  |  |  |  | far away

# Größen

0.3 | 1e21 | 00123
""",
        words(shown),
    )


def strings_xlsx():
    """What Excel writes and openpyxl does not: shared strings with formats, errors, dates since 1904, values of formulas."""
    main = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    cells = (
        '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c></row>'
        '<row r="2"><c r="A2" t="str"><f>A1&amp;"!"</f><v>Door!</v></c><c t="e"><v>#DIV/0!</v></c><c r="D2" s="1"><v>0</v></c></row>'
        '<row r="3"><c r="A3" t="inlineStr"><is><r><t>In </t></r><r><t>line</t></r></is></c><c r="D3" t="b"><v>0</v></c></row>'
    )
    parts = {
        "xl/workbook.xml": f'<workbook {main} {R}><workbookPr date1904="1"/><sheets><sheet name="Only" sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/worksheets/sheet7.xml": f"<worksheet {main}><sheetData>{cells}</sheetData></worksheet>",
        "xl/sharedStrings.xml": f"<sst {main}><si><r><t>Do</t></r><r><rPr><b/></rPr><t>or</t></r></si><si><t>扉</t><rPh><t>トビラ</t></rPh></si></sst>",
        "xl/styles.xml": f'<styleSheet {main}><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs></styleSheet>',
    }
    targets = [("worksheet", "worksheets/sheet7.xml"), ("sharedStrings", "sharedStrings.xml"), ("styles", "styles.xml")]
    pack("strings.xlsx", office("xl/workbook.xml", parts, *targets))
    expect("strings.xlsx", "# Only\n\nDoor | 扉\nDoor! | #DIV/0! | 1904-01-01\nIn line |  | FALSE")


if __name__ == "__main__":
    saved_docx()
    contract_docx()
    saved_pptx()
    saved_xlsx()
    strings_xlsx()
    import make_open_fixtures

    make_open_fixtures.main()
