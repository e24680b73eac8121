//! The connections that are served at once.
//!
//! Beyond a limit, a new connection takes the place of the slowest. That is one that has not asked yet, or else one that
//! does not take its answer. So slow connections keep out no other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The time for which a connection keeps its place, however many come.
const LEAST_TIME: Duration = Duration::from_millis(100);

/// The progress of a connection, in the order in which connections lose their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The client has not sent its request yet.
    Asking,
    /// The client has not taken its answer yet.
    Answering,
    /// The answer is being made, which no client delays.
    Working,
}

/// A connection that is served.
pub(crate) struct Client {
    end: Box<dyn Fn() + Send + Sync>,
    since: Instant,
    stage: Mutex<Stage>,
}

impl Client {
    /// Notes how far it has come.
    pub(crate) fn enter(&self, stage: Stage) {
        *self.stage.lock() = stage;
    }
}

/// The connections that are served at once.
pub(crate) struct Crowd {
    most: usize,
    clients: Mutex<Vec<Arc<Client>>>,
}

impl Crowd {
    /// Returns one of at most so many connections.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            clients: Mutex::default(),
        }
    }

    /// Gives a place to a connection that `end` ends, if need be that of the slowest, which is ended. Returns none if all
    /// are new or at work.
    pub(crate) fn admit(&self, end: impl Fn() + Send + Sync + 'static) -> Option<Arc<Client>> {
        let mut clients = self.clients.lock();
        if clients.len() >= self.most {
            let stage = |client: &Client| *client.stage.lock();
            let slow = clients.iter().enumerate().filter(|(_, client)| {
                stage(client) != Stage::Working && client.since.elapsed() >= LEAST_TIME
            });
            let (slowest, _) = slow.min_by_key(|(_, client)| (stage(client), client.since))?;
            (clients.swap_remove(slowest).end)();
        }
        let client = Arc::new(Client {
            end: Box::new(end),
            since: Instant::now(),
            stage: Mutex::new(Stage::Asking),
        });
        clients.push(Arc::clone(&client));
        Some(client)
    }

    /// Gives the place of a connection back.
    pub(crate) fn leave(&self, client: &Arc<Client>) {
        self.clients.lock().retain(|it| !Arc::ptr_eq(it, client));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_newcomer_takes_the_place_of_the_slowest_and_of_none_that_is_new() {
        const MOST: usize = 16;
        let crowd = Crowd::new(MOST);
        let ended = Arc::new(AtomicUsize::new(0));
        let admit = || {
            let ended = Arc::clone(&ended);
            crowd.admit(move || {
                ended.fetch_add(1, Ordering::Relaxed);
            })
        };
        let admitted: Vec<_> = (0..MOST).map(|_| admit().unwrap()).collect();
        admitted[0].enter(Stage::Working);
        admitted[1].enter(Stage::Answering);
        let is_served = |number: usize| {
            let clients = crowd.clients.lock();
            clients.iter().any(|it| Arc::ptr_eq(it, &admitted[number]))
        };
        let mut newcomers = 0;
        while (2..MOST).any(is_served) {
            assert!(is_served(0) && is_served(1));
            std::thread::sleep(2 * LEAST_TIME);
            admit().unwrap();
            newcomers += 1;
            assert_eq!(crowd.clients.lock().len(), MOST);
            assert_eq!(ended.load(Ordering::Relaxed), newcomers);
        }
        for client in crowd.clients.lock().iter() {
            client.enter(Stage::Working);
        }
        admitted[1].enter(Stage::Answering);
        std::thread::sleep(2 * LEAST_TIME);
        assert!(admit().is_some() && !is_served(1));
        std::thread::sleep(2 * LEAST_TIME);
        let newest = admit().unwrap();
        newest.enter(Stage::Working);
        assert!(admit().is_none(), "all are at work");
        crowd.leave(&newest);
        assert!(admit().is_some());
    }
}
