//! [`Origins`]: whether a request that writes comes from a page of ours, and not from one that a foreign page
//! made the operator's browser send (CSRF). No token: it needs nothing but what browsers say by themselves.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderMap, HeaderName, ORIGIN};
use http::request::Parts;
use http::uri::Authority;

use crate::setting::{SettingError, refused};

/// `sec-fetch-site`: whose page a browser sends the request for. Every browser sends it since 2023, over https
/// and to loopback addresses.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The origins that requests that write may come from, besides that of the request itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    allowed: Vec<Origin>,
}

/// The origin of a page (RFC 6454): compared by its three parts, because a browser omits the port of the scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: Scheme,
    host: String,
    port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// Why a request is taken for a foreign page's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CrossOrigin {
    #[error("the browser says that another site sent it")]
    OtherSite,
    #[error("its Origin is another than its Host")]
    OtherOrigin,
    #[error("it says neither Sec-Fetch-Site nor Origin, and has no bearer token")]
    Untold,
    #[error("it says Sec-Fetch-Site or Origin more than once")]
    Repeated,
}

impl Origins {
    /// Adds one, `https://ops.example.com` say: for a proxy that changes the `Host`. Refuses what is not an origin, because no
    /// request would come from it. `setting` is the method that was given it.
    pub(crate) fn allow(
        &mut self,
        setting: &'static str,
        origin: impl Into<String>,
    ) -> Result<(), SettingError> {
        let origin = origin.into();
        let bound = "the origin of a page, for example https://ops.example.com or http://10.0.0.1:8080, with a host in ASCII \
            (xn--…)";
        let parsed = Origin::parse(&origin).ok_or_else(|| refused(setting, &origin, bound))?;
        self.allowed.push(parsed);
        Ok(())
    }

    /// Whether the request may write. What only reads is taken from anywhere: its answer stays closed to a
    /// foreign page.
    pub(crate) fn judge(&self, head: &Parts) -> Result<(), CrossOrigin> {
        if head.method.is_safe() {
            return Ok(());
        }
        if let Some(site) = single(&head.headers, &SEC_FETCH_SITE)? {
            return match site {
                b"same-origin" => Ok(()),
                _ => Err(CrossOrigin::OtherSite),
            };
        }
        match single(&head.headers, &ORIGIN)? {
            Some(origin) if self.is_ours(origin, head) => Ok(()),
            Some(_) => Err(CrossOrigin::OtherOrigin),
            // No browser sends a token by itself, as it does with a cookie or a password.
            None if has_bearer(&head.headers) => Ok(()),
            None => Err(CrossOrigin::Untold),
        }
    }

    fn is_ours(&self, origin: &[u8], head: &Parts) -> bool {
        // `null`, the origin of a sandbox or a file, is none of ours.
        let origin = std::str::from_utf8(origin).ok().and_then(Origin::parse);
        origin.is_some_and(|origin| {
            self.allowed.contains(&origin) || host(head).is_some_and(|host| origin.is_at(&host))
        })
    }
}

impl Origin {
    /// `None` if it is not `http` or `https`, a host as browsers send it and perhaps a port, and nothing else but a `/` at the
    /// end.
    fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let (scheme, authority) = text.strip_suffix('/').unwrap_or(&text).split_once("://")?;
        let scheme = match scheme {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return None,
        };
        let authority: Authority = authority.parse().ok()?;
        let (host, port) = (authority.host(), authority.port_u16());
        // Not with a user in front, and not with a port that is not a number.
        let whole = port.map_or(host.to_owned(), |port| format!("{host}:{port}"));
        let is_whole = authority.as_str() == whole && port != Some(0);
        let host = canonical(host).filter(|_| is_whole)?;
        Some(Self { scheme, host, port: port.unwrap_or(scheme.port()) })
    }

    /// Whether a request to this place is to this origin: `Host` does not say the scheme.
    fn is_at(&self, host: &Authority) -> bool {
        host.host().eq_ignore_ascii_case(&self.host)
            && host.port_u16().unwrap_or(self.scheme.port()) == self.port
    }
}

/// A host in lower case, as browsers send it (WHATWG URL, host parsing): `None` if none sends one like it.
fn canonical(host: &str) -> Option<String> {
    if let Some(address) = host.strip_prefix('[') {
        let address: Ipv6Addr = address.strip_suffix(']')?.parse().ok()?;
        // Rust prints these with dots, browsers do not.
        return Some(match (address.to_ipv4_mapped(), address.segments()) {
            (Some(_), [.., high, low]) => format!("[::ffff:{high:x}:{low:x}]"),
            (None, _) => format!("[{address}]"),
        });
    }
    let is_of_a_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_name = host.bytes().all(|byte| is_of_a_name(byte) || b"._-".contains(&byte))
        && host.bytes().any(is_of_a_name);
    // A host that ends with a number is an IPv4 address, of which browsers send only the form with four decimal numbers.
    let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let is_number = match last.strip_prefix("0x") {
        Some(digits) => digits.bytes().all(|digit| digit.is_ascii_hexdigit()),
        None => last.bytes().all(|digit| digit.is_ascii_digit()),
    };
    let is_address = || host.parse::<Ipv4Addr>().is_ok_and(|address| address.to_string() == host);
    (is_name && (!is_number || is_address())).then(|| host.to_owned())
}

impl Scheme {
    /// Where a URL names no port.
    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// The place that the request was sent to: `:authority` of HTTP/2, else `Host`.
fn host(head: &Parts) -> Option<Authority> {
    match head.uri.authority() {
        Some(authority) => Some(authority.clone()),
        None => head.headers.get(HOST)?.to_str().ok()?.parse().ok(),
    }
}

fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h [u8]>, CrossOrigin> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next().map(|line| line.as_bytes());
    match lines.next() {
        Some(_) => Err(CrossOrigin::Repeated),
        None => Ok(first),
    }
}

fn has_bearer(headers: &HeaderMap) -> bool {
    let scheme = headers.get(AUTHORIZATION).and_then(|line| line.as_bytes().get(..7));
    scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "))
        && !headers.contains_key(COOKIE)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use CrossOrigin::{OtherOrigin, OtherSite, Repeated, Untold};

    const BEARER: (&str, &str) = ("authorization", "Bearer t");
    const COOKIE_LINE: (&str, &str) = ("cookie", "session=1");

    fn judged(method: &str, uri: &str, lines: &[(&str, &str)]) -> Result<(), CrossOrigin> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let mut origins = Origins::default();
        origins.allow("allow_origin", "https://OPS.example.com/").unwrap();
        origins.judge(&request.body(()).unwrap().into_parts().0)
    }

    /// Every method that writes, by every combination of what a browser says.
    #[test]
    fn a_request_that_writes_comes_from_a_page_of_ours_or_brings_a_token() {
        let host = ("host", "a.example:8080");
        /// The request's headers, and whether it may write.
        type Case = (&'static [(&'static str, &'static str)], Result<(), CrossOrigin>);
        let table: &[Case] = &[
            (&[("sec-fetch-site", "same-origin")], Ok(())),
            (&[("sec-fetch-site", "same-origin"), ("origin", "http://evil")], Ok(())),
            (&[("sec-fetch-site", "same-site")], Err(OtherSite)),
            (&[("sec-fetch-site", "cross-site")], Err(OtherSite)),
            (&[("sec-fetch-site", "none")], Err(OtherSite)),
            (&[("sec-fetch-site", "")], Err(OtherSite)),
            (&[("sec-fetch-site", "Same-Origin")], Err(OtherSite)),
            (
                &[("sec-fetch-site", "cross-site"), ("origin", "http://a.example:8080")],
                Err(OtherSite),
            ),
            (&[("sec-fetch-site", "cross-site"), BEARER], Err(OtherSite)),
            (
                &[("sec-fetch-site", "cross-site"), ("origin", "https://ops.example.com")],
                Err(OtherSite),
            ),
            (&[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")], Err(Repeated)),
            (&[("origin", "http://a.example:8080")], Ok(())),
            (&[("origin", "http://A.example:8080")], Ok(())),
            (&[("origin", "https://a.example:8080")], Ok(())),
            (&[("origin", "https://ops.example.com")], Ok(())),
            (&[("origin", "https://ops.example.com:444")], Err(OtherOrigin)),
            (&[("origin", "http://a.example")], Err(OtherOrigin)),
            (&[("origin", "http://a.example.evil:8080")], Err(OtherOrigin)),
            (&[("origin", "http://ops.example.com")], Err(OtherOrigin)),
            (&[("origin", "http://evil:8080")], Err(OtherOrigin)),
            (&[("origin", "ftp://a.example:8080")], Err(OtherOrigin)),
            (&[("origin", "null")], Err(OtherOrigin)),
            (&[("origin", "")], Err(OtherOrigin)),
            (&[("origin", "a.example:8080")], Err(OtherOrigin)),
            (&[("origin", "http://evil"), BEARER], Err(OtherOrigin)),
            (&[("origin", "http://a.example:8080"), ("origin", "http://evil")], Err(Repeated)),
            (&[BEARER], Ok(())),
            (&[("authorization", "bearer t")], Ok(())),
            (&[BEARER, COOKIE_LINE], Err(Untold)),
            (&[COOKIE_LINE], Err(Untold)),
            (&[("authorization", "Basic YTpi")], Err(Untold)),
            (&[("authorization", "Bearer")], Err(Untold)),
            (&[], Err(Untold)),
        ];
        for method in ["POST", "PUT", "PATCH", "DELETE", "PROPFIND"] {
            for (lines, expected) in table {
                let lines = [&[host], *lines].concat();
                assert_eq!(judged(method, "/", &lines), *expected, "{method} {lines:?}");
            }
        }
        for method in ["GET", "HEAD", "OPTIONS", "TRACE"] {
            assert_eq!(
                judged(method, "/", &[("sec-fetch-site", "cross-site")]),
                Ok(()),
                "{method}"
            );
        }
    }

    #[test]
    fn a_port_that_is_not_said_is_that_of_the_scheme() {
        let judged = |host, origin| judged("POST", "/", &[("host", host), ("origin", origin)]);
        assert_eq!(judged("a.example", "https://a.example"), Ok(()));
        assert_eq!(judged("a.example:443", "https://a.example"), Ok(()));
        assert_eq!(judged("a.example", "https://a.example:443"), Ok(()));
        assert_eq!(judged("a.example:80", "http://a.example"), Ok(()));
        assert_eq!(judged("a.example:443", "http://a.example"), Err(OtherOrigin));
        assert_eq!(judged("[::1]:80", "http://[::1]"), Ok(()));
        assert_eq!(judged("not a host", "http://a.example"), Err(OtherOrigin));
    }

    #[test]
    fn what_is_not_an_origin_cannot_be_allowed() {
        let allow = |origin: &str| Origins::default().allow("allow_origin", origin);
        for origin in [
            "",
            "null",
            "*",
            "ops.example.com",
            "ops.example.com:443",
            "ftp://ops.example.com",
            "https://",
            "https://:443",
            "https://ops.example.com:",
            "https://ops.example.com:65536",
            "https://ops.example.com:port",
            "https://ada@ops.example.com",
            "https://ops.example.com/console",
            "https://ops.example.com//",
            "https://ops.example.com?a",
            "https://ops.example.com#a",
            "https://ops.example.com https://example.com",
            " https://ops.example.com",
            "https://öps.example.com",
            "https://*.example.com",
            "https://*",
            "http://*:80",
            "https://a.example,b.example",
            "https://$host",
            "https://.",
            "https://ops.example.com:0",
            "http://[zz]",
            "http://[::1",
            "http://127.1",
            "http://2130706433",
            "http://010.0.0.1",
            "http://0x7f.0.0.1",
            "http://127.0.0.0x1",
            "http://127.0.0.1.",
            "http://10.0.0.256",
        ] {
            let error = allow(origin).unwrap_err();
            assert_eq!(error.setting, "allow_origin");
            assert!(error.to_string().contains("https://ops.example.com or"), "{error}");
        }
        for origin in [
            "HTTPS://ops.example.com/",
            "https://ops_1.example-2.com",
            "https://xn--ps-eka.example.com",
            "http://localhost:3000",
            "http://10.0.0.1:8080",
            "http://[::1]:8080",
        ] {
            assert_eq!(allow(origin), Ok(()), "{origin}");
        }
        // A browser omits the port of the scheme.
        let parsed = |origin| Origin::parse(origin).unwrap();
        assert_eq!(parsed("https://a.example:443"), parsed("https://a.example"));
        assert_ne!(parsed("https://a.example:80"), parsed("http://a.example"));
        // It sends the short form of an address.
        assert_eq!(parsed("http://[0:0:0:0:0:0:0:1]").host, "[::1]");
        assert_eq!(parsed("http://[::FFFF:127.0.0.1]").host, "[::ffff:7f00:1]");
    }

    #[test]
    fn the_authority_of_http_2_is_the_host() {
        let origin = [("origin", "https://a.example")];
        assert_eq!(judged("POST", "https://a.example/x", &origin), Ok(()));
        assert_eq!(judged("POST", "https://b.example/x", &origin), Err(OtherOrigin));
    }
}
