//! Frames over a pipe: a length, a kind, a payload. `request.rs` and `reply.rs` define the payloads.
//!
//! ```text
//! 0        4      5
//! | length | kind | payload ...          length: u32, little endian, of the payload alone; kind 0 JSON, kind 1 bytes
//! ```

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of the header before the payload.
pub const HEADER_BYTES: usize = 5;
/// The longest payload: 1 GiB, twice the largest document. A larger length indicates a loss of synchronisation.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 30;

/// The kind of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A message, JSON in UTF-8.
    Json,
    /// Bytes that belong to the previous message.
    Bytes,
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The kind of the payload.
    pub kind: Kind,
    /// The payload.
    pub payload: Vec<u8>,
}

/// Errors of a stream of frames. After any of them the stream is out of sync, except after
/// [`ProtocolError::Message`], which leaves the stream at the next frame.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The pipe itself failed.
    #[error("the pipe between window and engine failed: {0}")]
    Io(#[from] io::Error),
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame: {have} of {need} bytes came")]
    Cut {
        /// Bytes received.
        have: usize,
        /// Bytes announced.
        need: usize,
    },
    /// A length above [`MAX_PAYLOAD_BYTES`].
    #[error("a frame of {0} bytes is longer than the {MAX_PAYLOAD_BYTES} allowed")]
    TooLong(u64),
    /// An unknown kind.
    #[error("{0} is no kind of frame; 0 is JSON and 1 is bytes")]
    UnknownKind(u8),
    /// JSON that is not a valid message.
    #[error("a message was not understood: {0}")]
    Message(#[from] serde_json::Error),
    /// Bytes in place of a message, or the reverse.
    #[error("received a {0:?} frame where the other kind was expected")]
    WrongKind(Kind),
}

/// The five header bytes of a payload of `len` bytes. A length that does not fit in 32 bits becomes one that every
/// reader refuses; [`write_frame`] refuses it earlier.
pub fn header(len: usize, kind: Kind) -> [u8; HEADER_BYTES] {
    let [a, b, c, d] = u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
    let kind = match kind {
        Kind::Json => 0,
        Kind::Bytes => 1,
    };
    [a, b, c, d, kind]
}

/// Parses a header into payload length and kind.
///
/// # Errors
/// [`ProtocolError::UnknownKind`] and [`ProtocolError::TooLong`].
pub fn parse_header(header: &[u8; HEADER_BYTES]) -> Result<(usize, Kind), ProtocolError> {
    let [a, b, c, d, kind] = *header;
    let kind = match kind {
        0 => Kind::Json,
        1 => Kind::Bytes,
        other => return Err(ProtocolError::UnknownKind(other)),
    };
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    if len <= MAX_PAYLOAD_BYTES {
        Ok((len, kind))
    } else {
        Err(ProtocolError::TooLong(len as u64))
    }
}

/// Reads the next frame; `None` if the stream ends between two frames.
///
/// # Errors
/// [`ProtocolError`], all but `Message` and `WrongKind`.
pub fn read_frame(from: &mut impl Read) -> Result<Option<Frame>, ProtocolError> {
    let cut = |have: &[u8], need| ProtocolError::Cut {
        have: have.len(),
        need,
    };
    let head = read_up_to(from, HEADER_BYTES)?;
    if head.is_empty() {
        return Ok(None);
    }
    let whole = head.first_chunk();
    let (need, kind) = parse_header(whole.ok_or_else(|| cut(&head, HEADER_BYTES))?)?;
    let payload = read_up_to(from, need)?;
    if payload.len() == need {
        Ok(Some(Frame { kind, payload }))
    } else {
        Err(cut(&payload, need))
    }
}

/// Reads `need` bytes, fewer if the stream ends. The buffer grows as bytes arrive: a false length allocates no memory.
fn read_up_to(from: &mut impl Read, need: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.by_ref().take(need as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes one frame. Does not flush.
///
/// # Errors
/// [`ProtocolError::TooLong`] before anything is written, and I/O errors of the pipe.
pub fn write_frame(to: &mut impl Write, kind: Kind, payload: &[u8]) -> Result<(), ProtocolError> {
    if payload.len() > MAX_PAYLOAD_BYTES {
        return Err(ProtocolError::TooLong(payload.len() as u64));
    }
    to.write_all(&header(payload.len(), kind))?;
    to.write_all(payload)?;
    Ok(())
}

impl Frame {
    /// A frame with a message.
    ///
    /// # Errors
    /// [`ProtocolError::Message`] if the message cannot be serialised, for example a map with keys that are not
    /// strings.
    pub fn json(message: &impl Serialize) -> Result<Self, ProtocolError> {
        Ok(Self {
            kind: Kind::Json,
            payload: serde_json::to_vec(message)?,
        })
    }

    /// A frame with bytes.
    pub fn bytes(payload: Vec<u8>) -> Self {
        Self {
            kind: Kind::Bytes,
            payload,
        }
    }

    /// Parses the message in this frame.
    ///
    /// # Errors
    /// [`ProtocolError::WrongKind`] and [`ProtocolError::Message`].
    pub fn message<T: DeserializeOwned>(&self) -> Result<T, ProtocolError> {
        match self.kind {
            Kind::Json => Ok(serde_json::from_slice(&self.payload)?),
            Kind::Bytes => Err(ProtocolError::WrongKind(self.kind)),
        }
    }

    /// The bytes in this frame.
    ///
    /// # Errors
    /// [`ProtocolError::WrongKind`].
    pub fn into_bytes(self) -> Result<Vec<u8>, ProtocolError> {
        match self.kind {
            Kind::Bytes => Ok(self.payload),
            Kind::Json => Err(ProtocolError::WrongKind(self.kind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one byte per read, as a slow pipe may.
    struct Drops<'a>(&'a [u8]);

    impl Read for Drops<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else {
                return Ok(0);
            };
            buffer[0] = *first;
            self.0 = rest;
            Ok(1)
        }
    }

    fn stream() -> Vec<u8> {
        let mut out = Vec::new();
        write_frame(&mut out, Kind::Json, b"{\"a\":1}").unwrap();
        write_frame(&mut out, Kind::Bytes, b"").unwrap();
        write_frame(&mut out, Kind::Bytes, &[7; 300]).unwrap();
        out
    }

    #[test]
    fn frames_round_trip_over_partial_reads() {
        let bytes = stream();
        let mut slow = Drops(&bytes);
        let mut fast = bytes.as_slice();
        for (kind, payload) in [
            (Kind::Json, b"{\"a\":1}".to_vec()),
            (Kind::Bytes, Vec::new()),
            (Kind::Bytes, vec![7; 300]),
        ] {
            let frame = Frame { kind, payload };
            assert_eq!(read_frame(&mut slow).unwrap().as_ref(), Some(&frame));
            assert_eq!(read_frame(&mut fast).unwrap(), Some(frame));
        }
        assert_eq!(read_frame(&mut slow).unwrap(), None);
        assert_eq!(read_frame(&mut fast).unwrap(), None);
    }

    #[test]
    fn truncated_frame_is_an_error() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, Kind::Bytes, b"abc").unwrap();
        for end in 1..bytes.len() {
            let error = read_frame(&mut &bytes[..end]).unwrap_err();
            assert!(matches!(error, ProtocolError::Cut { .. }), "{end}: {error}");
        }
    }

    #[test]
    fn oversized_length_is_refused_before_reading() {
        let mut head = header(0, Kind::Bytes);
        head[..4].copy_from_slice(&(MAX_PAYLOAD_BYTES as u32 + 1).to_le_bytes());
        let error = read_frame(&mut head.as_slice()).unwrap_err();
        assert!(matches!(error, ProtocolError::TooLong(_)), "{error}");
        // The longest allowed length, announced but not sent, allocates no memory.
        head[..4].copy_from_slice(&(MAX_PAYLOAD_BYTES as u32).to_le_bytes());
        let error = read_frame(&mut head.as_slice()).unwrap_err();
        assert!(matches!(error, ProtocolError::Cut { have: 0, .. }));
        assert!(parse_header(&header(usize::MAX, Kind::Json)).is_err());
    }

    #[test]
    fn unknown_frame_kind_is_named() {
        let error = read_frame(&mut b"\0\0\0\0\x09".as_slice()).unwrap_err();
        assert!(error.to_string().starts_with("9 is no kind"), "{error}");
    }

    #[test]
    fn messages_and_bytes_are_not_interchangeable() {
        let json = Frame::json(&vec![1, 2]).unwrap();
        assert_eq!(json.message::<Vec<i32>>().unwrap(), [1, 2]);
        assert!(json.message::<String>().is_err());
        assert!(json.into_bytes().is_err());
        let bytes = Frame::bytes(vec![b'1']);
        assert!(bytes.message::<i32>().is_err());
        assert_eq!(bytes.into_bytes().unwrap(), [b'1']);
    }
}
