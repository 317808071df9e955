//! Chat templates and documents made to harm the program that reads them: an answer, or one sentence.

use std::path::Path;

use kept_models::testing::{MetaValue, TinyLlama};
use kept_tests::golden::repository;
use kept_tests::hostile::{HELVETICA, WORDS, nested_pdf, pages, pdf, stream};
use kept_tests::terminal::{Run, kept};

/// `kept ask` with a model and a document, one token.
fn ask(model: &Path, document: &Path) -> Run {
    let path = |path: &Path| path.to_str().expect("a path in Unicode").to_owned();
    kept([
        "ask".to_owned(),
        "--model".to_owned(),
        path(model),
        "--document".to_owned(),
        path(document),
        "--question=Who?".to_owned(),
        "--max-tokens=1".to_owned(),
        "--vault=off".to_owned(),
    ])
}

fn with_template(folder: &Path, template: String) -> Run {
    let mut writer = TinyLlama::default().writer();
    writer.set("tokenizer.chat_template", MetaValue::Text(template));
    let model = folder.join("m.gguf");
    writer.write(&model).expect("a model is written");
    let note = folder.join("note.txt");
    std::fs::write(&note, "The keeper went to the harbour.").expect("a note");
    ask(&model, &note)
}

#[test]
fn a_template_of_any_shape_is_used_or_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let n = 120_000;
    let chain = |link: &str| format!("{{{{ 1{} }}}}", link.repeat(n));
    let grow = |step: &str| {
        format!(
            "{{% set ns = namespace(s='a\\n') %}}{{% for i in range(60) %}}{{% set s = ns.s %}}\
             {{% set ns.s = {step} %}}{{% endfor %}}{{{{ ns.s }}}}"
        )
    };
    let shapes = [
        chain(" + 1"),
        chain(" ~ 1"),
        chain(" and 1"),
        chain("|string"),
        chain(".a"),
        chain("[0]"),
        chain(" is defined"),
        chain(" if 1 else 1"),
        format!("{{{{ {}1 }}}}", "not ".repeat(n)),
        format!("{{{{ {}1 }}}}", "- ".repeat(n)),
        format!("{{{{ {}", "(".repeat(n)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(n)),
        "{% if 1 %}".repeat(n),
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns|tojson }}".to_owned(),
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{{ ''[::-1] }}".to_owned(),
        "{{ [][::-1] }}{{ 'abc'[5:1:-2] }}".to_owned(),
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x{% endfor %}{% endfor %}{% endfor %}"
            .to_owned(),
        grow("s ~ s"),
        grow("[s, s]|join"),
        grow("s|replace('a', 'aaaaaaaaaa')"),
        grow("s|indent(100)"),
        grow("'%s%s'|format(s, s)"),
        grow("s|tojson ~ s"),
    ];
    for shape in shapes {
        let begins: String = shape.chars().take(60).collect();
        let run = with_template(folder.path(), shape);
        match run.code {
            Some(0) => {}
            _ => {
                let line = run.refused(&["chat template"]);
                assert!(!line.contains("close other programs"), "{begins}: {line}");
            }
        }
    }
}

#[test]
fn what_a_template_exceeds_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = |template: &str, what| {
        with_template(folder.path(), template.to_owned()).refused(&[what]);
    };
    said("{% if 1 %}{{ 1", "syntax error");
    if cfg!(target_os = "linux") {
        let itself = "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}";
        said(itself, "it is nested too deeply");
        let doubled = "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
        said(doubled, "it takes more than 256 MiB of memory");
    }
}

#[test]
fn a_pdf_that_unfolds_or_never_ends_is_refused() {
    let object_stream = stream(&b"1 0 ".repeat(100 << 20), "/Type/ObjStm/N 9/First 40");
    let catalog = || (1, b"<</Type/Catalog/Pages 2 0 R>>".to_vec());
    let table = stream(
        &[0; 64],
        "/Type/XRef/Root 2 0 R/W[1 2 1]/Size 9/DecodeParms<</Predictor 12/Columns 274877906944>>",
    );
    let table = [
        b"%PDF-1.5\n1 0 obj\n",
        &table[..],
        b"\nendobj\nstartxref\n9\n%%EOF",
    ]
    .concat();
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in [
        ("nested.pdf", nested_pdf()),
        (
            "states.pdf",
            pages(&b"q ".repeat(15_000_000), HELVETICA, 1, Vec::new()),
        ),
        (
            "spaces.pdf",
            pages(
                &[&b" ".repeat(30 << 20)[..], WORDS].concat(),
                HELVETICA,
                2000,
                Vec::new(),
            ),
        ),
        ("objects.pdf", pdf(&[catalog(), (3, object_stream)])),
        ("table.pdf", table),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        let run = ask(&repository().join("assets/mini.gguf"), &path);
        let line = run.refused(&[name]);
        assert!(!line.contains("close other programs"), "{line}");
    }
}
