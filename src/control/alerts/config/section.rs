//! One part of a configuration: the keys of a receiver, with their lines.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The key of receivers.
const RECEIVER: &str = "receiver";

/// An error at a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) line: usize,
    pub(super) key: Option<String>,
    pub(super) message: String,
}

/// A part of a configuration.
pub(super) struct Section<'a> {
    text: &'a str,
    first_line: usize,
    keys: DeTable<'a>,
    is_receiver: bool,
}

impl<'a> Section<'a> {
    /// Parses a part that begins at `first_line` of its file.
    pub(super) fn parse(text: &'a str, first_line: usize) -> Result<Self, Wrong> {
        let mut whole = match DeTable::parse(text) {
            Ok(whole) => whole.into_inner(),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                return Err(Wrong {
                    line: first_line + line_of(text, at),
                    key: key_at(text, at),
                    message: error.message().to_owned(),
                });
            }
        };
        let found = whole.remove(RECEIVER);
        let is_receiver = found.is_some();
        let keys = match found.map(Spanned::into_inner) {
            None => whole,
            Some(DeValue::Array(receivers)) if receivers.len() == 1 => {
                match receivers.into_iter().next().map(Spanned::into_inner) {
                    Some(DeValue::Table(keys)) => keys,
                    _ => return Err(no_header(first_line)),
                }
            }
            Some(_) => return Err(no_header(first_line)),
        };
        Ok(Self {
            text,
            first_line,
            keys,
            is_receiver,
        })
    }

    pub(super) fn is_receiver(&self) -> bool {
        self.is_receiver
    }

    /// Returns the name, if there is one.
    pub(super) fn name(&self) -> Option<String> {
        Some(self.value("name")?.get_ref().as_str()?.to_owned())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    fn value(&self, key: &str) -> Option<&Spanned<DeValue<'a>>> {
        let mut keys = self.keys.iter();
        keys.find(|(name, _)| name.get_ref() == key)
            .map(|(_, value)| value)
    }

    /// Returns an error at a key, or at the header if the key is not there.
    pub(super) fn wrong(&self, key: &str, message: impl Into<String>) -> Wrong {
        let mut keys = self.keys.keys();
        let at = keys.find(|name| name.get_ref() == key);
        let at = at.map_or(0, |name| name.span().start);
        Wrong {
            line: self.first_line + line_of(self.text, at),
            key: Some(key.to_owned()),
            message: message.into(),
        }
    }

    /// Returns the error that a key has none of a few values.
    pub(super) fn choice(&self, key: &str, found: &str, choices: &str) -> Wrong {
        self.wrong(key, format!("{found:?} is none of {choices}"))
    }

    /// Refuses all keys but `known`.
    pub(super) fn refuse_others(&self, known: &[&str]) -> Result<(), Wrong> {
        let mut keys = self.keys.keys().map(Spanned::get_ref);
        match keys.find(|key| !known.contains(&key.as_ref())) {
            Some(key) => {
                let known = known.join(", ");
                Err(self.wrong(key, format!("there is no such key here; known are {known}")))
            }
            None => Ok(()),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, Wrong> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let text = value.get_ref().as_str();
        let text = text.filter(|text| !text.contains(char::is_control));
        text.map(Some)
            .ok_or_else(|| self.wrong(key, "it must be a text in quotes, on one line"))
    }

    pub(super) fn required(&self, key: &str) -> Result<&str, Wrong> {
        self.text(key)?
            .ok_or_else(|| self.wrong(key, "it is missing"))
    }

    /// Returns a list of one text or more; a single text counts as a list of one.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>, Wrong> {
        let Some(value) = self.value(key) else {
            return Err(self.wrong(key, "it is missing"));
        };
        let values = match value.get_ref() {
            DeValue::String(one) => Some(vec![one.as_ref()]),
            DeValue::Array(several) => several
                .iter()
                .map(|value| value.get_ref().as_str())
                .collect(),
            _ => None,
        };
        let is_plain = |text: &&str| !text.contains(char::is_control);
        match values {
            Some(texts) if !texts.is_empty() && texts.iter().all(is_plain) => {
                Ok(texts.into_iter().map(str::to_owned).collect())
            }
            _ => Err(self.wrong(key, "it must be a list of texts, such as [\"a\", \"b\"]")),
        }
    }

    pub(super) fn integer(&self, key: &str) -> Result<Option<i64>, Wrong> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = value.get_ref().as_integer();
        let number = number.and_then(|it| i64::from_str_radix(it.as_str(), it.radix()).ok());
        number
            .map(Some)
            .ok_or_else(|| self.wrong(key, "it must be a whole number"))
    }
}

fn no_header(line: usize) -> Wrong {
    Wrong {
        line,
        key: Some(RECEIVER.to_owned()),
        message: "a receiver begins with a line [[receiver]]".to_owned(),
    }
}

/// Returns how many lines precede that of an offset.
fn line_of(text: &str, offset: usize) -> usize {
    let ends = text.match_indices('\n').map(|(at, _)| at);
    ends.take_while(|at| *at < offset).count()
}

/// Returns the key on the line of an offset.
fn key_at(text: &str, offset: usize) -> Option<String> {
    let line = text.lines().nth(line_of(text, offset))?;
    let key = line.split('=').next()?.trim().trim_matches('"');
    let is_key = |it: char| it.is_ascii_alphanumeric() || it == '-' || it == '_';
    (!key.is_empty() && key.chars().all(is_key)).then(|| key.to_owned())
}
