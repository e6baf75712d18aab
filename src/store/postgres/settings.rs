//! All that is said about a connection. The URL counts first, then the service that is named, then the `PG…` variables.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    conninfo,
    environment::{expanded, variable},
    parameter,
    service::Service,
    uri::{self, refused},
};
use crate::store::StoreError;

/// The parameters by their names. A password of the service or of the environment is not among them: it may change, so it
/// is looked up for each connection.
pub(super) struct ConnectionSettings {
    values: BTreeMap<&'static str, String>,
    /// `options[name]=value`: settings of the server.
    pub(super) of_the_server: Vec<(String, String)>,
    /// What is left aside, and has to be warned of.
    pub(super) ignored: Vec<&'static str>,
    pub(super) service: Option<Service>,
}

impl ConnectionSettings {
    pub(super) fn of(url: &str) -> Result<Self, StoreError> {
        Self::with(url, &variable)
    }

    pub(super) fn with(url: &str, variable: &impl Fn(&str) -> Option<String>) -> Result<Self, StoreError> {
        let (values, of_the_server, ignored) = Default::default();
        let mut settings = Self { values, of_the_server, ignored, service: None };
        if conninfo::is_conninfo(url) {
            return Err(conninfo::refusal(url));
        }
        for (name, value) in uri::take_apart(url)? {
            settings.take(&name, value)?;
        }
        let service = settings.value("service").map(str::to_owned).or_else(|| variable("PGSERVICE"));
        if let Some(name) = service {
            let file = settings.path("servicefile")?;
            settings.add_service(Service::find(name, file, variable)?)?;
        }
        settings.add_environment(variable)?;
        settings.refuse_control_characters()?;
        Ok(settings)
    }

    pub(super) fn value(&self, name: &'static str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// A path; `~/` is the home directory.
    pub(super) fn path(&self, name: &'static str) -> Result<Option<PathBuf>, StoreError> {
        self.value(name).map(|value| expanded(name, value)).transpose()
    }

    fn take(&mut self, name: &str, value: String) -> Result<(), StoreError> {
        if let Some(setting) = name.strip_prefix("options[").and_then(|rest| rest.strip_suffix(']')) {
            self.of_the_server.push((setting.to_owned(), value));
            return Ok(());
        }
        // libpq reads the URLs of JDBC in this way.
        let (name, value) = match (name, value.as_str()) {
            ("ssl", "true") => ("sslmode", "require".to_owned()),
            _ => (name, value),
        };
        let parameter = parameter::find(name)?;
        if parameter.check(&value)? {
            self.ignored.push(parameter.name);
        }
        // For a schema this is refused later: an unset variable in its place must not mean the default schema.
        match value.is_empty() && parameter.name != "schema" {
            // An empty value counts as none.
            true => self.values.remove(parameter.name),
            false => self.values.insert(parameter.name, value),
        };
        Ok(())
    }

    /// A line break that came with a secret, or in place of one, must not name another database. A password may have any
    /// character, and is never shown.
    fn refuse_control_characters(&self) -> Result<(), StoreError> {
        let named = self.values.iter().map(|(name, value)| (*name, value));
        let named = named.filter(|(name, _)| *name != "password");
        let mut all = named.chain(self.of_the_server.iter().map(|(_, value)| ("options", value)));
        match all.find(|(_, value)| value.contains(char::is_control)) {
            Some((name, _)) => Err(refused(format!(
                "{name} has a line break or another control character in it; remove that"
            ))),
            None => Ok(()),
        }
    }

    /// Adds what the URL does not say.
    fn add_service(&mut self, service: Service) -> Result<(), StoreError> {
        let said: Vec<_> = self.values.keys().copied().collect();
        for (name, value) in service.parameters()? {
            match parameter::find(&name)?.name {
                "service" | "servicefile" => return Err(service.refused("it names another service")),
                "password" => {}
                known if said.contains(&known) => {}
                _ => self.take(&name, value)?,
            }
        }
        self.service = Some(service);
        Ok(())
    }

    /// Adds what neither the URL nor the service says.
    fn add_environment(&mut self, variable: &impl Fn(&str) -> Option<String>) -> Result<(), StoreError> {
        let names_a_server = self.value("host").or(self.value("hostaddr")).is_some();
        for parameter in parameter::all() {
            let is_of_another_server = names_a_server && ["host", "hostaddr"].contains(&parameter.name);
            let is_looked_up_later = ["password", "passfile"].contains(&parameter.name);
            if parameter.variable.is_empty() || is_of_another_server || is_looked_up_later {
                continue;
            }
            if !self.values.contains_key(parameter.name)
                && let Some(value) = variable(parameter.variable)
            {
                parameter.check(&value).map_err(|error| in_variable(error, parameter.variable))?;
                self.values.insert(parameter.name, value);
            }
        }
        Ok(())
    }
}

fn in_variable(error: StoreError, variable: &str) -> StoreError {
    match error {
        StoreError::Url { detail } => refused(format!("{detail} (it is from the variable {variable})")),
        other => other,
    }
}
