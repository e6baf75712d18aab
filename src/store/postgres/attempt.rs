//! Logs in to one server, with the current password. A log-in that the server has refused is repeated only after a
//! pause.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::{task::spawn_blocking, time::timeout};

use super::{
    fault,
    login::{Login, LoginRequest, LoginSource},
    password::FoundPassword,
    server::Server,
};
use crate::store::{Bounds, StoreError};

/// A log-in that may be tried now.
pub(super) struct LoginAttempt<'a> {
    server: &'a Server,
    pub(super) options: PgConnectOptions,
    /// The log-in that must not be repeated at once if the server refuses it. `None` if there is no password, or if a
    /// function gives each log-in.
    login: Option<Login>,
    /// Why no password was found. `None` if one was found, or if none was looked for.
    remark: Option<String>,
    longest_pause: Duration,
}

/// The longest pause after a refused log-in. If an attempt has less time than this, the longest pause is that time.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Server {
    /// Finds user and password for a session with these bounds. With `None`, the session gets none of our settings.
    ///
    /// # Errors
    /// The earlier refusal, while the pause after it lasts. Otherwise, that a file for TLS cannot be read, or that the
    /// program's function gave no log-in.
    pub(super) async fn log_in(&self, bounds: Option<Bounds>) -> Result<LoginAttempt<'_>, StoreError> {
        let longest_pause = bounds.map_or(LONGEST_PAUSE, |bounds| bounds.statement.min(LONGEST_PAUSE));
        let FoundPassword { password, remark } = self.read_files().await?;
        let found = password.map(Login::with_password);
        let (login, repeated) = match &self.login {
            Some(source) => (Some(self.ask(source, longest_pause).await?), None),
            None => {
                self.pause.begin(found.as_ref(), longest_pause)?;
                (found.clone(), found)
            }
        };
        let mut options = self.options(bounds);
        if let Some(login) = login {
            options =
                options.password(&login.password).username(login.user.as_ref().unwrap_or(&self.account.user));
        }
        Ok(LoginAttempt { server: self, options, login: repeated, remark, longest_pause })
    }

    async fn ask(&self, source: &LoginSource, longest_pause: Duration) -> Result<Login, StoreError> {
        self.pause.begin(None, longest_pause)?;
        let host = self.account.hosts[0].clone();
        let (database, user) = (self.account.database.clone(), self.account.user.clone());
        let request = LoginRequest { host, port: self.account.port, database, user };
        source.ask(request).await.map_err(|why| {
            let detail = format!("the function that gives log-ins failed: {why}");
            let error = StoreError::Unavailable { location: self.location.to_string(), detail };
            self.pause.refused(None, &error, longest_pause);
            error
        })
    }

    /// Reads the files on another thread. Renewals run on this one, and a home directory may be on the network.
    async fn read_files(&self) -> Result<FoundPassword, StoreError> {
        if let Some(found) = self.passwords.without_files().filter(|_| !self.tls.has_files()) {
            return Ok(found);
        }
        let (tls, passwords, account) = (self.tls.clone(), self.passwords.clone(), self.account.clone());
        let is_asked = self.login.is_some();
        let reading = spawn_blocking(move || {
            tls.check_files()?;
            Ok(if is_asked { FoundPassword::default() } else { passwords.look_up(&account) })
        });
        reading.await.unwrap_or_else(|_| Err(StoreError::panicked(&self.location)))
    }
}

impl LoginAttempt<'_> {
    /// Waits for the connection, at most as long as the URL allows, and records whether the log-in was refused.
    pub(super) async fn complete<T>(
        self,
        connecting: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, StoreError> {
        let server = self.server;
        let connected = match server.connect_timeout {
            Some(limit) => {
                let connected = timeout(limit, connecting).await;
                connected.map_err(|_elapsed| StoreError::silent(&server.location, limit))?
            }
            None => connecting.await,
        };
        match connected {
            Ok(connection) => {
                server.pause.succeeded();
                Ok(connection)
            }
            Err(error) => {
                let error = fault::on_connect(error, server, self.remark);
                if !error.is_transient() {
                    server.pause.refused(self.login, &error, self.longest_pause);
                }
                Err(error)
            }
        }
    }
}
