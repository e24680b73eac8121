//! The places of the configuration of alerts and of their state.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};

/// The name of the configuration below its directory.
const NAME: &str = "alerts.toml";

/// The directories of a user, or of the superuser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AlertPlaces {
    /// The configuration, unless another is named.
    pub(crate) config: PathBuf,
    /// The directory of the state, unless the configuration names another.
    pub(crate) state: PathBuf,
}

impl AlertPlaces {
    /// Returns the places of the user of this process; none if no home is known.
    pub(crate) fn own() -> Option<Self> {
        if rustix::process::geteuid().is_root() {
            return Some(Self {
                config: Path::new("/etc/cauchyfs").join(NAME),
                state: PathBuf::from("/var/lib/cauchyfs"),
            });
        }
        let home = absolute(std::env::var_os("HOME")).or_else(home_of_record);
        let below = |variable, usual| {
            let named = absolute(std::env::var_os(variable));
            named.or_else(|| Some(home.as_ref()?.join(usual)))
        };
        Some(Self {
            config: below("XDG_CONFIG_HOME", ".config")?
                .join("cauchyfs")
                .join(NAME),
            state: below("XDG_STATE_HOME", ".local/state")?.join("cauchyfs"),
        })
    }
}

/// Takes a path only if it is absolute, as the XDG specification demands.
fn absolute(path: Option<OsString>) -> Option<PathBuf> {
    path.map(PathBuf::from).filter(|path| path.is_absolute())
}

fn home_of_record() -> Option<PathBuf> {
    let user = User::from_uid(Uid::effective()).ok()??;
    Some(user.dir)
}
