//! The token without which a dashboard beyond the loopback answers nothing.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
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
        let unreadable =
            |error| Failure::environment(format!("cannot read the token in {shown}: {error}"));
        let file = File::open(path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        let own = rustix::process::geteuid().as_raw();
        // The manager of services gives credentials of root to its group, and shows the rights of others as that.
        let others = if found.gid() == 0 { 0o037 } else { 0o077 };
        if !(found.uid() == own || found.uid() == 0) || found.mode() & others != 0 {
            return Err(Failure::usage(format!(
                "other users can read or change the token in {shown}"
            ))
            .advise(format!("`chmod 600 {}`", quoted_path(path))));
        }
        let mut text = String::new();
        let most = LONGEST as u64 + 2;
        file.take(most)
            .read_to_string(&mut text)
            .map_err(unreadable)?;
        Self::parse(&text).map_err(|problem| {
            Failure::usage(format!("{shown} holds no token: {problem}")).advise(format!(
                "`(umask 077; openssl rand -hex 16 >{})` makes one",
                quoted_path(path)
            ))
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let token = text.trim_end_matches(['\r', '\n']);
        if !(SHORTEST..=LONGEST).contains(&token.len()) {
            return Err(format!("one has {SHORTEST} to {LONGEST} characters"));
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("one has letters, digits and signs of ASCII alone".to_owned());
        }
        let key = [Uuid::new_v4(), Uuid::new_v4()].map(Uuid::into_bytes);
        let keyed = Hmac::<Sha256>::new_from_slice(key.as_flattened());
        let keyed = keyed.map_err(|error| error.to_string())?;
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
        Token::parse(SECRET).unwrap()
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
