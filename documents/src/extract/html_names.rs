//! What the elements of HTML mean for its text.

/// Elements that begin and end a paragraph.
#[rustfmt::skip]
pub(super) fn is_block(name: &str) -> bool {
    matches!(
        name,
        "address" | "article" | "aside" | "blockquote" | "body" | "caption" | "center" | "dd" | "details" | "dialog"
        | "dir" | "div" | "dl" | "dt" | "fieldset" | "figcaption" | "figure" | "footer" | "form" | "head" | "header"
        | "hgroup" | "html" | "legend" | "main" | "menu" | "nav" | "option" | "p" | "search" | "section" | "summary"
        | "tbody" | "tfoot" | "thead"
    )
}

/// Elements whose contents are not shown as text.
#[rustfmt::skip]
pub(super) fn is_unseen(name: &str) -> bool {
    matches!(
        name,
        "script" | "style" | "noscript" | "noembed" | "noframes" | "template" | "svg" | "iframe" | "object" | "audio"
        | "video" | "canvas" | "datalist" | "annotation" | "annotation-xml" | "rp" | "rt"
    )
}

/// Elements that are hidden with their contents if an attribute says so. Others have optional end tags.
pub(super) fn can_hide(name: &str) -> bool {
    matches!(
        name,
        "div" | "span" | "section" | "article" | "aside" | "table" | "ul" | "ol" | "nav"
    )
}

/// Level of a heading, from 1.
pub(super) fn heading(name: &str) -> Option<u8> {
    match name.as_bytes() {
        [b'h', level @ b'1'..=b'6'] => Some(level - b'0'),
        _ => None,
    }
}
