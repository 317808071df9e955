//! Reads frames from the worker's stdout without blocking. `state` interprets them.

use kept_worker::protocol::{Frame, HEADER_BYTES, Kind, ProtocolError, Reply, parse_header};
use tokio::io::{AsyncRead, AsyncReadExt};

/// A reply with the bytes that follow it (empty if none).
pub type WithBytes = (Reply, Vec<u8>);

/// Reads the next reply; `None` if the stream ends between two replies.
///
/// # Errors
/// [`ProtocolError`] for anything but a reply; the rest of the stream is then unreliable.
pub async fn read_reply(
    from: &mut (impl AsyncRead + Unpin),
) -> Result<Option<WithBytes>, ProtocolError> {
    let Some(frame) = read_frame(from).await? else {
        return Ok(None);
    };
    let reply: Reply = frame.message()?;
    let bytes = if reply.has_bytes() {
        match read_frame(from).await? {
            Some(frame) => frame.into_bytes()?,
            None => return Err(ProtocolError::Cut { have: 0, need: 1 }),
        }
    } else {
        Vec::new()
    };
    Ok(Some((reply, bytes)))
}

async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> Result<Option<Frame>, ProtocolError> {
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
    let (need, kind): (usize, Kind) = parse_header(&head)?;
    // The buffer grows with the bytes that arrive, so that a false length allocates no memory.
    let mut payload = Vec::new();
    from.take(need as u64).read_to_end(&mut payload).await?;
    if payload.len() == need {
        Ok(Some(Frame { kind, payload }))
    } else {
        Err(ProtocolError::Cut {
            have: payload.len(),
            need,
        })
    }
}
