//! A minimal SVG writer: a page with a title, and the shapes that the pictures use. One file, no script, no fonts but
//! those of the viewer.

use std::fmt::Write;

/// Text, secondary text, hairlines; an accent colour and its counterpart.
pub(crate) const INK: &str = "#1d2733";
pub(crate) const QUIET: &str = "#66717f";
pub(crate) const HAIR: &str = "#e3e7ec";
pub(crate) const ACCENT: &str = "#2f6fb3";
pub(crate) const OTHER: &str = "#c8623f";
/// Background of a bar.
pub(crate) const TRACK: &str = "#f0f2f5";

/// Margin around the page.
pub(crate) const MARGIN: f64 = 28.0;
/// Height of title and subtitle.
pub(crate) const HEAD: f64 = 62.0;

/// Anchors of text.
pub(crate) const START: &str = "start";
pub(crate) const MIDDLE: &str = "middle";
pub(crate) const END: &str = "end";

/// A picture under construction. Coordinates are pixels from the top left corner.
pub(crate) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    /// A white page with title and subtitle.
    pub(crate) fn new(width: f64, height: f64, title: &str, subtitle: &str) -> Self {
        let mut svg = Self {
            width,
            height,
            body: String::new(),
        };
        svg.styled(MARGIN, MARGIN + 8.0, 17.0, "600", INK, START, title);
        svg.styled(MARGIN, MARGIN + 28.0, 12.0, "400", QUIET, START, subtitle);
        svg
    }

    /// A filled rectangle with slightly rounded corners.
    pub(crate) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        if width > 0.0 && height > 0.0 {
            let _ = write!(
                self.body,
                r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="1.5" fill="{fill}"/>"#
            );
        }
    }

    /// A cell of a heat map: no gap, no rounding; `says` is its tooltip.
    pub(crate) fn cell(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str, says: &str) {
        let _ = write!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"><title>{}</title></rect>"#,
            escaped(says)
        );
    }

    /// A thin horizontal line.
    pub(crate) fn rule(&mut self, left: f64, right: f64, y: f64, stroke: &str) {
        let _ = write!(
            self.body,
            r#"<line x1="{left:.1}" y1="{y:.1}" x2="{right:.1}" y2="{y:.1}" stroke="{stroke}"/>"#
        );
    }

    /// A curve through points.
    pub(crate) fn curve(&mut self, points: &[(f64, f64)], stroke: &str) {
        let mut list = String::new();
        for (x, y) in points {
            let _ = write!(list, "{x:.1},{y:.1} ");
        }
        let _ = write!(
            self.body,
            r#"<polyline points="{}" fill="none" stroke="{stroke}" stroke-width="1.8" stroke-linejoin="round"/>"#,
            list.trim_end()
        );
    }

    /// Ordinary text of 12 pixels; `y` is its baseline.
    pub(crate) fn text(&mut self, x: f64, y: f64, fill: &str, anchor: &str, text: &str) {
        self.styled(x, y, 12.0, "400", fill, anchor, text);
    }

    /// Small text of 10.5 pixels for axes and cells.
    pub(crate) fn small(&mut self, x: f64, y: f64, fill: &str, anchor: &str, text: &str) {
        self.styled(x, y, 10.5, "400", fill, anchor, text);
    }

    /// A bold heading.
    pub(crate) fn heading(&mut self, x: f64, y: f64, text: &str) {
        self.styled(x, y, 12.0, "600", INK, START, text);
    }

    #[allow(clippy::too_many_arguments)]
    fn styled(
        &mut self,
        x: f64,
        y: f64,
        size: f64,
        weight: &str,
        fill: &str,
        anchor: &str,
        text: &str,
    ) {
        let _ = write!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}">{}</text>"#,
            escaped(text)
        );
    }

    /// The complete SVG file.
    pub(crate) fn finish(self) -> String {
        let Self {
            width,
            height,
            body,
        } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" \
             font-family=\"Inter, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\" style=\"font-variant-numeric: tabular-nums\">\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>{body}</svg>\n"
        )
    }
}

/// Approximate width of the longest of `texts`, with a gap after it.
pub(crate) fn width_for<'a>(texts: impl Iterator<Item = &'a str>) -> f64 {
    let longest = texts.map(|text| text.chars().count()).max().unwrap_or(0);
    7.0 * longest as f64 + 12.0
}

/// Escapes text for an element's content. Control characters are not allowed in XML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || c == '\u{fffe}' || c == '\u{ffff}' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// The cividis colour of a share between 0 and 1; readable with colour vision deficiencies.
pub(crate) fn cividis(share: f64) -> String {
    const STOPS: [(f64, f64, f64); 9] = [
        (0.0, 34.0, 78.0),
        (26.0, 56.0, 111.0),
        (64.0, 77.0, 108.0),
        (94.0, 99.0, 110.0),
        (124.0, 123.0, 120.0),
        (155.0, 147.0, 119.0),
        (188.0, 173.0, 108.0),
        (224.0, 201.0, 87.0),
        (254.0, 232.0, 56.0),
    ];
    let place = share.clamp(0.0, 1.0) * (STOPS.len() - 1) as f64;
    let low = (place as usize).min(STOPS.len() - 2);
    let (a, b, t) = (STOPS[low], STOPS[low + 1], place - low as f64);
    let mix = |a: f64, b: f64| (a + (b - a) * t).round() as u8;
    format!(
        "#{:02x}{:02x}{:02x}",
        mix(a.0, b.0),
        mix(a.1, b.1),
        mix(a.2, b.2)
    )
}

/// Text colour with contrast to [`cividis`].
pub(crate) fn ink_on(share: f64) -> &'static str {
    if share > 0.5 { INK } else { "#ffffff" }
}

/// The first `most` characters, with an ellipsis if the text is longer.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    if text.chars().count() > most {
        text.chars().take(most - 1).chain(['…']).collect()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn svg_text_is_escaped() {
        let mut svg = Svg::new(10.0, 10.0, "</text><script>", "a & \u{1b}b");
        svg.cell(0.0, 0.0, 1.0, 1.0, "#000", "\"<");
        let file = svg.finish();
        assert!(!file.contains("<script") && !file.contains('\u{1b}'));
        assert!(file.contains("a &amp;  b"));
    }

    #[test]
    fn cividis_goes_from_dark_to_light() {
        assert_eq!(cividis(-1.0), "#00224e");
        assert_eq!(cividis(1.0), "#fee838");
        assert_eq!(cividis(0.5), "#7c7b78");
    }

    #[test]
    fn long_answers_are_shortened() {
        assert_eq!(shortened("a\n b  c", 5), "a b c");
        assert_eq!(shortened("abcdef", 5), "abcd…");
    }
}
