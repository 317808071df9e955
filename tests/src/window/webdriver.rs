//! A minimal WebDriver client over HTTP to a local `WebKitWebDriver`, with the commands that the tests need.
//! No BiDi, no frames, no cookies. <https://www.w3.org/TR/webdriver2/>

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

/// Longer than any command takes; a longer wait is a hang.
const COMMAND: Duration = Duration::from_secs(60);

/// Failure of a command.
#[derive(Debug, Clone)]
pub enum DriverError {
    /// The driver refused: `no such element`, `javascript error` and so on, with its message.
    Refused {
        /// Error code of the standard.
        error: String,
        /// The driver's message.
        message: String,
    },
    /// No reply, or a malformed one.
    Silent(String),
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { error, message } => write!(f, "{error}: {message}"),
            Self::Silent(why) => write!(f, "the driver did not answer: {why}"),
        }
    }
}

impl std::error::Error for DriverError {}

/// A session with one window.
#[derive(Debug)]
pub struct WebDriver {
    agent: ureq::Agent,
    /// `http://127.0.0.1:PORT/session/ID`
    session: String,
}

/// Key of an element reference in JSON.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

impl WebDriver {
    /// Makes the driver at `port` start `binary` with `arguments`, and waits at most `timeout` for its window. The
    /// driver itself waits forever for a program that exits before its window opens.
    ///
    /// # Errors
    /// If no window opens.
    pub fn open(
        port: u16,
        binary: &str,
        arguments: &[String],
        timeout: Duration,
    ) -> Result<Self, DriverError> {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_global(Some(COMMAND))
            .http_status_as_error(false)
            .proxy(None)
            .build()
            .into();
        let base = format!("http://127.0.0.1:{port}/session");
        let wishes = json!({"capabilities": {"alwaysMatch": {
            "webkitgtk:browserOptions": {"binary": binary, "args": arguments}
        }}});
        let request = agent.post(&base).config().timeout_global(Some(timeout));
        let answer = value(request.build().send_json(&wishes))?;
        let id = answer["sessionId"]
            .as_str()
            .ok_or_else(|| DriverError::Silent(format!("no session in {answer}")))?;
        let driver = Self {
            agent,
            session: format!("{base}/{id}"),
        };
        driver.post("timeouts", &json!({"script": 50_000}))?;
        Ok(driver)
    }

    /// Whether a driver listens at `port`.
    pub fn is_listening(port: u16) -> bool {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    }

    fn post(&self, command: &str, body: &Value) -> Result<Value, DriverError> {
        value(
            self.agent
                .post(format!("{}/{command}", self.session))
                .send_json(body),
        )
    }

    /// Runs a script in the page and returns its result.
    ///
    /// # Errors
    /// If the script throws, or the window is closed.
    pub fn execute(&self, script: &str, arguments: &Value) -> Result<Value, DriverError> {
        self.post(
            "execute/sync",
            &json!({"script": script, "args": arguments}),
        )
    }

    /// Runs a script whose last argument is a callback for the result.
    ///
    /// # Errors
    /// If the script throws or does not finish, or the window is closed.
    pub fn execute_async(&self, script: &str, arguments: &Value) -> Result<Value, DriverError> {
        self.post(
            "execute/async",
            &json!({"script": script, "args": arguments}),
        )
    }

    fn element(&self, css: &str) -> Result<String, DriverError> {
        let found = self.post("element", &json!({"using": "css selector", "value": css}))?;
        found[ELEMENT]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| DriverError::Silent(format!("no element in {found}")))
    }

    /// Clicks in the middle of the first matching element, like a user; a hidden or covered element is an error.
    ///
    /// # Errors
    /// If no element matches, or it is not clickable.
    pub fn click(&self, css: &str) -> Result<(), DriverError> {
        let element = self.element(css)?;
        self.post(&format!("element/{element}/click"), &json!({}))
            .map(drop)
    }

    /// Types into the first matching element.
    ///
    /// # Errors
    /// If no element matches, or it accepts no text.
    pub fn type_into(&self, css: &str, text: &str) -> Result<(), DriverError> {
        let element = self.element(css)?;
        self.post(&format!("element/{element}/value"), &json!({"text": text}))
            .map(drop)
    }

    /// Presses and releases keys together: `["\u{E009}", "o"]` is Ctrl+O.
    ///
    /// # Errors
    /// If the window is closed.
    pub fn keys(&self, keys: &[&str]) -> Result<(), DriverError> {
        let step = |kind: &str, key: &&str| json!({"type": kind, "value": key});
        let down = keys.iter().map(|key| step("keyDown", key));
        let up = keys.iter().rev().map(|key| step("keyUp", key));
        let steps: Vec<Value> = down.chain(up).collect();
        self.post(
            "actions",
            &json!({"actions": [{"type": "key", "id": "keyboard", "actions": steps}]}),
        )
        .map(drop)
    }

    /// Moves the mouse to a point of the page, in CSS pixels; clicks if `click` is set.
    ///
    /// # Errors
    /// If the point is outside the window.
    pub fn point(&self, x: i64, y: i64, click: bool) -> Result<(), DriverError> {
        let mut steps = vec![
            json!({"type": "pointerMove", "duration": 50, "x": x - 3, "y": y - 2}),
            json!({"type": "pointerMove", "duration": 50, "x": x, "y": y}),
        ];
        if click {
            steps.push(json!({"type": "pointerDown", "button": 0}));
            steps.push(json!({"type": "pointerUp", "button": 0}));
        }
        let mouse = json!({
            "type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": steps
        });
        self.post("actions", &json!({"actions": [mouse]})).map(drop)
    }

    /// Resizes the window, in pixels.
    ///
    /// # Errors
    /// If the window is closed.
    pub fn resize(&self, width: u32, height: u32) -> Result<(), DriverError> {
        self.post(
            "window/rect",
            &json!({"x": 0, "y": 0, "width": width, "height": height}),
        )
        .map(drop)
    }

    /// Closes the window as its close button does.
    ///
    /// # Errors
    /// If the window is closed already.
    pub fn close_window(&self) -> Result<(), DriverError> {
        value(self.agent.delete(format!("{}/window", self.session)).call()).map(drop)
    }

    /// Ends the session, which ends the program.
    ///
    /// # Errors
    /// If the session has ended already.
    pub fn end(&self) -> Result<(), DriverError> {
        let request = self.agent.delete(&self.session).config();
        value(
            request
                .timeout_global(Some(Duration::from_secs(5)))
                .build()
                .call(),
        )
        .map(drop)
    }
}

type Answer = Result<ureq::http::Response<ureq::Body>, ureq::Error>;

/// The `value` of a reply: the result, or an error with its code and message.
fn value(answer: Answer) -> Result<Value, DriverError> {
    let silent = |e: ureq::Error| DriverError::Silent(e.to_string());
    let mut answer = answer.map_err(silent)?;
    // A screenshot of a large screen is several megabytes.
    let body = answer.body_mut().with_config().limit(256 << 20);
    let mut body: Value = body.read_json().map_err(silent)?;
    let value = body["value"].take();
    if answer.status().is_success() {
        return Ok(value);
    }
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    Err(DriverError::Refused {
        error: text("error"),
        message: text("message"),
    })
}
