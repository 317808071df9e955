//! Saving what the page has drawn: pictures and tables.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tauri::{AppHandle, Runtime};
use tauri_plugin_dialog::DialogExt;

use super::{Desktop, dialogs};
use crate::contract::Place;
use crate::exported;

/// The kind of an exported file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExportKind {
    /// A picture; the data are base64.
    Png,
    /// A picture; the data are its text.
    Svg,
    /// A table; the data are its text.
    Csv,
}

impl ExportKind {
    fn extension(self) -> &'static str {
        match self {
            ExportKind::Png => "png",
            ExportKind::Svg => "svg",
            ExportKind::Csv => "csv",
        }
    }

    /// What the file is called in a sentence.
    fn noun(self) -> &'static str {
        match self {
            ExportKind::Png | ExportKind::Svg => "picture",
            ExportKind::Csv => "table",
        }
    }

    /// The file's bytes; `None` if the data are not of this kind.
    fn bytes(self, data: String) -> Option<Vec<u8>> {
        match self {
            ExportKind::Png => STANDARD.decode(data).ok(),
            ExportKind::Svg | ExportKind::Csv => Some(data.into_bytes()),
        }
    }
}

/// Opens the system's dialog to save a picture or a table of the open document.
#[tauri::command]
pub async fn save_export<R: Runtime>(
    app: AppHandle<R>,
    effects: Desktop<'_>,
    kind: ExportKind,
    data: String,
) -> Result<(), String> {
    let Some(bytes) = kind.bytes(data) else {
        return Err("The page sent a picture that is none: try again.".to_owned());
    };
    let name = effects.with(|state| {
        let document = state.document();
        document.map_or_else(|| "map".to_owned(), |d| d.info.name.clone())
    });
    let extension = kind.extension();
    let name = exported::file_name(&name, kind.noun(), extension);
    let mut dialog = app.dialog().file();
    dialog = dialog.set_title(format!("Save the {}", kind.noun()));
    dialog = dialog.set_file_name(name);
    dialog = dialog.add_filter(extension.to_uppercase(), &[extension]);
    dialogs::save(&app, dialog, (Place::Document, kind.noun()), |_| Ok(bytes));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::ExportKind;

    #[test]
    fn pictures_are_base64_and_tables_text() {
        assert_eq!(ExportKind::Png.bytes("aGk=".into()), Some(b"hi".to_vec()));
        assert_eq!(ExportKind::Png.bytes("<svg>".into()), None);
        assert_eq!(ExportKind::Csv.bytes("a,b".into()), Some(b"a,b".to_vec()));
    }
}
