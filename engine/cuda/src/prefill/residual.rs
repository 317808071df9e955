//! The residual stream of a prefill on a GPU: in device memory, or on the host if it does not fit.
//!
//! ```text
//! chunk        0                1                2
//! GPU      compute in a     compute in b     compute in a
//! bus       0 to a | 1 to b  0 back | 2 to a  1 back | 3 to b
//! ```

use std::ops::Range;

use kept_cuda::{Buffer, Device, DeviceError, MemorySpace, PendingCopy};
use kept_engine::backend::PrefillPlan;

/// `[layer_input_tokens, width]`
pub(super) struct Residual {
    /// On the GPU or on the host.
    all: Buffer<f32>,
    /// For a stream on the host: device buffers for two chunks.
    stages: Option<[Stage; 2]>,
    /// Index of the current chunk's stage.
    entered: usize,
    width: usize,
}

struct Stage {
    /// `[chunk, width]`
    rows: Buffer<f32>,
    /// Rows of the stream that the stage holds or that are being uploaded.
    holds: Range<usize>,
    upload: Option<PendingCopy>,
    write_back: Option<PendingCopy>,
}

impl Residual {
    pub(super) fn new(
        device: &Device,
        width: usize,
        plan: &PrefillPlan,
    ) -> Result<Self, DeviceError> {
        let stage = || {
            Ok::<_, DeviceError>(Stage {
                rows: device.alloc_uninit(plan.chunk * width)?,
                holds: 0..0,
                upload: None,
                write_back: None,
            })
        };
        let space = if plan.residual_on_host {
            MemorySpace::Host
        } else {
            MemorySpace::Device
        };
        Ok(Self {
            all: device.alloc_uninit_in(space, plan.residual())?,
            stages: match space {
                MemorySpace::Host => Some([stage()?, stage()?]),
                MemorySpace::Device => None,
            },
            entered: 0,
            width,
        })
    }

    fn elements(&self, rows: &Range<usize>) -> Range<usize> {
        rows.start * self.width..rows.end * self.width
    }

    /// Rows of the current chunk, on the device. Also starts to upload the rows `next`.
    pub(super) fn load_chunk(
        &mut self,
        rows: Range<usize>,
        next: &Range<usize>,
    ) -> Result<Buffer<f32>, DeviceError> {
        let (first, count) = (rows.start, rows.len());
        let (elements, coming) = (self.elements(&rows), self.elements(next));
        let Some([a, b]) = &mut self.stages else {
            return Ok(self.rows(first, 0..count));
        };
        self.entered = 1 - self.entered;
        let (stage, other) = match self.entered {
            0 => (a, b),
            _ => (b, a),
        };
        if stage.holds != rows {
            stage.upload(&self.all, rows, elements)?;
        }
        if let Some(upload) = &stage.upload {
            upload.order_before_later_work()?;
        }
        if !next.is_empty() {
            other.upload(&self.all, next.clone(), coming)?;
        }
        Ok(self.rows(first, 0..count))
    }

    /// The rows `which` of the current chunk, whose first row is `first` in the stream; on the device.
    pub(super) fn rows(&self, first: usize, which: Range<usize>) -> Buffer<f32> {
        match &self.stages {
            Some(stages) => stages[self.entered].rows.share(self.elements(&which)),
            None => {
                let rows = first + which.start..first + which.end;
                self.all.share(self.elements(&rows))
            }
        }
    }

    /// Writes back the rows `done` (the last ones) of the current chunk: the input of the next layer.
    pub(super) fn write_back(&mut self, done: Range<usize>) -> Result<(), DeviceError> {
        let elements = self.elements(&done);
        let Some(stages) = &mut self.stages else {
            return Ok(());
        };
        let stage = &mut stages[self.entered];
        let skip = (done.start - stage.holds.start) * self.width;
        let from = skip..skip + elements.len();
        stage.write_back = Some(self.all.copy_async(elements.start, &stage.rows, from)?);
        // The stage no longer holds the uploaded rows, because the layer changed them.
        stage.holds = 0..0;
        Ok(())
    }

    /// Waits for pending copies and invalidates the stages.
    fn finish_copies(&mut self) -> Result<(), DeviceError> {
        for stage in self.stages.iter_mut().flatten() {
            stage.holds = 0..0;
            for pending in [&mut stage.upload, &mut stage.write_back] {
                if let Some(pending) = pending.take() {
                    pending.wait()?;
                }
            }
        }
        Ok(())
    }

    /// Downloads the rows `rows`.
    pub(super) fn read(&mut self, rows: Range<usize>) -> Result<Vec<f32>, DeviceError> {
        self.finish_copies()?;
        let mut out = vec![0.0; rows.len() * self.width];
        self.all.read(rows.start * self.width, &mut out)?;
        Ok(out)
    }

    /// Replaces the first rows.
    pub(super) fn write(&mut self, rows: &[f32]) -> Result<(), DeviceError> {
        self.finish_copies()?;
        self.all.write(0, rows)
    }
}

impl Stage {
    /// Uploads `rows` of the stream, floats `elements`. Copies run in order: a pending write-back of this
    /// stage runs first.
    fn upload(
        &mut self,
        all: &Buffer<f32>,
        rows: Range<usize>,
        elements: Range<usize>,
    ) -> Result<(), DeviceError> {
        self.upload = Some(self.rows.copy_async(0, all, elements)?);
        self.holds = rows;
        Ok(())
    }
}
