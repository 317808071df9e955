//! Screenshots. They are taken from the display's framebuffer: the page's driver would wait for a frame, and an idle
//! page draws none.

use std::path::Path;

/// Big-endian 4-byte words of an XWD header (file version 7).
mod head {
    pub const BYTES: usize = 0;
    pub const WIDTH: usize = 4;
    pub const HEIGHT: usize = 5;
    pub const BITS_PER_PIXEL: usize = 11;
    pub const BYTES_PER_LINE: usize = 12;
    pub const COLOURS: usize = 19;
}

/// Bytes of a colour table entry after the header.
const COLOUR: usize = 12;

/// The image in the framebuffer file `screen`, as PNG; or the reason for a failure.
pub fn of(screen: &Path) -> Result<Vec<u8>, String> {
    let bytes = std::fs::read(screen).map_err(|e| format!("{}: {e}", screen.display()))?;
    let word = |which: usize| {
        let four = bytes.get(4 * which..4 * which + 4)?.try_into().ok()?;
        Some(u32::from_be_bytes(four) as usize)
    };
    let words = [
        head::BYTES,
        head::WIDTH,
        head::HEIGHT,
        head::BITS_PER_PIXEL,
        head::BYTES_PER_LINE,
        head::COLOURS,
    ];
    let words: Option<Vec<usize>> = words.into_iter().map(word).collect();
    let Some([start, width, height, 32, line, colours]) = words.as_deref() else {
        return Err(format!("no screen of 32 bits a pixel: {words:?}"));
    };
    let pixels = bytes.get(start + colours * COLOUR..).unwrap_or_default();
    if pixels.len() < line * height || *line < 4 * width || *line == 0 {
        return Err(format!("{} bytes of pixels", pixels.len()));
    }
    // Blue, green, red and one padding byte.
    let lines = pixels.chunks_exact(*line).take(*height);
    let colours = lines.flat_map(|line| line[..4 * width].as_chunks::<4>().0);
    let colours: Vec<u8> = colours.flat_map(|&[b, g, r, _]| [r, g, b]).collect();
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, *width as u32, *height as u32);
    encoder.set_color(png::ColorType::Rgb);
    let written = encoder
        .write_header()
        .and_then(|mut writer| writer.write_image_data(&colours));
    written.map_err(|e| e.to_string())?;
    Ok(out)
}
