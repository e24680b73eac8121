//! The text of `cauchyfs --version`.

use std::sync::LazyLock;

use crate::codec;

/// Returns version, commit, features, target, and the coding engines of this machine's CPU, one a line.
pub(super) fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(text);
    &TEXT
}

fn text() -> String {
    let engines: Vec<&str> = codec::engines().map(codec::Engine::name).collect();
    let fields = [
        ("commit", env!("CAUCHYFS_COMMIT").to_owned()),
        ("features", features().to_owned()),
        ("target", target()),
        ("engines", engines.join(", ")),
    ];
    let lines = fields.map(|(name, value)| format!("\n{name}: {value}"));
    format!("{}{}", env!("CARGO_PKG_VERSION"), lines.concat())
}

/// Returns the features that this program was built with.
fn features() -> &'static str {
    if cfg!(feature = "cuda") {
        "cuda"
    } else {
        "none"
    }
}

/// Returns the platform that this program was built for. A program with musl is linked statically.
fn target() -> String {
    let environment = if cfg!(target_env = "musl") {
        "musl"
    } else {
        "gnu"
    };
    let (machine, system) = (std::env::consts::ARCH, std::env::consts::OS);
    format!("{machine}-{system}-{environment}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_version_names_commit_features_target_and_every_engine_of_this_cpu() {
        let lines: Vec<&str> = long().lines().collect();
        let names: Vec<&str> = lines[1..]
            .iter()
            .filter_map(|line| line.split(": ").next())
            .collect();
        assert_eq!(lines[0], env!("CARGO_PKG_VERSION"));
        assert_eq!(names, ["commit", "features", "target", "engines"]);
        let engines = lines[4].trim_start_matches("engines: ").split(", ");
        assert!(engines.eq(codec::engines().map(codec::Engine::name)));
        assert_eq!(lines[2].contains("cuda"), cfg!(feature = "cuda"));
    }
}
