//! Rows of a vault on a device: the numbers that the host finds in them, as halves, and nothing beside them changes.

mod support;

use half::f16;
use kept_cuda::{HEAD_DIMS, LayerRows};
use kept_kernels::PackedRows;
use support::*;

#[test]
fn packed_rows_are_the_hosts_as_halves() {
    let (mut numbers, [device, _]) = (Numbers::new(5), devices());
    let (kv_heads, capacity) = (2, 37);
    for (kind, dim) in [PackedRows::F16, PackedRows::Q8_0]
        .into_iter()
        .flat_map(|kind| HEAD_DIMS.map(|dim| (kind, dim)))
    {
        let before = numbers.rows(kv_heads * capacity * dim);
        let mut rows = LayerRows::new(&device, kv_heads, capacity, dim).expect("room");
        rows.data_mut().write(0, &halves(&before)).expect("written");
        let mut room = device.room::<u8>(capacity * dim * 2).expect("room");
        let mut expected = before.clone();
        for (head, first, count) in [(0, 0, 11), (1, 30, 7), (0, 36, 1)] {
            let mut packed = vec![0; count * kind.row_bytes(dim)];
            kind.pack(&numbers.rows(count * dim), dim, &mut packed);
            let at = (head * capacity + first) * dim;
            kind.unpack(&packed, dim, &mut expected[at..][..count * dim]);
            device
                .write_packed(&mut rows, (head, first), (kind, &packed), &mut room)
                .expect("written");
        }
        let found: Vec<f16> = rows.data().to_vec().expect("numbers");
        assert!(found == halves(&expected), "{kind:?}, heads of {dim}");
    }
}
