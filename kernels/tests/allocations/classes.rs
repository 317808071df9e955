//! Class attention allocates nothing.

use crate::support::{Random, shape};
use kept_kernels::{
    ClassAttention, ClassScratch, Pairing, RankRotation, allocations, class_attention,
    settled_allocations,
};

pub fn attention_over_classes_allocates_nothing() {
    let mut random = Random::fresh();
    let shape = shape(2, 4, 64);
    let query = random.normal(shape.q_heads * 64);
    let (keys, values) = (random.store(&[300, 300], 64), random.store(&[300, 300], 64));
    let (cos, sin) = random.angles(900, 32);
    let classes: Vec<u32> = (0..1800).map(|_| random.below(300) as u32).collect();
    let norms = random.normal(1800);
    let rotation = RankRotation {
        cos: &cos,
        sin: &sin,
        rope_dim: 64,
        pairing: Pairing::Halves,
    };
    let mut scratch = ClassScratch::new(shape, 300, 900);
    let mut out = vec![0.0; query.len()];
    let mut run = |rotation| {
        let task = ClassAttention {
            shape,
            scale: 0.2.into(),
            query: &query,
            keys: &keys,
            values: &values,
            rows: &[300, 300],
            classes: &classes,
            norms: &norms,
            entries: &[900, 800],
            capacity: 900,
            rotation,
        };
        class_attention(&task, &mut scratch, &mut out);
    };
    run(None); // starts the pool
    let before = settled_allocations();
    for _ in 0..20 {
        run(None);
        run(Some(rotation));
    }
    assert_eq!(allocations() - before, 0);
}
