//! Expected queries of a model with norms after RoPE, which has other factors on queries in each layer.

use kept_engine::kernels::HeadShape;
use kept_engine::models::RopeTable;
use kept_engine::observe::{MeasurementBuffers, QueryMoments};
use kept_engine::policies::ExpectedQueriesRequest;
use kept_tests::compare::assert_same;
use kept_tests::engine::open;
use kept_tests::golden::Unpacked;

/// Mean and covariance, rotated to a position, are those of the queries rotated to it.
#[test]
fn expected_queries_have_the_factors_of_their_layer() {
    const POSITION: usize = 100;
    let model = open(&Unpacked::architecture("hunyuan-dense").path());
    let config = model.config();
    let table = RopeTable::new(config, POSITION + 1);
    let shape = HeadShape::new(config.q_heads, config.kv_heads, config.head_dim);
    let row = config.q_heads * config.head_dim;
    let queries: Vec<f32> = (0..12 * row).map(|i| (i as f32 * 0.37).sin()).collect();
    let request = ExpectedQueriesRequest {
        skip: 0,
        until: POSITION,
        positions: 1,
        covariance: true,
    };
    // As in prefill, the layers share the buffers.
    let mut measured = MeasurementBuffers::default();
    let mut means = Vec::new();
    for layer in 0..config.layers {
        let rope = table.of_layer(layer).expect("RoPE");
        measured.start(shape, [request].into_iter());
        measured.add(&queries, 0);
        measured.finish(request, Some(rope));
        let mut rotated = queries.clone();
        for query in rotated.chunks_exact_mut(row) {
            rope.rotate_query_at(query, POSITION);
        }
        let mut direct = QueryMoments::default();
        direct.start(shape, request);
        direct.add(&rotated);
        let expected = direct.finish(None).expect("started");
        let found = measured.found(request).expect("measured");
        let what = format!("layer {layer}");
        assert_same(found.mean, expected.mean, 1e-5, &what);
        let covariance = expected.covariance.expect("asked for");
        assert_same(
            found.covariance.expect("asked for"),
            covariance,
            1e-5,
            &what,
        );
        means.push(found.mean.to_vec());
    }
    assert_ne!(means[0], means[1]);
}
