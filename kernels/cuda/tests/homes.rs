//! Memory of the host's that a device reaches: it is none of the device's own, and else like it.

mod support;

use kept_cuda::{Home, metered};
use support::devices;

#[test]
fn memory_of_the_hosts_is_none_of_the_devices() {
    let (device, meter) = metered(&devices()[0], 1 << 20);
    let there = device.room_at::<f32>(Home::Host, 1 << 20).expect("room");
    assert_eq!(device.free_memory(), Ok(1 << 20));
    assert_eq!((there.bytes(), there.host_bytes()), (0, 4 << 20));
    assert_eq!(meter.most(), 0);
    assert_eq!(
        device.rehearse(|d| d.room_at::<u8>(Home::Host, 1 << 30)),
        Ok(0)
    );
}

#[test]
fn memory_of_the_hosts_is_written_read_copied_and_computed_with() {
    let device = devices().remove(0);
    let mut there = device.room_at::<f32>(Home::Host, 1 << 20).expect("room");
    there.write(7, &[1.0, 2.0, 3.0]).expect("written");
    let mut own = device.zeros::<f32>(4).expect("room");
    own.copy_from(1, &there, 7..10).expect("copied");
    assert_eq!(own.to_vec().expect("numbers"), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!((own.bytes(), own.host_bytes()), (16, 0));
    // A kernel adds to it where it lies.
    let mut part = there.share(7..10);
    let more = device.copy_of(&[10.0f32, 20.0, 30.0]).expect("room");
    device.add(&mut part, &more, 3).expect("added");
    assert_eq!(part.to_vec().expect("numbers"), [11.0, 22.0, 33.0]);
}
