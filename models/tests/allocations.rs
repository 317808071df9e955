//! Decoding does not allocate once warm. A separate test binary, because it counts all allocations of the process.

use kept_kernels::{CountingAllocator, allocations, settled_allocations};
use kept_models::testing::{TYPES, TinyLlama};
use kept_models::{Model, RopeTable, RowScratch};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn decoding_a_token_does_not_allocate() {
    for kind in TYPES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        TinyLlama {
            kind,
            ..Default::default()
        }
        .write(&path)
        .unwrap();
        let model = Model::open(&path).unwrap();
        let config = model.config();
        let rope = RopeTable::new(config, 16);
        let mut scratch = RowScratch::new(config);
        let mut residual = vec![0.0; config.width];
        let mut q = vec![0.0; config.q_width()];
        let (mut k, mut v) = (vec![0.0; config.kv_width()], vec![0.0; config.kv_width()]);
        let mut logits = vec![0.0; config.vocab];
        let (mut cos, mut sin) = (vec![0.0; rope.pairs()], vec![0.0; rope.pairs()]);
        let mut token = |pos: usize| {
            model.embed(&[pos as u32], &mut residual);
            for layer in 0..config.layers {
                model.project_row(layer, &residual, &mut scratch, &mut q, &mut k, &mut v);
                rope.rotate_at(&mut q, pos);
                rope.fill(pos + 100, &mut cos, &mut sin);
                rope.rotate_with(&mut k, &cos, &sin);
                model.finish_row(layer, &q, 0, &mut residual, &mut scratch);
            }
            model.logits_row(&residual, &mut scratch, &mut logits);
        };
        token(0);
        token(1);
        let before = settled_allocations();
        for pos in 2..10 {
            token(pos);
        }
        assert_eq!(allocations() - before, 0, "{kind}");
    }
}
