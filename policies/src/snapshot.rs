//! A state as numbers in an order that never changes, so that it can be written down and put back.
//!
//! One walk does both: whoever has a state shows its numbers one after the other, and a [`Snapshot`] reads them or replaces them.

/// What walks through a state: it takes its numbers down, or puts others in their place.
pub trait Snapshot {
    /// Numbers whose count is known from how the state was made.
    fn floats(&mut self, numbers: &mut [f32]);

    /// As [`Snapshot::floats`].
    fn words(&mut self, numbers: &mut [u32]);

    /// As [`Snapshot::floats`].
    fn bytes(&mut self, numbers: &mut [u8]);

    /// A number from 0 to `most`; one that is put in its place is no more than that either.
    fn count(&mut self, number: &mut usize, most: usize);
}

/// A list of any length that it has room for.
pub(crate) fn floats(through: &mut dyn Snapshot, list: &mut Vec<f32>) {
    let mut count = list.len();
    through.count(&mut count, list.capacity());
    list.resize(count, 0.0);
    through.floats(list);
}

/// As [`floats`].
pub(crate) fn words(through: &mut dyn Snapshot, list: &mut Vec<u32>) {
    let mut count = list.len();
    through.count(&mut count, list.capacity());
    list.resize(count, 0);
    through.words(list);
}
