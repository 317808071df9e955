#!/usr/bin/env python3
"""Makes documents/tests/fixtures: small text files in many encodings and PDFs of many kinds.

Run rarely, by hand; the results are committed:
    pip install reportlab pypdf cryptography pillow
    python documents/tests/make_fixtures.py

`make_office_fixtures.py` makes all other documents.
Fonts are DejaVu (found by reportlab where the system keeps its fonts). All sentences are our own.
"""

import io
import pathlib
import zlib

from PIL import Image, ImageDraw, ImageFont
from pypdf import PdfReader, PdfWriter
from pypdf.generic import NameObject
from reportlab.lib.pagesizes import A5
from reportlab.lib.styles import ParagraphStyle
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen import canvas
from reportlab.platypus import BaseDocTemplate, Frame, PageBreak, PageTemplate, Paragraph, Spacer, Table

HERE = pathlib.Path(__file__).parent / "fixtures"

TEXTS = {
    "english": ["The keeper of the archive counts every page twice.", "She writes the number in the margin."],
    "french": ["L’été dernier, la gardienne a relié les cahiers à la main.", "C’était très soigné, déjà un chef-d’œuvre."],
    "german": ["Die Wärterin zählt jede Seite zweimal.", "Übung macht müde, sagt sie, und schließt die Tür."],
    "russian": ["Хранительница считает каждую страницу дважды.", "Потом она закрывает тяжёлую дверь архива."],
    "japanese": ["司書は毎日すべてのページを二回数えます。", "それから重い扉を静かに閉めて、家に帰ります。"],
    "chinese": ["管理员每天把每一页都数两遍。", "然后她轻轻关上沉重的大门，慢慢走回家。"],
}

# name, language, codec, byte-order mark
ENCODED = [
    ("utf8.txt", "russian", "utf-8", b""),
    ("utf8-mark.txt", "german", "utf-8", b"\xef\xbb\xbf"),
    ("utf16le-mark.txt", "russian", "utf-16-le", b"\xff\xfe"),
    ("utf16be-mark.txt", "japanese", "utf-16-be", b"\xfe\xff"),
    ("utf16le.txt", "german", "utf-16-le", b""),
    ("utf16be.txt", "chinese", "utf-16-be", b""),
    ("utf32le-mark.txt", "french", "utf-32-le", b"\xff\xfe\0\0"),
    ("latin1.txt", "german", "latin-1", b""),
    ("windows-1252.txt", "french", "windows-1252", b""),
    ("windows-1251.txt", "russian", "windows-1251", b""),
    ("koi8-r.txt", "russian", "koi8-r", b""),
    ("shift-jis.txt", "japanese", "shift-jis", b""),
    ("euc-jp.txt", "japanese", "euc-jp", b""),
    ("iso-2022-jp.txt", "japanese", "iso-2022-jp", b""),
    ("gb18030.txt", "chinese", "gb18030", b""),
]


def texts():
    for language, lines in TEXTS.items():
        (HERE / f"{language}.expected").write_bytes("\n".join(lines * 4).encode() + b"\n")
    for name, language, codec, mark in ENCODED:
        (HERE / name).write_bytes(mark + ("\n".join(TEXTS[language] * 4) + "\n").encode(codec))


def objects_to_pdf(objects, root=1):
    """A PDF of hand-written objects: number -> bytes."""
    out = bytearray(b"%PDF-1.7\n")
    places = {}
    for number, body in objects.items():
        places[number] = len(out)
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(out)
    size = max(objects) + 1
    out += b"xref\n0 %d\n0000000000 65535 f \n" % size
    for number in range(1, size):
        out += b"%010d 00000 n \n" % places[number] if number in places else b"0000000000 65535 f \n"
    out += b"trailer << /Size %d /Root %d 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, root, table)
    return bytes(out)


def stream(content, extra=b"", packed=False, length=None):
    if packed:
        content, extra = zlib.compress(content), extra + b" /Filter /FlateDecode"
    length = len(content) if length is None else length
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (length, extra, content)


HELVETICA = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"


def one_page(content, resources=b"<< /Font << /F1 5 0 R >> >>", more=None, **kwargs):
    return {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        2: b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        3: b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 420 595] /Contents 4 0 R /Resources %s >>" % resources,
        4: stream(content, **kwargs),
        5: HELVETICA,
        **(more or {}),
    }


def predefined_cmaps():
    """Fonts whose strings are in the encoding of a predefined CMap; the last CMap is of no known encoding. A form of one of
    them is on both pages."""
    cmaps = [("UniGB-UCS2-H", "utf-16-be", "管理员 counts 四千"), ("GBK-EUC-H", "gbk", "每一页都数两遍 twice"),
             ("90ms-RKSJ-H", "cp932", "司書はﾍﾟｰｼﾞ count"), ("H", "iso-2022-jp", "毎日数える"),
             ("EUC-H", "euc-jp", "重い扉"), ("ETen-B5-H", "big5", "沉重的大門"), ("KSCms-UHC-H", "cp949", "기록을 센다")]
    fonts, lines, objects = [], [], {}
    for i, (cmap, codec, words) in enumerate([*cmaps, ("CNS-EUC-H", "latin-1", "??")]):
        coded = words.encode(codec)
        if cmap == "H":
            coded = coded.removeprefix(b"\x1b$B").removesuffix(b"\x1b(B")
        font, descendant = 20 + 2 * i, 21 + 2 * i
        objects[font] = (b"<< /Type /Font /Subtype /Type0 /BaseFont /Nameless /Encoding /%s /DescendantFonts [%d 0 R] >>"
                         % (cmap.encode(), descendant))
        objects[descendant] = (b"<< /Type /Font /Subtype /CIDFontType0 /BaseFont /Nameless /DW 1000 /W [1 [278] 231 632 500]"
                               b" /FontDescriptor 18 0 R >>")
        fonts.append(b"/C%d %d 0 R" % (i, font))
        lines.append(b"/C%d 12 Tf <%s> Tj 0 -20 Td" % (i, coded.hex().encode()))
    resources = b"<< /Font << /F1 5 0 R %s >> /XObject << /X1 6 0 R >> >>" % b" ".join(fonts)
    form = b"BT /C2 12 Tf 50 100 Td <%s> Tj ET" % "書庫の鍵".encode("cp932").hex().encode()
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 420 595] /Contents %d 0 R /Resources 7 0 R >>"
    return {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        2: b"<< /Type /Pages /Kids [3 0 R 9 0 R] /Count 2 >>",
        3: page % 4,
        4: stream(b"BT /F1 12 Tf 50 500 Td (The code is 4417.) Tj 0 -20 Td %s ET /X1 Do" % b" ".join(lines)),
        5: HELVETICA,
        6: stream(form, b"/Type /XObject /Subtype /Form /BBox [0 0 9 9]"),
        7: resources,
        9: page % 10,
        10: stream(b"/X1 Do"),
        18: b"<< /Type /FontDescriptor /FontName /Nameless /Flags 4 >>",
        **objects,
    }


def filled_form():
    """A form that was filled in: fields right of their labels and below one, a note, a hidden field. The second field scales
    its form; the third is of fonts that all fields share. Then fields that have a value only, one of them a password; two
    boxes to tick, one of them of a parent, and a button to push."""
    def look(words, extra=b"/Resources << /Font << /F1 5 0 R >> >>"):
        return stream(b"/Tx BMC q BT /F1 12 Tf 2 4 Td (%s) Tj ET Q EMC" % words,
                      b"/Type /XObject /Subtype /Form /BBox [0 0 100 20] " + extra)

    def field(look, rect, extra=b"/Subtype /Widget /FT /Tx /F 4"):
        return b"<< /Type /Annot %s /Rect [%s] /AP << /N %s >> >>" % (extra, rect, look)

    def value(rect, extra):
        return b"<< /Type /Annot /Subtype /Widget /Rect [%s] %s >>" % (rect, extra)

    words = b"BT /F1 12 Tf 50 500 Td (Tenant:) Tj 0 -30 Td (Deposit:) Tj 0 -30 Td (Place of the meter) Tj 0 -100 Td (Signed) Tj" \
        b" 0 -40 Td (Town:) Tj 0 -30 Td (Notes:) Tj 0 -30 Td (Code:) Tj 20 -30 Td (married) Tj 100 0 Td (single) Tj ET"
    page = b"""<< /Type /Page /Parent 2 0 R /MediaBox [0 0 420 595] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >>
        /Annots [10 0 R 11 0 R 12 0 R 13 0 R 14 0 R 15 0 R 16 0 R 17 0 R 18 0 R 30 0 R 31 0 R 33 0 R] >>"""
    return one_page(words, more={
        1: b"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [10 0 R 11 0 R 12 0 R] /DR << /Font << /F1 5 0 R >> >> >> >>",
        3: page,
        10: field(b"20 0 R", b"150 496 250 516"),
        11: field(b"21 0 R", b"150 466 200 476"),
        12: field(b"22 0 R", b"50 415 150 435"),
        13: field(b"23 0 R", b"150 336 250 356", b"/Subtype /FreeText"),
        14: field(b"24 0 R", b"150 200 250 220", b"/Subtype /Widget /FT /Tx /F 2"),
        15: field(b"<< /Off 24 0 R >>", b"150 180 250 200", b"/Subtype /Widget /FT /Btn"),
        16: value(b"150 296 250 316", b"/FT /Tx /V <FEFF014100F30064017A>"),
        17: value(b"150 226 250 286", b"/FT /Tx /V (The key is lost.\\rA new one comes.)"),
        18: value(b"150 236 250 256", b"/FT /Tx /Ff 8192 /V (4711)"),
        30: value(b"55 206 65 216", b"/FT /Btn /AS /Yes"),
        31: value(b"155 206 165 216", b"/Parent 32 0 R /AS /Off"),
        32: b"<< /FT /Btn /Ff 32768 /V /Off >>",
        33: value(b"255 206 285 216", b"/FT /Btn /Ff 65536"),
        20: look(b"Anna Quill"), 21: look(b"2,340 euros"), 22: look(b"In the cellar", b""),
        23: look(b"Paid in May"), 24: look(b"Not to be seen"),
    })


def placed_form():
    """A form right of its label, with a font of its own that has the name of the page's font; it is drawn twice."""
    return one_page(
        b"BT /F1 12 Tf 50 500 Td (Rent:) Tj 0 -30 Td (Flat:) Tj ET q 1 0 0 1 85 500 cm /X1 Do Q 1 0 0 1 85 470 cm /X1 Do",
        b"<< /Font << /F1 5 0 R >> /XObject << /X1 6 0 R >> >>",
        {6: stream(b"BT /F1 12 Tf 0 0 Td (ABC) Tj ET Q Q q",
                   b"/Type /XObject /Subtype /Form /BBox [0 0 99 20] /Resources << /Font << /F1 7 0 R >> >>"),
         7: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding /ToUnicode 8 0 R >>",
         8: stream(b"begincmap 3 beginbfchar <41> <0039> <42> <0034> <43> <0030> endbfchar endcmap")})


def empty_part():
    """A page in two parts, of which the second one is compressed and empty."""
    page = b"""<< /Type /Page /Parent 2 0 R /MediaBox [0 0 420 595] /Contents [4 0 R 6 0 R]
        /Resources << /Font << /F1 5 0 R >> >> >>"""
    return one_page(b"BT /F1 12 Tf 50 500 Td (A single honest sentence.) Tj ET",
                    more={3: page, 6: stream(zlib.compress(b""), b"/Filter /FlateDecode")})


def odd_maps():
    """ToUnicode maps as programs write them against the rules: five digits for one character, fewer entries than said, half a
    surrogate pair; something that is no map; and a map that lacks characters of a font without an encoding."""
    maps = [b"begincmap 3 beginbfchar <41> <1F600> <42> <d83d> <43> <0058> endbfchar"
            b" beginbfrange <00010000> <00010010> <0041> endbfrange endcmap",
            b"begincmap 9 beginbfrange <41> <43> <0061> endbfrange endcmap"]
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding /ToUnicode %s >>"
    return one_page(
        b"BT /F1 12 Tf 50 500 Td (ABC) Tj 0 -30 Td /F2 12 Tf (ABC) Tj 0 -30 Td /F3 12 Tf (ABC) Tj 0 -30 Td /F4 12 Tf (ABC) Tj 0 -30 Td /F5 12 Tf (A C) Tj ET",
        b"<< /Font << /F1 6 0 R /F2 7 0 R /F3 8 0 R /F4 9 0 R /F5 13 0 R >> >>",
        {6: font % b"10 0 R", 7: font % b"11 0 R", 8: font % b"12 0 R", 9: font % b"/Unknown",
         10: stream(maps[0]), 11: stream(maps[1]), 12: b"<< /Length 9 >>",
         13: b"<< /Type /Font /Subtype /Type1 /BaseFont /Nameless /ToUnicode 14 0 R >>",
         14: stream(b"begincmap 1 beginbfchar <41> <0058> endbfchar endcmap")})


def width_ranges():
    """A font whose widths are those of a range of glyphs: a word ends where they say, and the next one begins behind a gap."""
    return one_page(
        b"BT /F1 12 Tf 50 500 Td <00340032> Tj 16 0 Td <0033> Tj ET",
        b"<< /Font << /F1 6 0 R >> >>",
        {6: b"<< /Type /Font /Subtype /Type0 /BaseFont /N /Encoding /Identity-H /DescendantFonts [7 0 R] /ToUnicode 9 0 R >>",
         7: b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /N /DW 1000 /W [0 3 900 4 127 500] /FontDescriptor 8 0 R >>",
         8: b"<< /Type /FontDescriptor /FontName /N /Flags 4 >>",
         9: stream(b"begincmap 1 beginbfrange <0000> <007f> <0000> endbfrange endcmap")})


def hand_written():
    simple = b"BT /F1 12 Tf 50 500 Td (A single honest sentence.) Tj ET"
    files = {
        # Like TeX output: no space characters, only gaps, and kerning inside words.
        "gaps.pdf": one_page(
            b"BT /F1 12 Tf 50 500 Td [(The)-333(k)15(eeper)-280(w)20(aits)-400(f)10(or)-250(A)70(V)80(A.)] TJ"
            b" 0 -14 Td [(She)-333(reads)-333(on.)] TJ ET"
        ),
        # Like Ghostscript output: letter spacing moves to the next word. A spaced heading.
        "letter-spacing.pdf": one_page(
            b"BT /F1 12 Tf 50 500 Td 6 Tc (SPACED) Tj 0 Tc 0 -14 Td (one) Tj 4 Tc 20.02 0 Td (,t) Tj"
            b" 0 Tc 10.67 0 Td (wo,) Tj 1 Tc 24 0 Td (three) Tj ET"
        ),
        # Like TeX output with its first fonts: accents are glyphs of their own, drawn before the letter, or a cedilla after it.
        "accents.pdf": one_page(
            b"BT /F1 12 Tf 50 500 Td [-111(\264)444(ecole, )-111(\250)444(uber, fac)417(\270)-84(ade, `a`)] TJ ET"
        ),
        # Type 3 fonts may have no widths that a reader knows: every letter of a word is at one place.
        "no-widths.pdf": one_page(
            b"BT /F1 12 Tf 50 500 Td (A lattice, `all` correct.) Tj ET",
            b"<< /Font << /F1 6 0 R >> >>",
            {6: b"<< /Type /Font /Subtype /Type1 /BaseFont /Nameless /FirstChar 32 /LastChar 126 /Widths [" + b"0 " * 95 + b"] >>"},
        ),
        "filled-form.pdf": filled_form(),
        "placed-form.pdf": placed_form(),
        "empty-part.pdf": empty_part(),
        "odd-maps.pdf": odd_maps(),
        "width-ranges.pdf": width_ranges(),
        # The two operators that move to the next line and show text, and text in a form.
        "operators.pdf": one_page(
            b"BT /F1 12 Tf 14 TL 50 500 Td (First line) Tj (Second line) ' 2 0.5 (Third line) \" ET /X1 Do",
            b"<< /Font << /F1 5 0 R >> /XObject << /X1 6 0 R >> >>",
            {6: stream(b"BT /F1 12 Tf 50 300 Td (Inside a form) Tj ET", b"/Type /XObject /Subtype /Form /BBox [0 0 9 9]")},
        ),
        "predefined-cmaps.pdf": predefined_cmaps(),
        # Colour spaces, states and an image that the drawing library does not know must not lose the page.
        "odd-colours.pdf": one_page(
            b"/Unknown cs 0.5 scn /Missing gs 1 0 0 /Nope SCN BI /W 1 /H 1 /BPC 8 /CS /G ID x EI " + simple
        ),
        "self-drawing-form.pdf": one_page(
            simple + b" /X1 Do",
            b"<< /Font << /F1 5 0 R >> /XObject << /X1 6 0 R >> >>",
            {6: stream(b"/X1 Do /X1 Do", b"/Type /XObject /Subtype /Form /BBox [0 0 9 9]")},
        ),
        "no-font.pdf": one_page(b"BT 50 500 Td (lost) Tj /F9 12 Tf (lost too) Tj /F1 12 Tf (Found again.) Tj ET"),
        "zero-pages.pdf": {
            1: b"<< /Type /Catalog /Pages 2 0 R >>",
            2: b"<< /Type /Pages /Kids [] /Count 0 >>",
        },
        "recursive-pages.pdf": {
            1: b"<< /Type /Catalog /Pages 2 0 R >>",
            2: b"<< /Type /Pages /Kids [3 0 R 2 0 R] /Count 2 /Parent 3 0 R >>",
            3: b"<< /Type /Pages /Kids [2 0 R 3 0 R] /Count 2 /Parent 2 0 R >>",
        },
        "recursive-parents.pdf": {
            **one_page(simple),
            2: b"<< /Type /Pages /Kids [3 0 R] /Count 1 /Parent 6 0 R >>",
            3: b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R >>",
            6: b"<< /Type /Pages /Kids [2 0 R] /Count 1 /Parent 2 0 R >>",
        },
        "huge-length.pdf": one_page(simple, length=4_000_000_000),
        "negative-length.pdf": one_page(simple, length=-7),
        "bomb.pdf": one_page(b"q " * 18_000_000, packed=True),
        "deep.pdf": {**one_page(simple), 6: b"[" * 5_000 + b"]" * 5_000},
    }
    for name, objects in files.items():
        (HERE / name).write_bytes(objects_to_pdf(objects))
    (HERE / "garbage.pdf").write_bytes(b"%PDF-1.7\n" + bytes((i * i * 31 + i // 7) % 251 for i in range(2000)))


def drawn():
    for name in ("DejaVuSans", "DejaVuSerif"):
        pdfmetrics.registerFont(TTFont(name, f"{name}.ttf"))

    def paper(name):
        return canvas.Canvas(str(HERE / name), pagesize=A5, invariant=1, pageCompression=1)

    page = paper("plain.pdf")
    page.setFont("Helvetica", 12)
    for i, line in enumerate(TEXTS["english"]):
        page.drawString(50, 500 - 15 * i, line)
    page.save()

    page = paper("pages.pdf")
    for font, language in [("Helvetica", "english"), ("Times-Roman", "french"), ("Courier", "german")]:
        page.setFont(font, 11)
        for i, line in enumerate(TEXTS[language]):
            page.drawString(40, 500 - 14 * i, line)
        page.showPage()
    page.save()

    page = paper("unicode.pdf")
    page.setFont("DejaVuSans", 12)
    lines = TEXTS["russian"] + ["Ο φύλακας μετρά κάθε σελίδα.", "E\ufb03cient \ufb01les \ufb02ow through the o\ufb00ice.", "x² ≤ 3 €"]
    for i, line in enumerate(lines):
        page.drawString(30, 500 - 16 * i, line)
    page.save()

    # Two justified columns with a hyphenated word.
    style = ParagraphStyle("column", fontName="DejaVuSerif", fontSize=9, leading=12, alignment=4, spaceAfter=8)
    left = (
        "In the left column the keeper describes how the archive was built: slowly, by hand, and with an extra"
        "or\u00addi\u00adnary patience that nobody had asked for. Every shelf was measured twice."
    )
    right = "The right column follows it. Here the story goes on, in lines that are stretched to both margins, until the end."
    document = BaseDocTemplate(str(HERE / "columns.pdf"), pagesize=A5, invariant=1)
    frames = [Frame(30, 420, 165, 140, id="left"), Frame(220, 420, 165, 140, id="right")]
    document.addPageTemplates([PageTemplate(id="two", frames=frames)])
    from reportlab.platypus import FrameBreak

    document.build([Paragraph(left, style), FrameBreak(), Paragraph(right, style)])

    page = paper("table.pdf")
    page.setFont("Helvetica", 10)
    for i, row in enumerate([("Year", "Volumes", "Pages"), ("1901", "12", "3400"), ("1902", "15", "4100")]):
        for j, cell in enumerate(row):
            page.drawString(40 + 110 * j, 500 - 14 * i, cell)
    page.save()

    image = Image.new("L", (40, 40), 200)
    page = paper("scanned.pdf")
    for _ in range(2):
        page.drawInlineImage(image, 50, 300, 200, 200)
        page.showPage()
    page.save()


def locked():
    for name, password, algorithm in [
        ("password.pdf", "open sesame", "AES-256"),
        ("password-rc4.pdf", "open sesame", "RC4-128"),
        ("empty-password-rc4.pdf", "", "RC4-128"),
        ("empty-password-aes128.pdf", "", "AES-128"),
        ("empty-password-aes256.pdf", "", "AES-256"),
    ]:
        writer = PdfWriter(clone_from=PdfReader(HERE / "plain.pdf"))
        writer.encrypt(user_password=password, owner_password="the owner's", algorithm=algorithm)
        buffer = io.BytesIO()
        writer.write(buffer)
        (HERE / name).write_bytes(buffer.getvalue())


# Pages of a scan, as a reader must see them.
SCANNED = [
    ["MINUTES OF THE BOAT CLUB", "", "The meeting began at seven in the hall.", "The treasurer of the club is Olga Brandt.",
     "She counted the money twice."],
    ["SECOND PAGE", "", "The number of the mooring is 5173.", "Nobody objected, and the meeting ended."],
]


def scans():
    font = ImageFont.truetype("DejaVuSans.ttf", 40)
    pages = []
    for lines in SCANNED:
        page = Image.new("1", (1240, 620), 1)
        draw = ImageDraw.Draw(page)
        for i, line in enumerate(lines):
            draw.text((90, 80 + 60 * i), line, 0, font)
        pages.append(page)
    how = dict(resolution=200, creationDate=None, modDate=None)
    pages[0].save(HERE / "scan.pdf", save_all=True, append_images=pages[1:], **how)
    pages[1].save(HERE / "scan.png", dpi=(200, 200))
    # A page of text, and one of a scan behind it.
    mixed = PdfWriter()
    mixed.add_page(PdfReader(HERE / "plain.pdf").pages[0])
    mixed.add_page(PdfReader(HERE / "scan.pdf").pages[1])
    mixed.write(HERE / "text-and-scan.pdf")


BOOK = [  # level, heading, bookmark or None if it is the heading
    (1, "The Keeper of the Archive", None),
    (2, "Notes . . . . . . . . . . . . . . . . . . . . 4", None),  # not a heading: an entry of a contents page
    (3, "Ada Ferrow, Jon Marsh", None),  # not a heading: the authors
    (2, "1 The shelves", "The shelves"),
    (3, "How they were measured", None),
    (2, "2 A second story of the house that the keeper wrote down in the winter", None),
    (3, "What the mason said", "An entry that no line has"),
    (2, "Notes", None),
]


def headed():
    """The same book with bookmarks and without: headings in larger letters, a running head in the largest."""
    body = ParagraphStyle("body", fontName="Times-Roman", fontSize=10, leading=12, spaceAfter=8)
    sizes = {1: 18, 2: 14, 3: 12}
    text = "She counted the shelves again, wrote the number in the margin, and went down to the river. " * 6
    for name, marked in [("headings.pdf", False), ("bookmarks.pdf", True)]:
        def head(page, document):
            page.setFont("Times-Roman", 20)
            page.drawString(40, A5[1] - 20, "Archive")

        class Book(BaseDocTemplate):
            def afterFlowable(self, flowable):
                if marked and (entry := getattr(flowable, "entry", None)):
                    level, title = entry
                    self.canv.bookmarkPage(title)
                    self.canv.addOutlineEntry(title, title, level - 1)

        book = Book(str(HERE / name), pagesize=A5, invariant=1, topMargin=40, bottomMargin=40)
        book.addPageTemplates(PageTemplate("page", [Frame(30, 30, A5[0] - 60, A5[1] - 80)], onPage=head))
        story = []
        for level, title, mark in BOOK:
            size = sizes[level]
            style = ParagraphStyle("heading", fontName="Times-Bold", fontSize=size, leading=size * 1.2, spaceAfter=8)
            flowable = Paragraph(title, style)
            if not title.startswith("Ada") and ". . ." not in title:
                flowable.entry = (level, mark or title)
            story.append(flowable)
            if level > 1:
                story += [Paragraph(text, body)] * 5
        book.build(story)
    # The entries in a circle, and one that leads to a name.
    writer = PdfWriter(HERE / "bookmarks.pdf")
    first = writer._root_object["/Outlines"]["/First"]
    last = first["/First"]
    while "/Next" in last:
        last = last["/Next"]
    last[NameObject("/Next")] = first.indirect_reference
    writer.write(HERE / "bookmarks-circle.pdf")


def tables():
    """Tables, and what only looks like one."""
    body = ParagraphStyle("body", fontName="Times-Roman", fontSize=10, leading=12)
    paragraph = lambda text: Paragraph(text, body)

    def table(rows, widths, *style):
        return Table(rows, colWidths=widths, style=[("VALIGN", (0, 0), (-1, -1), "TOP"), *style])

    by_year = [["", "2021", "2022", "2023"], ["Lamp oil", "1,204", "", "1,310"], ["Candles and wicks", "987", "1,020", "1,111"],
               ["Keys", "", "455", "502"], ["Total", "2,191", "1,475", "2,923"]]
    duties = [["Who", "What", "By when"],
              ["The keeper", paragraph("Count every page in all of the rooms, and write down the encyc-<br/>lopedia."), paragraph("the last day of a month")],
              ["The mason", paragraph("Mend the wall."), ""],
              ["The deputy keeper", paragraph("Carry the lamps, oil and wicks down the stairs."), paragraph("each evening at six")]]
    narrow = [["Bolt", "12", "0.40", "4.80"], ["Nut", "", "0.20", "2.40"], ["Washer", "100", "0.05", "5.00"]]
    marks = [[mark, paragraph(text)] for mark, text in
             [("\u2022", "Close the door of the room behind you when you go."), ("\u2022", "Leave the lamp."), ("1.2", "Count the encyclopedia twice.")]]
    contents = [["1", "The shelves" + " ." * 20, "3"], ["2", "The stairs" + " ." * 21, "9"]]
    repairs = [["Part", "Mason", "Date", "Payer", "Sum"], ["Tower", "Carrow", "15 June", "Parish", "18,250"],
               ["Stair", "Whitby", "1 July", "Archive", "7,980"]]
    charges = [["Year", "Budget", "Share"], ["2023", "14,200", "5,396"], ["2024", "14,900", "5,662"]]
    story = [paragraph("Sold by the archive"), table(by_year, [110, 50, 50, 50], ("ALIGN", (1, 0), (-1, -1), "RIGHT")), Spacer(0, 30),
             table(duties, [95, 130, 80]), Spacer(0, 30), table(narrow, [50, 32, 32, 32]), PageBreak(),
             table(marks, [18, 200]), Spacer(0, 40), table(contents, [18, 180, 30]), PageBreak(),
             table(repairs, [66, 66, 66, 66, 66]), paragraph("Charges"), table(charges, [80, 80, 80])]
    BaseDocTemplate(str(HERE / "tables.pdf"), pagesize=A5, invariant=1, pageTemplates=[
        PageTemplate(id="one", frames=[Frame(40, 40, 340, 520, id="all")])]).build(story)


def others():
    Image.new("L", (4, 4), 9).save(HERE / "picture.png")
    import zipfile

    with zipfile.ZipFile(HERE / "archive.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("notes.txt"), "nothing")


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    texts()
    drawn()
    hand_written()
    locked()
    scans()
    headed()
    tables()
    others()
    print(sum(f.stat().st_size for f in HERE.iterdir()), "bytes")
