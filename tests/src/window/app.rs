//! The app under test: started by WebDriver on a separate display with a separate home folder. All of its processes end
//! with the test, also when the test fails.

use std::cell::OnceCell;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::display::Display;
use super::files::Home;
use super::process::{Process, Started, built, processes_below};
use super::webdriver::{DriverError, WebDriver};

/// Timeout of any user-visible event: generous, for a busy machine. Only a failure waits this long.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Installed in the page first: records errors of the page.
const WATCH: &str = "
if (!window.__trouble) {
  window.__trouble = []
  const note = (kind, what) => window.__trouble.push(kind + ': ' + what)
  // A list that measures its lines causes resize notifications one frame late, which browsers report as an error.
  addEventListener('error', e => /^ResizeObserver loop/.test(e.message) || note('error', e.message))
  addEventListener('unhandledrejection', e => note('unhandledrejection', String(e.reason)))
  addEventListener('securitypolicyviolation', e => note('securitypolicyviolation', e.violatedDirective + ' ' + e.blockedURI))
}";

/// Held while a driver starts and opens its window. Driver and window talk over a port that the driver takes when it
/// is free: two drivers at once may take the same.
static STARTING: Mutex<()> = Mutex::new(());

/// Launch options of the app.
#[derive(Debug, Clone, Default)]
pub struct Launch {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    session_bus: bool,
    display: Option<Rc<Display>>,
}

impl Launch {
    /// As `make run` starts the app: no options.
    pub fn plain() -> Self {
        Self::default()
    }

    /// Adds an argument.
    pub fn argument(mut self, argument: impl Into<PathBuf>) -> Self {
        let text = argument.into().into_os_string().into_string();
        self.arguments
            .push(text.expect("the driver takes arguments in UTF-8"));
        self
    }

    /// Sets an environment variable.
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Inside a desktop session with a D-Bus session bus. The default is none.
    pub fn with_session_bus(mut self) -> Self {
        self.session_bus = true;
        self
    }

    /// On the display of another app that stays open.
    pub fn beside(mut self, other: &App) -> Self {
        self.display = Some(other.display.clone());
        self
    }

    /// Opens the app window.
    pub fn open<'h>(&self, home: &'h Home) -> App<'h> {
        let display = (self.display.clone()).unwrap_or_else(|| Rc::new(Display::start()));
        let log = home
            .path()
            .join(format!("log-{}", display.name().trim_start_matches(':')));
        let log = unused(log);
        let written = File::create(&log).expect("a log");
        let starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let port = free_port();
        let mut command = if self.session_bus {
            let mut command = Command::new("dbus-run-session");
            command.args(["--", "WebKitWebDriver"]);
            command
        } else {
            Command::new("WebKitWebDriver")
        };
        home.apply(&mut command);
        command
            .arg(format!("--port={port}"))
            .env("TAURI_WEBVIEW_AUTOMATION", "true")
            .env("DISPLAY", display.name())
            .env("GDK_BACKEND", "x11")
            .env("NO_AT_BRIDGE", "1")
            .env("LC_ALL", "C.UTF-8")
            .env("KEPT_LOG", "info")
            .env_remove("WAYLAND_DISPLAY")
            .env_remove("KEPT_WORKER")
            .env_remove("KEPT_WORKER_CUDA")
            .env_remove("RUST_BACKTRACE")
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(written.try_clone().expect("a log"))
            .stderr(written);
        let started = Started(command.spawn().expect("the driver starts"));
        let since = Instant::now();
        while !WebDriver::is_listening(port) {
            assert!(since.elapsed() < TIMEOUT, "WebKitWebDriver never listened");
            std::thread::sleep(Duration::from_millis(5));
        }
        let program = built("kept-app");
        let program = program.to_str().expect("a path in UTF-8");
        let driver = WebDriver::open(port, program, &self.arguments, TIMEOUT).unwrap_or_else(|e| {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            panic!("no window opened: {e}\nthe log:\n{log}")
        });
        drop(starting);
        let app = App {
            driver,
            _started: started,
            process: OnceCell::new(),
            display,
            home,
            log,
        };
        app.process();
        app.until("the page is there", |app| {
            app.try_script(WATCH, &Value::Null).ok()?;
            let ready = app
                .try_script("return !!$('composer')", &Value::Null)
                .ok()?;
            (ready == Value::Bool(true)).then_some(())
        });
        app
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("a port").port()
}

/// `path`, with a number appended if that file exists.
fn unused(path: PathBuf) -> PathBuf {
    let mut found = path.clone();
    let mut number = 1;
    while found.exists() {
        number += 1;
        found = path.with_extension(number.to_string());
    }
    found
}

/// An open app.
#[derive(Debug)]
pub struct App<'h> {
    driver: WebDriver,
    process: OnceCell<Process>,
    home: &'h Home,
    log: PathBuf,
    // Drop order: the driver with the app, then the display.
    _started: Started,
    display: Rc<Display>,
}

/// What a look at the window returns: `true` or a value where [`App::until`] need not wait any longer.
pub trait Look {
    /// The value.
    type Found;
    /// The value, if it is there.
    fn found(self) -> Option<Self::Found>;
}

impl Look for bool {
    type Found = ();
    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Look for Option<T> {
    type Found = T;
    fn found(self) -> Option<T> {
        self
    }
}

impl App<'_> {
    /// The WebDriver client: keys, clicks and scripts.
    pub fn driver(&self) -> &WebDriver {
        &self.driver
    }

    /// The app's display.
    pub fn display(&self) -> &Display {
        &self.display
    }

    /// The app's process.
    pub fn process(&self) -> &Process {
        self.process.get_or_init(|| {
            let below = processes_below(self._started.pid());
            let found = below.into_iter().find(|p| p.name == "kept-app");
            found.expect("the driver has started kept-app")
        })
    }

    /// The worker's process, if one runs.
    pub fn worker(&self) -> Option<Process> {
        let below = processes_below(self.process().pid);
        below.into_iter().find(|p| p.name == "kept-worker")
    }

    /// The app's log so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Runs a script in which `$('id')` and `$$('id')` find elements by their `data-testid`, and `args` is `arguments`.
    ///
    /// # Errors
    /// If the script throws, or the window is closed.
    pub fn try_script(&self, script: &str, arguments: &Value) -> Result<Value, DriverError> {
        let script = format!(
            "const $$ = id => [...document.querySelectorAll(`[data-testid=\"${{id}}\"]`)]; const $ = id => $$(id)[0];\n\
             const args = arguments; {script}"
        );
        let arguments = match arguments {
            Value::Array(_) => arguments.clone(),
            Value::Null => Value::Array(Vec::new()),
            one => Value::Array(vec![one.clone()]),
        };
        self.driver.execute(&script, &arguments)
    }

    /// As [`App::try_script`].
    #[track_caller]
    pub fn script(&self, script: &str, arguments: impl Into<Value>) -> Value {
        let answer = self.try_script(script, &arguments.into());
        answer
            .unwrap_or_else(|e| self.give_up(&format!("a script could not be run: {e}\n{script}")))
    }

    /// Calls a command of the app, as the page does, and returns its result: `[true, result]` or `[false, refusal]`.
    #[track_caller]
    pub fn invoke(&self, command: &str, arguments: &Value) -> Result<Value, Value> {
        let script = "const done = arguments[arguments.length - 1];
            window.__TAURI_INTERNALS__.invoke(arguments[0], arguments[1])
              .then(v => v instanceof ArrayBuffer ? {arrayBuffer: v.byteLength} : v)
              .then(v => done([true, v === undefined ? null : v]), e => done([false, String(e)]))";
        let arguments = serde_json::json!([command, arguments]);
        let answer = self.driver.execute_async(script, &arguments);
        let mut answer =
            answer.unwrap_or_else(|e| self.give_up(&format!("{command} could not be called: {e}")));
        let value = answer[1].take();
        if answer[0] == true {
            Ok(value)
        } else {
            Err(value)
        }
    }

    /// Polls until `look` returns `true` or a value.
    ///
    /// # Panics
    /// After [`TIMEOUT`], with a screenshot of the window and the app's log.
    #[track_caller]
    pub fn until<L: Look>(&self, what: &str, mut look: impl FnMut(&Self) -> L) -> L::Found {
        let started = Instant::now();
        loop {
            if let Some(found) = look(self).found() {
                return found;
            }
            if started.elapsed() > TIMEOUT {
                self.give_up(&format!("waited {TIMEOUT:?} in vain: {what}"));
            }
            std::thread::sleep(Duration::from_millis(15));
        }
    }

    /// Fails the test, with what the user would have seen.
    #[track_caller]
    pub fn give_up(&self, why: &str) -> ! {
        let text = self
            .driver
            .execute("return document.body.innerText", &Value::Array(Vec::new()));
        let text = text.map_or_else(|e| e.to_string(), |t| t.as_str().unwrap_or("").to_owned());
        // The document comes first and is long; what follows it tells more.
        let skipped = text.chars().count().saturating_sub(3000);
        let text: String = text.chars().skip(skipped).collect();
        self.picture("failed");
        let log = self.log();
        let skipped = log.lines().count().saturating_sub(40);
        let log: Vec<&str> = log.lines().skip(skipped).collect();
        panic!(
            "{why}\n--- the page:\n{text}\n--- the log:\n{}",
            log.join("\n")
        );
    }

    /// Saves a screenshot in the folder `KEPT_SCREENSHOTS`, if set.
    pub fn picture(&self, name: &str) {
        let Some(folder) = std::env::var_os("KEPT_SCREENSHOTS") else {
            return;
        };
        let story = std::thread::current()
            .name()
            .unwrap_or("story")
            .replace("::", "-");
        std::fs::create_dir_all(&folder).expect("a folder for pictures");
        let path = PathBuf::from(folder).join(format!("{story}-{name}.png"));
        // The page draws its latest update some frames later.
        std::thread::sleep(Duration::from_millis(300));
        match self.display.picture() {
            Ok(png) => std::fs::write(&path, png).expect("a picture is saved"),
            Err(e) => eprintln!("no picture {}: {e}", path.display()),
        }
    }

    /// Reloads the page and records its errors, after the old page is gone (the recorder could land in the old one).
    #[track_caller]
    pub fn reload(&self) {
        self.script("window.__old = true; location.reload()", Value::Null);
        self.until("the page is loaded anew", |app| {
            let script = "return !window.__old && document.readyState === 'complete'";
            let done = app.driver.execute(script, &Value::Array(Vec::new()));
            (done.ok()? == true).then_some(())
        });
        self.script(WATCH, Value::Null);
    }

    /// Asserts that no hidden error occurred: no error in the page, no violation of the content security policy, no
    /// panic.
    #[track_caller]
    pub fn is_sound(&self) {
        let trouble = self.script(
            "return window.__trouble || ['the page was loaded anew']",
            Value::Null,
        );
        if trouble != Value::Array(Vec::new()) {
            self.give_up(&format!("the page had trouble: {trouble}"));
        }
        let log = self.log();
        for bad in ["panicked", "has a bug", "the page reports"] {
            if let Some(line) = log.lines().find(|l| l.contains(bad)) {
                self.give_up(&format!("the app had trouble: {line}"));
            }
        }
    }

    /// Ends the test: asserts that no error occurred, and that the window and the worker exit on request.
    #[track_caller]
    pub fn close(self) {
        self.is_sound();
        let worker = self.worker();
        self.driver
            .close_window()
            .unwrap_or_else(|e| self.give_up(&format!("it cannot be closed: {e}")));
        self.process().ends_within(TIMEOUT);
        if let Some(worker) = worker {
            worker.ends_within(TIMEOUT);
        }
    }

    /// The app's folders.
    pub fn home(&self) -> &Home {
        self.home
    }
}

impl Drop for App<'_> {
    fn drop(&mut self) {
        // The app may have exited already; remaining processes end with the driver.
        if self.process.get().is_some_and(Process::is_alive) {
            let _ = self.driver.end();
        }
    }
}
