//! Scores of keys: the kernels' source against the CPU reference.

use crate::support::*;
use kept_cuda::{AttentionScratch, Device, LayerRows, Scores, ScoresScratch};
use kept_kernels::{HeadShape, LastRows, Normalise, RowStore, WindowScores, reference};

struct Case {
    device: Device,
    shape: HeadShape,
    host_queries: Vec<f32>,
    queries: kept_cuda::Buffer<half::f16>,
    rows: usize,
    tokens: usize,
    host_keys: RowStore,
    keys: LayerRows,
}

impl Case {
    fn new(device: Device, shape: HeadShape, rows: usize, tokens: usize) -> Self {
        let mut numbers = Numbers::new((rows * 1000 + tokens) as u64);
        let (host_keys, keys) = layer(&device, &mut numbers, &shape, tokens + 3);
        let host_queries = numbers.rows(rows * shape.q_heads * shape.head_dim);
        Self {
            queries: queries(&device, &host_queries),
            host_queries,
            device,
            shape,
            rows,
            tokens,
            host_keys,
            keys,
        }
    }

    fn scores(&self, normalise: Normalise) -> Scores<'_> {
        Scores {
            shape: self.shape,
            scale: 0.7.into(),
            queries: &self.queries,
            rows: self.rows,
            keys: &self.keys,
            tokens: self.tokens,
            normalise,
        }
    }

    fn host_scores<'a>(
        &'a self,
        normalise: Normalise,
        row_weights: Option<&'a [f32]>,
    ) -> WindowScores<'a> {
        WindowScores {
            shape: self.shape,
            scale: 0.7.into(),
            queries: &self.host_queries,
            keys: &self.host_keys,
            tokens: self.tokens,
            normalise,
            row_weights,
            log_sum_exp: &[],
        }
    }

    fn last_rows(&self) -> LastRows<'_> {
        LastRows {
            shape: self.shape,
            scale: 0.7.into(),
            queries: &self.host_queries,
            keys: &self.host_keys,
            tokens: self.tokens,
        }
    }

    fn scratch(&self) -> (AttentionScratch, ScoresScratch) {
        (
            AttentionScratch::new(&self.device, self.shape).expect("memory"),
            ScoresScratch::new(&self.device, self.shape, self.rows).expect("memory"),
        )
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let sizes = [(1, 1), (8, 70), (32, 200), (70, 150), (64, 600)];
    // Every shape with two of the sizes, every size with two of the shapes, alternating devices.
    let pairs = move |i: usize, shape| [(shape, sizes[i]), (shape, sizes[(i + 2) % sizes.len()])];
    let all = shapes().into_iter().enumerate();
    let all = all.flat_map(move |(i, shape)| pairs(i, shape)).enumerate();
    all.map(|(i, (shape, (rows, tokens)))| {
        let mut devices = devices();
        let device = devices.remove(i % devices.len());
        Case::new(device, shape, rows, tokens)
    })
}

#[test]
fn window_scores_match_the_reference() {
    for case in cases() {
        for normalise in [Normalise::All, Normalise::Prefix] {
            let weights = Numbers::new(5).rows(case.rows);
            for row_weights in [None, Some(weights.as_slice())] {
                let mut expected = vec![0.0; case.shape.q_heads * case.tokens];
                if normalise == Normalise::All || case.tokens > case.rows {
                    let host = case.host_scores(normalise, row_weights);
                    reference::window_scores(&host, &mut expected);
                }
                let (mut parts, mut scratch) = case.scratch();
                let mut out = case.device.alloc_uninit(expected.len()).expect("memory");
                let weights = row_weights.map(|w| case.device.copy_of(w).expect("memory"));
                let task = case.scores(normalise);
                case.device
                    .window_scores(&task, weights.as_ref(), &mut parts, &mut scratch, &mut out)
                    .expect("it runs");
                let what = format!(
                    "{:?}, {} of {}, {normalise:?}",
                    case.shape, case.rows, case.tokens
                );
                close(&out.to_vec().expect("read"), &expected, 1e-4, &what);
            }
        }
    }
}

#[test]
fn column_sums_match_the_reference() {
    for case in cases() {
        let (mut parts, _) = case.scratch();
        let what = format!("{:?}, {} of {}", case.shape, case.rows, case.tokens);

        let task = case.scores(Normalise::All);
        let stride = case.tokens + 5;
        let mut expected = Numbers::new(8).rows(case.shape.q_heads * stride);
        let mut sums = case.device.copy_of(&expected).expect("memory");
        reference::add_column_sums(&case.last_rows(), &mut expected);
        let mut known = case
            .device
            .alloc_uninit(case.shape.q_heads * case.rows)
            .expect("memory");
        case.device
            .log_sum_exp(&task, &mut parts, &mut known)
            .expect("it runs");
        case.device
            .add_column_sums(&task, &known, &mut sums)
            .expect("it runs");
        close(&sums.to_vec().expect("read"), &expected, 3e-4, &what);
    }
}

#[test]
fn marks_match_the_reference_except_close_calls() {
    for case in cases() {
        let (mut parts, mut scratch) = case.scratch();
        let words = kept_kernels::words(case.rows);
        let (heads, tokens) = (case.shape.kv_heads, case.tokens);
        let mut marks = case
            .device
            .alloc_uninit(heads * tokens * words)
            .expect("memory");
        let task = case.scores(Normalise::All);
        case.device
            .mark_below_average(&task, &mut parts, &mut scratch, &mut marks)
            .expect("it runs");
        let marks: Vec<u64> = marks.to_vec().expect("read");
        let shares = reference::shares_of_average(&case.last_rows());
        let mut sure = 0;
        for (i, share) in shares.iter().enumerate() {
            let (key, row) = (i / case.rows, i % case.rows);
            let marked = marks[key * words + row / 64] >> (row % 64) & 1 == 1;
            if share.is_nan() {
                assert!(!marked, "row {row} does not see key {key}");
            } else if (share - 1.0).abs() > 1e-3 {
                assert_eq!(marked, *share < 1.0, "row {row} gave key {key} {share}");
                sure += 1;
            }
        }
        assert!(
            sure * 10 > shares.len() || tokens == 1,
            "most are sure: {sure}"
        );
    }
}
