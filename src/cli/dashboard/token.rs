//! The token without which a dashboard answers nothing, if it has one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;

use crate::cli::failure::Failure;
use crate::cli::shell::quoted_path;

/// The fewest characters of a token.
const SHORTEST: usize = 16;

/// The most characters of a token.
const LONGEST: usize = 256;

/// A secret that requests must have. It is kept as a code with a key of this process, and compared without a hint at
/// where a guess is wrong.
pub(super) struct Token(Hmac<Sha256>, [u8; 32]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads a file that only its owner, who is this user or root, can read.
    ///
    /// # Errors
    ///
    /// If it cannot be read, others can read it, or it holds no token.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let file = File::open(path).map_err(|error| unreadable(path, &error))?;
        let found = file.metadata();
        let found = found.map_err(|error| unreadable(path, &error))?;
        let own = rustix::process::geteuid().as_raw();
        // The manager of services gives credentials of root to its group, and shows the rights of others as that.
        let others = if found.gid() == 0 { 0o037 } else { 0o077 };
        if !(found.uid() == own || found.uid() == 0) || found.mode() & others != 0 {
            return Err(Failure::usage(format!(
                "other users can read or change the token in {shown}"
            ))
            .advise(format!("`chmod 600 {}`", quoted_path(path))));
        }
        Self::keyed(&read(file, path)?)
    }

    fn keyed(token: &str) -> Result<Self, Failure> {
        let key = [Uuid::new_v4(), Uuid::new_v4()].map(Uuid::into_bytes);
        let keyed = Hmac::<Sha256>::new_from_slice(key.as_flattened());
        let keyed = keyed.map_err(|error| Failure::environment(error.to_string()))?;
        let code = keyed.clone().chain_update(token).finalize().into_bytes();
        Ok(Self(keyed, code.into()))
    }

    /// Judges the value of a header `Authorization`: the token as a password, or as a bearer's.
    pub(super) fn is_in(&self, authorization: &[u8]) -> bool {
        let Some((scheme, given)) = split_scheme(authorization) else {
            return false;
        };
        if scheme.eq_ignore_ascii_case(b"bearer") {
            return self.is(given);
        }
        if !scheme.eq_ignore_ascii_case(b"basic") {
            return false;
        }
        let Ok(decoded) = BASE64_STANDARD.decode(given) else {
            return false;
        };
        let colon = decoded.iter().position(|byte| *byte == b':');
        colon.is_some_and(|colon| self.is(&decoded[colon + 1..]))
    }

    fn is(&self, given: &[u8]) -> bool {
        let code = self.0.clone().chain_update(given);
        code.verify_slice(&self.1).is_ok()
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let shown = path.display();
    let failure = Failure::environment(format!("cannot read the token in {shown}: {error}"));
    match error.kind() {
        io::ErrorKind::NotFound => failure.advise(to_make(path)),
        io::ErrorKind::PermissionDenied => failure.advise("run this command as root"),
        _ => failure,
    }
}

/// Opens a regular file, which may be of another user. A pipe would be waited for.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    Ok(file)
}

fn read(file: File, path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let most = LONGEST as u64 + 2;
    file.take(most)
        .read_to_string(&mut text)
        .map_err(|error| unreadable(path, &error))?;
    let token = text.trim_end_matches(['\r', '\n']);
    check(token).map_err(|problem| {
        let shown = path.display();
        Failure::usage(format!("{shown} holds no token: {problem}")).advise(to_make(path))
    })?;
    Ok(token.to_owned())
}

/// Says why a text is no token.
fn check(token: &str) -> Result<(), String> {
    if !(SHORTEST..=LONGEST).contains(&token.len()) {
        return Err(format!("one has {SHORTEST} to {LONGEST} characters"));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("one has letters, digits and signs of ASCII alone".to_owned());
    }
    Ok(())
}

fn to_make(path: &Path) -> String {
    let place = quoted_path(path);
    format!("`(umask 077; openssl rand -hex 16 >{place})` makes one")
}

/// Returns the token in a file, to be shown to a user who can read it, and the owner of the file.
///
/// # Errors
///
/// If it cannot be read, or holds no token.
pub(super) fn text_in(path: &Path) -> Result<(String, u32), Failure> {
    let file = open_regular(path).map_err(|error| unreadable(path, &error))?;
    let found = file.metadata().map_err(|error| unreadable(path, &error))?;
    Ok((read(file, path)?, found.uid()))
}

/// Makes a file with a new token that its owner alone can read, unless there is a file. No other process sees half of it.
///
/// # Errors
///
/// If it cannot be written.
pub(super) fn make(path: &Path) -> Result<(), Failure> {
    let made = write_new(path);
    made.map_err(|error| {
        let shown = path.display();
        Failure::environment(format!("cannot make a token in {shown}: {error}"))
    })
}

fn write_new(path: &Path) -> io::Result<()> {
    if path.try_exists()? {
        return Ok(());
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", Uuid::new_v4().simple()));
    let draft = path.with_file_name(name);
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    let written = writeln!(file, "{}", Uuid::new_v4().simple())
        .and_then(|()| file.sync_all())
        // Unlike a rename, a link replaces no file that came meanwhile.
        .and_then(|()| fs::hard_link(&draft, path));
    fs::remove_file(&draft)?;
    match written {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        written => written,
    }
}

fn split_scheme(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = value.iter().position(|byte| *byte == b' ')?;
    Some((&value[..space], value[space..].trim_ascii()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    const SECRET: &str = "0123456789abcdef";

    fn token() -> Token {
        Token::keyed(SECRET).unwrap()
    }

    fn basic(password: &str) -> Vec<u8> {
        let encoded = BASE64_STANDARD.encode(format!("any:{password}"));
        format!("Basic {encoded}").into_bytes()
    }

    #[test]
    fn the_token_is_taken_as_a_password_and_as_a_bearers() {
        assert!(token().is_in(&basic(SECRET)));
        assert!(token().is_in(format!("bearer  {SECRET}").as_bytes()));
        for wrong in [
            basic(""),
            basic("0123456789abcdeF"),
            basic(&format!("{SECRET} ")),
            SECRET.as_bytes().to_vec(),
            b"Bearer ".to_vec(),
            b"Basic ====".to_vec(),
            format!("Digest {SECRET}").into_bytes(),
            format!("Bearer {SECRET}0").into_bytes(),
        ] {
            let shown = String::from_utf8_lossy(&wrong);
            assert!(!token().is_in(&wrong), "{shown}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_and_a_short_token_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("token");
        let read = |mode, text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            Token::read(&path)
        };
        assert!(read(0o600, &format!("{SECRET}\n")).is_ok());
        assert!(read(0o400, SECRET).is_ok());
        for (mode, text) in [
            (0o644, SECRET),
            (0o602, SECRET),
            (0o660, SECRET),
            (0o600, "short"),
            (0o600, ""),
            (0o600, "0123456789 abcdef"),
        ] {
            let failure = read(mode, text).unwrap_err();
            assert!(!failure.message.contains(SECRET), "{}", failure.message);
            assert!(failure.advice.is_some(), "{mode:o} {text}");
        }
        let long = "a".repeat(LONGEST + 1);
        assert!(read(0o600, &long).is_err());
        assert!(!format!("{:?}", token()).contains(SECRET));
    }

    #[test]
    fn a_token_is_made_once_for_its_owner_alone_and_can_be_shown() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("token");
        make(&path).unwrap();
        let (made, owner) = text_in(&path).unwrap();
        assert_eq!(owner, rustix::process::geteuid().as_raw());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let bearer = format!("Bearer {made}");
        assert!(Token::read(&path).unwrap().is_in(bearer.as_bytes()));
        make(&path).unwrap();
        assert_eq!(text_in(&path).unwrap().0, made, "it is kept");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
        let other = home.path().join("other");
        make(&other).unwrap();
        assert_ne!(text_in(&other).unwrap().0, made);
        assert!(make(&home.path().join("none/token")).is_err());
        assert!(text_in(home.path()).is_err(), "a directory");
    }

    proptest! {
        #[test]
        fn no_header_without_the_token_passes(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(!token().is_in(&bytes));
            let mut basic = b"Basic ".to_vec();
            basic.extend(&bytes);
            prop_assert!(!token().is_in(&basic));
        }
    }
}
