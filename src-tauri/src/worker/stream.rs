//! Reads frames from the worker's stdout without blocking. `state` interprets them.

use kept_worker::protocol::{HEADER_BYTES, ProtocolError, Reply, parse_header};
use tokio::io::{AsyncRead, AsyncReadExt};

/// A reply with its bytes (empty if none).
pub type WithBytes = (Reply, Vec<u8>);

/// Reads the next reply; `None` if the stream ends between two replies.
///
/// # Errors
/// [`ProtocolError`] for anything but a reply; the rest of the stream is then unreliable.
pub async fn read_reply(
    from: &mut (impl AsyncRead + Unpin),
) -> Result<Option<WithBytes>, ProtocolError> {
    let mut head = [0u8; HEADER_BYTES];
    let mut have = 0;
    while have < HEADER_BYTES {
        match from.read(&mut head[have..]).await? {
            0 if have == 0 => return Ok(None),
            0 => {
                return Err(ProtocolError::Cut {
                    have,
                    need: HEADER_BYTES,
                });
            }
            more => have += more,
        }
    }
    let (json, bytes) = parse_header(&head)?;
    let json = read_exactly(from, json).await?;
    let bytes = read_exactly(from, bytes).await?;
    Ok(Some((serde_json::from_slice(&json)?, bytes)))
}

async fn read_exactly(
    from: &mut (impl AsyncRead + Unpin),
    need: usize,
) -> Result<Vec<u8>, ProtocolError> {
    // The buffer grows with the bytes that arrive, so that a false length allocates no memory.
    let mut bytes = Vec::new();
    from.take(need as u64).read_to_end(&mut bytes).await?;
    match bytes.len() {
        have if have == need => Ok(bytes),
        have => Err(ProtocolError::Cut { have, need }),
    }
}
