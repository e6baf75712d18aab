//! Shares one reading among all callers that asked before it began.
//!
//! A reading shows the state at some instant while it lasted. So a caller never gets a reading that had begun before it
//! asked, however recent. All callers that ask while a reading is under way share the next one. No caller gets a
//! reading that was given up. A reading is dropped when no caller waits for it any more.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, Thread},
};

use super::patience::Patience;

/// Readings of one thing, one at a time.
#[derive(Debug)]
pub(super) struct Readings<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    /// How many readings have begun, which is also the number of the last one.
    begun: u64,
    is_reading: bool,
    /// The last completed reading, and its number.
    last: Option<(u64, Arc<T>)>,
    waiting: Vec<Thread>,
}

enum Ticket<T> {
    Served(Arc<T>),
    /// The caller does this reading itself, now.
    Own(u64),
}

impl<T> Readings<T> {
    pub(super) const fn new() -> Self {
        let state = State { begun: 0, is_reading: false, last: None, waiting: Vec::new() };
        Self { state: Mutex::new(state) }
    }

    /// A reading that begins after this call. `None` if the patience is over first. `read` returns `None` if it gives
    /// up.
    pub(super) fn share(&self, patience: &Patience, read: impl FnOnce() -> Option<T>) -> Option<Arc<T>> {
        let asked = self.lock().begun;
        let _place = WaitingThread::of_this_thread(self);
        match patience.wait_for(|| self.lock().turn(asked))? {
            Ticket::Served(reading) => Some(reading),
            Ticket::Own(number) => {
                let _over = Over(self);
                let reading = Arc::new(read()?);
                self.lock().last = Some((number, reading.clone()));
                Some(reading)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    fn turn(&mut self, asked: u64) -> Option<Ticket<T>> {
        if let Some((_, reading)) = self.last.as_ref().filter(|(number, _)| *number > asked) {
            return Some(Ticket::Served(reading.clone()));
        }
        if self.is_reading {
            return None;
        }
        self.begun += 1;
        self.is_reading = true;
        Some(Ticket::Own(self.begun))
    }
}

/// Registers this thread to be unparked when a reading is over.
struct WaitingThread<'a, T>(&'a Readings<T>);

impl<'a, T> WaitingThread<'a, T> {
    fn of_this_thread(readings: &'a Readings<T>) -> Self {
        readings.lock().waiting.push(thread::current());
        Self(readings)
    }
}

impl<T> Drop for WaitingThread<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let own = thread::current().id();
        state.waiting.retain(|thread| thread.id() != own);
        let unwanted = if state.waiting.is_empty() { state.last.take() } else { None };
        drop(state);
        drop(unwanted);
    }
}

/// Lets other callers read, also when a reading was given up or panicked.
struct Over<'a, T>(&'a Readings<T>);

impl<T> Drop for Over<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_reading = false;
        state.waiting.iter().for_each(Thread::unpark);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::{
            atomic::{AtomicU32, Ordering},
            mpsc,
        },
        time::{Duration, Instant},
    };

    use tokio_util::sync::CancellationToken;

    use super::*;

    type Counted = Arc<(Readings<u32>, AtomicU32)>;

    fn counted() -> Counted {
        Arc::new((Readings::new(), AtomicU32::new(0)))
    }

    fn read(counted: &Counted, patience: &Patience) -> Option<u32> {
        let (readings, count) = &**counted;
        readings.share(patience, || Some(count.fetch_add(1, Ordering::SeqCst) + 1)).map(|number| *number)
    }

    /// Begins a first reading. It lasts until a message ends it: with a result, or with `None` to give it up.
    fn hold_first(counted: &Counted) -> (mpsc::Sender<Option<u32>>, thread::JoinHandle<Option<Arc<u32>>>) {
        let (go, gone) = mpsc::channel();
        let (begun, begins) = mpsc::channel();
        let counted = counted.clone();
        let first = thread::spawn(move || {
            counted.0.share(&Patience::default(), || {
                begun.send(()).unwrap();
                gone.recv().unwrap()
            })
        });
        begins.recv().unwrap();
        (go, first)
    }

    fn wait_for_askers(counted: &Counted, askers: usize) {
        while counted.0.lock().waiting.len() < askers {
            thread::yield_now();
        }
    }

    fn ask(counted: &Counted, count: usize) -> Vec<thread::JoinHandle<Option<u32>>> {
        let ask = |_| {
            let counted = counted.clone();
            thread::spawn(move || read(&counted, &Patience::default()))
        };
        (0..count).map(ask).collect()
    }

    #[test]
    fn all_who_ask_during_a_reading_share_the_next_and_never_that_one() {
        let counted = counted();
        let (go, first) = hold_first(&counted);
        let asking = ask(&counted, 20);
        wait_for_askers(&counted, 21);
        go.send(Some(0)).unwrap();
        assert_eq!(first.join().unwrap().as_deref(), Some(&0));
        for asking in asking {
            assert_eq!(asking.join().unwrap(), Some(1));
        }
    }

    #[test]
    fn a_reading_is_not_kept_for_whoever_asks_later() {
        let counted = counted();
        assert_eq!(read(&counted, &Patience::default()), Some(1));
        assert!(counted.0.lock().last.is_none());
        assert_eq!(read(&counted, &Patience::default()), Some(2));
    }

    #[test]
    fn a_reading_that_was_given_up_serves_nobody_and_hinders_nobody() {
        let counted = counted();
        let (go, first) = hold_first(&counted);
        let asking = ask(&counted, 5);
        wait_for_askers(&counted, 6);
        go.send(None).unwrap();
        assert_eq!(first.join().unwrap(), None);
        for asking in asking {
            assert_eq!(asking.join().unwrap(), Some(1));
        }
    }

    #[test]
    fn a_reading_that_panics_hinders_nobody() {
        let counted = counted();
        let read_badly = || counted.0.share(&Patience::default(), || panic!("on purpose"));
        catch_unwind(AssertUnwindSafe(read_badly)).unwrap_err();
        assert_eq!(read(&counted, &Patience::default()), Some(1));
    }

    #[test]
    fn whoever_is_out_of_patience_does_not_wait_for_the_reading_of_another() {
        let counted = counted();
        let (go, first) = hold_first(&counted);
        let until = Some(Instant::now() + Duration::from_millis(5));
        assert_eq!(read(&counted, &Patience { until, unless: None }), None);
        let token = CancellationToken::new();
        let patience = Patience { until: None, unless: Some(token.clone()) };
        let asking = thread::spawn({
            let counted = counted.clone();
            move || read(&counted, &patience)
        });
        wait_for_askers(&counted, 2);
        token.cancel();
        assert_eq!(asking.join().unwrap(), None);
        go.send(Some(0)).unwrap();
        assert_eq!(first.join().unwrap().as_deref(), Some(&0));
    }
}
