//! No launch exceeds the grid limits of GPUs, for documents of up to ten million tokens. The test device has unlimited
//! memory and runs nothing, so only the launch arithmetic is tested. Needs no GPU.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kept_cuda::driver::{
    Address, Capture, Copying, DeviceProperties, Driver, Geometry, MAX_GRID_SIZE, Products,
};
use kept_cuda::{
    Activation, AttentionScratch, DecodeAttention, DecodeOutput, DecodeScratch, Device,
    DeviceError, KeptRows, LayerRows, PrefillAttention, RowInputs, RowKind, Scores, ScoresScratch,
};
use kept_kernels::{HeadShape, Normalise};

const TOKENS: usize = 10_000_000;
/// Rows of a prefill chunk: four times the engine's.
const ROWS: usize = 2048;

/// Returns addresses without memory, and records launches.
struct Endless {
    properties: DeviceProperties,
    next: AtomicU64,
    launches: Mutex<Vec<(String, Geometry)>>,
}

impl Driver for Endless {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        Ok(self.properties.memory)
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        let bytes = (bytes as u64).next_multiple_of(256);
        Ok(self.next.fetch_add(bytes, Ordering::Relaxed))
    }

    unsafe fn free(&self, _: Address, _: usize) {}

    fn allocate_on_host(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.allocate(bytes)
    }

    unsafe fn free_on_host(&self, _: Address, _: usize) {}

    unsafe fn upload(&self, _: Address, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn download(&self, _: &mut [u8], _: Address) -> Result<(), DeviceError> {
        unreachable!("nothing was computed")
    }

    unsafe fn copy(&self, _: Address, _: Address, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn copy_async(
        &self,
        _: Address,
        _: Address,
        _: usize,
    ) -> Result<Box<dyn Copying>, DeviceError> {
        unreachable!("no test here copies beside its work")
    }

    fn host_pointer(&self, _: Address) -> Result<*mut u8, DeviceError> {
        unreachable!("there is no memory")
    }

    unsafe fn clear(&self, _: Address, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn launch(&self, name: &str, geometry: Geometry, _: &[u8]) -> Result<(), DeviceError> {
        let mut launches = self.launches.lock().expect("no panic while locked");
        launches.push((name.to_owned(), geometry));
        Ok(())
    }

    fn begin_capture(&self) -> Result<(), DeviceError> {
        unreachable!("no test here records")
    }

    fn end_capture(&self) -> Result<Box<dyn Capture>, DeviceError> {
        unreachable!("no test here records")
    }

    fn products(&self) -> &dyn Products {
        unreachable!("no test here multiplies")
    }

    fn wait(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// A device as large as a Hopper, which has the widest grids.
fn endless() -> (Device, Arc<Endless>) {
    let endless = Arc::new(Endless {
        properties: DeviceProperties {
            name: "endless".to_owned(),
            capability: 90,
            multiprocessors: 132,
            shared_bytes: 227 << 10,
            memory: u64::MAX,
        },
        next: AtomicU64::new(256),
        launches: Mutex::default(),
    });
    (Device::new(endless.clone()), endless)
}

/// Heads of a layer of an 8B model.
const SHAPE: HeadShape = HeadShape::new(32, 8, 128);
/// Width of its feed-forward.
const FFN: usize = 14336;

/// Attention and scores of the last chunk of the document, and its feed-forward.
fn launch_prefill(device: &Device) {
    let numbers = ROWS * SHAPE.q_heads * SHAPE.head_dim;
    let queries = device.alloc_uninit(numbers).expect("memory");
    let keys = LayerRows::new(device, SHAPE.kv_heads, TOKENS, SHAPE.head_dim).expect("memory");
    let mut parts = AttentionScratch::new(device, SHAPE).expect("memory");
    let mut out = device.alloc_uninit(numbers).expect("memory");
    let attention = PrefillAttention {
        shape: SHAPE,
        scale: 1.0.into(),
        window: None,
        queries: &queries,
        rows: ROWS,
        first: TOKENS - ROWS,
        keys: &keys,
        values: &keys,
    };
    device
        .prefill_attention(&attention, &mut parts, &mut out, None)
        .expect("attention");

    let scores = Scores {
        shape: SHAPE,
        scale: 1.0.into(),
        queries: &queries,
        rows: ROWS,
        keys: &keys,
        tokens: TOKENS,
        normalise: Normalise::All,
    };
    let mut scratch = ScoresScratch::new(device, SHAPE, ROWS).expect("memory");
    let mut marks = device
        .alloc_uninit(SHAPE.kv_heads * TOKENS * ROWS.div_ceil(64))
        .expect("memory");
    device
        .mark_below_average(&scores, &mut parts, &mut scratch, &mut marks)
        .expect("marks");
    let mut means = device.alloc_uninit(SHAPE.q_heads * TOKENS).expect("memory");
    device
        .window_scores(&scores, None, &mut parts, &mut scratch, &mut means)
        .expect("means");

    let mut gate = device.alloc_uninit(ROWS * FFN).expect("memory");
    let up = device.alloc_uninit(ROWS * FFN).expect("memory");
    device
        .activate(Activation::Silu, &mut gate, &up, ROWS, FFN)
        .expect("the feed-forward");
}

/// Attention of one new token, with probabilities.
fn launch_decode(device: &Device) {
    let (heads, dim) = (SHAPE.kv_heads, SHAPE.head_dim);
    let queries = device.alloc_uninit(SHAPE.q_heads * dim).expect("memory");
    let mut out = RowInputs::new(device, SHAPE.q_heads * dim).expect("memory");
    let mut best = device.alloc_uninit(2 * SHAPE.q_heads).expect("memory");
    let mut probabilities = device.alloc_uninit(SHAPE.q_heads * TOKENS).expect("memory");
    let kept = KeptRows::new(device, RowKind::F16, heads * TOKENS, dim).expect("memory");
    let first_rows = device.alloc_uninit(heads).expect("memory");
    let rows = device.alloc_uninit(heads).expect("memory");
    let task = DecodeAttention {
        shape: SHAPE,
        scale: 1.0.into(),
        queries: &queries,
        keys: &kept,
        values: &kept,
        first_rows: &first_rows,
        rows: &rows,
        physical_rows: None,
        ranks: None,
    };
    let mut scratch = DecodeScratch::new(device, SHAPE, TOKENS).expect("memory");
    let output = DecodeOutput {
        out: &mut out,
        best: &mut best,
        probabilities: Some(&mut probabilities),
    };
    // SAFETY: the device runs nothing.
    unsafe { device.decode_attention(&task, &mut scratch, output) }.expect("attention");
}

/// All launches whose grid grows with the document.
#[test]
fn grids_of_ten_million_tokens_fit_a_gpu() {
    let (device, endless) = endless();
    launch_prefill(&device);
    launch_decode(&device);
    let launches = endless.launches.lock().expect("no panic while locked");
    assert!(launches.len() >= 7, "{launches:?}");
    let widest = launches.iter().map(|(_, geometry)| geometry.grid[0]).max();
    assert!(
        widest >= Some((TOKENS / 256) as u32),
        "the dimension that grows with the document is the first"
    );
    for (name, geometry) in launches.iter() {
        let fits = (geometry.grid.iter().zip(MAX_GRID_SIZE)).all(|(blocks, most)| *blocks <= most);
        assert!(fits, "{name}: {:?}", geometry.grid);
    }
}

/// A grid beyond the limit is an error of one sentence, and nothing is launched.
#[test]
fn an_oversized_grid_is_an_error_of_one_sentence() {
    let (device, endless) = endless();
    let rows = MAX_GRID_SIZE[1] as usize + 1;
    let mut gate = device.alloc_uninit(rows * 32).expect("memory");
    let up = device.alloc_uninit(rows * 32).expect("memory");
    let mut activate = |rows| device.activate(Activation::Silu, &mut gate, &up, rows, 32);
    activate(rows - 1).expect("as many as there may be");
    let refusal = activate(rows).expect_err("one more").to_string();
    assert!(
        refusal.contains("activate would take 65536 blocks")
            && refusal.contains("CPU")
            && !refusal.contains('\n'),
        "{refusal}"
    );
    let launches = endless.launches.lock().expect("no panic while locked");
    assert_eq!(launches.len(), 1);
}
