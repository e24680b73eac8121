//! Intel's ISA-L as a rival, where the system has it.

#![expect(
    unsafe_code,
    reason = "calls a C library that is looked up at run time"
)]

use std::{
    ffi::{CStr, c_int, c_void},
    fs,
    mem::MaybeUninit,
};

use crate::{
    bench::{lane::Lane, setting::Operation},
    codec::{CodeId, Codec, Matrix},
};

/// Bytes that ISA-L's tables take for each coefficient.
const TABLE_BYTES: usize = 32;

/// Names to look for, the most specific first. `LD_LIBRARY_PATH` lets another build be compared.
const LIBRARIES: [&CStr; 2] = [c"libisal.so.2", c"libisal.so"];

/// `void ec_init_tables(int k, int rows, unsigned char *a, unsigned char *gftbls)`.
type InitTables = unsafe extern "C" fn(c_int, c_int, *const u8, *mut u8);

/// `void ec_encode_data(int len, int k, int rows, unsigned char *gftbls, unsigned char **data,
/// unsigned char **coding)`.
type EncodeData =
    unsafe extern "C" fn(c_int, c_int, c_int, *const u8, *const *const u8, *const *mut u8);

/// The reason why there is no comparison with ISA-L.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IsalError {
    /// The system has no such library.
    #[error("ISA-L is not installed: none of {tried} can be loaded")]
    NotFound {
        /// The names that were tried.
        tried: String,
    },

    /// The library lacks a function, so it is some other one.
    #[error("{library} has no function {function}")]
    NoFunction {
        /// The library that was loaded.
        library: String,
        /// The function that it lacks.
        function: &'static str,
    },
}

/// ISA-L, loaded.
#[derive(Debug, Clone)]
pub struct Isal {
    library: String,
    init_tables: InitTables,
    encode_data: EncodeData,
}

impl Isal {
    /// Loads the library, for as long as the process lives.
    ///
    /// # Errors
    ///
    /// [`IsalError`] if there is none, or what there is lacks the functions needed.
    pub fn load() -> Result<Self, IsalError> {
        let library = LIBRARIES
            .iter()
            .map(|name| open(name))
            .find(|handle| !handle.is_null());
        let Some(library) = library else {
            let tried = LIBRARIES.map(|name| name.to_string_lossy()).join(", ");
            return Err(IsalError::NotFound { tried });
        };
        let init_tables = function(library, c"ec_init_tables", "ec_init_tables")?;
        let encode_data = function(library, c"ec_encode_data", "ec_encode_data")?;
        let library = path_of(encode_data).unwrap_or_else(|| "libisal".to_owned());
        Ok(Self {
            library,
            // SAFETY: ISA-L declares the function of this name with this signature.
            init_tables: unsafe { std::mem::transmute::<*mut c_void, InitTables>(init_tables) },
            // SAFETY: as above.
            encode_data: unsafe { std::mem::transmute::<*mut c_void, EncodeData>(encode_data) },
        })
    }

    /// Returns the file that was loaded, whose name usually ends in the version.
    #[must_use]
    pub fn library(&self) -> &str {
        &self.library
    }

    /// Returns `matrix` as ISA-L wants it.
    #[must_use]
    pub fn tables(&self, matrix: &Matrix) -> IsalTables {
        let (rows, columns) = (matrix.rows(), matrix.columns());
        let coefficients: Vec<u8> = (0..rows).flat_map(|row| matrix.row(row)).copied().collect();
        let mut tables = vec![0; TABLE_BYTES * rows * columns];
        let (k, m) = (to_int(columns), to_int(rows));
        // SAFETY: the matrix has k*m coefficients, and the tables have 32 bytes for each.
        unsafe { (self.init_tables)(k, m, coefficients.as_ptr(), tables.as_mut_ptr()) };
        IsalTables {
            encode_data: self.encode_data,
            rows,
            columns,
            tables,
        }
    }
}

/// A matrix, made ready for ISA-L.
#[derive(Debug, Clone)]
pub struct IsalTables {
    encode_data: EncodeData,
    rows: usize,
    columns: usize,
    tables: Vec<u8>,
}

impl IsalTables {
    /// Computes all targets: row r of the matrix times the sources.
    ///
    /// # Panics
    ///
    /// Unless there is a source per column and a target per row, all equally long and below 2 GiB.
    pub fn run(&self, sources: &[&[u8]], targets: &mut [&mut [u8]]) {
        assert_eq!((sources.len(), targets.len()), (self.columns, self.rows));
        let shard_bytes = sources[0].len();
        assert!(sources.iter().all(|source| source.len() == shard_bytes));
        assert!(targets.iter().all(|target| target.len() == shard_bytes));
        let sources: Vec<*const u8> = sources.iter().map(|source| source.as_ptr()).collect();
        let targets: Vec<*mut u8> = targets
            .iter_mut()
            .map(|target| target.as_mut_ptr())
            .collect();
        let (length, k, m) = (to_int(shard_bytes), to_int(self.columns), to_int(self.rows));
        // SAFETY: the tables were made for k sources and m targets, of which there are as many, each
        // of so many bytes; targets are borrowed mutably.
        unsafe {
            (self.encode_data)(
                length,
                k,
                m,
                self.tables.as_ptr(),
                sources.as_ptr(),
                targets.as_ptr(),
            );
        }
    }
}

/// The work of ISA-L in one row of the bench.
#[derive(Debug)]
pub(super) struct Rival {
    operation: Operation,
    tables: IsalTables,
}

impl Rival {
    /// Returns the rival of a codec, or `None` where ISA-L has nothing to offer: it verifies nothing,
    /// and knows no code but Reed–Solomon.
    pub(super) fn new(isal: &Isal, codec: &Codec, operation: Operation) -> Option<Self> {
        if codec.code() != CodeId::RS_CAUCHY {
            return None;
        }
        let (k, m) = (
            codec.geometry().data_shards(),
            codec.geometry().parity_shards(),
        );
        let lost: Vec<usize> = (0..k.min(m)).collect();
        let used: Vec<usize> = (lost.len()..lost.len() + k).collect();
        let tables = match operation {
            Operation::Encode => isal.tables(codec.generator()),
            Operation::Decode => isal.tables(&codec.decode_matrix(&used, &lost).ok()?),
            Operation::Verify => return None,
        };
        Some(Self { operation, tables })
    }

    /// Does the operation to the lane's next stripe.
    pub(super) fn work(&self, lane: &mut Lane<'_>) {
        if self.operation == Operation::Encode {
            lane.encode(|data, parity| self.tables.run(data, parity));
            return;
        }
        lane.decode(|present, lost| {
            let sources: Vec<&[u8]> = present.iter().map(|shard| shard.1).collect();
            let mut targets: Vec<&mut [u8]> = lost.iter_mut().map(|shard| &mut *shard.1).collect();
            self.tables.run(&sources, &mut targets);
        });
    }
}

fn open(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string; ISA-L's initialisers only look at the CPU.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
}

fn function(
    library: *mut c_void,
    symbol: &CStr,
    name: &'static str,
) -> Result<*mut c_void, IsalError> {
    // SAFETY: the handle comes from `dlopen` and is never closed; the symbol is a C string.
    let address = unsafe { libc::dlsym(library, symbol.as_ptr()) };
    if address.is_null() {
        return Err(IsalError::NoFunction {
            library: "libisal".to_owned(),
            function: name,
        });
    }
    Ok(address)
}

/// Returns the file that a function was loaded from, links resolved.
fn path_of(function: *mut c_void) -> Option<String> {
    let mut place = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` takes any address, and writes to a place that is large enough.
    if unsafe { libc::dladdr(function, place.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: all zeros is a valid value, and `dladdr` wrote one.
    let place = unsafe { place.assume_init() };
    // SAFETY: `dladdr` succeeded, so this is a C string that lives as long as the library.
    let path = unsafe { CStr::from_ptr(place.dli_fname) }.to_str().ok()?;
    let resolved = fs::canonicalize(path).ok();
    Some(resolved.map_or_else(|| path.to_owned(), |path| path.display().to_string()))
}

fn to_int(count: usize) -> c_int {
    c_int::try_from(count).expect("shards below 2 GiB, and no more of them than a geometry has")
}
