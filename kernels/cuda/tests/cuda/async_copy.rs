//! Asynchronous copies: bytes arrive complete and in order, whether copies run as late or as early as allowed.

use crate::support::{devices, gpu_only};
use kept_cuda::{Device, DownloadStaging, MemorySpace, Readback, UploadStaging, emulated};

/// A device whose copies run as late as they may, and one whose copies run at once.
fn both() -> Vec<Device> {
    let late = devices().remove(0);
    if gpu_only() {
        return vec![late];
    }
    vec![
        late,
        emulated::hasty(86, 1 << 20),
        emulated::device(75, 1 << 20),
    ]
}

#[test]
fn what_is_sent_in_turns_arrives_in_its_order() {
    for device in both() {
        let mut sending = UploadStaging::new(&device, 64).expect("memory");
        assert_eq!(sending.bytes(), 128);
        let mut all = device.zeros::<u8>(1000).expect("memory");
        let mut expected = Vec::new();
        for turn in 0..10u8 {
            let count = 64 - usize::from(turn);
            let space = sending.space().expect("memory");
            space[..count].fill(turn);
            // Bytes after `count` are not uploaded.
            space[count..].fill(99);
            let there = sending.send(count).expect("sent");
            all.copy_from(expected.len(), &there, 0..count)
                .expect("copied");
            expected.extend(vec![turn; count]);
        }
        let found = all.to_vec().expect("bytes");
        assert_eq!(found[..expected.len()], expected);
        assert!(found[expected.len()..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn what_is_fetched_is_what_was_there_when_it_was_asked_for() {
    for device in both() {
        let mut fetching = DownloadStaging::new(&device, 8).expect("memory");
        assert!(fetching.arrived().expect("nothing yet").is_empty());
        for turn in 1..5u8 {
            let bytes = [turn; 8];
            fetching
                .space()
                .expect("memory")
                .write(0, &bytes)
                .expect("written");
            fetching.fetch(usize::from(turn)).expect("asked for");
            if turn % 2 == 0 {
                // Overwrite the source before the host reads the download.
                fetching
                    .space()
                    .expect("memory")
                    .write(0, &[77; 8])
                    .expect("written");
            }
            assert_eq!(
                fetching.arrived().expect("there"),
                &bytes[..usize::from(turn)]
            );
        }
    }
}

#[test]
fn a_copy_that_nobody_waits_for_has_ended_when_it_is_let_go_of() {
    for device in both() {
        let mut here = device
            .alloc_uninit_in::<u8>(MemorySpace::Host, 4)
            .expect("memory");
        let there = device.copy_of(&[1u8, 2, 3, 4]).expect("memory");
        let pending = here.copy_async(1, &there, 2..4).expect("asked for");
        drop(there);
        drop(pending);
        let mut found = [0; 2];
        here.read(1, &mut found).expect("read");
        assert_eq!(found, [3, 4]);
    }
}

#[test]
#[should_panic(expected = "parts of one buffer")]
fn a_buffer_is_not_copied_onto_itself_beside_other_work() {
    let device = devices().remove(0);
    let mut buffer = device.zeros::<u8>(8).expect("memory");
    let same = buffer.share(4..8);
    let _ = buffer.copy_async(0, &same, 0..4);
}

#[test]
fn what_is_brought_in_pieces_is_what_was_there() {
    for device in both() {
        let numbers: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let mut there = device.copy_of(&numbers).expect("memory");
        let mut bringing = Readback::new(&device, 64).expect("memory");
        for (first, count) in [(0, 1000), (3, 64), (900, 65), (7, 1), (5, 0), (0, 128)] {
            let mut found = vec![0.0; count];
            bringing.read(&there, first, &mut found).expect("brought");
            assert_eq!(found, numbers[first..first + count]);
        }
        // A later write shows in the next download.
        there.write(2, &[7.5]).expect("written");
        let mut found = [0.0; 4];
        bringing.read(&there, 0, &mut found).expect("brought");
        assert_eq!(found, [0.0, 1.0, 7.5, 3.0]);
    }
}
