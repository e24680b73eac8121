//! The names of one writer's directory: as they are, and as a crash may leave them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::node::{Node, difference};

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
    next: NodeId,
}

/// The files found on the mount: by name, each with its inode, its mark and its bytes.
struct FoundFiles(BTreeMap<String, (u64, Option<u64>, Vec<u8>)>);

impl FoundFiles {
    fn read(directory: &Path) -> Result<Self, String> {
        let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
        let entries = fs::read_dir(directory).map_err(|error| failed("cannot list", error))?;
        let mut files = BTreeMap::new();
        for entry in entries {
            let entry = entry.map_err(|error| failed("cannot list", error))?;
            let name = entry.file_name().into_string().expect("names are text");
            let read = || -> std::io::Result<_> {
                let mut file = File::open(entry.path())?;
                // From the daemon, as far as it has it.
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
                let ino = file.metadata()?.ino();
                let mark = mark_of(&file)?;
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                Ok((ino, mark, bytes))
            };
            let file = read().map_err(|error| failed(&format!("cannot read {name}"), error))?;
            files.insert(name, file);
        }
        Ok(Self(files))
    }
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
            next: 0,
        }
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
        self.matches(self.now(), &found, |node, _, bytes| {
            difference(node.content(), bytes).map_or(Ok(()), Err)
        })
    }

    /// Looks at what a crash left, and takes it for what there is from now on.
    pub(super) fn recover(&mut self, directory: &Path) -> Result<(), String> {
        let found = FoundFiles::read(directory)?;
        let mut reasons = Vec::new();
        for (number, version) in self.versions.iter().enumerate() {
            let judged = self.matches(version, &found, |node, certain, bytes| {
                node.judge(bytes, certain)
            });
            match judged {
                Ok(()) => {
                    self.versions = vec![version.clone()];
                    self.settle_names();
                    self.versions[0].certain.clear();
                    for (name, (_, _, bytes)) in found.0 {
                        let id = self.versions[0].names[&name];
                        self.node_mut(id).replace(bytes);
                    }
                    return Ok(());
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
        judge: impl Fn(&Node, usize, &[u8]) -> Result<(), String>,
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
            let Some((ino, mark, bytes)) = found.0.get(name) else {
                return Err(format!("{name} is gone"));
            };
            if *inodes.entry(*id).or_insert(*ino) != *ino {
                return Err(format!("{name} is another file"));
            }
            if version.marks.get(id) != mark.as_ref() {
                return Err(format!("{name} is marked {mark:?}"));
            }
            let certain = version.certain.get(id).copied().unwrap_or(0);
            judge(self.node(*id), certain, bytes).map_err(|reason| format!("{name}: {reason}"))?;
        }
        Ok(())
    }
}
