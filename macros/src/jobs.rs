//! The jobs that a request stages, as far as its block shows them: `stage_job("name", ..)`.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::LitStr;

/// The names in their order, each once. One that is not a literal, or is staged by a function elsewhere, is not
/// seen: it is listed with `Definitions::job`.
pub(crate) fn staged(block: TokenStream) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    collect(block, &mut names);
    names
}

fn collect(tokens: TokenStream, names: &mut BTreeSet<String>) {
    let mut is_call = false;
    for token in tokens {
        if let TokenTree::Group(group) = &token {
            if is_call && group.delimiter() == Delimiter::Parenthesis {
                names.extend(first_text(group.stream()));
            }
            collect(group.stream(), names);
        }
        is_call = matches!(&token, TokenTree::Ident(name) if name == "stage_job");
    }
}

/// The first argument, if it is a literal text.
fn first_text(arguments: TokenStream) -> Option<String> {
    let mut arguments = arguments.into_iter();
    let first = arguments.next()?;
    let ends = matches!(arguments.next(), Some(TokenTree::Punct(comma)) if comma.as_char() == ',');
    let text = syn::parse2::<LitStr>(first.into()).ok()?;
    ends.then(|| text.value())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::quote;

    #[test]
    fn the_names_of_staged_jobs_are_found_wherever_they_stand_in_the_block() {
        let block = quote! {
            impl A {
                async fn a(&self) {
                    tx.stage_job("mail", &1)?;
                    if x { for y in z { batch.stage_job("again", &(2, 3))?; } }
                    let staged = tx.stage_job("mail", &vec!["no"]);
                    other("not", 1);
                    tx.stage_job(name, &1)?;
                    tx.stage_job("a".trim(), &1)?;
                }
            }
        };
        assert_eq!(staged(block).into_iter().collect::<Vec<_>>(), ["again", "mail"]);
    }
}
