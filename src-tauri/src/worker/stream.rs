//! Frames of the worker's standard output, read without blocking. What they mean is `state`'s business.

use kept_engine::protocol::{Frame, HEADER_BYTES, Kind, ProtocolError, Reply, parse_header};
use tokio::io::{AsyncRead, AsyncReadExt};

/// A reply with the bytes that came with it (empty if none).
pub type WithBytes = (Reply, Vec<u8>);

/// The next reply, or `None` where the stream ends between two.
///
/// # Errors
/// [`ProtocolError`] for anything that is no reply; nothing after it can be trusted.
pub async fn read_reply(
    from: &mut (impl AsyncRead + Unpin),
) -> Result<Option<WithBytes>, ProtocolError> {
    let Some(frame) = read_frame(from).await? else {
        return Ok(None);
    };
    let reply: Reply = frame.message()?;
    let bytes = match reply.has_bytes() {
        false => Vec::new(),
        true => match read_frame(from).await? {
            Some(frame) => frame.into_bytes()?,
            None => return Err(ProtocolError::Cut { have: 0, need: 1 }),
        },
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
    // Grows as bytes come: a false length takes no memory.
    let mut payload = Vec::new();
    from.take(need as u64).read_to_end(&mut payload).await?;
    match payload.len() == need {
        true => Ok(Some(Frame { kind, payload })),
        false => Err(ProtocolError::Cut {
            have: payload.len(),
            need,
        }),
    }
}
