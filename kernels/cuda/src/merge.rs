//! Merges tokens into shared rows of the compact KV cache: `device/merge.cu`.

use crate::driver::{Address, Geometry};
use crate::{Buffer, Device, DeviceError, HeadRows, Indices, KeptRows, RopeTables, RowKind};

/// Classes of one head on a device: their members and the members' weights.
pub struct Merging {
    /// `[most_classes + 1]`: first member of each class, and the end of the last.
    starts: Indices,
    /// `[most_members]`: row of each member.
    members: Indices,
    /// `[most_members]`
    weights: Buffer<f32>,
    /// `[most_members]`: key norms of the last merge.
    norms: Buffer<f32>,
    /// Current number of classes.
    classes: usize,
    counted: usize,
}

/// Parameters of kernel `merge`; same layout as `Merge` in `device/merge.cu`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MergeParameters {
    source: Address,
    starts: Address,
    members: Address,
    weights: Address,
    lengths: Address,
    angles: [Address; 2],
    numbers: Address,
    sums: Address,
    head: u32,
    classes: u32,
    capacity: u32,
    dim: u32,
    pairs: [u32; 2],
}

/// What a class's row is computed from.
pub enum Mean<'a> {
    /// Mean direction of the members' keys; with angles, RoPE is undone first.
    OfKeys(Option<RopeTables<'a>>),
    /// Mean of the members' values.
    OfValues,
}

impl Merging {
    /// Allocates space for `classes` classes with `members` members in total.
    pub fn new(device: &Device, classes: usize, members: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            starts: Indices::zeros(device, classes + 1)?,
            members: Indices::zeros(device, members)?,
            weights: device.alloc_uninit(members)?,
            norms: device.alloc_uninit(members)?,
            classes: 0,
            counted: 0,
        })
    }

    /// The most classes.
    pub fn classes(&self) -> usize {
        self.starts.len() - 1
    }

    /// The most members of all classes together.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Sets the classes: the (row, weight) pairs of each class's members.
    ///
    /// # Panics
    /// When they exceed the capacity, or a class has no members.
    pub fn set(
        &mut self,
        classes: impl IntoIterator<Item = impl IntoIterator<Item = (u32, f32)>>,
    ) -> Result<(), DeviceError> {
        let (mut starts, mut members, mut weights) = (vec![0], Vec::new(), Vec::new());
        for class in classes {
            let before = members.len();
            for (row, weight) in class {
                members.push(row);
                weights.push(weight);
            }
            assert!(members.len() > before, "a class without members");
            starts.push(members.len() as u32);
        }
        assert!(
            starts.len() <= self.starts.len() && members.len() <= self.members.len(),
            "{} classes of {} members in room for {} of {}",
            starts.len() - 1,
            members.len(),
            self.classes(),
            self.members.len()
        );
        (self.classes, self.counted) = (starts.len() - 1, members.len());
        self.starts.write(0, &starts)?;
        self.members.write(0, &members)?;
        self.weights.write(0, &weights)
    }

    /// Parameters for these classes over the rows of `source`; the target is still to be set.
    fn parameters(&self, source: HeadRows<'_>) -> MergeParameters {
        let HeadRows { layer, head } = source;
        let (heads, dim) = layer.heads();
        assert!(
            head < heads && self.members.end() <= layer.capacity(),
            "head {head} of {heads}, members below {}",
            layer.capacity()
        );
        MergeParameters {
            source: layer.data.address(),
            starts: self.starts.address(),
            members: self.members.address(),
            weights: self.weights.address(),
            head: head as u32,
            classes: self.classes as u32,
            capacity: layer.capacity() as u32,
            dim: dim as u32,
            ..MergeParameters::default()
        }
    }

    /// Key norms of the members of the last merge, `norms [members]` in their order.
    ///
    /// # Panics
    /// When the number of members differs.
    pub fn norms(&self, norms: &mut [f32]) -> Result<(), DeviceError> {
        assert_eq!(norms.len(), self.counted, "a norm for each member");
        self.norms.read(0, norms)
    }
}

impl Device {
    /// Merges rows of `source` by `merging` into f16, one row of `target` per class: the weighted mean of the members'
    /// values, or of their keys' directions. For keys, `merging` then holds their norms. A class of one takes its
    /// member's row unchanged.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn merge(
        &self,
        source: HeadRows<'_>,
        merging: &mut Merging,
        mean: &Mean<'_>,
        target: &mut KeptRows,
    ) -> Result<(), DeviceError> {
        let dim = source.head_dim();
        assert_eq!(
            (target.kind, target.head_dim()),
            (RowKind::F16, dim),
            "merged rows are halves, of the same heads"
        );
        assert!(
            merging.classes <= target.narrow,
            "{} classes in {} rows",
            merging.classes,
            target.narrow
        );
        let (angles, lengths) = match mean {
            Mean::OfKeys(angles) => (angles.as_ref(), merging.norms.address()),
            Mean::OfValues => (None, 0),
        };
        if let Some(angles) = angles {
            angles.check(merging.members.end(), dim);
        }
        let (angles, pairs) = RopeTables::parameters(angles);
        let parameters = MergeParameters {
            lengths,
            angles,
            numbers: target.elements().address(),
            pairs,
            ..merging.parameters(source)
        };
        // SAFETY: the target fits all classes, and the angles cover all positions.
        unsafe { self.launch_merge(&parameters) }
    }

    /// Weighted sum of each class's rows of `source`, without normalisation: `sums [classes, head_dim]`.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn add_up(
        &self,
        source: HeadRows<'_>,
        merging: &Merging,
        sums: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let dim = source.head_dim();
        assert!(
            merging.classes * dim <= sums.len(),
            "sums are [classes {}, dim {dim}]",
            merging.classes
        );
        let parameters = MergeParameters {
            sums: sums.address(),
            ..merging.parameters(source)
        };
        // SAFETY: the sums fit all classes.
        unsafe { self.launch_merge(&parameters) }
    }

    /// # Safety
    /// As [`Device::launch`]; the parameters come from [`Merging::parameters`], completed with a target.
    unsafe fn launch_merge(&self, parameters: &MergeParameters) -> Result<(), DeviceError> {
        let geometry = Geometry::warp_per_row(parameters.classes as usize, parameters.dim as usize);
        // SAFETY: the largest indices were checked, and starts ascend within the members; the rest is the caller's
        // promise.
        unsafe { self.launch("merge", geometry, parameters) }
    }
}
