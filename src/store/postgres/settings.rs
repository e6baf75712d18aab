//! All parameters of a connection. They come from the URL, then from the service that it names, then from the `PG…`
//! variables. The first one counts.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    conninfo,
    environment::{expanded, variable},
    parameter,
    service::Service,
    uri::{self, refused},
};
use crate::store::StoreError;

/// The parameters by their names. A password of the service or of the environment is not among them, because it may
/// change and is looked up for each connection.
pub(super) struct ConnectionSettings {
    values: BTreeMap<&'static str, String>,
    /// Settings of the server, given as `options[name]=value`.
    pub(super) of_the_server: Vec<(String, String)>,
    /// Parameters that are ignored, and need a warning.
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

    /// A path in which `~/` stands for the home directory.
    pub(super) fn path(&self, name: &'static str) -> Result<Option<PathBuf>, StoreError> {
        self.value(name).map(|value| expanded(name, value)).transpose()
    }

    fn take(&mut self, name: &str, value: String) -> Result<(), StoreError> {
        if let Some(setting) = name.strip_prefix("options[").and_then(|rest| rest.strip_suffix(']')) {
            self.of_the_server.push((setting.to_owned(), value));
            return Ok(());
        }
        // libpq does the same for JDBC's URLs.
        let (name, value) = match (name, value.as_str()) {
            ("ssl", "true") => ("sslmode", "require".to_owned()),
            _ => (name, value),
        };
        let parameter = parameter::find(name)?;
        if parameter.check(&value)? {
            self.ignored.push(parameter.name);
        }
        // An empty schema is kept, and refused later: an unset shell variable must not silently select the default
        // schema.
        match value.is_empty() && parameter.name != "schema" {
            // An empty value counts as none.
            true => self.values.remove(parameter.name),
            false => self.values.insert(parameter.name, value),
        };
        Ok(())
    }

    /// Fails if a value has a control character: a line break that came with a secret must not become part of a name. A
    /// password may have any character, and is never shown.
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

    /// Adds the parameters that the URL does not give.
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

    /// Adds the parameters that neither the URL nor the service gives.
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
