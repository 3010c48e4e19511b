//! Types as they are written. The macro sees no more of them than their names: what it lets pass because two
//! types look alike, rustc still compares.

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{GenericArgument, PathArguments, PathSegment, Type};

/// A type as a user would write it: `Vec<Ride>`, not `Vec < Ride >`.
pub(crate) fn type_text(ty: &Type) -> String {
    Form::Whole.of(ty)
}

/// Whether two types are written alike, but for white space, parentheses and a trailing comma.
pub(crate) fn same(one: &Type, other: &Type) -> bool {
    Form::Whole.of(one) == Form::Whole.of(other)
}

/// Whether two types have the same name, by whichever path: `outs::Ride` and `Ride`.
pub(crate) fn alike(one: &Type, other: &Type) -> bool {
    Form::Named.of(one) == Form::Named.of(other)
}

/// Whether a reference to `owned` is coerced into one to `borrowed`: `&String` into `&str`.
pub(crate) fn derefs(owned: &Type, borrowed: &Type) -> bool {
    let Some(owned) = last_segment(owned) else { return false };
    let within = type_argument(&owned.arguments, 0).map(|ty| Form::Named.of(&ty));
    let target = match (owned.ident.to_string().as_str(), within) {
        ("String", None) => "str".to_owned(),
        ("PathBuf", None) => "Path".to_owned(),
        ("Vec", Some(element)) => format!("[{element}]"),
        ("Box", Some(inner)) => inner,
        _ => return false,
    };
    Form::Named.of(borrowed) == target
}

/// Whether the type is a path that ends in `name`.
pub(crate) fn is_called(ty: &Type, name: &str) -> bool {
    last_segment(ty).is_some_and(|segment| segment.ident == name)
}

/// Whether one of `names` stands anywhere in the tokens.
pub(crate) fn mentions(tokens: TokenStream, names: &[Ident]) -> bool {
    tokens.into_iter().any(|tree| match tree {
        TokenTree::Ident(ident) => names.contains(&ident),
        TokenTree::Group(group) => mentions(group.stream(), names),
        _ => false,
    })
}

/// Whether a lifetime other than `'static` stands anywhere in the tokens.
pub(crate) fn borrows(tokens: TokenStream) -> bool {
    let mut quoted = false;
    tokens.into_iter().any(|tree| match tree {
        TokenTree::Ident(ident) => std::mem::take(&mut quoted) && ident != "static",
        TokenTree::Punct(punct) => {
            quoted = punct.as_char() == '\'';
            false
        }
        TokenTree::Group(group) => borrows(group.stream()),
        TokenTree::Literal(_) => false,
    })
}

pub(crate) fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match ty {
        Type::Path(path) => path.path.segments.last(),
        Type::Group(group) => last_segment(&group.elem),
        Type::Paren(paren) => last_segment(&paren.elem),
        _ => None,
    }
}

pub(crate) fn type_argument(arguments: &PathArguments, index: usize) -> Option<Type> {
    let PathArguments::AngleBracketed(arguments) = arguments else { return None };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty.clone()),
        _ => None,
    });
    types.into_iter().nth(index)
}

/// How much of a type's text counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Whole,
    /// Each path by its last segment, without lifetimes.
    Named,
}

impl Form {
    fn of(self, ty: &Type) -> String {
        match ty {
            Type::Path(path) if path.qself.is_none() => self.path(&path.path),
            Type::Group(group) => self.of(&group.elem),
            Type::Paren(paren) => self.of(&paren.elem),
            Type::Slice(slice) => format!("[{}]", self.of(&slice.elem)),
            Type::Array(array) => {
                format!("[{}; {}]", self.of(&array.elem), array.len.to_token_stream())
            }
            Type::Tuple(tuple) => {
                let parts: Vec<String> = tuple.elems.iter().map(|elem| self.of(elem)).collect();
                match parts.as_slice() {
                    [only] => format!("({only},)"),
                    parts => format!("({})", parts.join(", ")),
                }
            }
            Type::Reference(reference) => {
                let lifetime = match &reference.lifetime {
                    Some(lifetime) if self == Self::Whole => format!("{lifetime} "),
                    _ => String::new(),
                };
                let mutability = reference.mutability.map_or("", |_| "mut ");
                format!("&{lifetime}{mutability}{}", self.of(&reference.elem))
            }
            other => tight(other),
        }
    }

    fn path(self, path: &syn::Path) -> String {
        let segments: Vec<String> = path.segments.iter().map(|part| self.segment(part)).collect();
        match (self, segments.as_slice()) {
            (Self::Named, [.., last]) => last.clone(),
            (_, segments) => {
                let root = path.leading_colon.map_or("", |_| "::");
                format!("{root}{}", segments.join("::"))
            }
        }
    }

    fn segment(self, segment: &PathSegment) -> String {
        let name = &segment.ident;
        let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
            return format!("{name}{}", tight(&segment.arguments));
        };
        let arguments: Vec<String> = arguments
            .args
            .iter()
            .filter_map(|argument| match argument {
                GenericArgument::Type(ty) => Some(self.of(ty)),
                GenericArgument::Lifetime(_) if self == Self::Named => None,
                GenericArgument::Lifetime(lifetime) => Some(lifetime.to_string()),
                other => Some(tight(other)),
            })
            .collect();
        match arguments.as_slice() {
            [] => name.to_string(),
            arguments => format!("{name}<{}>", arguments.join(", ")),
        }
    }
}

/// Any other tokens, with the white space that a user would write.
fn tight(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for spaced in [" < ", " >", " :: ", " ,", "& "] {
        text = text.replace(spaced, spaced.trim());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ty(text: &str) -> Type {
        syn::parse_str(text).unwrap()
    }

    #[test]
    fn a_type_is_shown_as_a_user_writes_it() {
        for text in [
            "Vec<Ride>",
            "::std::vec::Vec<Option<outs::Ride>>",
            "(Ride,)",
            "(Ride, [Seat; 3])",
            "()",
            "[Ride]",
            "&'a mut Tx<'_, Db>",
            "App<3>",
        ] {
            assert_eq!(type_text(&ty(text)), text);
        }
        assert_eq!(type_text(&ty("Vec< (Ride) ,>")), "Vec<Ride>");
    }

    #[test]
    fn types_are_compared_by_their_names() {
        assert!(same(&ty("Vec<Ride,>"), &ty("Vec<Ride>")));
        assert!(!same(&ty("outs::Ride"), &ty("Ride")));
        assert!(alike(&ty("outs::Ride"), &ty("::a::Ride")));
        assert!(alike(&ty("Cow<'_, str>"), &ty("Cow<'static, str>")));
        assert!(!alike(&ty("Vec<Ride>"), &ty("Vec<Charge>")));
        assert!(!alike(&ty("<A as B>::Ride"), &ty("Ride")));
    }

    #[test]
    fn what_derefs_is_known() {
        for (owned, borrowed) in [
            ("String", "str"),
            ("std::path::PathBuf", "Path"),
            ("Vec<outs::Ride>", "[Ride]"),
            ("Box<Ride>", "Ride"),
            ("Box<[Ride]>", "[Ride]"),
        ] {
            assert!(derefs(&ty(owned), &ty(borrowed)), "{owned}");
            assert!(!derefs(&ty(borrowed), &ty(owned)), "{owned}");
        }
    }

    #[test]
    fn a_lifetime_is_found() {
        assert!(borrows(quote::quote!(Line<(u8, &'a str)>)));
        assert!(borrows(quote::quote!(Line<'_>)));
        assert!(!borrows(quote::quote!(Line<&'static str>)));
    }
}
