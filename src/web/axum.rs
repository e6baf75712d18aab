//! The answers and the extractor on axum.

use ::axum::{
    extract::{FromRef, FromRequestParts, RawPathParams, rejection::RawPathParamsRejection},
    response::{IntoResponse, Response},
};
use http::{HeaderName, HeaderValue, StatusCode, request::Parts};

use super::{
    problem::{Problem, for_each_error},
    session::{AccountId, Head, RequestedSession, Sessions},
};

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.log();
        let mut response = Response::new(self.to_json().into());
        *response.status_mut() = StatusCode::from_u16(self.status()).expect("one of this crate's own");
        for (name, value) in self.headers() {
            let value = HeaderValue::try_from(value).expect("one of this crate's own");
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
        response
    }
}

macro_rules! into_response {
    ($error:ty $(, $of:ident)?) => {
        /// Answers with its [`Problem`](crate::web::Problem).
        impl<$($of)?> IntoResponse for $error {
            fn into_response(self) -> Response {
                Problem::from(self).into_response()
            }
        }
    };
}

for_each_error!(into_response);

/// Asks [`Sessions`], which are the state of the router or a part of it.
impl<S> FromRequestParts<S> for RequestedSession
where
    S: Send + Sync,
    Sessions: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        Sessions::from_ref(state).find(&OnAxum { params: params.as_ref(), parts })
    }
}

struct OnAxum<'a> {
    params: Result<&'a RawPathParams, &'a RawPathParamsRejection>,
    parts: &'a Parts,
}

impl Head for OnAxum<'_> {
    fn param(&self, name: &str) -> Result<Option<String>, Problem> {
        match self.params {
            Ok(params) => {
                let found = params.iter().find(|(own, _)| *own == name);
                Ok(found.map(|(_, value)| value.to_owned()))
            }
            // In a nested router, the rest of the path may be UTF-8.
            Err(RawPathParamsRejection::InvalidUtf8InPathParam(_)) => Err(Problem::not_utf8()),
            Err(_) => Ok(None),
        }
    }

    fn path(&self) -> &str {
        self.parts.uri.path()
    }

    fn header(&self, name: &str) -> Vec<&[u8]> {
        self.parts.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
    }

    fn account(&self) -> Option<AccountId> {
        self.parts.extensions.get().cloned()
    }
}
