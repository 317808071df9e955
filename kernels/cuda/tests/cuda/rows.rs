//! Vault rows on a device: unpacked rows equal the host's, as halves, and nothing else changes; packed rows equal the
//! host's byte for byte.

use crate::support::*;
use half::f16;
use kept_cuda::{HEAD_DIMS, LayerRows};
use kept_kernels::PackedRows;

const KV_HEADS: usize = 2;
const CAPACITY: usize = 37;

fn kinds_and_heads() -> impl Iterator<Item = (PackedRows, usize)> {
    let kinds = [PackedRows::F16, PackedRows::Q8_0].into_iter();
    kinds.flat_map(|kind| HEAD_DIMS.map(|dim| (kind, dim)))
}

#[test]
fn unpacked_rows_equal_the_hosts() {
    let (mut numbers, device) = (Numbers::new(5), devices().remove(0));
    for (kind, dim) in kinds_and_heads() {
        let before = numbers.rows(KV_HEADS * CAPACITY * dim);
        let mut rows = LayerRows::new(&device, KV_HEADS, CAPACITY, dim).expect("memory");
        rows.data_mut().write(0, &halves(&before)).expect("written");
        let mut expected = before.clone();
        for (head, first, count) in [(0, 0, 11), (1, 30, 7), (0, 36, 1)] {
            let mut packed = vec![0; count * kind.row_bytes(dim)];
            kind.pack(&numbers.rows(count * dim), dim, &mut packed);
            let at = (head * CAPACITY + first) * dim;
            kind.unpack(&packed, dim, &mut expected[at..][..count * dim]);
            let packed = device.copy_of(&packed).expect("memory");
            device
                .unpack(&mut rows, head, first, kind, &packed)
                .expect("written");
        }
        let found: Vec<f16> = rows.data().to_vec().expect("numbers");
        assert!(found == halves(&expected), "{kind:?}, heads of {dim}");
    }
}

#[test]
fn packed_rows_equal_the_hosts() {
    let (mut numbers, device) = (Numbers::new(6), devices().remove(0));
    for (kind, dim) in kinds_and_heads() {
        let mut all = numbers.rows(KV_HEADS * CAPACITY * dim);
        // A block of zeros, and a block whose largest number is small.
        all[..32].fill(0.0);
        all[32..64].iter_mut().for_each(|x| *x *= 1.0 / 4096.0);
        let mut rows = LayerRows::new(&device, KV_HEADS, CAPACITY, dim).expect("memory");
        let stored = halves(&all);
        rows.data_mut().write(0, &stored).expect("written");
        let row_bytes = kind.row_bytes(dim);
        for which in [0..CAPACITY, 5..16, 36..37, 9..9] {
            let bytes = KV_HEADS * which.len() * row_bytes;
            let mut expected = vec![0; bytes];
            for head in 0..KV_HEADS {
                let first = head * CAPACITY;
                let rows = &stored[(first + which.start) * dim..(first + which.end) * dim];
                let rows: Vec<f32> = rows.iter().map(|x| x.to_f32()).collect();
                let at = head * which.len() * row_bytes;
                kind.pack(&rows, dim, &mut expected[at..][..which.len() * row_bytes]);
            }
            // Bytes after the rows stay unchanged.
            expected.extend([7; 5]);
            let mut packed = device.copy_of(&vec![7u8; bytes + 5]).expect("memory");
            device
                .pack(&rows, which.clone(), kind, &mut packed)
                .expect("packed");
            let found = packed.to_vec().expect("bytes");
            assert!(
                found == expected,
                "{kind:?}, heads of {dim}, rows {which:?}"
            );
        }
    }
}
