//! The gate of an HTTP service, as a `tower` layer.

use std::task::{Context, Poll};

use futures::future::{Either, Ready, ready};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    Admitted, FenceGate, Passage, Refused,
    headers::{self, InvalidHeader},
};
use crate::session::{FencingToken, SessionKey};

/// Refuses requests of late writers before the service sees them.
///
/// A request names its writer in the headers [`Tenure-Fence`](headers::FENCE) and [`Tenure-Session`](headers::SESSION).
///
/// | the request | the answer |
/// |---|---|
/// | has the greatest fence that was seen of its session, or a greater one | the service's; [`Fenced`] is among the request's extensions |
/// | has a smaller one | 412 Precondition Failed, with the greatest in `Tenure-Fence` |
/// | has a fence that a [strict](FenceGate::strict) gate cannot vouch for | 412, with the least that it admits in `Tenure-Fence` |
/// | has a header that cannot be read, or one of the two, or one twice | 400 Bad Request |
/// | has neither, and is neither GET, HEAD, OPTIONS nor TRACE | 428 Precondition Required, unless [`optional`](Self::optional) |
/// | has neither otherwise | the service's |
///
/// The layer judges a request when its head has arrived. Its body may arrive much later, from a client that was frozen.
/// By then a later run may have written. A handler that must not write in this case checks again when it has everything
/// that it needs: with [`Fenced::enter`], or with [`admit`](super::admit) in its transaction.
///
/// The gate is in the memory of this process. If a service has several processes, the gate that counts must be where
/// the data is. This layer then only saves work.
#[derive(Debug, Clone)]
pub struct FenceLayer {
    gate: FenceGate,
    is_optional: bool,
}

impl FenceLayer {
    /// A layer in front of this gate.
    pub fn new(gate: FenceGate) -> Self {
        Self { gate, is_optional: false }
    }

    /// Lets writes without a fence pass. Use this until all clients send a fence.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.is_optional = true;
        self
    }

    fn judge(&self, head: &HeaderMap, is_read: bool) -> Result<Option<Fenced>, Refusal> {
        let (session, fence) = (single(head, headers::SESSION), single(head, headers::FENCE));
        let (key, fence) = match (session?, fence?) {
            (Some(session), Some(fence)) => headers::read(session, fence)?,
            (None, None) if is_read || self.is_optional => return Ok(None),
            (None, None) => return Err(Refusal::Missing),
            (None, Some(_)) => return Err(InvalidHeader::Session.into()),
            (Some(_), None) => return Err(InvalidHeader::Fence.into()),
        };
        let admitted = self.gate.admit(&key, fence)?;
        Ok(Some(Fenced { gate: self.gate.clone(), key, admitted }))
    }
}

/// The value of a header that may occur once, in visible characters.
fn single<'a>(head: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, InvalidHeader> {
    let invalid = if name == headers::FENCE { InvalidHeader::Fence } else { InvalidHeader::Session };
    let mut values = head.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => value.map(|value| value.to_str().map_err(|_| invalid)).transpose(),
        _ => Err(invalid),
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> FenceService<S> {
        FenceService { inner, layer: self.clone() }
    }
}

/// A service behind a [`FenceLayer`].
#[derive(Debug, Clone)]
pub struct FenceService<S> {
    inner: S,
    layer: FenceLayer,
}

impl<S, B, R> Service<Request<B>> for FenceService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response<R>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.layer.judge(request.headers(), request.method().is_safe()) {
            Err(refusal) => Either::Right(ready(Ok(refusal.into_response()))),
            Ok(fenced) => {
                if let Some(fenced) = fenced {
                    request.extensions_mut().insert(fenced);
                }
                Either::Left(self.inner.call(request))
            }
        }
    }
}

/// The writer of a request. It is among the extensions of a request that has passed a [`FenceLayer`].
#[derive(Debug, Clone)]
pub struct Fenced {
    gate: FenceGate,
    key: SessionKey,
    admitted: Admitted,
}

impl Fenced {
    /// The writer's session.
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// The writer's fence.
    pub fn fence(&self) -> FencingToken {
        self.admitted.fence
    }

    /// How the request was admitted.
    pub fn admitted(&self) -> Admitted {
        self.admitted
    }

    /// Asks the gate again, right before the write: see [`FenceGate::enter`].
    ///
    /// # Errors
    /// [`Refused`]. Answer with [`Refused::into_response`].
    ///
    /// # Cancel safety
    /// As for [`FenceGate::enter`].
    pub async fn enter(&self) -> Result<Passage, Refused> {
        self.gate.enter(&self.key, self.admitted.fence).await
    }
}

enum Refusal {
    Refused(Refused),
    Invalid(InvalidHeader),
    Missing,
}

impl Refusal {
    fn into_response<R: From<String>>(self) -> Response<R> {
        match self {
            Self::Refused(refused) => refused.into_response(),
            Self::Invalid(invalid) => answer(StatusCode::BAD_REQUEST, invalid.to_string()),
            Self::Missing => {
                let text = "writes need the headers Tenure-Fence and Tenure-Session of the run that writes";
                answer(StatusCode::PRECONDITION_REQUIRED, text.to_owned())
            }
        }
    }
}

impl Refused {
    /// A response with 412 Precondition Failed. Its header [`Tenure-Fence`](headers::FENCE) has the greatest fence that
    /// was seen, or the least that is admitted. Its body is the text of this refusal.
    pub fn into_response<R: From<String>>(self) -> Response<R> {
        let (Self::Late { seen: bound, .. } | Self::Unvouched { from: bound, .. }) = self;
        let mut response = answer(StatusCode::PRECONDITION_FAILED, self.to_string());
        response.headers_mut().insert("tenure-fence", bound.as_i64().into());
        response
    }
}

fn answer<R: From<String>>(status: StatusCode, text: String) -> Response<R> {
    let mut response = Response::new(R::from(text + "\n"));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<InvalidHeader> for Refusal {
    fn from(invalid: InvalidHeader) -> Self {
        Self::Invalid(invalid)
    }
}
