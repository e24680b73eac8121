//! Member directories as values: read from disk, changed, written to disk, and packed for the corpus.
//!
//! A packed image is `u32 members, u32 files`, then for each file what `tests/library/golden.rs` describes: its
//! member, its name, its length, and its blocks without the zeros at their end, each distinct block once.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::SeekFrom;

pub(crate) const BLOCK: usize = 4096;

/// One block; blocks of zeros are not kept.
type Block = Arc<[u8; BLOCK]>;

/// A file's bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sparse {
    pub(crate) len: u64,
    blocks: BTreeMap<u64, Block>,
}

impl Sparse {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let mut sparse = Self::default();
        sparse.write_at(0, bytes);
        sparse
    }

    /// Returns `len` bytes from `offset` on; those beyond the end are zeros.
    pub(crate) fn read_at(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            let (number, start) = split(offset + done as u64);
            let count = (BLOCK - start).min(len - done);
            if let Some(block) = self.blocks.get(&number) {
                bytes[done..done + count].copy_from_slice(&block[start..start + count]);
            }
            done += count;
        }
        bytes
    }

    /// Writes bytes, and grows the file if they end beyond it.
    pub(crate) fn write_at(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (number, start) = split(offset + done as u64);
            let count = (BLOCK - start).min(bytes.len() - done);
            let block = self
                .blocks
                .entry(number)
                .or_insert_with(|| Arc::new([0; BLOCK]));
            Arc::make_mut(block)[start..start + count].copy_from_slice(&bytes[done..done + count]);
            if block.iter().all(|byte| *byte == 0) {
                self.blocks.remove(&number);
            }
            done += count;
        }
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    /// Sets the length; bytes beyond it are gone.
    pub(crate) fn set_len(&mut self, len: u64) {
        let (number, start) = split(len);
        self.blocks.split_off(&(number + 1));
        if let Some(block) = self.blocks.get_mut(&number) {
            Arc::make_mut(block)[start..].fill(0);
        }
        self.blocks
            .retain(|_, block| block.iter().any(|byte| *byte != 0));
        self.len = len;
    }

    /// Returns the numbers of the blocks that hold anything but zeros.
    pub(crate) fn used_blocks(&self) -> Vec<u64> {
        self.blocks.keys().copied().collect()
    }

    fn read(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut sparse = Self {
            len,
            ..Self::default()
        };
        let mut at = 0;
        while at < len {
            at = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            let end = rustix::fs::seek(&file, SeekFrom::Hole(at))?;
            while at < end {
                let mut bytes = vec![0; usize::try_from(end - at).unwrap().min(1 << 20)];
                file.read_exact_at(&mut bytes, at)?;
                sparse.write_at(at, &bytes);
                at += bytes.len() as u64;
            }
        }
        Ok(sparse)
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(self.len)?;
        for (number, block) in &self.blocks {
            let start = number * BLOCK as u64;
            let len = usize::try_from(self.len - start)
                .unwrap_or(BLOCK)
                .min(BLOCK);
            file.write_all_at(&block[..len], start)?;
        }
        Ok(())
    }
}

fn split(offset: u64) -> (u64, usize) {
    let start = usize::try_from(offset % BLOCK as u64).unwrap();
    (offset / BLOCK as u64, start)
}

/// One entry of a member's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    File(Sparse),
    Directory,
    Symlink(PathBuf),
    /// A hard link to a file outside the member.
    Link(PathBuf),
    Fifo,
    Socket,
}

/// A member's directory: its entries by path.
pub(crate) type Member = BTreeMap<String, Node>;

/// All member directories of a volume; `None` stands for one that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image(pub(crate) Vec<Option<Member>>);

impl Image {
    /// Reads member directories. Reserved space is left out, because it holds nothing.
    pub(crate) fn read(directories: &[PathBuf], with_reserves: bool) -> io::Result<Self> {
        let members = directories.iter().map(|directory| {
            if !directory.is_dir() {
                return Ok(None);
            }
            let mut member = Member::new();
            read_into(directory, "", &mut member)?;
            if !with_reserves {
                member.retain(|name, _| !name.starts_with("ballast"));
            }
            Ok(Some(member))
        });
        members.collect::<io::Result<_>>().map(Self)
    }

    /// Makes the member directories again.
    pub(crate) fn write(&self, directories: &[PathBuf]) -> io::Result<()> {
        for (member, directory) in self.0.iter().zip(directories) {
            match fs::remove_dir_all(directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let Some(member) = member else { continue };
            fs::create_dir(directory)?;
            fs::set_permissions(directory, Permissions::from_mode(0o700))?;
            for (name, node) in member {
                write_node(&directory.join(name), node)?;
            }
        }
        Ok(())
    }

    /// Returns a file of a member.
    pub(crate) fn file(&self, member: usize, name: &str) -> Option<&Sparse> {
        match self.0.get(member)?.as_ref()?.get(name)? {
            Node::File(file) => Some(file),
            _ => None,
        }
    }

    /// Returns a file of a member, to change it.
    pub(crate) fn file_mut(&mut self, member: usize, name: &str) -> Option<&mut Sparse> {
        match self.0.get_mut(member)?.as_mut()?.get_mut(name)? {
            Node::File(file) => Some(file),
            _ => None,
        }
    }

    /// Returns the bytes of a packed image.
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut packed = Vec::new();
        let mut seen: HashMap<Block, u32> = HashMap::new();
        let files: Vec<(u8, &String, &Sparse)> = (0..)
            .zip(&self.0)
            .flat_map(|(number, member)| member.iter().flatten().map(move |entry| (number, entry)))
            .filter_map(|(number, (name, node))| match node {
                Node::File(file) => Some((number, name, file)),
                _ => None,
            })
            .collect();
        put(&mut packed, self.0.len(), 4);
        put(&mut packed, files.len(), 4);
        for (member, name, file) in files {
            packed.push(member);
            put(&mut packed, name.len(), 1);
            packed.extend(name.as_bytes());
            packed.extend(file.len.to_le_bytes());
            put(&mut packed, file.blocks.len(), 4);
            for (number, block) in &file.blocks {
                put(&mut packed, usize::try_from(*number).unwrap(), 4);
                if let Some(earlier) = seen.get(block) {
                    packed.extend([0; 2]);
                    packed.extend(earlier.to_le_bytes());
                    continue;
                }
                seen.insert(Arc::clone(block), u32::try_from(seen.len()).unwrap());
                let len = block.iter().rposition(|byte| *byte != 0).unwrap() + 1;
                put(&mut packed, len, 2);
                packed.extend(&block[..len]);
            }
        }
        packed
    }

    /// Returns the image that [`Image::pack`] packed.
    pub(crate) fn unpack(packed: &[u8]) -> Self {
        let mut rest = packed;
        let members = take(&mut rest, 4);
        let mut image = Self(vec![Some(Member::new()); members]);
        let mut seen: Vec<Block> = Vec::new();
        for _ in 0..take(&mut rest, 4) {
            let member = take(&mut rest, 1);
            let name_len = take(&mut rest, 1);
            let name = String::from_utf8(cut(&mut rest, name_len).to_vec()).unwrap();
            let mut file = Sparse {
                len: take(&mut rest, 8) as u64,
                ..Sparse::default()
            };
            for _ in 0..take(&mut rest, 4) {
                let number = take(&mut rest, 4) as u64;
                let block = match take(&mut rest, 2) {
                    0 => Arc::clone(&seen[take(&mut rest, 4)]),
                    len => {
                        let mut block = [0; BLOCK];
                        block[..len].copy_from_slice(cut(&mut rest, len));
                        seen.push(Arc::new(block));
                        Arc::clone(&seen[seen.len() - 1])
                    }
                };
                file.blocks.insert(number, block);
            }
            let member = image.0[member].as_mut().unwrap();
            if let Some((directory, _)) = name.rsplit_once('/') {
                member.insert(directory.to_owned(), Node::Directory);
            }
            member.insert(name, Node::File(file));
        }
        assert!(rest.is_empty(), "bytes behind a packed image");
        image
    }
}

fn put(packed: &mut Vec<u8>, number: usize, bytes: usize) {
    let number = (number as u64).to_le_bytes();
    assert!(number[bytes..].iter().all(|byte| *byte == 0));
    packed.extend(&number[..bytes]);
}

fn cut<'a>(rest: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, left) = rest.split_at(count);
    *rest = left;
    taken
}

fn take(rest: &mut &[u8], bytes: usize) -> usize {
    let mut number = [0; 8];
    number[..bytes].copy_from_slice(cut(rest, bytes));
    usize::try_from(u64::from_le_bytes(number)).unwrap()
}

fn read_into(directory: &Path, prefix: &str, member: &mut Member) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let metadata = entry.metadata()?;
        let kind = metadata.file_type();
        let node = if kind.is_dir() {
            read_into(&entry.path(), &format!("{name}/"), member)?;
            Node::Directory
        } else if kind.is_symlink() {
            Node::Symlink(fs::read_link(entry.path())?)
        } else if kind.is_fifo() {
            Node::Fifo
        } else if kind.is_socket() {
            Node::Socket
        } else if metadata.nlink() > 1 {
            Node::Link(PathBuf::new())
        } else {
            Node::File(Sparse::read(&entry.path())?)
        };
        member.insert(name, node);
    }
    Ok(())
}

fn write_node(path: &Path, node: &Node) -> io::Result<()> {
    match node {
        Node::File(file) => file.write(path),
        Node::Directory => {
            fs::create_dir(path)?;
            fs::set_permissions(path, Permissions::from_mode(0o700))
        }
        Node::Symlink(target) => std::os::unix::fs::symlink(target, path),
        Node::Link(target) => fs::hard_link(target, path),
        Node::Fifo => Ok(rustix::fs::mkfifoat(rustix::fs::CWD, path, 0o600.into())?),
        Node::Socket => std::os::unix::net::UnixListener::bind(path).map(drop),
    }
}
