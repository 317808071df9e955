//! PDFs made to harm the program that reads them.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// The content of a page with some words.
pub const WORDS: &[u8] = b"BT /F 12 Tf 72 700 Td (Some words) Tj ET\n";
/// The font of these words.
pub const HELVETICA: &str = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>";

/// A PDF of numbered objects, with a table of contents.
pub fn pdf(objects: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let mut out = b"%PDF-1.5\n".to_vec();
    let mut table = Vec::new();
    for (number, body) in objects {
        writeln!(table, "{number} 1\n{:010} 00000 n ", out.len()).expect("written");
        writeln!(out, "{number} 0 obj").expect("written");
        out.extend_from_slice(body);
        out.extend_from_slice(b"\nendobj\n");
    }
    let start = out.len();
    out.extend_from_slice(b"xref\n0 1\n0000000000 65535 f \n");
    out.extend_from_slice(&table);
    write!(
        out,
        "trailer\n<</Size 99/Root 1 0 R>>\nstartxref\n{start}\n%%EOF"
    )
    .expect("written");
    out
}

/// A packed stream with more entries in its dictionary.
pub fn stream(content: &[u8], extra: &str) -> Vec<u8> {
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::best());
    packed.write_all(content).expect("packed");
    let packed = packed.finish().expect("packed");
    let head = format!(
        "<</Filter/FlateDecode/Length {}{extra}>>stream\n",
        packed.len()
    );
    [head.as_bytes(), &packed, b"\nendstream"].concat()
}

/// A PDF of `pages` pages with the same content, and more objects.
pub fn pages(content: &[u8], font: &str, pages: usize, more: Vec<(usize, Vec<u8>)>) -> Vec<u8> {
    let kids: Vec<String> = (0..pages).map(|i| format!("{} 0 R", 100 + i)).collect();
    let mut objects = vec![
        (1, b"<</Type/Catalog/Pages 2 0 R>>".to_vec()),
        (
            2,
            format!("<</Type/Pages/Count {pages}/Kids[{}]>>", kids.join(" ")).into(),
        ),
        (4, stream(content, "")),
        (5, font.into()),
    ];
    objects.extend(more);
    let page = "<</Type/Page/Parent 2 0 R/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>";
    objects.extend((0..pages).map(|i| (100 + i, page.into())));
    pdf(&objects)
}

/// A PDF of 2 KB that overflows any stack: by the CMap of its font's encoding.
pub fn nested_pdf() -> Vec<u8> {
    let nested = [b"/CIDInit begincmap ", &b"[".repeat(1_000_000)[..]].concat();
    let composite = "<</Type/Font/Subtype/Type0/BaseFont/F/Encoding 6 0 R/DescendantFonts[7 0 R]>>";
    let descendant = "<</Type/Font/Subtype/CIDFontType2/BaseFont/F/FontDescriptor 8 0 R/CIDSystemInfo\
                      <</Registry(Adobe)/Ordering(Identity)/Supplement 0>>>>";
    let descriptor = b"<</Type/FontDescriptor/FontName/F/Flags 4>>".to_vec();
    let more = vec![
        (6, stream(&nested, "")),
        (7, descendant.into()),
        (8, descriptor),
    ];
    pages(WORDS, composite, 1, more)
}
