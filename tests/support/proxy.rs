//! A TCP proxy that loses what it is told to lose.
//!
//! It runs on the harness's own threads, so a test may block its runtime, or pause its time, meanwhile.

use std::{
    convert::Infallible,
    future::pending,
    io,
    net::{self, SocketAddr},
    sync::{Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{oneshot, watch},
};

use super::{background, free_address};

/// Between the client and one target. Dropping it closes every connection.
pub struct Proxy {
    address: SocketAddr,
    target: SocketAddr,
    state: watch::Sender<State>,
    traffic: watch::Sender<Traffic>,
    /// `None` while connections are refused.
    acceptor: Mutex<Option<Acceptor>>,
}

/// The bytes seen since the proxy started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the clients, passed on.
    pub requests: u64,
    /// To the clients, passed on.
    pub replies: u64,
    /// From the clients, swallowed.
    pub lost_requests: u64,
    /// To the clients, swallowed.
    pub lost_replies: u64,
}

impl Proxy {
    /// A proxy that passes everything on.
    pub fn start(target: SocketAddr) -> Self {
        let proxy = Self {
            address: free_address(),
            target,
            state: watch::Sender::new(State { mode: Mode::Pass, cuts: 0 }),
            traffic: watch::Sender::default(),
            acceptor: Mutex::new(None),
        };
        proxy.accept();
        proxy
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a database whose server is the target.
    #[cfg(feature = "postgres")]
    pub fn url_for(&self, database: &super::postgres::Database) -> String {
        database.url_at(self.address)
    }

    /// Passes everything on, and accepts again after [`cut`](Self::cut). A connection that has lost bytes stays
    /// silent in that direction: no real network gives a client a later reply in place of a lost one.
    pub fn pass(&self) {
        self.set(Mode::Pass);
        self.accept();
    }

    /// Passes each piece on after a while, in each direction.
    pub fn delay(&self, by: Duration) {
        self.set(Mode::Delay(by));
        self.accept();
    }

    /// Loses everything in both directions, silently: connections stay open, and new ones are accepted.
    pub fn swallow(&self) {
        self.set(Mode::Swallow);
        self.accept();
    }

    /// Passes requests on and loses the replies.
    pub fn swallow_replies(&self) {
        self.set(Mode::SwallowReplies);
        self.accept();
    }

    /// Closes every connection and refuses new ones.
    pub fn cut(&self) {
        // Returns when the listener is closed: who connects from now on is refused.
        self.acceptor.lock().expect("no holder panics").take();
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// What has passed and what was lost until now.
    pub fn traffic(&self) -> Traffic {
        *self.traffic.borrow()
    }

    /// Waits until the traffic is as wanted; the caller bounds the wait.
    pub async fn until(&self, wanted: impl FnMut(&Traffic) -> bool) -> Traffic {
        *self.traffic.subscribe().wait_for(wanted).await.expect("the sender is in self")
    }

    /// Waits until a client has sent something from now on, whether it passes or is lost: a statement is under
    /// way. Counts from this call, not from the first poll.
    pub fn next_request(&self) -> impl Future<Output = Traffic> + use<'_> {
        let before = self.traffic();
        self.until(move |now| now.requests + now.lost_requests > before.requests + before.lost_requests)
    }

    /// Waits until something sent to a client from now on was lost. Counts from this call.
    pub fn next_lost_reply(&self) -> impl Future<Output = Traffic> + use<'_> {
        let before = self.traffic();
        self.until(move |now| now.lost_replies > before.lost_replies)
    }

    fn set(&self, mode: Mode) {
        self.state.send_modify(|state| state.mode = mode);
    }

    fn accept(&self) {
        let mut acceptor = self.acceptor.lock().expect("no holder panics");
        if acceptor.is_none() {
            let path = Path {
                target: self.target,
                cuts: self.state.borrow().cuts,
                state: self.state.subscribe(),
                traffic: self.traffic.clone(),
            };
            *acceptor = Some(Acceptor::start(self.address, path));
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct State {
    mode: Mode,
    /// How often all connections were closed: one that knows a lower number is to close.
    cuts: u64,
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    Pass,
    Delay(Duration),
    Swallow,
    SwallowReplies,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

/// Accepts until it is dropped, which waits for the listener to be closed.
struct Acceptor {
    stop: Option<oneshot::Sender<Infallible>>,
    closed: Mutex<mpsc::Receiver<Infallible>>,
}

impl Acceptor {
    fn start(address: SocketAddr, path: Path) -> Self {
        let listener = bind(address);
        let (stop, stopped) = oneshot::channel();
        let (closing, closed) = mpsc::channel();
        background::handle().spawn(async move {
            let listener = TcpListener::from_std(listener).expect("this runtime does network I/O");
            tokio::select! {
                _ = stopped => {}
                never = path.accept_from(&listener) => match never {},
            }
            drop(listener);
            drop(closing);
        });
        Self { stop: Some(stop), closed: Mutex::new(closed) }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Ends with an error, when the task has let go of the listener.
        let _ = self.closed.get_mut().expect("no holder panics").recv();
    }
}

/// From the proxy to its target.
#[derive(Clone)]
struct Path {
    target: SocketAddr,
    cuts: u64,
    state: watch::Receiver<State>,
    traffic: watch::Sender<Traffic>,
}

impl Path {
    async fn accept_from(&self, listener: &TcpListener) -> Infallible {
        loop {
            match listener.accept().await {
                Ok((client, _)) => {
                    tokio::spawn(self.clone().connect(client));
                }
                // Out of file descriptors, most likely; the test will show what it misses.
                Err(error) => eprintln!("proxy: cannot accept: {error}"),
            }
        }
    }

    /// Returning drops the sockets, and with them both connections.
    async fn connect(mut self, client: TcpStream) {
        let (mut state, cuts) = (self.state.clone(), self.cuts);
        tokio::select! {
            // An error says that the proxy is gone.
            _ = state.wait_for(|state| state.cuts != cuts) => {}
            _ = self.carry(client) => {}
        }
    }

    async fn carry(&mut self, client: TcpStream) -> io::Result<()> {
        let _ = client.set_nodelay(true);
        let (mut from_client, to_client) = client.into_split();
        if self.is_lost(Direction::Requests).await {
            return self.lose(&mut from_client, Direction::Requests, 0).await;
        }
        let server = TcpStream::connect(self.target).await?;
        let _ = server.set_nodelay(true);
        let (from_server, to_server) = server.into_split();
        let (requests, replies) = (self.clone(), self.clone());
        tokio::try_join!(
            requests.pump(from_client, to_server, Direction::Requests),
            replies.pump(from_server, to_client, Direction::Replies),
        )?;
        Ok(())
    }

    async fn pump(
        mut self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        direction: Direction,
    ) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = from.read(&mut buffer).await;
            if self.is_lost(direction).await {
                return self.lose(&mut from, direction, read.unwrap_or(0)).await;
            }
            let length = read?;
            if length == 0 {
                return to.shutdown().await;
            }
            to.write_all(&buffer[..length]).await?;
            self.count(direction, false, length);
        }
    }

    /// Reads on, so that the sender never notices; not even a closed connection is passed on.
    async fn lose(&self, from: &mut OwnedReadHalf, direction: Direction, first: usize) -> io::Result<()> {
        self.count(direction, true, first);
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            self.count(direction, true, length);
        }
        pending().await
    }

    /// Decides when the bytes are due, by the mode of that moment.
    async fn is_lost(&mut self, direction: Direction) -> bool {
        let arrived = tokio::time::Instant::now();
        loop {
            let mode = self.state.borrow_and_update().mode;
            match mode {
                Mode::Pass => return false,
                Mode::Swallow => return true,
                Mode::SwallowReplies => return direction == Direction::Replies,
                Mode::Delay(by) => tokio::select! {
                    () = tokio::time::sleep_until(arrived + by) => return false,
                    changed = self.state.changed() => if changed.is_err() { return true },
                },
            }
        }
    }

    fn count(&self, direction: Direction, lost: bool, bytes: usize) {
        self.traffic.send_modify(|traffic| {
            let counter = match (direction, lost) {
                (Direction::Requests, false) => &mut traffic.requests,
                (Direction::Requests, true) => &mut traffic.lost_requests,
                (Direction::Replies, false) => &mut traffic.replies,
                (Direction::Replies, true) => &mut traffic.lost_replies,
            };
            *counter += bytes as u64;
        });
    }
}

/// Binds within 5 s: the port was ours before, or was free a moment ago.
fn bind(address: SocketAddr) -> net::TcpListener {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match net::TcpListener::bind(address) {
            Ok(listener) => {
                listener.set_nonblocking(true).expect("a socket can be non-blocking");
                return listener;
            }
            Err(error) => assert!(Instant::now() < deadline, "cannot listen on {address}: {error}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}
