//! The system's own dialogs for files and folders, which WebDriver knows nothing of: found by their title, written into as from a
//! keyboard.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::app::App;

/// How long a dialog may take with a path that is written into it.
const TAKES: Duration = Duration::from_secs(5);

/// One of the system's dialogs: its title, and the button on the page that opens it.
#[derive(Clone, Copy, Debug)]
pub struct Dialog {
    /// How its title begins.
    pub title: &'static str,
    /// `data-testid` of the button.
    pub button: &'static str,
}

impl Dialog {
    /// Opens it and waits for it: its number on the display. Now and then one never comes:
    /// then the button is pressed again.
    pub fn open(self, app: &App<'_>) -> String {
        app.click(self.button);
        let mut pressed = Instant::now();
        app.until("the dialog is there", |app| {
            let number = self.number(app);
            if number.is_none() && pressed.elapsed() > 3 * TAKES {
                app.click(self.button);
                pressed = Instant::now();
            }
            number
        })
    }

    /// Sends it away, as with the escape key.
    pub fn dismiss(self, app: &App<'_>) {
        app.until("the dialog goes away", |app| {
            let Some(number) = self.number(app) else {
                return Some(());
            };
            // It may go between two looks.
            app.display()
                .try_xdotool(&["windowfocus", "--sync", &number])?;
            app.display().xdotool(&["key", "Escape"]);
            std::thread::sleep(Duration::from_millis(200));
            None
        });
    }

    /// Opens it, writes `path` there and has it taken. It does not tell when it has got its files together and listens, and what
    /// comes before that it may take for something else: then it is sent away and opened anew, with more time for itself.
    pub fn choose(self, app: &App<'_>, path: &str) {
        let mut patience = Duration::ZERO;
        app.until("the dialog takes the path", |app| {
            let taken = self.try_choose(app, path, patience);
            if !taken {
                self.dismiss(app);
                patience += Duration::from_secs(1);
            }
            taken.then_some(())
        });
    }

    fn try_choose(self, app: &App<'_>, path: &str, patience: Duration) -> bool {
        let number = self.open(app);
        // The window goes on answering while the dialog is open.
        assert_eq!(app.script("return 1 + 1", Value::Null), 2);
        let display = app.display();
        display.xdotool(&["windowfocus", "--sync", &number]);
        std::thread::sleep(patience);
        // A path that starts with a slash opens the dialog's own field for it.
        display.xdotool(&["key", "ctrl+a"]);
        display.xdotool(&["type", "--delay", "20", path]);
        let typed = Instant::now();
        while self.number(app).is_some() && typed.elapsed() < TAKES {
            // Its button is there to be pressed only after it has looked at the folder.
            display.xdotool(&["key", "Return"]);
            std::thread::sleep(Duration::from_millis(200));
        }
        self.number(app).is_none()
    }

    /// Its number on the display, if it is open.
    fn number(self, app: &App<'_>) -> Option<String> {
        let search = ["search", "--onlyvisible", "--name", self.title];
        let found = app.display().try_xdotool(&search)?;
        Some(found.lines().next()?.to_owned())
    }
}
