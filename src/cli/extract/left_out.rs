//! Things that an extraction leaves out unless it is asked for them.

use std::fmt;

use crate::cli::size::format_count;

/// Things that give power to the content of files, and were not restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Files and directories with a setuid or setgid bit.
    pub(super) set_ids: u64,
    pub(super) devices: u64,
    /// Extended attributes, file capabilities among them.
    pub(super) attributes: u64,
    /// The same, where they were asked for by a user who cannot set them.
    pub(super) attributes_of_root: u64,
}

impl LeftOut {
    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unasked = [
            (self.set_ids, "setuid or setgid mode"),
            (self.devices, "device"),
            (self.attributes, "privileged attribute"),
        ];
        let of_root = [(self.attributes_of_root, "privileged attribute")];
        let lines = [
            ("left out without --privileged", &unasked[..]),
            ("left out because only root can set them", &of_root[..]),
        ];
        let lines = lines.into_iter().filter_map(|(why, parts)| {
            let parts = parts.iter().filter(|(count, _)| *count > 0);
            let parts: Vec<String> = parts
                .map(|(count, what)| format_count(*count, what))
                .collect();
            (!parts.is_empty()).then(|| format!("{why}: {}", parts.join(", ")))
        });
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}

/// Says whether an extended attribute may give power to a file, or change how the system treats it.
pub(super) fn is_privileged(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}
