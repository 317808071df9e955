//! The engine's backend for NVIDIA GPUs: [`CudaGpus`] is what a program passes to
//! [`Engine::placed`](kept_engine::Engine::placed), and [`OnGpu`] takes a [`Device`], for example an emulated one.
//!
//! - `backend.rs`: the engine's verbs ([`kept_engine::backend::Backend`]).
//! - `model/`: weights on a GPU and the arithmetic of a layer; `prefill/`, `decode/`: the buffers of one question.
//! - `host_rows.rs`: layers and attention for rows in host memory; `placing.rs`: what lies where.
//!
//! `kept_cuda` has the kernels. A second kind of device would be a crate like this one.

#![warn(missing_docs)]

mod backend;
mod decode;
mod gpus;
mod host_rows;
mod model;
mod placing;
mod prefill;

use std::sync::Arc;

use kept_cuda::Device;
use kept_engine::backend::{self as seam, Backend, DeviceModel};
use kept_engine::{Engine, EngineError};
use kept_models::Model;

pub use gpus::CudaGpus;
pub use model::GpuModel;

/// The attachment of a model on a GPU.
struct Uploaded(Arc<GpuModel>);

impl DeviceModel for Uploaded {
    fn backend<'m>(&'m self, model: &'m Model) -> Box<dyn Backend<'m> + 'm> {
        Box::new(backend::Cuda::new(model, &self.0))
    }
}

/// A model, or an engine with one, that can be computed by a GPU.
pub trait OnGpu: Sized {
    /// Uploads the weights to `device`, which computes from now on. After an error nothing has changed.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] if the model does not fit, or if a part of it has no kernel.
    ///
    /// # Panics
    /// If clones of the engine exist.
    fn take_gpu(&mut self, device: Device) -> Result<(), EngineError>;

    /// The weights on the GPU, if they were uploaded.
    fn gpu(&self) -> Option<&GpuModel>;

    /// As [`OnGpu::take_gpu`].
    ///
    /// # Errors
    /// As [`OnGpu::take_gpu`].
    ///
    /// # Panics
    /// As [`OnGpu::take_gpu`].
    fn on_gpu(mut self, device: Device) -> Result<Self, EngineError> {
        self.take_gpu(device)?;
        Ok(self)
    }
}

impl OnGpu for Model {
    fn take_gpu(&mut self, device: Device) -> Result<(), EngineError> {
        let uploaded = GpuModel::new(self, device)?;
        seam::attach(self, Uploaded(Arc::new(uploaded)));
        Ok(())
    }

    fn gpu(&self) -> Option<&GpuModel> {
        seam::attached::<Uploaded>(self).map(|uploaded| &*uploaded.0)
    }
}

impl OnGpu for Engine {
    fn take_gpu(&mut self, device: Device) -> Result<(), EngineError> {
        self.model_mut().take_gpu(device)
    }

    fn gpu(&self) -> Option<&GpuModel> {
        self.model().gpu()
    }
}
