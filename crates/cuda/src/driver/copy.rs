//! Copies to a device, from it, and within it.

use std::ptr;

use cudarc::driver::sys;

/// The address of rows of bytes, and their distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// In this process. The code that gives the address has exposed the provenance of all rows: the driver makes
    /// pointers of it.
    Host { address: usize, pitch: usize },
    /// On the device.
    Device {
        address: sys::CUdeviceptr,
        pitch: usize,
    },
}

impl End {
    fn pitch(self) -> usize {
        match self {
            Self::Host { pitch, .. } | Self::Device { pitch, .. } => pitch,
        }
    }

    /// Returns the address as the driver takes it where it finds out by itself what lies there.
    pub(super) fn unified(self) -> sys::CUdeviceptr {
        match self {
            Self::Host { address, .. } => address as sys::CUdeviceptr,
            Self::Device { address, .. } => address,
        }
    }

    /// Returns whether `next` begins where so many rows from here end.
    fn goes_on_with(self, next: Self, rows: usize) -> bool {
        match (self, next) {
            (
                Self::Host { address, pitch },
                Self::Host {
                    address: to,
                    pitch: next,
                },
            ) => pitch == next && address + rows * pitch == to,
            (
                Self::Device { address, pitch },
                Self::Device {
                    address: to,
                    pitch: next,
                },
            ) => pitch == next && address + (rows * pitch) as sys::CUdeviceptr == to,
            _ => false,
        }
    }
}

/// A copy of equally long rows of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) from: End,
    pub(super) to: End,
    /// Bytes of a row.
    pub(super) width: usize,
    pub(super) rows: usize,
}

impl Copy {
    /// Returns how many bytes are copied.
    pub(super) fn bytes(&self) -> usize {
        self.width * self.rows
    }

    /// Returns whether the bytes lie together at both ends.
    pub(super) fn is_whole(&self) -> bool {
        self.rows == 1 || (self.from.pitch() == self.width && self.to.pitch() == self.width)
    }

    /// Returns whether it lies together, and all that is in this process where `is_pinned`.
    fn may_go_in_batch(&self, is_pinned: impl Fn(usize, usize) -> bool) -> bool {
        let is_known = |end| match end {
            End::Host { address, .. } => is_pinned(address, self.bytes()),
            End::Device { .. } => true,
        };
        self.is_whole() && is_known(self.from) && is_known(self.to)
    }

    /// Returns it as the driver takes what does not lie together.
    pub(super) fn in_rows(&self) -> sys::CUDA_MEMCPY2D {
        let host = sys::CUmemorytype::CU_MEMORYTYPE_HOST;
        let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        let (src_type, src_host, src_device) = match self.from {
            End::Host { address, .. } => (host, ptr::with_exposed_provenance(address), 0),
            End::Device { address, .. } => (device, ptr::null(), address),
        };
        let (dst_type, dst_host, dst_device) = match self.to {
            End::Host { address, .. } => (host, ptr::with_exposed_provenance_mut(address), 0),
            End::Device { address, .. } => (device, ptr::null_mut(), address),
        };
        sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: src_type,
            srcHost: src_host,
            srcDevice: src_device,
            srcArray: ptr::null_mut(),
            srcPitch: self.from.pitch(),
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: dst_type,
            dstHost: dst_host,
            dstDevice: dst_device,
            dstArray: ptr::null_mut(),
            dstPitch: self.to.pitch(),
            WidthInBytes: self.width,
            Height: self.rows,
        }
    }
}

/// Copies that are queued together, in any order among each other.
#[derive(Debug, Default)]
pub(super) struct Copies {
    all: Vec<Copy>,
    /// Those that go in a batch, once [`Self::split`]; kept for its room, as are the lists below.
    together: Vec<Copy>,
    /// The same as the driver takes them.
    to: Vec<sys::CUdeviceptr>,
    from: Vec<sys::CUdeviceptr>,
    sizes: Vec<usize>,
}

impl Copies {
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Adds a row, to the copy that was added last if it goes on with it at both ends.
    pub(super) fn add(&mut self, from: End, to: End, width: usize) {
        if let Some(last) = self.all.last_mut()
            && last.width == width
            && last.from.goes_on_with(from, last.rows)
            && last.to.goes_on_with(to, last.rows)
        {
            last.rows += 1;
            return;
        }
        let rows = 1;
        self.all.push(Copy {
            from,
            to,
            width,
            rows,
        });
    }

    /// Adds rows of bytes as one copy.
    pub(super) fn add_rows(&mut self, from: End, to: End, width: usize, rows: usize) {
        self.all.push(Copy {
            from,
            to,
            width,
            rows,
        });
    }

    /// Returns all of them, each to be queued by itself.
    pub(super) fn all(&self) -> &[Copy] {
        &self.all
    }

    /// Tells those that may go in a batch, if they are several, from those that may not: leaves these in
    /// [`Self::all`], and makes lists of those.
    pub(super) fn split(&mut self, is_pinned: impl Fn(usize, usize) -> bool) {
        let together = self
            .all
            .extract_if(.., |copy| copy.may_go_in_batch(&is_pinned));
        self.together.clear();
        self.together.extend(together);
        if self.together.len() == 1 {
            self.rejoin();
        }
        let together = self.together.iter();
        self.to.clear();
        self.to
            .extend(together.clone().map(|copy| copy.to.unified()));
        self.from.clear();
        self.from
            .extend(together.clone().map(|copy| copy.from.unified()));
        self.sizes.clear();
        self.sizes.extend(together.map(Copy::bytes));
    }

    /// Returns whether any go in a batch.
    pub(super) fn have_batch(&self) -> bool {
        !self.together.is_empty()
    }

    /// Returns from where, to where and how many bytes those are copied that go in a batch.
    pub(super) fn batch(
        &mut self,
    ) -> (
        &mut [sys::CUdeviceptr],
        &mut [sys::CUdeviceptr],
        &mut [usize],
    ) {
        (&mut self.from, &mut self.to, &mut self.sizes)
    }

    /// Leaves all copies in [`Self::all`].
    pub(super) fn rejoin(&mut self) {
        self.all.append(&mut self.together);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 10;

    fn host(address: usize) -> End {
        let pitch = WIDTH;
        End::Host { address, pitch }
    }

    fn device(address: u64, pitch: usize) -> End {
        End::Device { address, pitch }
    }

    /// Returns the copies of rows from these places, which lie `pitch` bytes apart on the device.
    fn copies(places: &[usize], pitch: usize) -> Copies {
        let mut copies = Copies::default();
        for (&place, row) in places.iter().zip(0..) {
            copies.add(host(place), device(1000 + row * pitch as u64, pitch), WIDTH);
        }
        copies
    }

    fn rows(copies: &Copies) -> Vec<usize> {
        copies.all().iter().map(|copy| copy.rows).collect()
    }

    #[test]
    fn adjacent_shards_travel_together() {
        assert_eq!(rows(&copies(&[0, 10, 20, 50], 16)), [3, 1]);
        assert_eq!(rows(&copies(&[0, 10, 30, 40, 20], 16)), [2, 2, 1]);
        assert_eq!(rows(&copies(&[10, 0], 16)), [1, 1]);
        assert!(rows(&copies(&[], 16)).is_empty());
    }

    #[test]
    fn shards_that_are_apart_on_the_device_do_not_travel_together() {
        let mut copies = copies(&[0, 10], 16);
        copies.add(host(20), device(2000, 16), WIDTH);
        copies.add(host(30), device(2016, 16), WIDTH);
        assert_eq!(rows(&copies), [2, 2]);
    }

    #[test]
    fn only_pinned_neighbours_go_into_a_batch() {
        let is_pinned = |address: usize, bytes: usize| address + bytes <= 100;
        // 3 rows, 2 rows, 1 beyond what is pinned, 2 of which the second is.
        let places = [0, 10, 20, 40, 50, 200, 90, 100];
        let mut whole = copies(&places, WIDTH);
        whole.split(is_pinned);
        assert_eq!((whole.from.len(), whole.to.len()), (2, 2));
        assert_eq!(whole.from, [0, 40]);
        assert_eq!(whole.to, [1000, 1030]);
        assert_eq!(whole.sizes, [30, 20]);
        assert_eq!(rows(&whole), [1, 2]);
        whole.rejoin();
        assert!(!whole.have_batch());
        assert_eq!(rows(&whole), [1, 2, 3, 2]);
        // Apart on the device, only single rows lie together.
        let mut apart = copies(&places, 16);
        apart.split(is_pinned);
        assert!(!apart.have_batch());
        assert_eq!(rows(&apart).iter().sum::<usize>(), 8);
    }

    #[test]
    fn one_copy_is_no_batch() {
        let mut copies = copies(&[0], WIDTH);
        copies.split(|_, _| true);
        assert!(!copies.have_batch());
        assert!(copies.sizes.is_empty());
        assert_eq!(rows(&copies), [1]);
    }
}
