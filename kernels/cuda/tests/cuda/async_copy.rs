//! Asynchronous copies: bytes arrive complete and in order, whether copies run as late or as early as allowed.

use crate::support::{devices, gpu_only};
use kept_cuda::{Device, DownloadStaging, MemorySpace, Readback, UploadStaging, emulated};

/// A device whose copies run as late as they may, and one whose copies run at once.
fn devices_by_copy_time() -> Vec<Device> {
    let late = devices().remove(0);
    if gpu_only() {
        return vec![late];
    }
    vec![
        late,
        emulated::with_eager_copies(86, 1 << 20),
        emulated::device(75, 1 << 20),
    ]
}

#[test]
fn uploads_arrive_in_order() {
    for device in devices_by_copy_time() {
        let mut staging = UploadStaging::new(&device, 64).expect("memory");
        assert_eq!(device.held(), 128);
        let mut all = device.zeros::<u8>(1000).expect("memory");
        let mut expected = Vec::new();
        for turn in 0..10u8 {
            let count = 64 - usize::from(turn);
            let space = staging.space().expect("memory");
            space[..count].fill(turn);
            // Bytes after `count` are not uploaded.
            space[count..].fill(99);
            let uploaded = staging.send(count).expect("sent");
            all.copy_from(expected.len(), &uploaded, 0..count)
                .expect("copied");
            expected.extend(vec![turn; count]);
        }
        let found = all.to_vec().expect("bytes");
        assert_eq!(found[..expected.len()], expected);
        assert!(found[expected.len()..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_download_has_the_bytes_at_its_submission() {
    for device in devices_by_copy_time() {
        let mut staging = DownloadStaging::new(&device, 8).expect("memory");
        assert!(staging.arrived().expect("nothing yet").is_empty());
        for turn in 1..5u8 {
            let bytes = [turn; 8];
            staging
                .space()
                .expect("memory")
                .write(0, &bytes)
                .expect("written");
            staging.fetch(usize::from(turn)).expect("asked for");
            if turn % 2 == 0 {
                // Overwrite the source before the host reads the download.
                staging
                    .space()
                    .expect("memory")
                    .write(0, &[77; 8])
                    .expect("written");
            }
            assert_eq!(
                staging.arrived().expect("there"),
                &bytes[..usize::from(turn)]
            );
        }
    }
}

#[test]
fn dropping_a_pending_copy_waits_for_it() {
    for device in devices_by_copy_time() {
        let mut host = device
            .alloc_uninit_in::<u8>(MemorySpace::Host, 4)
            .expect("memory");
        let source = device.copy_of(&[1u8, 2, 3, 4]).expect("memory");
        let pending = host.copy_async(1, &source, 2..4).expect("asked for");
        drop(source);
        drop(pending);
        let mut found = [0; 2];
        host.read(1, &mut found).expect("read");
        assert_eq!(found, [3, 4]);
    }
}

#[test]
#[should_panic(expected = "parts of one buffer")]
fn an_async_copy_within_one_buffer_panics() {
    let device = devices().remove(0);
    let mut buffer = device.zeros::<u8>(8).expect("memory");
    let same = buffer.share(4..8);
    let _ = buffer.copy_async(0, &same, 0..4);
}

#[test]
fn reading_in_pieces_gives_the_buffer() {
    for device in devices_by_copy_time() {
        let numbers: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let mut source = device.copy_of(&numbers).expect("memory");
        let mut readback = Readback::new(&device, 64).expect("memory");
        for (first, count) in [(0, 1000), (3, 64), (900, 65), (7, 1), (5, 0), (0, 128)] {
            let mut found = vec![0.0; count];
            readback.read(&source, first, &mut found).expect("read");
            assert_eq!(found, numbers[first..first + count]);
        }
        // A later write shows in the next download.
        source.write(2, &[7.5]).expect("written");
        let mut found = [0.0; 4];
        readback.read(&source, 0, &mut found).expect("read");
        assert_eq!(found, [0.0, 1.0, 7.5, 3.0]);
    }
}
