//! Asking directories of which one may hang, without waiting for that one.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Asks each path on a thread of its own. Returns the answers in the order of the paths; none from those that do not
/// answer within `patience`, whose threads end when they do.
pub(super) fn ask_each<T: Send + 'static>(
    paths: &[PathBuf],
    patience: Duration,
    ask: impl Fn(&Path) -> T + Clone + Send + 'static,
) -> Vec<Option<T>> {
    let started = Instant::now();
    let start = |path: &PathBuf| {
        let (answer, answered) = channel();
        let (ask, path) = (ask.clone(), path.clone());
        // Nobody may be waiting any more.
        let work = move || drop(answer.send(ask(&path)));
        let thread = thread::Builder::new().name("ask".to_owned()).spawn(work);
        if let Err(error) = thread {
            log::warn!("a directory is not asked: {error}");
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
    fn who_does_not_answer_keeps_nobody_from_the_answers_of_others() {
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
}
