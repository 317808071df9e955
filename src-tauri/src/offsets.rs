//! Conversion of byte offsets to UTF-16 units, in one pass through the text.

/// For each byte offset in `bytes` (in any order), the UTF-16 offset in `text`. An offset beyond the text counts as its
/// end, an offset inside a character as the character's start. Linear in the text plus the sorting of the offsets.
pub fn utf16_offsets(text: &str, bytes: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..bytes.len()).collect();
    order.sort_by_key(|&i| bytes[i]);
    let mut units = vec![0; bytes.len()];
    let mut at_byte = 0;
    let mut at_unit = 0;
    let mut characters = text.chars();
    for i in order {
        let wanted = bytes[i].min(text.len());
        loop {
            let mut ahead = characters.clone();
            match ahead.next() {
                Some(character) if at_byte + character.len_utf8() <= wanted => {
                    at_byte += character.len_utf8();
                    at_unit += character.len_utf16();
                    characters = ahead;
                }
                _ => break,
            }
        }
        units[i] = at_unit;
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_order_and_any_character() {
        let text = "aé\u{1F600}漢b\u{0}";
        let bytes: Vec<usize> = (0..=text.len() + 3).rev().collect();
        for (byte, unit) in bytes.iter().zip(utf16_offsets(text, &bytes)) {
            let floor = (0..=(*byte).min(text.len()))
                .rev()
                .find(|&at| text.is_char_boundary(at))
                .expect("0 is a boundary");
            assert_eq!(unit, text[..floor].encode_utf16().count(), "byte {byte}");
        }
        assert_eq!(utf16_offsets("", &[0, 5]), [0, 0]);
    }
}
