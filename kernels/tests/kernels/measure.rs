//! Log-sum-exp, column sums and marks per row against the reference, at every SIMD level of the machine.

use crate::support::{GROUPS, Random, assert_close, shape, sinks};
use kept_kernels::{
    HeadShape, LastRows, PrefillAttention, RowStore, Scale, SimdLevel, Stop, Stopped,
    add_column_sums, log_sum_exp, mark_below_average, prefill_attention, reference,
    row_probabilities, words,
};

/// `(rows, tokens)`: whole prompts, chunks, single rows, and one row more than a word of marks has bits.
const SIZES: [(usize, usize); 9] = [
    (1, 1),
    (1, 65),
    (3, 700),
    (24, 24),
    (64, 130),
    (65, 65),
    (130, 600),
    (150, 150),
    (200, 1100),
];

fn each_size(mut check: impl FnMut(&LastRows<'_>, &str)) {
    let mut random = Random::fresh();
    for group in GROUPS {
        for (rows, tokens) in SIZES {
            for head_dim in [32, 80] {
                let shape = shape(2, group, head_dim);
                let queries = random.normal(rows * shape.q_heads * head_dim);
                let keys = random.store(&[tokens, tokens + 3], head_dim);
                let factor = 1.7 / (head_dim as f32).sqrt();
                // Every third shape has a soft cap.
                let cap = (rows % 3 == 0).then_some(3.0);
                let scale = Scale {
                    factor,
                    cap,
                    // Other shapes have sinks.
                    sinks: (rows % 3 == 1).then(|| sinks(shape)),
                };
                let (queries, keys) = (&queries, &keys);
                let task = LastRows {
                    shape,
                    scale,
                    queries,
                    keys,
                    tokens,
                };
                for level in SimdLevel::available() {
                    let what = format!("{level:?} {shape:?}, {rows} rows of {tokens}");
                    level.with(|| check(&task, &what));
                }
            }
        }
    }
}

#[test]
fn log_sum_exp_equals_the_reference() {
    each_size(|task, what| {
        let mut found = vec![f32::NAN; task.shape.q_heads * task.rows()];
        let mut expected = found.clone();
        log_sum_exp(task, &mut found, &Stop::new()).unwrap();
        reference::log_sum_exp(task, &mut expected);
        assert_close(&found, &expected, 1e-5, what);
    });
}

/// Columns from `tokens` on belong to later chunks and must not change.
#[test]
fn column_sums_equal_the_reference() {
    each_size(|task, what| {
        let mut known = vec![f32::NAN; task.shape.q_heads * task.rows()];
        log_sum_exp(task, &mut known, &Stop::new()).unwrap();
        let mut found = vec![0.25; task.shape.q_heads * (task.tokens + 5)];
        let mut expected = found.clone();
        add_column_sums(task, &known, &mut found, &Stop::new()).unwrap();
        reference::add_column_sums(task, &mut expected);
        // A sum of many probabilities of about 1e-7 relative error each.
        assert_close(&found, &expected, 3e-5, what);
    });
}

/// Keys that a row cannot see, and columns after its tokens, must not change.
#[test]
fn probabilities_of_each_row_equal_the_reference() {
    each_size(|task, what| {
        let mut known = vec![f32::NAN; task.shape.q_heads * task.rows()];
        log_sum_exp(task, &mut known, &Stop::new()).unwrap();
        let stride = task.tokens + 3;
        let mut found = vec![0.25; task.rows() * task.shape.q_heads * stride];
        let mut expected = found.clone();
        row_probabilities(task, &known, stride, &mut found, &Stop::new()).unwrap();
        reference::row_probabilities(task, stride, &mut expected);
        assert_close(&found, &expected, 1e-5, what);
    });
}

/// A prompt chunk by chunk, with the log-sum-exp from prefill attention: each row's probabilities sum to 1, all sums to
/// n.
#[test]
fn chunks_add_up_to_the_whole_prompt() {
    let mut random = Random::fresh();
    let (tokens, chunk, head_dim) = (700, 128, 64);
    let shape = shape(2, 3, head_dim);
    let queries = random.normal(tokens * shape.q_heads * head_dim);
    let keys = random.store(&[tokens, tokens], head_dim);
    let width = shape.q_heads * head_dim;
    let mut sums = vec![0.0; shape.q_heads * tokens];
    for first in (0..tokens).step_by(chunk) {
        let rows = chunk.min(tokens - first);
        let queries = &queries[first * width..(first + rows) * width];
        let attention = PrefillAttention {
            shape,
            scale: 0.125.into(),
            window: None,
            queries,
            first,
            keys: &keys,
            values: &keys,
        };
        let (mut out, mut known) = (vec![0.0; rows * width], vec![0.0; shape.q_heads * rows]);
        prefill_attention(&attention, &mut out, Some(&mut known), &Stop::new()).unwrap();
        let task = LastRows {
            shape,
            scale: 0.125.into(),
            queries,
            keys: &keys,
            tokens: first + rows,
        };
        add_column_sums(&task, &known, &mut sums, &Stop::new()).unwrap();
    }
    let whole = LastRows {
        shape,
        scale: 0.125.into(),
        queries: &queries,
        keys: &keys,
        tokens,
    };
    let mut expected = vec![0.0; sums.len()];
    reference::add_column_sums(&whole, &mut expected);
    assert_close(&sums, &expected, 3e-5, "chunks");
    for head in sums.chunks(tokens) {
        assert_close(&[head.iter().sum()], &[tokens as f32], 1e-5, "all");
    }
}

#[test]
fn marks_stand_where_the_reference_sees_less_than_the_average() {
    let (mut marked, mut undecided, mut all) = (0, 0, 0);
    each_size(|task, what| {
        let (rows, words) = (task.rows(), words(task.rows()));
        let mut bits = vec![u64::MAX; task.shape.kv_heads * task.tokens * words];
        mark_below_average(task, &mut bits, &Stop::new()).unwrap();
        let shares = reference::shares_of_average(task);
        for (key, (bits, shares)) in bits.chunks(words).zip(shares.chunks(rows)).enumerate() {
            for (row, share) in shares.iter().enumerate() {
                let found = bits[row / 64] >> (row % 64) & 1 == 1;
                all += 1;
                marked += usize::from(found);
                // Shares so close to 1 that f32 rounding decides the mark are not compared.
                if (share - 1.0).abs() < 1e-4 {
                    undecided += 1
                } else {
                    assert_eq!(found, *share < 1.0, "{what}: key {key}, row {row}")
                }
            }
            let beyond = rows % 64;
            assert!(
                beyond == 0 || bits[words - 1] >> beyond == 0,
                "{what}: no bit beyond the rows"
            );
        }
    });
    assert!(
        marked > all / 4 && undecided < all / 1000,
        "{marked} {undecided} {all}"
    );
}

/// A tile of rows gives the same marks as its rows one by one, bit for bit: equal keys give a probability of exactly
/// the average.
#[test]
fn a_row_marks_the_same_alone() {
    let mut random = Random::fresh();
    let shape = HeadShape::new(4, 2, 32);
    let (tokens, rows) = (150, 70);
    let width = shape.q_heads * shape.head_dim;
    let mut keys = random.store(&[tokens, tokens], shape.head_dim);
    keys.head_mut(1).fill(0.5);
    let queries = random.normal(rows * width);
    let task = |first: usize, tokens: usize, last: usize| -> Vec<u64> {
        let task = LastRows {
            shape,
            scale: 0.3.into(),
            queries: &queries[first * width..last * width],
            keys: &keys,
            tokens,
        };
        let mut bits = vec![0; shape.kv_heads * tokens * words(last - first)];
        mark_below_average(&task, &mut bits, &Stop::new()).unwrap();
        bits
    };
    let together = task(0, tokens, rows);
    for row in 0..rows {
        let seen = tokens - rows + row + 1;
        let alone = task(row, seen, row + 1);
        for (i, bit) in alone.iter().enumerate() {
            let (head, key) = (i / seen, i % seen);
            let word = together[(head * tokens + key) * 2 + row / 64];
            assert_eq!(
                word >> (row % 64) & 1,
                *bit,
                "head {head}, key {key}, row {row}"
            );
        }
    }
}

#[test]
fn stop_is_honoured() {
    let keys = RowStore::uniform(1, 4, 16);
    let task = LastRows {
        shape: shape(1, 1, 16),
        scale: 1.0.into(),
        queries: &[0.0; 32],
        keys: &keys,
        tokens: 4,
    };
    let stop = Stop::new();
    stop.request();
    assert_eq!(log_sum_exp(&task, &mut [0.0; 2], &stop), Err(Stopped));
    assert_eq!(
        add_column_sums(&task, &[0.0; 2], &mut [0.0; 4], &stop),
        Err(Stopped)
    );
    assert_eq!(mark_below_average(&task, &mut [0; 4], &stop), Err(Stopped));
}
