//! Reads and operates the page as a user does, through its `data-testid`s.

use std::time::Duration;

use serde_json::{Value, json};

use super::app::{App, Launch};
use super::files::Home;

/// The first question suggested for the sample document.
pub const OFFERED: &str = "What colour is the flag of the ship Palova?";

/// A question on the sample document that the built-in model answers under every method that scores by the question.
pub const QUESTION: &str = "What is the locker code of Ann Quorvin?";

/// A string that the answer must contain.
pub const ANSWER: &str = "4711";

/// Opens the app on its first start, with the sample document shown and the engine ready.
#[track_caller]
pub fn first_start(home: &Home) -> App<'_> {
    let app = Launch::plain().open(home);
    app.is_ready();
    app.shows_document("sample.txt");
    app
}

/// [`first_start`], with [`QUESTION`] answered and the document painted.
#[track_caller]
pub fn answered(home: &Home) -> App<'_> {
    let app = first_start(home);
    app.ask(QUESTION);
    app.is_answered();
    app.until("the document is painted", |app| {
        app.runs().iter().any(|&share| share > 0)
    });
    // The answer may be complete before the last layer is painted.
    app.until("the painting has settled", |app| {
        let before = app.runs();
        std::thread::sleep(Duration::from_millis(700));
        app.runs() == before
    });
    app
}

/// A message that the app shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The text.
    pub text: String,
    /// Its location: `document`, `model` or `conversation`.
    pub place: String,
}

/// Replaces non-breaking spaces with ordinary ones: they look the same.
fn plain(text: &str) -> String {
    text.replace(['\u{a0}', '\u{202f}'], " ")
}

/// `[data-testid="..."]`
fn css(id: &str) -> String {
    format!("[data-testid=\"{id}\"]")
}

impl App<'_> {
    /// Whether an element with this id exists and has a size.
    #[track_caller]
    pub fn is_shown(&self, id: &str) -> bool {
        let script = "const e = $(args[0]); if (!e) return false
            const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0 && getComputedStyle(e).visibility !== 'hidden'";
        self.script(script, id) == true
    }

    /// Trimmed text of the first element with this id; `None` if none exists.
    #[track_caller]
    pub fn text(&self, id: &str) -> Option<String> {
        let text = self.script(
            "const e = $(args[0]); return e ? e.innerText.trim() : null",
            id,
        );
        text.as_str().map(plain)
    }

    /// Texts of all elements with this id.
    #[track_caller]
    pub fn texts(&self, id: &str) -> Vec<String> {
        let texts = self.script("return $$(args[0]).map(e => e.innerText.trim())", id);
        let texts = texts.as_array().expect("a list").iter();
        texts.map(|t| plain(t.as_str().expect("a text"))).collect()
    }

    /// An attribute of the last element with this id.
    #[track_caller]
    pub fn attribute(&self, id: &str, name: &str) -> Option<String> {
        let script = "const e = $$(args[0]).at(-1); return e ? e.getAttribute(args[1]) : null";
        let value = self.script(script, json!([id, name]));
        value.as_str().map(str::to_owned)
    }

    /// Number of elements with this id.
    #[track_caller]
    pub fn count(&self, id: &str) -> u64 {
        self.script("return $$(args[0]).length", id)
            .as_u64()
            .expect("a number")
    }

    /// Clicks on the first element with this id, once it is clickable.
    #[track_caller]
    pub fn click(&self, id: &str) {
        self.until(&format!("{id} can be clicked"), |app| {
            app.driver().click(&css(id)).ok()
        });
    }

    /// Types into the first element with this id, after its present text.
    #[track_caller]
    pub fn write(&self, id: &str, text: &str) {
        self.until(&format!("{id} can be typed into"), |app| {
            app.driver().type_into(&css(id), text).ok()
        });
    }

    /// Value of a text field.
    #[track_caller]
    pub fn field(&self, id: &str) -> String {
        let value = self.script("const e = $(args[0]); return e ? e.value : ''", id);
        value.as_str().unwrap_or_default().to_owned()
    }

    /// Chooses an option of a select element.
    #[track_caller]
    pub fn choose(&self, id: &str, value: &str) {
        let script = "const e = $(args[0]); if (!e || ![...e.options].some(o => o.value === args[1])) return false
            e.value = args[1]; e.dispatchEvent(new Event('input', {bubbles: true}))
            e.dispatchEvent(new Event('change', {bubbles: true})); return true";
        self.until(&format!("{id} offers {value}"), |app| {
            app.script(script, json!([id, value])) == true
        });
    }

    /// Chooses a method in the header's menu.
    #[track_caller]
    pub fn choose_method(&self, name: &str) {
        self.click("method-menu");
        let click = "const o = $$('method-menu-option').find(o => o.dataset.value === args[0]); o?.click(); return !!o";
        self.until(&format!("{name} is offered"), |app| {
            app.script(click, name) == true
        });
        self.until(&format!("{name} is chosen"), |app| {
            app.snapshot()["settings"]["method"] == name
        });
    }

    /// The app's state as sent to a page that loads.
    #[track_caller]
    pub fn snapshot(&self) -> Value {
        self.invoke("snapshot", &json!({}))
            .unwrap_or_else(|e| self.give_up(&format!("no snapshot: {e}")))
    }

    /// Changes the settings named in `changed`, an object.
    #[track_caller]
    pub fn set(&self, changed: Value) {
        let mut settings = self.snapshot()["settings"].clone();
        for (name, value) in changed.as_object().expect("an object") {
            settings[name] = value.clone();
        }
        self.invoke("save_settings", &json!({"settings": settings}))
            .expect("settings are taken");
    }

    /// Waits until the engine runs and the model is open.
    #[track_caller]
    pub fn is_ready(&self) {
        self.until("the engine is ready and the model is open", |app| {
            let now = app.snapshot();
            if now["worker"]["state"] == "failed" || now["modelError"].is_string() {
                app.give_up("the engine or its model cannot be had");
            }
            now["worker"]["state"] == "ready" && !now["model"].is_null()
        });
    }

    /// Waits until a document with this name is open and shown.
    #[track_caller]
    pub fn shows_document(&self, name: &str) {
        self.until(&format!("the document {name} is shown"), |app| {
            let named = app.text("document-name").is_some_and(|t| t.contains(name));
            let text = app.text("document").unwrap_or_default();
            named && !text.is_empty() && app.snapshot()["opening"].is_null()
        });
    }

    /// Types a question and sends it with the Enter key; waits until the conversation shows it.
    #[track_caller]
    pub fn ask(&self, question: &str) {
        let before = self.count("turn");
        self.write("composer", &format!("{question}\u{E007}"));
        self.until("the question is in the conversation", |app| {
            app.count("turn") > before
        });
    }

    /// The state of the last question.
    #[track_caller]
    pub fn state(&self) -> Option<String> {
        self.attribute("turn", "data-state")
    }

    /// Waits until the last question is in one of these states, and returns the state.
    #[track_caller]
    pub fn reaches(&self, states: &[&str]) -> String {
        self.until(&format!("the question is {}", states.join(" or ")), |app| {
            app.state().filter(|s| states.contains(&s.as_str()))
        })
    }

    /// Waits until the last question is answered.
    #[track_caller]
    pub fn is_answered(&self) {
        if self.reaches(&["done", "failed", "stopped"]) != "done" {
            self.give_up("the question is not answered");
        }
    }

    /// The current answer to the last question.
    #[track_caller]
    pub fn answer(&self) -> String {
        self.texts("answer").pop().unwrap_or_default()
    }

    /// The visible messages.
    #[track_caller]
    pub fn notices(&self) -> Vec<Notice> {
        let script = "return $$('notice').map(e => [e.innerText.trim(), e.dataset.where || '', e.getAttribute('role') || ''])";
        let notices = self.script(script, Value::Null);
        let text = |v: &Value| plain(v.as_str().unwrap_or_default());
        let notices = notices.as_array().expect("a list").iter();
        notices
            .map(|n| {
                assert_eq!(n[2], "alert", "a notice is read out: {n}");
                Notice {
                    text: text(&n[0]),
                    place: text(&n[1]),
                }
            })
            .collect()
    }

    /// Waits for a message that contains all of `words` (ignoring case).
    #[track_caller]
    pub fn says(&self, words: &[&str]) -> Notice {
        self.until(&format!("a notice that says {words:?}"), |app| {
            let has = |notice: &Notice| {
                let text = notice.text.to_lowercase();
                words.iter().all(|w| text.contains(&w.to_lowercase()))
            };
            app.notices().into_iter().find(has)
        })
    }

    /// Closes every visible message.
    #[track_caller]
    pub fn close_notices(&self) {
        self.until("no notice is left", |app| {
            app.script("$$('notice-close').forEach(e => e.click())", Value::Null);
            app.notices().is_empty()
        });
    }

    /// Kept shares, in whole percent, of the painted runs visible on the screen.
    #[track_caller]
    pub fn runs(&self) -> Vec<u64> {
        let shares = self.script(
            "return $$('run').map(e => Number(e.dataset.share))",
            Value::Null,
        );
        let shares = shares.as_array().expect("a list").iter();
        shares
            .map(|s| s.as_f64().expect("a share") as u64)
            .collect()
    }

    /// Waits until the page shows what is remembered because of the question, and returns the [`App::runs`] at its top
    /// once they stay the same.
    #[track_caller]
    pub fn runs_because_of_the_question(&self) -> Vec<u64> {
        self.until("what is remembered because of the question", |app| {
            let words = app.text("kept-share")?;
            words.contains("because of this question").then_some(())
        });
        // The page may have gone to the passage of the answer.
        self.script("$('document').scrollTop = 0", Value::Null);
        self.until("the painting of the top has settled", |app| {
            let before = app.runs();
            std::thread::sleep(Duration::from_millis(700));
            (app.runs() == before).then_some(before)
        })
    }

    /// Number of colours of the strip; without a map it has two, for its lines and between them.
    #[track_caller]
    pub fn strip_colours(&self) -> u64 {
        let script = "const c = $('strip'); if (!c || !c.width || !c.height) return 0
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data
            const seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 24 | d[i+1] << 16 | d[i+2] << 8 | d[i+3])
            return seen.size";
        self.script(script, Value::Null).as_u64().expect("a number")
    }

    /// Scroll offset of the document, in pixels.
    #[track_caller]
    pub fn scrolled(&self) -> f64 {
        self.script("return $('document').scrollTop", Value::Null)
            .as_f64()
            .expect("a number")
    }
}
