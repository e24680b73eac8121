//! Asking directories of which one may hang, without waiting for that one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Directories that did not answer in time: they are not asked again, nor waited for.
#[derive(Debug, Default)]
pub(crate) struct Silent(Mutex<BTreeSet<PathBuf>>);

impl Silent {
    /// Asks each path that is not known to be silent, like [`ask_each`]. A path that does not answer is silent from
    /// then on.
    pub(crate) fn ask_each<T: Send + 'static>(
        &self,
        paths: &[PathBuf],
        patience: Duration,
        ask: impl Fn(&Path) -> T + Clone + Send + 'static,
    ) -> Vec<Option<T>> {
        let is_asked: Vec<bool> = paths.iter().map(|path| !self.has(path)).collect();
        let asked = paths
            .iter()
            .zip(&is_asked)
            .filter(|(_, is_asked)| **is_asked);
        let asked: Vec<PathBuf> = asked.map(|(path, _)| path.clone()).collect();
        let mut answers = ask_each(&asked, patience, ask).into_iter();
        let answer = |(path, is_asked): (&PathBuf, bool)| {
            if !is_asked {
                return None;
            }
            let answer = answers.next().flatten();
            if answer.is_none() {
                self.note(path, patience);
            }
            answer
        };
        paths.iter().zip(is_asked).map(answer).collect()
    }

    /// Takes note of a directory on which something hung for so long.
    pub(crate) fn note(&self, path: &Path, patience: Duration) {
        if self.0.lock().insert(path.to_owned()) {
            let shown = path.display();
            tracing::info!(
                "{shown} has not answered within {patience:?}, and is not waited for again"
            );
        }
    }

    pub(crate) fn has(&self, path: &Path) -> bool {
        self.0.lock().contains(path)
    }
}

/// Asks each path on a thread of its own. Returns the answers in the order of the paths; none from those that do not
/// answer within `patience`, whose threads end when they do.
pub(crate) fn ask_each<T: Send + 'static>(
    paths: &[PathBuf],
    patience: Duration,
    ask: impl Fn(&Path) -> T + Clone + Send + 'static,
) -> Vec<Option<T>> {
    let started = Instant::now();
    let start = |path: &PathBuf| {
        let (answer, answered) = channel();
        let (ask, path) = (ask.clone(), path.clone());
        // The receiver may be gone.
        let work = move || drop(answer.send(ask(&path)));
        let thread = thread::Builder::new().name("ask".to_owned()).spawn(work);
        if let Err(error) = thread {
            tracing::warn!("a directory is not asked: {error}");
        }
        answered
    };
    let asked: Vec<_> = paths.iter().map(start).collect();
    let left = || patience.saturating_sub(started.elapsed());
    let answers = asked.into_iter();
    answers
        .map(|answered| answered.recv_timeout(left()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_member_does_not_delay_the_answers_of_others() {
        let paths = ["a", "hangs", "b"].map(PathBuf::from);
        let (stop, hang) = channel::<()>();
        let hang = std::sync::Arc::new(std::sync::Mutex::new(hang));
        let answers = ask_each(&paths, Duration::from_millis(500), move |path| {
            if path == Path::new("hangs") {
                // Until the other end is gone.
                hang.lock().unwrap().recv().unwrap_err();
            }
            path.to_owned()
        });
        let expected = [Some("a".into()), None, Some("b".into())];
        assert_eq!(answers, expected);
        drop(stop);
    }

    #[test]
    fn a_member_that_did_not_answer_is_not_asked_again() {
        let paths = ["a", "hangs", "b"].map(PathBuf::from);
        let (stop, hang) = channel::<()>();
        let hang = std::sync::Arc::new(std::sync::Mutex::new(hang));
        let asked = std::sync::Arc::new(Mutex::new(Vec::new()));
        let silent = Silent::default();
        let log = std::sync::Arc::clone(&asked);
        let ask = move |path: &Path| {
            log.lock().push(path.to_owned());
            if path == Path::new("hangs") {
                // Until the other end is gone.
                hang.lock().unwrap().recv().unwrap_err();
            }
        };
        let answers = silent.ask_each(&paths, Duration::from_millis(500), ask.clone());
        assert_eq!(answers, [Some(()), None, Some(())]);
        assert!(silent.has(&paths[1]) && !silent.has(&paths[2]));
        // It is not waited for again.
        let answers = silent.ask_each(&paths, Duration::from_secs(60), ask);
        assert_eq!(answers, [Some(()), None, Some(())]);
        let times = asked
            .lock()
            .iter()
            .filter(|path| **path == paths[1])
            .count();
        assert_eq!(times, 1);
        drop(stop);
    }
}
