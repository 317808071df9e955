//! A state as numbers in a fixed order, to save and restore it.
//!
//! Both use the same code: the owner of a state passes its numbers one after the other to a [`Snapshot`], which reads
//! or replaces them.

/// A visitor of a state: it reads the state's numbers or replaces them.
pub trait Snapshot {
    /// Visits numbers whose count is fixed when the state is created.
    fn floats(&mut self, numbers: &mut [f32]);

    /// As [`Snapshot::floats`].
    fn words(&mut self, numbers: &mut [u32]);

    /// As [`Snapshot::floats`].
    fn bytes(&mut self, numbers: &mut [u8]);

    /// Visits a number from 0 to `most`; a replacement is at most `most` too.
    fn count(&mut self, number: &mut usize, most: usize);
}

/// Visits a list of any length up to its capacity.
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
