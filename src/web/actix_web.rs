//! The answers and the extractor on actix-web.

use std::future::{Ready, ready};

use ::actix_web::{
    FromRequest, HttpMessage, HttpRequest, HttpResponse, ResponseError, dev::Payload, http::StatusCode,
    web::Data,
};
use percent_encoding::percent_decode_str;

use super::{
    problem::{Problem, for_each_error},
    session::{AccountId, Head, RequestedSession, Sessions},
};

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.status()).expect("one of this crate's own")
    }

    fn error_response(&self) -> HttpResponse {
        self.log();
        let mut response = HttpResponse::build(self.status_code());
        for header in self.headers() {
            response.insert_header(header);
        }
        response.body(self.to_json())
    }
}

macro_rules! response_error {
    ($error:ty $(, $of:ident)?) => {
        /// Answers with its [`Problem`](crate::web::Problem).
        impl<$($of)?> ResponseError for $error {
            fn status_code(&self) -> StatusCode {
                Problem::from(self).status_code()
            }

            fn error_response(&self) -> HttpResponse {
                Problem::from(self).error_response()
            }
        }
    };
}

for_each_error!(response_error);

/// Asks [`Sessions`], which are data of the application: `app_data(sessions)` or `app_data(Data::new(sessions))`.
impl FromRequest for RequestedSession {
    type Error = Problem;
    type Future = Ready<Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let sessions = request.app_data::<Sessions>();
        let sessions = sessions.or_else(|| request.app_data::<Data<Sessions>>().map(Data::get_ref));
        ready(match sessions {
            Some(sessions) => sessions.find(request),
            None => Err(Problem::misconfigured(
                "the application has no `tenure::web::Sessions` in its `app_data`",
            )),
        })
    }
}

impl Head for HttpRequest {
    fn param(&self, name: &str) -> Result<Option<String>, Problem> {
        // The router has decoded everything but `%25`, `%2F` and `%2B`, so that these do not look like what they stand
        // for.
        let decoded = |value| percent_decode_str(value).decode_utf8_lossy().into_owned();
        Ok(self.match_info().get(name).map(decoded))
    }

    fn path(&self) -> &str {
        self.uri().path()
    }

    fn header(&self, name: &str) -> Vec<&[u8]> {
        self.headers().get_all(name).map(|value| value.as_bytes()).collect()
    }

    fn account(&self) -> Option<AccountId> {
        self.extensions().get().cloned()
    }
}
