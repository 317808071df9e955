//! Decode attention allocates nothing.

use crate::support::{Random, shape};
use kept_kernels::{
    CacheType, DecodeAttention, DecodeScratch, Pairing, Rotation, RowStore, allocations,
    decode_attention, settled_allocations,
};

pub fn decode_attention_allocates_nothing() {
    let mut random = Random::fresh();
    let (shape, rows) = (shape(2, 4, 64), [2000, 700]);
    let query = random.normal(shape.q_heads * 64);
    let (keys, values) = (random.store(&rows, 64), random.store(&rows, 64));
    let (cos, sin) = random.angles(10, 32);
    let ranks = vec![3; 2700];
    let rotation = Rotation {
        cos: &cos,
        sin: &sin,
        rope_dim: 64,
        pairing: Pairing::Halves,
        ranks: &ranks,
    };
    let mut scratch = DecodeScratch::new(shape, 2000, 2);
    let mut out = vec![0.0; query.len()];
    let mut stores = vec![(keys, values)];
    for kind in [CacheType::F16, CacheType::Q8_0, CacheType::Q4_0] {
        let store = || RowStore::stored(kind, 64, &rows, &[1900, 600], true);
        stores.push((store(), store()));
    }
    let mut run = |(keys, values): &(RowStore, RowStore), rotation, rows: [usize; 2]| {
        let task = DecodeAttention {
            shape,
            scale: 0.2.into(),
            query: &query,
            keys,
            values,
            rows: &rows,
            rotation,
        };
        decode_attention(&task, &mut scratch, &mut out);
    };
    run(&stores[0], None, rows); // starts the pool
    let row = random.normal(64);
    let before = settled_allocations();
    for step in 0..20 {
        for store in &mut stores {
            if store.0.is_narrow(0, step) {
                store.0.quantise_and_swap(0, 1999 - step, step);
            }
            store.0.write(0, step, &row);
            run(store, None, rows);
            run(store, Some(rotation), [1 + step, 700]);
        }
    }
    assert_eq!(allocations() - before, 0);
}
