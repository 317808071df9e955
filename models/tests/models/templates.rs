//! Compares chat templates with Hugging Face's renderings.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use minijinja::Value;

use kept_models::{ChatTemplate, Message, ModelError};

fn message(role: &str, content: &str) -> Message {
    Message {
        role: role.to_owned(),
        content: content.to_owned(),
    }
}

fn compile(source: &str) -> Result<ChatTemplate, ModelError> {
    ChatTemplate::from_source(source, Some("<s>".to_owned()), Some("</s>".to_owned()))
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/templates")
}

/// JSON for a template, with keys in source order; `serde_json` alone would sort them.
struct Ordered(Value);

impl<'de> serde::Deserialize<'de> for Ordered {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Ordered;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("JSON")
            }
            fn visit_unit<E>(self) -> Result<Ordered, E> {
                Ok(Ordered(Value::from(())))
            }
            fn visit_bool<E>(self, flag: bool) -> Result<Ordered, E> {
                Ok(Ordered(Value::from(flag)))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Ordered, E> {
                Ok(Ordered(Value::from(number)))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Ordered, E> {
                Ok(Ordered(Value::from(number)))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Ordered, E> {
                Ok(Ordered(Value::from(number)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Ordered, E> {
                Ok(Ordered(Value::from(text)))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<Ordered, A::Error> {
                let mut items = Vec::new();
                while let Some(Ordered(item)) = list.next_element()? {
                    items.push(item);
                }
                Ok(Ordered(Value::from(items)))
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Ordered, A::Error> {
                let mut pairs: IndexMap<Value, Value> = IndexMap::new();
                while let Some((key, Ordered(value))) = map.next_entry::<String, _>()? {
                    pairs.insert(Value::from(key), value);
                }
                Ok(Ordered(Value::from_object(pairs)))
            }
        }
        from.deserialize_any(Visitor)
    }
}

#[derive(serde::Deserialize)]
struct Renderings {
    now: u64,
    conversations: Vec<Ordered>,
    tools: Ordered,
    switches: Vec<BTreeMap<String, Ordered>>,
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    template: String,
    generate: bool,
    bos: Option<String>,
    eos: Option<String>,
    conversation: usize,
    tools: bool,
    switches: usize,
    text: Option<String>,
    error: Option<String>,
}

#[test]
fn templates_render_as_in_hugging_face() {
    let path = golden().join("renderings.json.gz");
    let file = std::fs::File::open(&path).expect("renderings");
    let reader = BufReader::new(flate2::read::GzDecoder::new(file));
    let golden_cases: Renderings = serde_json::from_reader(reader).expect("renderings");
    let mut wrong = Vec::new();
    for case in &golden_cases.cases {
        let source = std::fs::read_to_string(golden().join(format!("{}.jinja", case.template)));
        let template = ChatTemplate::from_source(
            &source.expect("a template"),
            case.bos.clone(),
            case.eos.clone(),
        )
        .expect("it compiles")
        .at(golden_cases.now)
        .expect("it compiles");
        let tools = if case.tools {
            golden_cases.tools.0.clone()
        } else {
            Value::from(())
        };
        let mut values = BTreeMap::from([
            (
                "messages".to_owned(),
                golden_cases.conversations[case.conversation].0.clone(),
            ),
            ("tools".to_owned(), tools),
            ("documents".to_owned(), Value::from(())),
            (
                "add_generation_prompt".to_owned(),
                Value::from(case.generate),
            ),
        ]);
        let switches = golden_cases.switches[case.switches].iter();
        values.extend(switches.map(|(name, value)| (name.clone(), value.0.clone())));
        let found = template.render_value(Value::from(values));
        let right = match (&found, &case.text) {
            (Ok(found), Some(text)) => found == text,
            (Err(_), None) => true,
            _ => false,
        };
        if !right {
            wrong.push(format!(
                "{} conversation {} tools {} switches {} generate {}\n  expected {:?} {:?}\n  found    {:?}",
                case.template, case.conversation, case.tools, case.switches, case.generate, case.text, case.error, found
            ));
        }
    }
    assert!(golden_cases.cases.len() >= 5000);
    let some: Vec<&String> = wrong.iter().step_by(wrong.len() / 12 + 1).collect();
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{some:#?}",
        wrong.len(),
        golden_cases.cases.len()
    );
}

#[test]
fn thinking_can_be_switched_off() {
    let source = std::fs::read_to_string(golden().join("qwen3.jinja")).unwrap();
    let template = compile(&source).unwrap();
    assert!(template.can_think() && !compile("{{ bos_token }}").unwrap().can_think());
    let end = |thinking| {
        let text = template.render(&[message("user", "Why?")], true, thinking);
        text.unwrap().split_once("Why?").unwrap().1.to_owned()
    };
    assert_eq!(end(true), "<|im_end|>\n<|im_start|>assistant\n");
    let without = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(end(false), without);
}

#[test]
fn system_messages_move_to_the_user_turn_if_unsupported() {
    let source = std::fs::read_to_string(golden().join("gemma2.jinja")).unwrap();
    let messages = [message("system", "Be brief."), message("user", "Why?")];
    let template = compile(&source).unwrap();
    let text = template.render(&messages, true, false).unwrap();
    let expected = "<s><start_of_turn>user\nBe brief.\n\nWhy?<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(text, expected);
    let error = template.render(&messages[..1], true, false).unwrap_err();
    assert!(
        error.to_string().contains("System role not supported"),
        "{error}"
    );
}

#[test]
fn template_errors_and_endless_loops_are_refused() {
    let refuses = compile("{{ raise_exception('roles must alternate') }}").unwrap();
    let error = refuses.render(&[], true, false).unwrap_err().to_string();
    assert!(error.contains("roles must alternate"), "{error}");
    let long =
        compile("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}")
            .unwrap();
    assert!(matches!(
        long.render(&[], true, false),
        Err(ModelError::Template { .. })
    ));
    for panics in ["{{ ''[::-1] }}", "{{ 'abc'[1:2:-1] }}"] {
        let error = compile(panics).unwrap().render(&[], true, false);
        assert!(!matches!(error, Ok(text) if !text.is_empty()), "{panics}");
    }
    let deep = "{% set n = namespace(a=[]) %}{% for i in range(600) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a | tojson }}";
    for (json, named) in [
        (
            "{{ [1] | tojson(indent=18446744073709551615) }}",
            "18446744073709551615",
        ),
        (
            "{{ [1] | tojson(indent=9223372036854775807) }}",
            "100 is the most",
        ),
        (deep, "500 levels"),
    ] {
        let error = compile(json).unwrap().render(&[], true, false);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
    assert!(matches!(
        compile("{% if %}"),
        Err(ModelError::Template { .. })
    ));
}

#[test]
fn dates_are_formatted_as_strftime_does() {
    let written = |format: &str, at: u64| {
        let template = compile(&format!("{{{{ strftime_now('{format}') }}}}")).unwrap();
        let template = template.at(at).unwrap();
        template.render(&[], true, false).unwrap()
    };
    assert_eq!(written("%d %b %Y", 1_732_060_800), "20 Nov 2024");
    let format = "%B %d, %Y %H:%M:%S %%%!";
    let expected = "February 29, 2000 00:00:00 %%!";
    assert_eq!(written(format, 951_782_400), expected);
    let format = "%A %-d %-m %j %I %p %y";
    assert_eq!(written(format, 951_782_400), "Tuesday 29 2 060 12 AM 00");
}
