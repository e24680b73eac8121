//! OUT alone, without a volume. Each test works deep inside a temporary directory, so that `..` stays in it.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use rustix::fs::{Timespec, Timestamps};
use tempfile::TempDir;

use super::*;

/// Both ways to open directories, and the change from one to the other.
const RESOLVERS: [(&str, Resolver); 3] = [
    ("openat2", Resolver::Kernel(beneath)),
    ("each name", Resolver::EachName),
    ("no openat2", Resolver::Kernel(|_, _| Err(Errno::NOSYS))),
];

/// An OUT, with a directory beside it that must stay as it is.
struct Place {
    home: TempDir,
    out: PathBuf,
    beside: PathBuf,
}

impl Place {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let above = home.path().join("a/b/c");
        let (out, beside) = (above.join("out"), above.join("beside"));
        fs::create_dir_all(&out).unwrap();
        fs::create_dir(&beside).unwrap();
        fs::write(beside.join("victim"), "untouched").unwrap();
        Self { home, out, beside }
    }

    fn target(&self, resolver: Resolver) -> OutputDirectory {
        let target = OutputDirectory::open(&self.out, 0o700).unwrap();
        target.with_resolver(resolver)
    }

    /// Returns all there is outside OUT.
    fn outside(&self) -> Vec<String> {
        snapshot(self.home.path(), &self.out)
    }
}

/// Returns name, kind, mode, owner, time and content of all below a directory, except what is in `left_out`.
pub(in crate::cli::extract) fn snapshot(directory: &Path, left_out: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        let meta = path.symlink_metadata().unwrap();
        let content = if meta.is_file() {
            fs::read(&path).unwrap()
        } else if meta.is_symlink() {
            let leads_to = fs::read_link(&path).unwrap();
            leads_to.into_os_string().into_encoded_bytes()
        } else {
            Vec::new()
        };
        // A file made in a directory changes the directory's time.
        let times = if path == left_out {
            None
        } else {
            Some((meta.nlink(), meta.mtime(), meta.mtime_nsec()))
        };
        found.push(format!(
            "{} {:o} {}:{} {times:?} {content:?}",
            path.display(),
            meta.mode(),
            meta.uid(),
            meta.gid(),
        ));
        if meta.is_dir() && path != left_out {
            let entries = fs::read_dir(&path).unwrap();
            left.extend(entries.map(|entry| entry.unwrap().path()));
        }
    }
    found.sort();
    found
}

fn times() -> Timestamps {
    let at = Timespec {
        tv_sec: 1_000,
        tv_nsec: 7,
    };
    Timestamps {
        last_access: at,
        last_modification: at,
    }
}

/// Tries every call on a path, and asserts that each refuses it.
fn refuses(target: &mut OutputDirectory, path: &[u8], case: &str) {
    let identity = Identity {
        device: 0,
        number: 0,
    };
    assert!(target.directory(path).is_err(), "{case}: directory");
    assert!(
        target.made_directory(path, identity).is_err(),
        "{case}: open"
    );
    assert!(target.file(path).is_err(), "{case}: file");
    assert!(target.symlink(path, b"x").is_err(), "{case}: symlink");
    assert!(
        target.node(path, FileType::Fifo, 0).is_err(),
        "{case}: fifo"
    );
    assert!(target.link(path, identity, b"new").is_err(), "{case}: link");
    target.symlink(b"first", b"x").unwrap();
    let stat = rustix::fs::statat(&target.root, "first", AtFlags::SYMLINK_NOFOLLOW).unwrap();
    let linked = target.link(b"first", Identity::of(&stat), path);
    assert!(linked.is_err(), "{case}: link to it");
    rustix::fs::unlinkat(&target.root, "first", AtFlags::empty()).unwrap();
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for (way, resolver) in RESOLVERS {
        let place = Place::new();
        let before = place.outside();
        let mut target = place.target(resolver);
        target.directory(b"inside").unwrap();
        for path in [
            &b".."[..],
            b".",
            b"../new",
            b"../beside/new",
            b"../beside/victim",
            b"./new",
            b"inside/..",
            b"inside/../../new",
            b"inside/./new",
            b"/new",
            b"//new",
            b"inside//new",
            b"inside/",
            b"a\0b",
            b"a\0b/new",
        ] {
            let case = format!("{way}: {}", String::from_utf8_lossy(path));
            refuses(&mut target, path, &case);
        }
        assert_eq!(place.outside(), before, "{way}");
        assert_eq!(fs::read_dir(&place.out).unwrap().count(), 1, "{way}");
    }
}

#[test]
fn links_in_out_are_not_followed() {
    for (way, resolver) in RESOLVERS {
        let place = Place::new();
        fs::create_dir(place.out.join("real")).unwrap();
        fs::create_dir(place.beside.join("inside")).unwrap();
        symlink(&place.beside, place.out.join("link")).unwrap();
        symlink("../../beside", place.out.join("real/link")).unwrap();
        symlink("/proc/self/cwd", place.out.join("magic")).unwrap();
        let before = place.outside();
        let mut target = place.target(resolver);
        for path in [
            &b"link/new"[..],
            b"link/inside/new",
            b"real/link/new",
            b"real/link/inside/new",
            b"link/victim",
            b"magic/new",
        ] {
            let case = format!("{way}: {}", String::from_utf8_lossy(path));
            refuses(&mut target, path, &case);
        }
        // Not even where it is the last name.
        for path in [&b"link"[..], b"real/link", b"magic"] {
            let case = format!("{way}: {}", String::from_utf8_lossy(path));
            let refused = target.directory(path).expect_err(&case);
            assert_eq!(refused.raw_os_error(), Some(libc::ELOOP), "{case}");
            refuses(&mut target, path, &case);
        }
        assert_eq!(place.outside(), before, "{way}");
    }
}

#[test]
fn existing_files_are_neither_opened_nor_changed() {
    for (way, resolver) in RESOLVERS {
        let place = Place::new();
        let victim = place.beside.join("victim");
        fs::hard_link(&victim, place.out.join("twin")).unwrap();
        symlink(&victim, place.out.join("link")).unwrap();
        symlink(place.beside.join("new"), place.out.join("dangling")).unwrap();
        DirBuilder::new()
            .mode(0o751)
            .create(place.out.join("directory"))
            .unwrap();
        let before = place.outside();
        let mut target = place.target(resolver);
        for path in [&b"twin"[..], b"link", b"dangling"] {
            refuses(&mut target, path, way);
        }
        let entered = target.directory(b"directory").unwrap();
        assert_eq!(entered, None, "{way}: it was not made here");
        target.file(b"directory/new").unwrap();
        let mode = fs::metadata(place.out.join("directory")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o751, "{way}");
        assert_eq!(place.outside(), before, "{way}");
    }
}

#[test]
fn attributes_go_to_a_link_and_not_to_where_it_leads() {
    let place = Place::new();
    let before = place.outside();
    let mut target = place.target(Resolver::EachName);
    let victim = place
        .beside
        .join("victim")
        .into_os_string()
        .into_encoded_bytes();
    let made = target.symlink(b"link", &victim).unwrap();
    made.set_times(&times()).unwrap();
    if rustix::process::geteuid().is_root() {
        made.set_owner(1234, 5678).unwrap();
        // Where OUT's filesystem has no such attributes, the call fails on either.
        let _refused = made.set_attribute(b"trusted.cauchyfs", b"value");
    }
    let link = place.out.join("link").symlink_metadata().unwrap();
    assert_eq!((link.mtime(), link.mtime_nsec()), (1_000, 7));
    if rustix::process::geteuid().is_root() {
        assert_eq!((link.uid(), link.gid()), (1234, 5678));
    }
    assert_eq!(place.outside(), before);
    let mut value = [0_u8; 16];
    let attribute = rustix::fs::getxattr(
        place.beside.join("victim"),
        "trusted.cauchyfs",
        &mut value[..],
    );
    assert!(attribute.is_err(), "the victim got an attribute");
}

#[test]
fn every_kind_gets_its_attributes_over_a_descriptor() {
    for (way, resolver) in RESOLVERS {
        let place = Place::new();
        let mut target = place.target(resolver);
        let identity = target.directory(b"d").unwrap().expect("it is new");
        let fifo = target.node(b"d/fifo", FileType::Fifo, 0).unwrap();
        let socket = target.node(b"d/socket", FileType::Socket, 0).unwrap();
        let file = Made::from(target.file(b"d/file").unwrap());
        for made in [&fifo, &socket, &file] {
            made.set_permissions(0o642).unwrap();
            made.set_times(&times()).unwrap();
        }
        let link = target.symlink(b"d/link", b"nowhere").unwrap();
        let first = Identity::of(&link.stat().unwrap());
        target.link(b"d/link", first, b"d/twin").unwrap();
        let made = target.made_directory(b"d", identity).unwrap();
        made.set_permissions(0o2750).unwrap();
        made.set_times(&times()).unwrap();
        for (name, mode) in [
            ("d", 0o2750),
            ("d/fifo", 0o642),
            ("d/socket", 0o642),
            ("d/file", 0o642),
        ] {
            let meta = place.out.join(name).symlink_metadata().unwrap();
            assert_eq!(meta.permissions().mode() & 0o7777, mode, "{way}: {name}");
            assert_eq!(
                (meta.mtime(), meta.mtime_nsec()),
                (1_000, 7),
                "{way}: {name}"
            );
        }
        assert_eq!(
            fs::read_link(place.out.join("d/twin")).unwrap(),
            Path::new("nowhere")
        );
    }
}

#[test]
fn another_directory_in_the_place_of_a_made_one_gets_no_attributes() {
    for (way, resolver) in RESOLVERS {
        let place = Place::new();
        let mut target = place.target(resolver);
        let identity = target.directory(b"d").unwrap().expect("it is new");
        let file = Made::from(target.file(b"file").unwrap());
        let first = Identity::of(&file.stat().unwrap());
        fs::rename(place.out.join("d"), place.out.join("moved")).unwrap();
        fs::rename(place.out.join("file"), place.out.join("other")).unwrap();
        symlink(&place.beside, place.out.join("d")).unwrap();
        fs::write(place.out.join("file"), "another").unwrap();
        assert!(
            target.made_directory(b"d", identity).is_err(),
            "{way}: a link"
        );
        fs::remove_file(place.out.join("d")).unwrap();
        fs::create_dir(place.out.join("d")).unwrap();
        assert!(target.made_directory(b"d", identity).is_err(), "{way}");
        assert!(target.link(b"file", first, b"twin").is_err(), "{way}");
    }
}

#[test]
fn paths_longer_than_the_system_takes_are_resolved() {
    for (way, resolver) in RESOLVERS {
        let place = Place::new();
        let mut target = place.target(resolver);
        let mut path = Vec::new();
        for depth in 0..40_u8 {
            if depth > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(&[b'a' + depth % 26; 255]);
            assert!(target.directory(&path).unwrap().is_some(), "{way}: {depth}");
        }
        path.extend_from_slice(b"/file");
        target.file(&path).unwrap();
        assert!(target.file(&path).is_err(), "{way}: it is there");
    }
}

#[test]
fn an_out_that_exists_is_not_taken_for_one_that_was_made() {
    let place = Place::new();
    let mut target = place.target(Resolver::EachName);
    assert_eq!(target.directory(b"").unwrap(), None);
    let mut target = OutputDirectory::open(&place.out.join("x/new"), 0o700).unwrap();
    assert!(target.directory(b"").unwrap().is_some());
    let mode = fs::metadata(place.out.join("x/new")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700);
    symlink(place.beside.join("new"), place.out.join("dangling")).unwrap();
    assert!(OutputDirectory::open(&place.out.join("dangling"), 0o700).is_err());
    assert!(!place.beside.join("new").exists());
    fs::write(place.out.join("file"), "").unwrap();
    assert!(OutputDirectory::open(&place.out.join("file"), 0o700).is_err());
}
