//! Procedural macros of `atomic-phases`.
#[proc_macro_attribute]
pub fn atomic_phases(_: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream { item }
