//! Credentials that the program gives for each connection, because they last only for minutes.

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

/// Who is about to log in, and where: what [`LeaseSupervisorBuilder::login`](crate::LeaseSupervisorBuilder::login) is asked with.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoginRequest {
    /// The server's name or address, or the directory of its Unix socket. One of several, where the URL names several.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The database.
    pub database: String,
    /// The user, as the URL says it.
    pub user: String,
}

/// What one connection logs in with.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

impl Login {
    /// A password, or a token in its place, for the user that the URL names.
    pub fn with_password(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into() }
    }

    /// For another user than the URL names.
    pub fn as_user(self, user: impl Into<String>) -> Self {
        Self { user: Some(user.into()), ..self }
    }
}

/// Without the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

type Given = Result<Login, Box<dyn Error + Send + Sync>>;
type Provider = dyn Fn(LoginRequest) -> BoxFuture<'static, Given> + Send + Sync;

/// The program's function, and the thread on which it is called. Whatever it does there delays no renewal (invariant I10).
/// The thread is started by the first call, and ends when the last clone is dropped.
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

    /// # Cancel safety
    /// Dropping the future drops the program's.
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
        // The thread ends after its last sender only.
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
            // Nobody waits for what the program may still do in blocking calls.
            runtime.shutdown_background();
        })?;
        Ok(sender)
    }
}

/// Calls the program's function, and gives up when nobody waits for its answer any more.
async fn answer(provider: Arc<Provider>, call: LoginCall) {
    let LoginCall { request, mut reply } = call;
    let asked = pin!(AssertUnwindSafe(async move { provider(request).await }).catch_unwind());
    let given = match select(asked, reply.cancellation()).await {
        Either::Left((given, _)) => given,
        Either::Right(_) => return,
    };
    // A panic drops the reply. To the caller that says the same.
    if let Ok(given) = given {
        let _ = reply.send(given.map_err(|error| error.to_string()));
    }
}
