//! Rows of the host that go through a layer on a graphics card and come back: what a [`crate::LayerPass`] of a model on a card does,
//! for readings whose attention is the host's.

use kept_cuda::{Buffer, Device, DeviceError};
use kept_kernels::{Stop, Stopped};

use crate::Config;
use crate::card::{CardModel, CardPass};
use crate::model::Layer;

/// Rows that go through together.
const ROWS: usize = 512;

/// Why rows did not pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PassError {
    /// Somebody asked to stop.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The graphics card failed.
    #[error(transparent)]
    Card(#[from] DeviceError),
}

/// A layer on a card, for rows of the host.
pub(crate) struct Staged<'a> {
    card: &'a CardModel,
    layer: usize,
    rows: usize,
    /// Made when the first rows come.
    room: Option<Room>,
}

struct Room {
    pass: CardPass,
    /// `[rows, width]`
    residual: Buffer<f32>,
    /// `[rows, q_heads, head_dim]`
    attention: Buffer<f32>,
}

impl Room {
    /// For `rows` rows.
    fn new(device: &Device, card: &CardModel, rows: usize) -> Result<Self, DeviceError> {
        let config = &card.config;
        Ok(Self {
            pass: CardPass::new(device, card, rows)?,
            residual: device.room(rows * config.width)?,
            attention: device.room(rows * config.q_width())?,
        })
    }
}

impl CardModel {
    /// Bytes of the device that a [`crate::LayerPass`] of `rows` rows takes.
    ///
    /// # Errors
    /// None that is not the device's.
    pub fn staged_bytes(&self, rows: usize) -> Result<u64, DeviceError> {
        let rows = rows.clamp(1, ROWS);
        self.device()
            .rehearse(|device| Room::new(device, self, rows))
    }
}

impl<'a> Staged<'a> {
    pub(crate) fn new(card: &'a CardModel, layer: usize, rows: usize) -> Self {
        Self {
            card,
            layer,
            rows: rows.clamp(1, ROWS),
            room: None,
        }
    }

    fn room(&mut self) -> Result<&mut Room, DeviceError> {
        if self.room.is_none() {
            self.room = Some(Room::new(self.card.device(), self.card, self.rows)?);
        }
        Ok(self.room.as_mut().expect("just made"))
    }

    /// [`crate::LayerPass::project`].
    pub(crate) fn project(
        &mut self,
        (config, own): (&Config, &Layer),
        residual: &[f32],
        [q, k, v]: [&mut [f32]; 3],
        stop: &Stop,
    ) -> Result<(), PassError> {
        let (card, layer, block) = (self.card, self.layer, self.rows);
        let (width, q_width, kv_width) = (config.width, config.q_width(), config.kv_width());
        let rows = residual.len() / width;
        for first in (0..rows).step_by(block) {
            stop.check()?;
            let last = rows.min(first + block);
            let room = self.room()?;
            room.residual
                .write(0, &residual[first * width..last * width])?;
            card.project(layer, &room.residual, last - first, &mut room.pass)?;
            let [q_there, k_there, v_there] = room.pass.projected();
            q_there.read(0, &mut q[first * q_width..last * q_width])?;
            k_there.read(0, &mut k[first * kv_width..last * kv_width])?;
            v_there.read(0, &mut v[first * kv_width..last * kv_width])?;
        }
        own.complete(config, q, k, v);
        Ok(())
    }

    /// [`crate::LayerPass::finish`].
    pub(crate) fn finish(
        &mut self,
        config: &Config,
        attention: &[f32],
        residual: &mut [f32],
        stop: &Stop,
    ) -> Result<(), PassError> {
        let (card, layer, block) = (self.card, self.layer, self.rows);
        let (width, q_width) = (config.width, config.q_width());
        let rows = residual.len() / width;
        for first in (0..rows).step_by(block) {
            stop.check()?;
            let last = rows.min(first + block);
            let room = self.room()?;
            let own = &mut residual[first * width..last * width];
            room.residual.write(0, own)?;
            room.attention
                .write(0, &attention[first * q_width..last * q_width])?;
            let stream = (&mut room.residual, last - first);
            card.finish(layer, &room.attention, stream, &mut room.pass)?;
            room.residual.read(0, own)?;
        }
        Ok(())
    }
}
