//! Python features that templates use beyond Jinja: `json.dumps`, `strftime`, methods, and Hugging Face's `generation`
//! tag.

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config};
use jiff::tz::TimeZone;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Python's methods of strings, lists and dictionaries.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}

/// Replaces `{% generation %}` tags, which mark the assistant's text for training and have no other effect than a
/// scope, by plain scopes.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let name = tag.trim_start_matches(['-', '+']).trim_start();
        for (tag_name, plain) in [("generation", "with"), ("endgeneration", "endwith")] {
            let Some(after) = name.strip_prefix(tag_name) else {
                continue;
            };
            if after
                .trim_start()
                .trim_start_matches(['-', '+'])
                .starts_with("%}")
            {
                out.push_str(&tag[..tag.len() - name.len()]);
                out.push_str(plain);
                rest = after;
                break;
            }
        }
    }
    out + rest
}

/// The most spaces for each level of JSON.
const MAX_INDENT: usize = 100;
/// The deepest nesting of what becomes JSON.
const MAX_DEPTH: usize = 500;

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    arguments: Kwargs,
) -> Result<Value, Error> {
    let ensure_ascii = match ensure_ascii {
        Some(flag) => Some(flag),
        None => arguments.get("ensure_ascii")?,
    };
    let indent: Option<usize> = arguments.get("indent")?;
    if let Some(indent) = indent.filter(|indent| *indent > MAX_INDENT) {
        let what = format!("tojson indents by {indent}: {MAX_INDENT} is the most");
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    let separators: Option<Vec<String>> = arguments.get("separators")?;
    let sort_keys: Option<bool> = arguments.get("sort_keys")?;
    arguments.assert_all_used()?;
    let (items, keys) = match separators.as_deref() {
        Some([items, keys]) => (items.as_str(), keys.as_str()),
        Some(_) => {
            let what = "separators are two: between items and after keys";
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
        None if indent.is_some() => (",", ": "),
        None => (", ", ": "),
    };
    let mut json = Json {
        out: String::new(),
        ensure_ascii: ensure_ascii.unwrap_or(false),
        sort_keys: sort_keys.unwrap_or(false),
        indent,
        items,
        keys,
    };
    json.value(value, 0)?;
    Ok(Value::from(json.out))
}

struct Json<'a> {
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<usize>,
    /// Separator between items.
    items: &'a str,
    /// Separator between a key and its value.
    keys: &'a str,
}

impl Json<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            let what = format!("tojson writes lists of {MAX_DEPTH} levels at most");
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => {
                let number = f64::try_from(value.clone())?;
                self.out.push_str(&float(number));
            }
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            kind @ (ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) => {
                let is_map = kind == ValueKind::Map;
                let [opening, closing] = if is_map { ["{", "}"] } else { ["[", "]"] };
                let items = value.try_iter()?.checked();
                let mut items: Vec<Value> = items.collect::<Result<_, Error>>()?;
                if is_map && self.sort_keys {
                    items.sort_by_key(Value::to_string);
                }
                self.out.push_str(opening);
                for (i, item) in items.iter().enumerate() {
                    self.out.push_str(if i > 0 { self.items } else { "" });
                    self.line(depth + 1);
                    if is_map {
                        self.text(&item.to_string());
                        self.out.push_str(self.keys);
                        self.value(&value.get_item(item)?, depth + 1)?;
                    } else {
                        self.value(item, depth + 1)?;
                    }
                }
                if !items.is_empty() {
                    self.line(depth);
                }
                self.out.push_str(closing);
            }
            kind => {
                let what = format!("{kind} is nothing that JSON can say");
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        }
        Ok(())
    }

    /// Starts a new line if `indent` is set.
    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn text(&mut self, text: &str) {
        let json = serde_json::to_string(text).expect("text is JSON");
        for c in json.chars() {
            if self.ensure_ascii && !matches!(c, ' '..='~') {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    self.out.push_str(&format!("\\u{unit:04x}"));
                }
            } else {
                self.out.push(c);
            }
        }
    }
}

/// A number as Python writes it: shortest digits, in scientific notation from 1e16 and below 1e-4.
fn float(number: f64) -> String {
    if !number.is_finite() {
        return match number {
            n if n.is_nan() => "NaN".to_owned(),
            n if n > 0.0 => "Infinity".to_owned(),
            _ => "-Infinity".to_owned(),
        };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{number:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// `strftime` in UTC and English. Unknown directives are copied.
pub(super) fn strftime(format: &str, unix_seconds: u64) -> String {
    let seconds = i64::try_from(unix_seconds).unwrap_or(i64::MAX);
    let time = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    let lenient = Config::new().lenient(true);
    let time = BrokenDownTime::from(&time.to_zoned(TimeZone::UTC));
    time.to_string_with_config(&lenient, format)
        .unwrap_or_else(|_| format.to_owned())
}
