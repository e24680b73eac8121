//! Directories on one device, whose failure is the loss of all of them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Returns the warning that some directories share a device, in one line that names them; none if each has its own.
pub(super) fn warning(directories: &[PathBuf], losses: usize) -> Option<String> {
    let mut on: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for path in directories {
        // One that is gone by now is reported by what uses it.
        if let Ok(found) = fs::metadata(path) {
            let shown = path.display().to_string();
            on.entry(found.dev()).or_default().push(shown);
        }
    }
    let shared = on.into_values().filter(|paths| paths.len() > 1);
    let shared: Vec<String> = shared.map(|paths| paths.join(", ")).collect();
    (!shared.is_empty()).then(|| {
        format!(
            "directories share a device, and its failure loses them all, not one of the {losses} that may be lost: {}",
            shared.join("; and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_one_device_are_named_and_others_are_not() {
        let home = tempfile::tempdir().unwrap();
        let below = ["a", "b"].map(|name| home.path().join(name));
        for path in &below {
            fs::create_dir(path).unwrap();
        }
        let proc = PathBuf::from("/proc");
        let [a, b] = &below;
        let said = warning(&[a.clone(), proc.clone(), b.clone()], 2).unwrap();
        let named = format!(": {}, {}", a.display(), b.display());
        assert!(said.ends_with(&named), "{said}");
        assert_eq!(warning(&[a.clone(), proc], 2), None);
    }
}
