//! What a GPU can do at most is measured by kernels that run.

use crate::support::*;
use kept_cuda::RatesOf;
use kept_kernels::HeadShape;

#[test]
fn copies_products_and_attention_are_measured() {
    // On a GPU as much as its benchmark does, in the emulator as little as shows that it runs.
    for device in devices() {
        let little = RatesOf {
            copied: 4096,
            rounds: 2,
            shape: HeadShape {
                q_heads: 2,
                kv_heads: 1,
                head_dim: 64,
            },
            before: 64,
            rows: 70,
        };
        let emulated = device.facts().name.starts_with("emulated");
        let of = if emulated { little } else { RatesOf::GPU };
        let rates = device.rates(&of).expect("it runs");
        for rate in [rates.copy, rates.to_gpu, rates.matrix, rates.attention] {
            assert!(rate.is_finite() && rate > 0.0, "{rates:?}");
        }
        // Nothing attends faster than products are made.
        assert!(emulated || rates.attention < rates.matrix, "{rates:?}");
    }
}
