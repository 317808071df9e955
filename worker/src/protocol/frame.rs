//! Frames over a pipe: a message and the bytes that belong to it. `request.rs` and `reply.rs` define the messages.
//!
//! ```text
//! 0             4              8
//! | JSON length | bytes length | JSON in UTF-8 ... | bytes ...      lengths: u32, little endian
//! ```

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of the header before the message.
pub const HEADER_BYTES: usize = 8;
/// The longest message, and the most bytes with it: 1 GiB, twice the largest document. A larger length indicates a loss
/// of synchronisation.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 30;

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
    /// JSON that is not a valid message.
    #[error("a message was not understood: {0}")]
    Message(#[from] serde_json::Error),
}

/// The header of a message of `json` bytes with `bytes` bytes.
///
/// # Errors
/// [`ProtocolError::TooLong`].
pub fn header(json: usize, bytes: usize) -> Result<[u8; HEADER_BYTES], ProtocolError> {
    let [json, bytes] = [checked(json)?, checked(bytes)?].map(|length| length as u32);
    Ok((u64::from(json) | u64::from(bytes) << 32).to_le_bytes())
}

/// Parses a header into the lengths of message and bytes.
///
/// # Errors
/// [`ProtocolError::TooLong`].
pub fn parse_header(header: &[u8; HEADER_BYTES]) -> Result<(usize, usize), ProtocolError> {
    let lengths = u64::from_le_bytes(*header);
    let [json, bytes] = [lengths as u32, (lengths >> 32) as u32];
    Ok((checked(json as usize)?, checked(bytes as usize)?))
}

fn checked(length: usize) -> Result<usize, ProtocolError> {
    match length <= MAX_PAYLOAD_BYTES {
        true => Ok(length),
        false => Err(ProtocolError::TooLong(length as u64)),
    }
}

/// Reads the next message with its bytes; `None` if the stream ends between two frames.
///
/// # Errors
/// [`ProtocolError`].
pub fn read_message<T: DeserializeOwned>(
    from: &mut impl Read,
) -> Result<Option<(T, Vec<u8>)>, ProtocolError> {
    let head = read_up_to(from, HEADER_BYTES)?;
    if head.is_empty() {
        return Ok(None);
    }
    let (json, bytes) = parse_header(head.first_chunk().ok_or(ProtocolError::Cut {
        have: head.len(),
        need: HEADER_BYTES,
    })?)?;
    let (json, bytes) = (read_exactly(from, json)?, read_exactly(from, bytes)?);
    Ok(Some((serde_json::from_slice(&json)?, bytes)))
}

fn read_exactly(from: &mut impl Read, need: usize) -> Result<Vec<u8>, ProtocolError> {
    let bytes = read_up_to(from, need)?;
    match bytes.len() {
        have if have == need => Ok(bytes),
        have => Err(ProtocolError::Cut { have, need }),
    }
}

/// Reads `need` bytes, fewer if the stream ends. The buffer grows as bytes arrive: a false length allocates no memory.
fn read_up_to(from: &mut impl Read, need: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.by_ref().take(need as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a message with its bytes. Does not flush.
///
/// # Errors
/// [`ProtocolError::TooLong`] and [`ProtocolError::Message`] (a message that cannot be serialised, for example a map
/// with keys that are not strings) before anything is written, and I/O errors of the pipe.
pub fn write_message(
    to: &mut impl Write,
    message: &impl Serialize,
    bytes: &[u8],
) -> Result<(), ProtocolError> {
    let json = serde_json::to_vec(message)?;
    to.write_all(&header(json.len(), bytes.len())?)?;
    to.write_all(&json)?;
    to.write_all(bytes)?;
    Ok(())
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
        write_message(&mut out, &vec![1, 2], b"").unwrap();
        write_message(&mut out, &vec![3], &[7; 300]).unwrap();
        out
    }

    #[test]
    fn messages_round_trip_over_partial_reads() {
        let bytes = stream();
        let mut slow = Drops(&bytes);
        let mut fast = bytes.as_slice();
        for expected in [(vec![1, 2], Vec::new()), (vec![3], vec![7; 300])] {
            let read = read_message::<Vec<i32>>(&mut slow).unwrap();
            assert_eq!(read.as_ref(), Some(&expected));
            assert_eq!(read_message(&mut fast).unwrap(), Some(expected));
        }
        assert_eq!(read_message::<Vec<i32>>(&mut slow).unwrap(), None);
        assert_eq!(read_message::<Vec<i32>>(&mut fast).unwrap(), None);
    }

    #[test]
    fn truncated_frame_is_an_error() {
        let mut bytes = Vec::new();
        write_message(&mut bytes, &1, b"abc").unwrap();
        for end in 1..bytes.len() {
            let error = read_message::<i32>(&mut &bytes[..end]).unwrap_err();
            assert!(matches!(error, ProtocolError::Cut { .. }), "{end}: {error}");
        }
    }

    #[test]
    fn oversized_length_is_refused_before_reading() {
        for at in [0, 4] {
            let mut head = [0; HEADER_BYTES];
            head[at..at + 4].copy_from_slice(&(MAX_PAYLOAD_BYTES as u32 + 1).to_le_bytes());
            let error = read_message::<i32>(&mut head.as_slice()).unwrap_err();
            assert!(matches!(error, ProtocolError::TooLong(_)), "{error}");
            // The longest allowed length, announced but not sent, allocates no memory.
            head[at..at + 4].copy_from_slice(&(MAX_PAYLOAD_BYTES as u32).to_le_bytes());
            let error = read_message::<i32>(&mut head.as_slice()).unwrap_err();
            assert!(matches!(error, ProtocolError::Cut { have: 0, .. }));
        }
        assert!(header(usize::MAX, 0).is_err());
        assert!(header(0, MAX_PAYLOAD_BYTES + 1).is_err());
    }

    #[test]
    fn an_invalid_message_leaves_the_stream_at_the_next() {
        let bytes = stream();
        let mut rest = bytes.as_slice();
        let error = read_message::<String>(&mut rest).unwrap_err();
        assert!(matches!(error, ProtocolError::Message(_)), "{error}");
        let next = read_message::<Vec<i32>>(&mut rest).unwrap();
        assert_eq!(next, Some((vec![3], vec![7; 300])));
    }
}
