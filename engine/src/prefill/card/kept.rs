//! Where the rows of a layer go that are kept: to the host, which does more with them than copying; or straight to their places in the cache
//! that the card will answer from, and the host has the books alone.

use half::f16;
use half::slice::HalfFloatSliceExt;
use kept_cuda::{
    Bringing, CardCache, Device, DeviceError, Indices, Keeping, Kept, KeptRows, LayerRoom,
    LayerRows, RowKind,
};
use kept_kernels::{HeadShape, RowStore};
use kept_policies::Pos;

use super::CardReading;
use crate::sizes::Sizes;

/// Kept rows that come to the host at a time.
const AT_ONCE: usize = 1024;

/// Kept rows that are copied at a time on the card: what is sent of each is where it goes.
const COPIED_AT_ONCE: usize = 1 << 15;

/// Kept rows on their way.
pub(super) enum KeptGo {
    ToHost(Box<ToHost>),
    ToCache(Box<ToCache>),
}

/// By way of a buffer that a piece at a time is gathered in.
pub(super) struct ToHost {
    /// `[AT_ONCE, head_dim]`
    rows: KeptRows,
    /// `[AT_ONCE]`: which these are.
    at: Indices,
    /// `[AT_ONCE]`: and whose.
    heads: Indices,
    bringing: Bringing<u8>,
}

/// Into the cache, whose layers are made as they are cut: only then is it known what each head keeps.
pub(super) struct ToCache {
    /// Nothing once whoever answers has it.
    cache: Option<CardCache>,
    keeping: Keeping,
}

impl KeptGo {
    pub(super) fn new(
        device: &Device,
        heads: HeadShape,
        sizes: &Sizes,
    ) -> Result<Self, DeviceError> {
        if sizes.rows_on_card {
            let rows = heads.kv_heads * sizes.tokens;
            return Ok(Self::ToCache(Box::new(ToCache {
                cache: Some(CardCache::without_rows(device, heads, sizes.keeps.len())?),
                keeping: Keeping::new(device, COPIED_AT_ONCE.min(rows).max(1))?,
            })));
        }
        let dim = heads.head_dim;
        Ok(Self::ToHost(Box::new(ToHost {
            rows: KeptRows::new(device, RowKind::F16, AT_ONCE, dim)?,
            at: Indices::zeros(device, AT_ONCE)?,
            heads: Indices::zeros(device, AT_ONCE)?,
            bringing: Bringing::new(device, AT_ONCE * dim * size_of::<f16>())?,
        })))
    }

    /// Bytes on the card.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::ToHost(way) => way.rows.bytes() + way.at.bytes() + way.heads.bytes(),
            Self::ToCache(way) => {
                way.keeping.bytes() + way.cache.as_ref().map_or(0, CardCache::bytes)
            }
        }
    }

    /// The cache that rows go into, if they do.
    fn cache(&mut self) -> Option<(&mut CardCache, &mut Keeping)> {
        match self {
            Self::ToHost(_) => None,
            Self::ToCache(way) => Some((way.cache.as_mut()?, &mut way.keeping)),
        }
    }
}

impl ToHost {
    /// Of every head the rows `kept` of `all`, on the host, each at its own number.
    fn bring(
        &mut self,
        device: &Device,
        kept: &[Vec<Pos>],
        all: [(&LayerRows, &mut RowStore); 2],
    ) -> Result<(), DeviceError> {
        let heads = kept.iter().enumerate();
        let which: Vec<(usize, Pos)> = heads
            .flat_map(|(head, kept)| kept.iter().map(move |&pos| (head, pos)))
            .collect();
        let row_bytes = all[0].1.head_dim() * size_of::<f16>();
        let mut bytes = vec![0; AT_ONCE * row_bytes];
        let mut row = vec![f16::ZERO; all[0].1.head_dim()];
        let mut all = all;
        for some in which.chunks(AT_ONCE) {
            let heads: Vec<u32> = some.iter().map(|&(head, _)| head as u32).collect();
            let rows: Vec<u32> = some.iter().map(|(_, pos)| pos.0).collect();
            self.heads.write(0, &heads)?;
            self.at.write(0, &rows)?;
            let kept = Kept {
                positions: &self.at,
                heads: &self.heads,
                targets: None,
                slots: some.len(),
            };
            let bytes = &mut bytes[..some.len() * row_bytes];
            for (there, here) in &mut all {
                device.keep(there, &kept, None, &mut self.rows)?;
                self.bringing.read(self.rows.numbers(), 0, bytes)?;
                for (&(head, pos), found) in some.iter().zip(bytes.chunks_exact(row_bytes)) {
                    for (half, bytes) in row.iter_mut().zip(found.as_chunks::<2>().0) {
                        *half = f16::from_le_bytes(*bytes);
                    }
                    row.convert_to_f32_slice(here.row_mut(head, pos.0 as usize));
                }
            }
        }
        Ok(())
    }
}

impl CardReading<'_> {
    /// Of every head the rows `kept`, on the host, each at its own number.
    ///
    /// # Panics
    /// Where kept rows stay on the card.
    pub(in crate::prefill) fn bring_kept(
        &mut self,
        kept: &[Vec<Pos>],
        keys: &mut RowStore,
        values: &mut RowStore,
    ) -> Result<(), DeviceError> {
        let device = self.device();
        let KeptGo::ToHost(way) = &mut self.kept else {
            panic!("kept rows stay on the card");
        };
        way.bring(device, kept, [(&self.keys, keys), (&self.values, values)])
    }

    /// Copies rows of the layer into the next one of the cache, which has this `room` for them: slot i of head h takes the row
    /// `slots[h][i]`, in the place that `store` gives it.
    ///
    /// # Panics
    /// Where kept rows go to the host.
    pub(in crate::prefill) fn keep(
        &mut self,
        room: &LayerRoom,
        (store, slots): (&RowStore, &[Vec<u32>]),
    ) -> Result<(), DeviceError> {
        let (cache, keeping) = self.kept.cache().expect("rows that stay on the card");
        let layer = cache.add_layer(room)?;
        cache.keep(layer, (&self.keys, &self.values), (store, slots), keeping)
    }

    /// Room for the kept rows of all layers, where they stay: what a reading takes at its end.
    pub(super) fn add_layers(&mut self, rooms: &[LayerRoom]) -> Result<(), DeviceError> {
        if let Some((cache, _)) = self.kept.cache() {
            for room in rooms {
                cache.add_layer(room)?;
            }
        }
        Ok(())
    }

    /// The kept rows of all layers, where they stayed.
    pub(in crate::prefill) fn take_cache(&mut self) -> Option<CardCache> {
        match &mut self.kept {
            KeptGo::ToHost(_) => None,
            KeptGo::ToCache(way) => way.cache.take(),
        }
    }
}
