//! The names of one writer's directory: as they are, and as a crash may leave them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::node::{BLOCK, Node, difference};
use super::writer::report_losses;

/// A file, whatever its names are.
pub(super) type NodeId = u64;

/// The name of the extended attribute that files may have.
pub(super) const MARK: &str = "user.mark";

/// One state of the names.
#[derive(Clone, Debug, Default)]
pub(super) struct Version {
    pub(super) names: BTreeMap<String, NodeId>,
    pub(super) marks: BTreeMap<NodeId, u64>,
    /// The least number of changes of each file that go with this state.
    certain: BTreeMap<NodeId, usize>,
}

/// A directory with no directories in it.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: BTreeMap<NodeId, Node>,
    /// The durable state, and all that came after it.
    versions: Vec<Version>,
    /// The state before the operation that was begun last.
    begun: usize,
    next: NodeId,
}

/// A file found on the mount.
struct FoundFile {
    ino: u64,
    mark: Option<u64>,
    bytes: Vec<u8>,
    /// The numbers of blocks that an outage took, and that cannot be read. Their bytes are zeros here.
    lost: Vec<usize>,
}

impl FoundFile {
    fn read(path: &Path) -> std::io::Result<Self> {
        let mut file = File::open(path)?;
        // From the daemon, as far as it has it.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        let ino = file.metadata()?.ino();
        let mark = mark_of(&file)?;
        let mut bytes = Vec::new();
        let lost = match file.read_to_end(&mut bytes) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                read_what_is_left(&file, &mut bytes)?
            }
            read => {
                read?;
                Vec::new()
            }
        };
        Ok(Self {
            ino,
            mark,
            bytes,
            lost,
        })
    }
}

/// The files found on the mount, by name.
struct FoundFiles(BTreeMap<String, FoundFile>);

impl FoundFiles {
    fn read(directory: &Path) -> Result<Self, String> {
        let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
        let entries = fs::read_dir(directory).map_err(|error| failed("cannot list", error))?;
        let mut files = BTreeMap::new();
        for entry in entries {
            let entry = entry.map_err(|error| failed("cannot list", error))?;
            let name = entry.file_name().into_string().expect("names are text");
            let file = FoundFile::read(&entry.path());
            let file = file.map_err(|error| failed(&format!("cannot read {name}"), error))?;
            files.insert(name, file);
        }
        Ok(Self(files))
    }
}

/// Reads a file block by block. Returns the blocks that cannot be read, which get zeros.
fn read_what_is_left(file: &File, bytes: &mut Vec<u8>) -> std::io::Result<Vec<usize>> {
    bytes.clear();
    bytes.resize(
        usize::try_from(file.metadata()?.len()).expect("it is small"),
        0,
    );
    let mut lost = Vec::new();
    for (number, block) in bytes.chunks_mut(BLOCK).enumerate() {
        match file.read_exact_at(block, (number * BLOCK) as u64) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                block.fill(0);
                lost.push(number);
            }
            read => read?,
        }
    }
    Ok(lost)
}

fn mark_of(file: &File) -> std::io::Result<Option<u64>> {
    let mut value = [0; 8];
    match rustix::fs::fgetxattr(file, MARK, &mut value[..]) {
        Ok(8) => Ok(Some(u64::from_le_bytes(value))),
        Ok(_) => Err(std::io::ErrorKind::InvalidData.into()),
        Err(rustix::io::Errno::NODATA) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Tree {
    pub(super) fn new() -> Self {
        Self {
            nodes: BTreeMap::new(),
            versions: vec![Version::default()],
            begun: 0,
            next: 0,
        }
    }

    /// Notes that an operation begins. If it waits for an outage to end, it is done to what the outage left.
    pub(super) fn begin(&mut self) {
        self.begun = self.versions.len() - 1;
    }

    /// Returns all states that a crash or an outage may leave: each that there was, and each before the last operation with
    /// what that one did.
    fn possible(&self) -> Vec<Version> {
        let mut possible = self.versions.clone();
        let begun = self.begun.min(self.versions.len() - 1);
        for after in &self.versions[begun + 1..] {
            let before = &self.versions[begun];
            let others = self.versions[..begun].iter();
            possible.extend(others.map(|version| version.with_change(before, after)));
        }
        possible
    }

    /// Returns the names as they are now.
    pub(super) fn now(&self) -> &Version {
        self.versions.last().expect("there is always one")
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[&id]
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("names are of nodes")
    }

    /// Returns a file that has no name yet.
    pub(super) fn new_node(&mut self) -> NodeId {
        self.next += 1;
        self.nodes.insert(self.next, Node::default());
        self.next
    }

    /// Changes the names; from now on the state before is one that a crash may leave, and so is this one.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Version)) {
        let mut version = self.now().clone();
        change(&mut version);
        self.versions.push(version);
    }

    /// Has the newest state go with all that was written to a file so far.
    pub(super) fn bind(&mut self, id: NodeId) {
        let certain = self.node(id).pending();
        let version = self.versions.last_mut().expect("there is always one");
        version.certain.insert(id, certain);
    }

    /// Takes the names as they are now for durable, and with them the bytes of one file.
    pub(super) fn settle_file(&mut self, id: NodeId) {
        self.node_mut(id).settle();
        self.settle_names();
        self.versions[0].certain.remove(&id);
    }

    /// Takes the names as they are now for durable.
    pub(super) fn settle_names(&mut self) {
        self.versions.drain(..self.versions.len() - 1);
        self.begun = 0;
        let names = &self.versions[0].names;
        self.nodes
            .retain(|id, _| names.values().any(|named| named == id));
        self.versions[0]
            .marks
            .retain(|id, _| self.nodes.contains_key(id));
        self.versions[0]
            .certain
            .retain(|id, _| self.nodes.contains_key(id));
    }

    /// Takes all that there is for durable.
    pub(super) fn settle(&mut self) {
        self.settle_names();
        self.nodes.values_mut().for_each(Node::settle);
        self.versions[0].certain.clear();
    }

    /// Says what is wrong with a directory in which all must be as it is now.
    pub(super) fn compare(&self, directory: &Path) -> Result<(), String> {
        let found = FoundFiles::read(directory)?;
        self.matches(self.now(), &found, |node, _, file| {
            if let Some(block) = file.lost.first() {
                return Err(format!("block {block} cannot be read"));
            }
            difference(node.content(), &file.bytes).map_or(Ok(()), Err)
        })
    }

    /// Looks at what a crash left, and takes it for what there is from now on.
    pub(super) fn recover(&mut self, directory: &Path) -> Result<(), String> {
        let found = FoundFiles::read(directory)?;
        let mut reasons = Vec::new();
        for (number, version) in self.possible().into_iter().enumerate() {
            let judged = self.matches(&version, &found, |node, certain, file| {
                node.judge(&file.bytes, certain, &file.lost)
            });
            match judged {
                Ok(()) => {
                    self.versions = vec![version];
                    self.settle_names();
                    self.versions[0].certain.clear();
                    let mut kept = BTreeSet::new();
                    for (name, file) in found.0 {
                        let id = self.versions[0].names[&name];
                        // A file may have several names.
                        if kept.insert(id) {
                            let kept = keep(&directory.join(&name), file);
                            let kept =
                                kept.map_err(|error| format!("{name} is of no use: {error}"))?;
                            self.node_mut(id).replace(kept);
                        }
                    }
                    let opened = File::open(directory);
                    let synced = opened.and_then(|opened| report_losses(&opened));
                    return synced.map_err(|error| format!("cannot sync it: {error}"));
                }
                Err(reason) => reasons.push(format!("{number}: {reason}")),
            }
        }
        Err(format!("no state that there was:\n{}", reasons.join("\n")))
    }

    fn matches(
        &self,
        version: &Version,
        found: &FoundFiles,
        judge: impl Fn(&Node, usize, &FoundFile) -> Result<(), String>,
    ) -> Result<(), String> {
        if let Some(name) = found
            .0
            .keys()
            .find(|name| !version.names.contains_key(*name))
        {
            return Err(format!("there should be no {name}"));
        }
        let mut inodes: BTreeMap<NodeId, u64> = BTreeMap::new();
        for (name, id) in &version.names {
            let Some(file) = found.0.get(name) else {
                return Err(format!("{name} is gone"));
            };
            if *inodes.entry(*id).or_insert(file.ino) != file.ino {
                return Err(format!("{name} is another file"));
            }
            if version.marks.get(id) != file.mark.as_ref() {
                return Err(format!("{name} is marked {:?}", file.mark));
            }
            let certain = version.certain.get(id).copied().unwrap_or(0);
            judge(self.node(*id), certain, file).map_err(|reason| format!("{name}: {reason}"))?;
        }
        Ok(())
    }
}

impl Version {
    /// Returns this state with what leads from one state to another.
    fn with_change(&self, before: &Self, after: &Self) -> Self {
        let mut changed = self.clone();
        for (name, id) in &before.names {
            if after.names.get(name) != Some(id) {
                changed.names.remove(name);
            }
        }
        for (name, id) in &after.names {
            if before.names.get(name) != Some(id) {
                changed.names.insert(name.clone(), *id);
            }
        }
        for (id, mark) in &after.marks {
            if before.marks.get(id) != Some(mark) {
                changed.marks.insert(*id, *mark);
            }
        }
        changed
    }
}

/// Cuts a file before the first block that an outage took, has its loss reported, and returns what is left. Programs that
/// learn of a loss say how long the file is, because the kernel may take it for longer. Lost bytes of the last page behind the
/// durable end read as zeros before that, and cannot be read after it. So the last block may go as well.
fn keep(path: &Path, mut file: FoundFile) -> std::io::Result<Vec<u8>> {
    let opened = File::options().write(true).open(path)?;
    loop {
        if let Some(first) = file.lost.first() {
            file.bytes.truncate(first * BLOCK);
        }
        opened.set_len(file.bytes.len() as u64)?;
        report_losses(&opened)?;
        let again = FoundFile::read(path)?;
        let last_block = file.bytes.len().saturating_sub(1) / BLOCK;
        let readable = match again.lost[..] {
            [] => file.bytes.len(),
            [lost] if lost == last_block => lost * BLOCK,
            _ => return Err(std::io::Error::other("more of it was lost than at first")),
        };
        let found = &again.bytes[..readable.min(again.bytes.len())];
        if let Some(difference) = difference(&file.bytes[..readable], found) {
            return Err(std::io::Error::other(difference));
        }
        if again.lost.is_empty() {
            return Ok(again.bytes);
        }
        file = again;
    }
}
