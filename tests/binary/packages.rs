//! Manual pages and completions, which packages install.

use std::fs;
use std::process::Command;

use crate::support::{CAUCHYFS, Shape, TestVolume, eventually, must, run, said, skip_mounts, text};

#[test]
fn every_manual_page_renders_without_a_warning() {
    let home = tempfile::tempdir().expect("there is room");
    must(CAUCHYFS, &["man", "--to", text(home.path())]);
    let mut pages = 0;
    for section in ["man1", "man5", "man8"] {
        let directory = fs::read_dir(home.path().join(section)).expect("the section is there");
        for page in directory {
            let page = page.expect("it can be listed").path();
            // Pages refer to others by their place below the directory.
            let rendered = Command::new("groff")
                .args([
                    "-man",
                    "-ww",
                    "-Kutf8",
                    "-Tutf8",
                    "-P-cbou",
                    "-I",
                    text(home.path()),
                ])
                .arg(&page)
                .output()
                .expect("groff is there: scripts/test.sh installs it");
            let warnings = String::from_utf8_lossy(&rendered.stderr);
            assert!(
                rendered.status.success() && warnings.is_empty(),
                "{}: {warnings}",
                page.display()
            );
            let shown = String::from_utf8_lossy(&rendered.stdout);
            assert!(
                shown.contains("NAME") && shown.contains("SYNOPSIS"),
                "{}: {shown}",
                page.display()
            );
            pages += 1;
        }
    }
    assert!(pages >= 25, "{pages}");
}

#[test]
fn a_page_is_printed_by_its_name_and_an_unknown_one_is_refused_with_all_names() {
    let page = must(CAUCHYFS, &["man", "cauchyfs-member-add"]);
    assert!(page.contains(".TH CAUCHYFS-MEMBER-ADD 1"), "{page}");
    let output = run(CAUCHYFS, &["man", "cauchyfs-none"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("cauchyfs-member-add"),
        "{}",
        said(&output)
    );
}

/// Completes the last of `words` as bash does, with the script that packages install.
fn completed_by_bash(words: &[&str]) -> Vec<String> {
    let script = must(CAUCHYFS, &["completions", "bash"]);
    let directory = std::path::Path::new(CAUCHYFS)
        .parent()
        .expect("it lies somewhere");
    let ask = "COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9
        _cauchyfs cauchyfs \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let path = format!(
        "{}:{}",
        directory.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let output = Command::new("bash")
        .args(["-euc", &format!("{script}\n{ask}"), "bash"])
        .args(words)
        .env("PATH", path)
        .output()
        .expect("bash is there");
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).expect("paths of tests are text");
    text.lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

/// bash passes the words as they are typed, and inserts what comes back as it is.
#[test]
fn bash_completes_names_with_spaces_and_quotes_them_as_the_word_is_quoted() {
    let home = tempfile::tempdir().expect("there is room");
    let place = text(home.path());
    for name in ["my photos", "my films", "a$(touch x) b"] {
        fs::create_dir(home.path().join(name)).expect("there is room");
    }
    let offered = |typed: &str| completed_by_bash(&["cauchyfs", "create", typed]);
    assert_eq!(
        offered(&format!("{place}/my\\ ")),
        ["films", "photos"].map(|it| format!("{place}/my\\ {it}/"))
    );
    assert_eq!(
        offered(&format!("{place}/my")),
        ["films", "photos"].map(|it| format!("{place}/my\\ {it}/"))
    );
    for quote in ['\'', '"'] {
        let typed = format!("{quote}{place}/my p");
        assert_eq!(offered(&typed), [format!("{place}/my photos/")]);
    }
    assert_eq!(offered(&format!("{place}/a")), [] as [&str; 0]);
    let member = format!("{place}/my\\ photos");
    let later = completed_by_bash(&["cauchyfs", "create", &member, "--code", "rs-c"]);
    assert_eq!(later, ["rs-cauchy"]);
}

#[test]
fn bash_completes_mountpoints_members_and_codes() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let place = text(&volume.mountpoint);
    for command in [&["status"][..], &["unmount"], &["member", "remove"]] {
        let words = [&["cauchyfs"], command, &[&place[..place.len() - 1]]].concat();
        assert_eq!(completed_by_bash(&words), [place], "{words:?}");
    }
    // The completion gives up on a daemon that does not answer soon.
    eventually("bash completes the members", || {
        let offered = completed_by_bash(&["cauchyfs", "member", "remove", place, ""]);
        let mut members = volume.members.iter().enumerate();
        members.all(|(index, path)| {
            offered.contains(&index.to_string()) && offered.contains(&text(path).to_owned())
        })
    });
    let elsewhere = completed_by_bash(&["cauchyfs", "member", "remove", "/nowhere", ""]);
    assert!(
        !elsewhere.contains(&text(&volume.members[0]).to_owned()),
        "members of a volume that is not named: {elsewhere:?}"
    );
    let home = text(volume.members[2].parent().expect("it lies in a directory"));
    let second = format!("{home}/d2");
    eventually("bash completes a member by its path", || {
        completed_by_bash(&["cauchyfs", "member", "replace", place, &second]) == [second.as_str()]
    });
    let codes = completed_by_bash(&["cauchyfs", "create", "--code", "rs"]);
    assert_eq!(codes, ["rs-cauchy", "rs-fft"]);
    volume.unmount();
    let gone = completed_by_bash(&["cauchyfs", "member", "remove", place, ""]);
    assert!(
        !gone.contains(&text(&volume.members[0]).to_owned()),
        "{gone:?}"
    );
}

#[test]
fn the_notices_of_a_package_have_the_licence_of_every_crate_that_is_linked_in() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/third-party.py");
    let notices = must(script, &["x86_64-unknown-linux-gnu"]);
    let (listed, texts) = notices
        .split_once("\n====")
        .expect("the texts follow the list");
    // Another list of the same: `-e normal` leaves out what only builds and tests need.
    let tree = [
        "tree",
        "--locked",
        "--edges=normal",
        "--prefix=none",
        "--target=x86_64-unknown-linux-gnu",
        "--package=cauchyfs",
        "--format={p}",
        "--manifest-path",
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
    ];
    let mut count = 0;
    for line in must(env!("CARGO"), &tree).lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(version)) = (words.next(), words.next()) else {
            continue;
        };
        // Crates of the project have a path, and its licence.
        if line.contains("(/") {
            continue;
        }
        let crate_name = format!("{name} {}", version.trim_start_matches('v'));
        assert!(
            listed
                .lines()
                .any(|line| line.starts_with(&format!("{crate_name}: "))),
            "{crate_name} is not listed"
        );
        assert!(texts.contains(&crate_name), "{crate_name} has no text");
        count += 1;
    }
    assert!(count > 100, "{count}");
    for expected in [
        "Permission is hereby granted, free of charge",
        "Apache License",
        "the standard library of Rust",
    ] {
        assert!(texts.contains(expected), "{expected}");
    }
    assert!(
        !listed.contains("tempfile"),
        "a crate that only tests need is listed"
    );
}
