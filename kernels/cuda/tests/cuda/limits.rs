//! Every kernel fits every GPU it is compiled for. Compares the resources that NVIDIA's compiler reports
//! (`resources.tsv`, by `scripts/cuda-resources`) with the limits of the GPUs, and each geometry that depends on the
//! GPU with its shared memory. Needs no GPU.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::*;
use kept_cuda::{
    AttentionScratch, DecodeAttention, DecodeOutput, DecodeScratch, HEAD_DIMS, KeptRows, LayerRows,
    PrefillAttention, RowInputs, RowKind, emulated,
};
use kept_kernels::HeadShape;
use sha2::{Digest, Sha256};

/// Compute capabilities. Limits of all of them, from NVIDIA's programming guide: 65536 registers per multiprocessor and
/// per block, 255 registers per thread, 1024 threads per block. Shared memory per block differs; the emulated devices
/// have it.
const GPUS: [u32; 6] = [75, 80, 86, 89, 90, 120];
const REGISTERS_OF_BLOCK: u32 = 65536;
const REGISTERS_OF_THREAD: u32 = 255;
const THREADS_OF_BLOCK: u32 = 1024;

/// Resources of one kernel on one GPU.
struct Taken {
    registers: u32,
    shared: u32,
    stack: u32,
    spilled: u32,
}

/// The table: the hash of the sources; per kernel its maximum number of threads, and its resources on each GPU.
fn table() -> (String, BTreeMap<String, (u32, Vec<Taken>)>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("resources.tsv");
    let text = std::fs::read_to_string(&path).expect("scripts/cuda-resources makes it");
    let hash = text.lines().next().and_then(|line| line.rsplit(' ').next());
    let lines = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    let kernel = |line: &str| {
        let mut cells = line.split('\t');
        let name = cells.next().expect("a name").to_owned();
        let threads = cells.next().and_then(|cell| cell.parse().ok());
        let taken = cells.map(|cell| {
            let numbers: Vec<u32> = (cell.split(' '))
                .map(|n| {
                    n.parse()
                        .unwrap_or_else(|e| panic!("{name}: {cell:?}: {e}"))
                })
                .collect();
            let &[registers, shared, stack, spilled] = numbers.as_slice() else {
                panic!("{name}: {cell:?}");
            };
            Taken {
                registers,
                shared,
                stack,
                spilled,
            }
        });
        let taken = taken.collect();
        (name, (threads.expect("a number of threads"), taken))
    };
    (
        hash.expect("a hash").to_owned(),
        lines.map(kernel).collect(),
    )
}

/// The table matches these sources; if not, run `scripts/cuda-resources`.
#[test]
fn the_resource_table_matches_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("device");
    let files = std::fs::read_dir(folder).expect("the folder of kernels");
    let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        hash.update(std::fs::read(file).expect("a file"));
    }
    let (of_table, kernels) = table();
    assert_eq!(
        format!("{:x}", hash.finalize()),
        of_table,
        "kernels have changed: run scripts/cuda-resources"
    );
    let named: Vec<&str> = kernels.keys().map(String::as_str).collect();
    let mut all: Vec<&str> = emulated::kernels().collect();
    all.sort_unstable();
    assert_eq!(named, all, "a line for each kernel");
}

/// This GPU has no shared memory for two blocks of it, so that the kernel for fewer rows is launched there.
const NOT_LAUNCHED: (&str, u32) = ("prefill_attention_wide_128", 120);

#[test]
fn registers_and_shared_memory_fit_every_gpu() {
    for (name, (threads, taken)) in table().1 {
        assert_eq!(taken.len(), GPUS.len(), "{name}");
        assert!(threads <= THREADS_OF_BLOCK && threads.is_multiple_of(32));
        for (gpu, taken) in GPUS.into_iter().zip(taken) {
            // Registers are allocated per warp in units of 256.
            let of_block = taken.registers.next_multiple_of(8) * threads;
            assert!(
                taken.registers <= REGISTERS_OF_THREAD && of_block <= REGISTERS_OF_BLOCK,
                "{name} on sm_{gpu}: {} registers a thread, {of_block} a block",
                taken.registers
            );
            if (name.as_str(), gpu) != NOT_LAUNCHED {
                assert_eq!(taken.spilled, 0, "{name} on sm_{gpu} spills registers");
                assert_eq!(taken.stack, 0, "{name} on sm_{gpu} has a stack");
            }
            // All shared memory is dynamic, so that the check at launch covers it.
            assert_eq!(
                taken.shared, 0,
                "{name} on sm_{gpu} has fixed shared memory"
            );
        }
    }
}

/// The kernels whose shared memory depends on the GPU request no more than it has, for every head size and row type.
/// The emulated device refuses as a GPU would.
#[test]
fn attention_fits_the_shared_memory_of_every_gpu() {
    for capability in GPUS {
        let device = emulated::device(capability, 1 << 30);
        for head_dim in HEAD_DIMS {
            let shape = HeadShape::new(2, 1, head_dim);
            let mut numbers = Numbers::new(3);
            let query = queries(&device, &numbers.rows(2 * head_dim));
            let mut out = device.alloc_uninit(2 * head_dim).expect("memory");
            let mut keys = LayerRows::new(&device, 1, 1, head_dim).expect("memory");
            keys.write_head(0, 0, &numbers.rows(head_dim))
                .expect("written");
            let task = PrefillAttention {
                shape,
                scale: 1.0.into(),
                window: None,
                queries: &query,
                rows: 1,
                first: 0,
                keys: &keys,
                values: &keys,
            };
            let mut parts = AttentionScratch::new(&device, shape).expect("memory");
            device
                .prefill_attention(&task, &mut parts, &mut out, None)
                .unwrap_or_else(|e| panic!("sm_{capability}, heads of {head_dim}: {e}"));
            let zeros = |count: usize| device.zeros::<u32>(count).expect("memory");
            let (first_rows, mut rows) = (zeros(1), zeros(1));
            rows.write(0, &[1]).expect("written");
            for kind in [RowKind::F16, RowKind::Q8_0, RowKind::Q4_0] {
                let kept = KeptRows::new(&device, kind, 1, head_dim).expect("memory");
                let task = DecodeAttention {
                    shape,
                    scale: 1.0.into(),
                    queries: &query,
                    keys: &kept,
                    values: &kept,
                    first_rows: &first_rows,
                    rows: &rows,
                    physical_rows: None,
                    ranks: None,
                };
                let mut scratch = DecodeScratch::new(&device, shape, 1).expect("memory");
                let output = DecodeOutput {
                    out: &mut RowInputs::new(&device, 2 * head_dim).expect("memory"),
                    best: &mut zeros(4),
                    probabilities: None,
                };
                // SAFETY: one row, which exists.
                unsafe { device.decode_attention(&task, &mut scratch, output) }
                    .unwrap_or_else(|e| panic!("sm_{capability}, {kind:?} of {head_dim}: {e}"));
            }
        }
    }
}
