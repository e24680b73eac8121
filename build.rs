//! Notes the commit that a release is built from, for `cauchyfs --version`.

use std::process::Command;

/// The variable with which a build outside of git, such as that of a tarball, names its commit.
const GIVEN: &str = "CAUCHYFS_COMMIT";

fn main() {
    println!("cargo:rerun-if-env-changed={GIVEN}");
    // Every commit would compile the program and all tests again, so builds for development name none.
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let given = std::env::var(GIVEN).ok().filter(|given| !given.is_empty());
    let commit = given.or_else(|| is_release.then(of_git).flatten());
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env={GIVEN}={commit}");
}

/// Returns the commit that is checked out, marked if files of it were changed. Has cargo run this again after a change.
fn of_git() -> Option<String> {
    for path in [
        "Cargo.lock",
        "Cargo.toml",
        "build.rs",
        "crates",
        "kernels",
        "src",
    ] {
        println!("cargo:rerun-if-changed={path}");
    }
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        if std::path::Path::new(&path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    let mark = if changed.is_empty() { "" } else { "-changed" };
    Some(format!("{commit}{mark}"))
}

/// Returns the output of git, or none if it fails or does not know this directory.
fn git(arguments: &[&str]) -> Option<String> {
    let ran = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(ran.stdout).ok()?;
    ran.status.success().then(|| text.trim().to_owned())
}
