//! A virtual display: an X server in memory, with one mouse.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::picture;
use super::process::Started;

/// Width and height in pixels: wider than the app window, which is at the top left, so that files can be dragged from a
/// second window to its right.
pub const SIZE: (i32, i32) = (1920, 1080);

/// A point of the display, in pixels from its top left.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// To the right.
    pub x: i32,
    /// Down.
    pub y: i32,
}

impl Point {
    /// The point `dx` to the right and `dy` down from this one.
    pub fn moved(self, dx: i32, dy: i32) -> Self {
        Self {
            x: self.x + dx,
            y: self.y + dy,
        }
    }

    /// Its coordinates, as arguments of a command.
    pub fn arguments(self) -> [String; 2] {
        [self.x.to_string(), self.y.to_string()]
    }
}

/// The display; the server ends when this value is dropped.
#[derive(Debug)]
pub struct Display {
    name: String,
    /// The folder of its framebuffer, if screenshots are enabled.
    memory: Option<tempfile::TempDir>,
    _server: Started,
}

impl Display {
    /// Starts a display on the first free number.
    pub fn start() -> Self {
        let (width, height) = SIZE;
        let memory = std::env::var_os("KEPT_SCREENSHOTS")
            .map(|_| tempfile::tempdir().expect("a folder for the screen"));
        let mut server = Command::new("Xvfb");
        server
            .args(["-displayfd", "1", "-nolisten", "tcp", "-screen", "0"])
            .arg(format!("{width}x{height}x24"));
        if let Some(memory) = &memory {
            server.arg("-fbdir").arg(memory.path());
        }
        let mut child = server
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("Xvfb starts");
        let stdout = child.stdout.take().expect("a pipe");
        let mut stderr = child.stderr.take().expect("a pipe");
        let server = Started(child);
        // The server writes its number once it accepts connections; if it exits, the pipe closes.
        let mut number = String::new();
        BufReader::new(stdout)
            .read_line(&mut number)
            .expect("Xvfb says its number");
        if number.trim().is_empty() {
            let mut why = String::new();
            let _ = stderr.read_to_string(&mut why);
            panic!("Xvfb did not start: {why}");
        }
        // Drains stderr, so that the server never blocks on a full pipe.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Self {
            name: format!(":{}", number.trim()),
            memory,
            _server: server,
        }
    }

    /// For the variable `DISPLAY`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Screenshot as PNG, or the reason for not having one.
    ///
    /// # Errors
    /// If screenshots are disabled (`KEPT_SCREENSHOTS`), or the framebuffer is malformed.
    pub fn picture(&self) -> Result<Vec<u8>, String> {
        let memory = self.memory.as_ref().ok_or("no pictures are taken of it")?;
        picture::of(&memory.path().join("Xvfb_screen0"))
    }

    /// Runs one `xdotool` command.
    pub fn xdotool(&self, arguments: &[&str]) -> String {
        self.try_xdotool(arguments)
            .unwrap_or_else(|| panic!("xdotool {} failed", arguments.join(" ")))
    }

    /// Runs one `xdotool` command; `None` if it fails, for example a search without a match.
    pub fn try_xdotool(&self, arguments: &[&str]) -> Option<String> {
        let output = Command::new("xdotool")
            .args(arguments)
            .env("DISPLAY", &self.name)
            .stdin(Stdio::null())
            .output()
            .expect("xdotool starts");
        (output.status.success()).then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Moves the mouse at once.
    pub fn move_mouse(&self, to: Point) {
        let [x, y] = to.arguments();
        self.xdotool(&["mousemove", &x, &y]);
    }

    /// Moves the mouse in a straight line at human speed: programs that follow a drag expect intermediate positions.
    pub fn drag_mouse(&self, from: Point, to: Point) {
        const STEPS: i32 = 20;
        for step in 1..=STEPS {
            let (dx, dy) = (to.x - from.x, to.y - from.y);
            self.move_mouse(from.moved(dx * step / STEPS, dy * step / STEPS));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
