//! Pinned host memory: it takes no device memory, and works like device memory otherwise.

use crate::support::devices;
use kept_cuda::{MemorySpace, fault_injecting};

#[test]
fn pinned_memory_uses_no_device_memory() {
    let (device, meter) = fault_injecting(&devices()[0], 1 << 20);
    let pinned = device
        .alloc_uninit_in::<f32>(MemorySpace::Host, 1 << 20)
        .expect("memory");
    assert_eq!(device.free_memory(), Ok(1 << 20));
    assert_eq!((pinned.bytes(), pinned.host_bytes()), (0, 4 << 20));
    assert_eq!(meter.most(), 0);
    assert_eq!(
        device.measure_allocations(|d| d.alloc_uninit_in::<u8>(MemorySpace::Host, 1 << 30)),
        Ok(0)
    );
}

#[test]
fn pinned_memory_can_be_read_written_and_computed_on() {
    let device = devices().remove(0);
    let mut pinned = device
        .alloc_uninit_in::<f32>(MemorySpace::Host, 1 << 20)
        .expect("memory");
    pinned.write(7, &[1.0, 2.0, 3.0]).expect("written");
    let mut own = device.zeros::<f32>(4).expect("memory");
    own.copy_from(1, &pinned, 7..10).expect("copied");
    assert_eq!(own.to_vec().expect("numbers"), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!((own.bytes(), own.host_bytes()), (16, 0));
    // A kernel adds to it in place.
    let mut part = pinned.share(7..10);
    let more = device.copy_of(&[10.0f32, 20.0, 30.0]).expect("memory");
    device.add(&mut part, &more, 3).expect("added");
    assert_eq!(part.to_vec().expect("numbers"), [11.0, 22.0, 33.0]);
}
