//! A real drag: files picked up in another program's window and dropped on the app window, by the mouse.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::app::{App, TIMEOUT};
use super::display::Point;
use super::process::{Started, built};

/// Position of the source window: right of the app window.
const SOURCE: Point = Point { x: 1500, y: 80 };
/// A point inside the app window, away from its edges.
const TARGET: Point = Point { x: 480, y: 420 };

/// A press that begins no drag within this time came before the source window could take it: the mouse presses again.
const PRESS_AGAIN: Duration = Duration::from_secs(10);

/// Files dragged over the app window, not yet dropped.
#[derive(Debug)]
pub struct Held<'a> {
    app: &'a App<'a>,
    said: Receiver<String>,
    source: Started,
}

impl App<'_> {
    /// Picks the files up and drags them over the app window until the page reacts.
    pub fn hold(&self, paths: &[&Path]) -> Held<'_> {
        let display = self.display();
        let mut child = Command::new(built("drag-source"))
            .args(SOURCE.arguments())
            .args(paths)
            .env("DISPLAY", display.name())
            .env("GDK_BACKEND", "x11")
            .env_remove("WAYLAND_DISPLAY")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the drag source starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (line, said) = channel();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|said| line.send(said))
        });
        let held = Held {
            app: self,
            said,
            source: Started(child),
        };
        held.hear("ready");
        let grip = SOURCE.moved(40, 40);
        let mut pressed: Option<Instant> = None;
        let mut away = 0;
        self.until("the drag begins", |_| {
            if pressed.is_none_or(|since| since.elapsed() > PRESS_AGAIN) {
                display.xdotool(&["mouseup", "1"]);
                display.move_mouse(grip);
                display.xdotool(&["mousedown", "1"]);
                (pressed, away) = (Some(Instant::now()), 0);
            }
            away = (away + 4).min(32);
            display.move_mouse(grip.moved(-away, 0));
            held.said
                .try_recv()
                .ok()
                .map(|said| assert_eq!(said, "begun"))
        });
        display.drag_mouse(grip.moved(-away, 0), TARGET);
        // Small movements, as of a real hand.
        let mut nudge = 0;
        self.until("the page notices the files over it", |app| {
            nudge = 4 - nudge;
            display.move_mouse(TARGET.moved(nudge, 0));
            app.is_shown("drop-zone")
        });
        held
    }

    /// Drops files on the app window by a real drag.
    pub fn drop_files(&self, paths: &[&Path]) {
        self.hold(paths).let_go();
    }
}

impl Held<'_> {
    fn hear(&self, word: &str) {
        let line = self.said.recv_timeout(TIMEOUT);
        assert_eq!(
            line.as_deref(),
            Ok(word),
            "the drag source ({}) says what it does",
            self.source.pid()
        );
    }

    /// Drops the files.
    pub fn let_go(self) {
        self.app.display().xdotool(&["mouseup", "1"]);
        self.hear("ended");
    }

    /// Drags the files out of the app window and drops them outside.
    pub fn carry_away(self) {
        let away = SOURCE.moved(40, 600);
        self.app.display().drag_mouse(TARGET, away);
        self.app.display().xdotool(&["mouseup", "1"]);
        self.hear("ended");
    }
}
