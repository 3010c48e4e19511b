//! [`Access`]: who a request is from, as the application has authenticated it.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;

use super::origin::{CrossOrigin, Origins};
use crate::ops::Actor;
use crate::setting::SettingError;

/// An operator who is let in: who it is, what they may do, and whose requests they may see.
pub(crate) type Operator = Actor;

type OperatorOf = dyn Fn(&Parts) -> Option<Operator> + Send + Sync;

/// The application's rule who is let in. There is no default: a console that admits every visitor would be worse
/// than none.
#[derive(Clone)]
pub(crate) struct Access {
    operator_of: Arc<OperatorOf>,
    origins: Origins,
}

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotLetIn {
    /// The application does not know who sends it.
    Unknown,
    /// It would write, and does not come from a page of ours.
    CrossOrigin(CrossOrigin),
}

impl Access {
    pub(crate) fn new(
        operator_of: impl Fn(&Parts) -> Option<Operator> + Send + Sync + 'static,
    ) -> Self {
        Self { operator_of: Arc::new(operator_of), origins: Origins::default() }
    }

    /// Takes requests that write from pages of this origin, too. `setting` is the method that was given it.
    pub(crate) fn allow_origin(
        &mut self,
        setting: &'static str,
        origin: impl Into<String>,
    ) -> Result<(), SettingError> {
        self.origins.allow(setting, origin)
    }

    /// Who the request is from.
    ///
    /// The application is asked first, so that a stranger gets one answer, whatever page sent the request: a refusal of the
    /// page would say that there is a console. To ask about a forged request is not a new risk: the application is asked about
    /// each `GET`, too, which any page can send, and has to answer without an effect. A request that it admits and a
    /// foreign page has sent goes no further than this.
    pub(crate) fn admit(&self, head: &Parts) -> Result<Operator, NotLetIn> {
        let operator = (self.operator_of)(head).ok_or(NotLetIn::Unknown)?;
        self.origins.judge(head).map_err(NotLetIn::CrossOrigin)?;
        Ok(operator)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("origins", &self.origins).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::ops::{Permissions, Scopes};

    fn head(method: &str, lines: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri("/");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    /// By the name in a header.
    fn by_name() -> Access {
        Access::new(|head: &Parts| {
            let name = head.headers.get("x-user")?.to_str().ok()?;
            Actor::new(name, Permissions::viewer(), Scopes::All).ok()
        })
    }

    #[test]
    fn the_application_says_who_is_let_in() {
        let access = by_name();
        let ada = access.admit(&head("GET", &[("x-user", "ada")])).unwrap();
        assert_eq!(ada.name(), "ada");
        assert_eq!(access.admit(&head("GET", &[])), Err(NotLetIn::Unknown));
    }

    #[test]
    fn what_a_foreign_page_sends_is_refused_to_an_operator_and_unknown_of_a_stranger() {
        let access = by_name();
        let pages: [&[(&str, &str)]; 4] = [
            &[("sec-fetch-site", "cross-site")],
            &[("host", "a.example"), ("origin", "https://evil.example")],
            &[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
            &[],
        ];
        for lines in pages {
            let stranger = access.admit(&head("POST", lines));
            assert_eq!(stranger, Err(NotLetIn::Unknown), "{lines:?}");
            let operator = access.admit(&head("POST", &[lines, &[("x-user", "ada")]].concat()));
            assert!(matches!(operator, Err(NotLetIn::CrossOrigin(_))), "{lines:?}");
        }
        let own = [("sec-fetch-site", "same-origin")];
        assert_eq!(access.admit(&head("POST", &own)), Err(NotLetIn::Unknown));
        assert!(access.admit(&head("POST", &[own[0], ("x-user", "ada")])).is_ok());
    }
}
