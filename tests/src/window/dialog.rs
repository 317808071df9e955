//! The system's file and folder dialogs, which WebDriver cannot reach: found by title, filled by keyboard events.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::app::App;

/// Timeout for a dialog to accept a typed path.
const TAKES: Duration = Duration::from_secs(5);

/// A system dialog: its title, and the button on the page that opens it.
#[derive(Clone, Copy, Debug)]
pub struct Dialog {
    /// Start of its title.
    pub title: &'static str,
    /// `data-testid` of the button.
    pub button: &'static str,
}

impl Dialog {
    /// Opens the dialog and returns its window number on the display. If the dialog does not appear, as happens now and
    /// then, the button is pressed again.
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

    /// Cancels the dialog with the Escape key.
    pub fn dismiss(self, app: &App<'_>) {
        app.until("the dialog goes away", |app| {
            let Some(number) = self.number(app) else {
                return Some(());
            };
            // The dialog may close between the two commands.
            app.display()
                .try_xdotool(&["windowfocus", "--sync", &number])?;
            app.display().xdotool(&["key", "Escape"]);
            std::thread::sleep(Duration::from_millis(200));
            None
        });
    }

    /// Opens the dialog, types `path`, confirms, and waits until `chosen` sees the choice on the page. The dialog gives
    /// no sign when it has loaded its files and accepts keys; earlier ones may choose another file, or nothing. Then the
    /// dialog is opened again, with a longer wait. `chosen` undoes a wrong choice.
    pub fn choose(self, app: &App<'_>, path: &str, chosen: impl Fn(&App<'_>) -> bool) {
        let mut patience = Duration::from_millis(500);
        app.until("the path is chosen", |app| {
            if self.try_choose(app, path, patience) {
                let closed = Instant::now();
                while closed.elapsed() < TAKES {
                    if chosen(app) {
                        return Some(());
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
            self.dismiss(app);
            patience += Duration::from_secs(1);
            None
        });
    }

    fn try_choose(self, app: &App<'_>, path: &str, patience: Duration) -> bool {
        let number = self.open(app);
        // The page still responds while the dialog is open. Its button loses the focus: a Return that comes as the dialog
        // closes would press it again.
        assert_eq!(
            app.script("document.activeElement?.blur(); return 1 + 1", Value::Null),
            2
        );
        let display = app.display();
        display.xdotool(&["windowfocus", "--sync", &number]);
        std::thread::sleep(patience);
        // The slash that a path starts with opens the dialog's path field, which may take a while.
        let (slash, rest) = path.split_at(1);
        display.xdotool(&["key", "ctrl+a"]);
        display.xdotool(&["type", slash]);
        std::thread::sleep(patience);
        display.xdotool(&["type", "--delay", "20", rest]);
        let typed = Instant::now();
        while self.number(app).is_some() && typed.elapsed() < TAKES {
            // The confirm button is enabled only after the dialog has checked the folder.
            display.xdotool(&["key", "Return"]);
            std::thread::sleep(Duration::from_millis(200));
        }
        self.number(app).is_none()
    }

    /// The dialog's window number on the display, if open.
    fn number(self, app: &App<'_>) -> Option<String> {
        let search = ["search", "--onlyvisible", "--name", self.title];
        let found = app.display().try_xdotool(&search)?;
        Some(found.lines().next()?.to_owned())
    }
}
