//! Lossless JSON form of a path: its text, or its bytes if the path is not UTF-8 (allowed on Unix).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The JSON value.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

pub(super) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => Written::Text(text.to_owned()).serialize(to),
        None => Written::Bytes(path.as_os_str().as_encoded_bytes().to_vec()).serialize(to),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    match Written::deserialize(from)? {
        Written::Text(text) => Ok(PathBuf::from(text)),
        #[cfg(unix)]
        Written::Bytes(bytes) => {
            use std::os::unix::ffi::OsStringExt;
            Ok(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
        }
        #[cfg(not(unix))]
        Written::Bytes(bytes) => Ok(PathBuf::from(String::from_utf8_lossy(&bytes).into_owned())),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use crate::protocol::{Frame, Request};

    #[test]
    fn every_path_round_trips() {
        for name in [
            b"/tmp/a b.txt".as_slice(),
            "/tmp/\u{1F600}é.txt".as_bytes(),
            b"/tmp/\xff\xfe\"\\.txt",
        ] {
            let request = Request::OpenDocument {
                path: OsStr::from_bytes(name).into(),
            };
            let frame = Frame::json(&request).unwrap();
            assert_eq!(frame.message::<Request>().unwrap(), request);
        }
    }
}
