//! An impl block whose methods' bodies are kept as tokens: what is wrong in a body is for rustc to report,
//! once and in its own words.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use syn::parse::discouraged::Speculative;
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, Block, Error, Expr, ImplItem, ImplItemFn, ItemImpl, Result, Stmt, token};

/// Parses an impl block. With the error of the first member that cannot be parsed, the members before it.
pub(crate) fn parse(tokens: TokenStream) -> Result<(ItemImpl, Option<Error>)> {
    let mut trees: Vec<TokenTree> = unwrapped(tokens).into_iter().collect();
    let braces = match trees.pop() {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => group,
        other => {
            trees.extend(other);
            return syn::parse2(trees.into_iter().collect()).map(|item| (item, None));
        }
    };
    let mut empty = Group::new(Delimiter::Brace, TokenStream::new());
    empty.set_span(braces.span());
    trees.push(empty.into());
    let mut item: ItemImpl = syn::parse2(trees.into_iter().collect())?;
    let members = |input: ParseStream| members(input, &mut item);
    let error = members.parse2(braces.stream()).unwrap_or_else(Some);
    Ok((item, error))
}

/// Whether it is meant to be an impl block.
pub(crate) fn is_impl(tokens: &TokenStream) -> bool {
    let mut trees = unwrapped(tokens.clone()).into_iter();
    trees.any(|tree| matches!(tree, TokenTree::Ident(ident) if ident == "impl"))
}

/// Without the invisible group around an item that another macro was given.
fn unwrapped(tokens: TokenStream) -> TokenStream {
    let mut trees = tokens.clone().into_iter();
    match (trees.next(), trees.next()) {
        (Some(TokenTree::Group(group)), None) if group.delimiter() == Delimiter::None => {
            unwrapped(group.stream())
        }
        _ => tokens,
    }
}

fn members(input: ParseStream, item: &mut ItemImpl) -> Result<Option<Error>> {
    item.attrs.extend(input.call(Attribute::parse_inner)?);
    while !input.is_empty() {
        let ahead = input.fork();
        let member = match method(&ahead) {
            Ok(method) => {
                input.advance_to(&ahead);
                Ok(ImplItem::Fn(method))
            }
            // Another kind of member, or the error that there is to tell.
            Err(_) => input.parse(),
        };
        match member {
            Ok(member) => item.items.push(member),
            Err(error) => {
                input.parse::<TokenStream>()?;
                return Ok(Some(error));
            }
        }
    }
    Ok(None)
}

fn method(input: ParseStream) -> Result<ImplItemFn> {
    let attrs = input.call(Attribute::parse_outer)?;
    let vis = input.parse()?;
    let defaultness = input.parse()?;
    let sig = input.parse()?;
    let body: Group = input.parse()?;
    if body.delimiter() != Delimiter::Brace {
        return Err(Error::new(body.span(), "expected a body"));
    }
    let brace_token = token::Brace { span: body.delim_span() };
    let stmts = vec![Stmt::Expr(Expr::Verbatim(body.stream()), None)];
    Ok(ImplItemFn { attrs, vis, defaultness, sig, block: Block { brace_token, stmts } })
}
