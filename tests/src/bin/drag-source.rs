//! Drag source for the window tests: a small window that offers files to a real mouse drag.
//! `drag-source X Y PATH...` prints `ready` when a drag can start, `begun` when it has and `ended` after it; exits when
//! stdin closes.

#[cfg(target_os = "linux")]
fn main() {
    linux::show();
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("there is no drag to test on this system");
    std::process::exit(2);
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io::Read;

    use gtk::gdk::{DragAction, ModifierType};
    use gtk::prelude::*;

    /// Side of the window in pixels.
    const SIDE: i32 = 120;

    pub fn show() {
        let mut arguments = std::env::args_os().skip(1);
        let mut place = || -> i32 {
            let number = arguments.next().expect("X and Y");
            number
                .to_str()
                .and_then(|n| n.parse().ok())
                .expect("a number")
        };
        let (x, y) = (place(), place());
        let list: String = arguments
            .map(|path| {
                let uri = gtk::glib::filename_to_uri(path, None).expect("an absolute path");
                format!("{uri}\r\n")
            })
            .collect();
        gtk::init().expect("a display");
        // A popup bypasses the window manager, which could place the window elsewhere.
        let window = gtk::Window::new(gtk::WindowType::Popup);
        window.set_default_size(SIDE, SIDE);
        window.move_(x, y);
        window.add(&gtk::Label::new(Some("files")));
        let uris = gtk::TargetEntry::new("text/uri-list", gtk::TargetFlags::empty(), 0);
        window.drag_source_set(ModifierType::BUTTON1_MASK, &[uris], DragAction::COPY);
        window.connect_drag_data_get(move |_, _, data, _, _| {
            data.set(&data.target(), 8, list.as_bytes());
        });
        window.connect_drag_begin(|_, _| println!("begun"));
        window.connect_drag_end(|_, _| println!("ended"));
        window.connect_map_event(|_, _| {
            // Once the idle callback after this event runs, the window is drawn and accepts mouse events.
            gtk::glib::idle_add_local_once(|| println!("ready"));
            gtk::glib::Propagation::Proceed
        });
        std::thread::spawn(|| {
            // The pipe closes when the test ends.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
        window.show_all();
        gtk::main();
    }
}
