//! Log-ins that a function of the program gives for each connection, for example because they are valid only for
//! minutes.

use std::{
    error::Error,
    fmt,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use futures::{
    FutureExt as _, StreamExt as _,
    channel::{mpsc, oneshot},
    future::{BoxFuture, Either, select},
};
use tokio::runtime;

/// The connection that needs a log-in. The function of
/// [`LeaseSupervisorBuilder::login`](crate::LeaseSupervisorBuilder::login) gets it as its argument.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoginRequest {
    /// The server's name or address, or the directory of its Unix socket. If the URL names several servers, this is the
    /// one to log in to.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// The name of the database.
    pub database: String,
    /// The user whom the URL names.
    pub user: String,
}

/// The user and the password with which one connection logs in.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

impl Login {
    /// A password, or a token in its place, for the user whom the URL names.
    pub fn with_password(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into() }
    }

    /// Logs in as this user instead of the one whom the URL names.
    pub fn as_user(self, user: impl Into<String>) -> Self {
        Self { user: Some(user.into()), ..self }
    }
}

/// Never shows the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

type Given = Result<Login, Box<dyn Error + Send + Sync>>;
type Provider = dyn Fn(LoginRequest) -> BoxFuture<'static, Given> + Send + Sync;

/// The program's function, and the thread that calls it. Nothing that the function does can delay a renewal (invariant
/// I10). The first call starts the thread, and the thread ends when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct LoginSource(Arc<LoginThread>);

struct LoginThread {
    provider: Arc<Provider>,
    calls: Mutex<Option<mpsc::UnboundedSender<LoginCall>>>,
}

struct LoginCall {
    request: LoginRequest,
    reply: oneshot::Sender<Result<Login, String>>,
}

impl LoginSource {
    pub(crate) fn new<F, A, E>(provider: F) -> Self
    where
        F: Fn(LoginRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Login, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let provider = move |request| provider(request).map(|given| given.map_err(Into::into)).boxed();
        Self(Arc::new(LoginThread { provider: Arc::new(provider), calls: Mutex::new(None) }))
    }

    /// Asks the program's function for a log-in.
    ///
    /// # Cancel safety
    /// Dropping the future drops the future of the program's function.
    pub(super) async fn ask(&self, request: LoginRequest) -> Result<Login, String> {
        let (reply, answer) = oneshot::channel();
        self.0.call(LoginCall { request, reply })?;
        answer.await.unwrap_or_else(|oneshot::Canceled| Err("it panicked".to_owned()))
    }
}

impl fmt::Debug for LoginSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginSource(..)")
    }
}

impl LoginThread {
    fn call(&self, call: LoginCall) -> Result<(), String> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &mut *calls {
            Some(sender) => sender,
            none => none.insert(self.start_thread().map_err(|error| format!("no thread for it: {error}"))?),
        };
        // The thread ends only after its last sender is dropped.
        sender.unbounded_send(call).map_err(|_| "its thread has ended".to_owned())
    }

    fn start_thread(&self) -> std::io::Result<mpsc::UnboundedSender<LoginCall>> {
        let (sender, mut calls) = mpsc::unbounded();
        let provider = self.provider.clone();
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("tenure-login".to_owned()).spawn(move || {
            runtime.block_on(async {
                while let Some(call) = calls.next().await {
                    tokio::spawn(answer(provider.clone(), call));
                }
            });
            // Does not wait for blocking calls that the program may still make.
            runtime.shutdown_background();
        })?;
        Ok(sender)
    }
}

/// Calls the program's function, and drops its future when nobody waits for the answer any more.
async fn answer(provider: Arc<Provider>, call: LoginCall) {
    let LoginCall { request, mut reply } = call;
    let asked = pin!(AssertUnwindSafe(async move { provider(request).await }).catch_unwind());
    let given = match select(asked, reply.cancellation()).await {
        Either::Left((given, _)) => given,
        Either::Right(_) => return,
    };
    // A panic drops the reply, and the caller of `ask` then reports the panic.
    if let Ok(given) = given {
        let _ = reply.send(given.map_err(|error| error.to_string()));
    }
}
