//! A real drag: files picked up in another program's window and dropped on the app window, by the mouse.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use super::app::App;
use super::display::Point;
use super::process::{Started, built};

/// Position of the source window: right of the app window.
const SOURCE: Point = Point { x: 1500, y: 80 };
/// A point inside the app window, away from its edges.
const TARGET: Point = Point { x: 480, y: 420 };

/// Files dragged over the app window, not yet dropped.
#[derive(Debug)]
pub struct Held<'a> {
    app: &'a App<'a>,
    said: Lines<BufReader<ChildStdout>>,
    source: Started,
}

impl App<'_> {
    /// Picks the files up and drags them over the app window until the page reacts.
    ///
    /// # Panics
    /// If the page does not react.
    #[must_use]
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
        let said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut held = Held {
            app: self,
            said,
            source: Started(child),
        };
        held.hear("ready");
        let grip = SOURCE.moved(40, 40);
        display.move_mouse(grip);
        display.xdotool(&["mousedown", "1"]);
        display.drag_mouse(grip, TARGET);
        // Small movements, as of a real hand.
        let mut nudge = 0;
        self.until("the page notices the files over it", |app| {
            nudge = 4 - nudge;
            display.move_mouse(TARGET.moved(nudge, 0));
            app.is_shown("drop-zone").then_some(())
        });
        held
    }

    /// Drops files on the app window by a real drag.
    ///
    /// # Panics
    /// If the page does not react to the files, or the drag does not end.
    pub fn drop_files(&self, paths: &[&Path]) {
        self.hold(paths).let_go();
    }
}

impl Held<'_> {
    fn hear(&mut self, word: &str) {
        let line = self.said.next();
        let line = line.map(|l| l.expect("the drag source is heard"));
        assert_eq!(
            line.as_deref(),
            Some(word),
            "the drag source ({}) says what it does",
            self.source.pid()
        );
    }

    /// Drops the files.
    ///
    /// # Panics
    /// If the drag does not end.
    pub fn let_go(mut self) {
        self.app.display().xdotool(&["mouseup", "1"]);
        self.hear("ended");
    }

    /// Drags the files out of the app window and drops them outside.
    ///
    /// # Panics
    /// If the drag does not end.
    pub fn carry_away(mut self) {
        let away = SOURCE.moved(40, 600);
        self.app.display().drag_mouse(TARGET, away);
        self.app.display().xdotool(&["mouseup", "1"]);
        self.hear("ended");
    }
}
