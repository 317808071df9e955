//! The other end of a drag, for the tests of the window: a small window full of files, to be dragged by a real mouse.
//! `drag-source X Y PATH...`. Says `ready` when it can be dragged from and `ended` after each drag; ends with its input.

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
        // No window manager is asked: nothing else would put a window where it is wanted.
        let window = gtk::Window::new(gtk::WindowType::Popup);
        window.set_default_size(SIDE, SIDE);
        window.move_(x, y);
        window.add(&gtk::Label::new(Some("files")));
        let uris = gtk::TargetEntry::new("text/uri-list", gtk::TargetFlags::empty(), 0);
        window.drag_source_set(ModifierType::BUTTON1_MASK, &[uris], DragAction::COPY);
        window.connect_drag_data_get(move |_, _, data, _, _| {
            data.set(&data.target(), 8, list.as_bytes());
        });
        window.connect_drag_end(|_, _| println!("ended"));
        window.connect_map_event(|_, _| {
            // After this event, and what it draws, the window is there for the mouse too.
            gtk::glib::idle_add_local_once(|| println!("ready"));
            gtk::glib::Propagation::Proceed
        });
        std::thread::spawn(|| {
            // The test is gone when its end of the pipe is.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
        window.show_all();
        gtk::main();
    }
}
