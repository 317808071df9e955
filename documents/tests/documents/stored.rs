//! The facts of a document as programs store them: those that earlier versions wrote stay readable.

use kept_documents::{Document, Kind};
use serde_json::{Value, json};

#[test]
fn facts_that_earlier_versions_stored_are_read() {
    let facts = |name: &str, kind: &str| {
        json!({
            "name": name, "kind": kind, "encoding": "UTF-8", "source_bytes": 20, "skipped_bytes": 3,
            "malformed": 1, "unread_pages": [3], "pages": [{"number": 2, "start": 0, "end": 9}],
        })
    };
    let part = |kind, start, end| {
        let mut part = json!({"document": facts("a", kind), "start": start, "end": end});
        part["document"]["image_pages"] = json!([]);
        part["document"]["parts"] = json!([]);
        part["document"]["headings"] = json!([]);
        part
    };
    let mut joined = facts("a + b", "text");
    joined["image_pages"] = json!([2, 5]);
    joined["parts"] = json!([part("pdf", 0, 9), part("DOCX", 10, 20)]);
    // The first versions had neither pages of images nor headings nor parts.
    for (facts, parts) in [(joined, 2), (facts("a", "pdf"), 0)] {
        let mut earlier = facts.clone();
        earlier["notes"] = json!(["page 3 is damaged"]);
        let document: Document = serde_json::from_value(earlier).expect("a document");
        assert_eq!(document.parts.len(), parts);
        assert_eq!(
            (document.pages[0].number, &document.pages[0].range),
            (2, &(0..9))
        );
        if let [pdf, office] = &document.parts[..] {
            assert_eq!((&pdf.document.kind, &pdf.range), (&Kind::Pdf, &(0..9)));
            assert_eq!(
                (office.document.kind.code(), &office.range),
                ("DOCX", &(10..20))
            );
        }
        let stored = serde_json::to_value(&document).expect("JSON");
        for (key, value) in facts.as_object().expect("an object") {
            assert_eq!(stored[key], *value, "{key}");
        }
        assert_eq!(stored.get("text"), None::<&Value>);
    }
}
