//! Every storage type of weights, against the `gguf` package's reading of the same blocks (`golden/weight_types.py`).

use kept_kernels::WeightType;
use kept_kernels::mapped::{MappedFile, MappedMatrix};
use kept_tests::golden::Tensors;

#[test]
fn weights_are_read_bit_for_bit_as_by_the_reference() {
    let golden = Tensors::golden("weight_types");
    let quantised = WeightType::ALL.iter().filter(|kind| kind.is_quantised());
    for &kind in quantised {
        let blocks = golden.bytes(&format!("{kind}.blocks"));
        let rows = golden.rows(&format!("{kind}.numbers"));
        let cols = rows[0].len();
        assert_eq!((cols, blocks.len() / rows.len()), kind.block(), "{kind}");
        let file = MappedFile::from_bytes(&blocks).unwrap();
        let matrix = MappedMatrix::new(&file, 0, kind, rows.len(), cols).unwrap();
        let mut read = vec![0.0; cols];
        for (r, expected) in rows.iter().enumerate() {
            matrix.row_to_f32(r, &mut read);
            let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            // 0 and -0 are the same weight.
            let read: Vec<f32> = read.iter().map(|x| x + 0.0).collect();
            let expected: Vec<f32> = expected.iter().map(|x| x + 0.0).collect();
            assert_eq!(bits(&read), bits(&expected), "{kind}, row {r}");
        }
    }
}
