//! What the user wrote: an impl block taken apart into phases, reconcile functions and the rest.
//! Judges only what cannot be read at all; `check` does the rest.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Error, FnArg, GenericParam, Ident, ImplItem, ImplItemFn, ItemImpl, Meta, Pat,
    PatType, Result, ReturnType, Token, Type, parse_quote,
};

use crate::options::{DefinitionOptions, PhaseOptions, phase_options, reconciled_phase};
use crate::pages::Page;
use crate::types::{alike, is_called, last_segment, type_argument};

/// An annotated impl block.
pub(crate) struct Request {
    pub(crate) options: DefinitionOptions,
    pub(crate) item: ItemImpl,
    pub(crate) phases: Vec<Phase>,
    pub(crate) reconciles: Vec<Reconcile>,
}

/// A method marked `#[phase]`.
pub(crate) struct Phase {
    pub(crate) options: PhaseOptions,
    pub(crate) function: Function,
}

/// A method marked `#[reconcile(phase)]`.
pub(crate) struct Reconcile {
    pub(crate) settles: Ident,
    pub(crate) function: Function,
}

/// What matters of a phase's or reconcile function's signature.
pub(crate) struct Function {
    pub(crate) name: Ident,
    pub(crate) is_async: bool,
    pub(crate) is_unsafe: bool,
    /// What stands where `&self` belongs: another receiver, or nothing (then the name).
    pub(crate) bad_receiver: Option<TokenStream>,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) returns: Returns,
    /// Own generic parameters, which a phase cannot have.
    pub(crate) generics: Option<TokenStream>,
    /// A `#[cfg]` on the whole method or on a parameter.
    pub(crate) condition: Option<Attribute>,
}

/// One parameter after `&self`.
pub(crate) struct Parameter {
    /// All of it, for errors.
    pub(crate) written: PatType,
    pub(crate) name: Option<Ident>,
    pub(crate) held: Held,
    /// Its type, without the reference; `T` of `Option<&T>`.
    pub(crate) ty: Type,
    pub(crate) kind: ParameterKind,
}

/// `T`, `&T`, `&mut T` or `Option<&T>`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    Owned,
    Shared,
    Exclusively,
    Optionally,
}

/// What a parameter asks for, by the name of its type, however it is held.
pub(crate) enum ParameterKind {
    /// `Tx<'_, Db>`, with `Db` if it can be read.
    Tx(Option<Box<Type>>),
    /// `Batch<'_, Db>`, with `Db` if it can be read.
    Batch(Option<Box<Type>>),
    /// `ForeignCall`.
    Call,
    /// `RequestContext`.
    Context,
    /// `DerivedKey`.
    Key,
    /// Anything else: to be found among the outputs, or the application's state.
    Value,
}

/// A return type, taken apart.
pub(crate) struct Returns {
    /// All of it, or the function's name where there is none, for errors.
    pub(crate) written: TokenStream,
    /// `T` of `PhaseResult<T, ..>`; `None` where it is not a result.
    pub(crate) output: Option<Type>,
    /// `Flow<..>` or `Reconciled<..>` around it.
    pub(crate) wrapper: Option<Ident>,
}

impl Request {
    /// Takes the attributes off the methods, so that what is left compiles by itself.
    pub(crate) fn parse(options: TokenStream, mut item: ItemImpl) -> Result<Self> {
        if let Some((_, path, _)) = &item.trait_ {
            let text = "phases are the request's own methods: move them from this trait's impl to \
                an inherent one, `impl CreateRide { .. }`";
            return Err(Error::new_spanned(path, Page::Block.explains(text)));
        }
        let options = syn::parse2(options).map_err(|error| Page::Block.on(error));
        let (options, (phases, reconciles)) = both(options, methods(&mut item))?;
        let mut request = Self { options, item, phases, reconciles };
        request.yield_names();
        Ok(request)
    }

    /// No output is a type of ours, because none of them can be stored: where a phase returns a type of that
    /// name, it is the application's.
    fn yield_names(&mut self) {
        let outputs: Vec<Type> =
            self.phases.iter().filter_map(|phase| phase.function.returns.output.clone()).collect();
        let phases = self.phases.iter_mut().map(|phase| &mut phase.function);
        let reconciles = self.reconciles.iter_mut().map(|reconcile| &mut reconcile.function);
        for parameter in phases.chain(reconciles).flat_map(|function| &mut function.parameters) {
            if parameter.held == Held::Shared
                && outputs.iter().any(|output| alike(output, &parameter.ty))
            {
                parameter.kind = ParameterKind::Value;
            }
        }
    }
}

fn methods(item: &mut ItemImpl) -> Result<(Vec<Phase>, Vec<Reconcile>)> {
    let (mut phases, mut reconciles, mut errors) = (Vec::new(), Vec::new(), Errors::default());
    for member in &mut item.items {
        let ImplItem::Fn(method) = member else { continue };
        let marks = take_marks(method);
        if !marks.is_empty() {
            // `async`, `&self` and what a parameter looks like are ours to ask for, so no lint may blame the
            // user for them.
            method.attrs.push(parse_quote!(#[allow(
                clippy::unused_async,
                clippy::unused_self,
                clippy::too_many_arguments,
                clippy::trivially_copy_pass_by_ref
            )]));
        }
        match marks.as_slice() {
            [] => {}
            [mark, ..] if gives(mark, &MARKS) => {
                let text = "a phase cannot be conditional, because stored rows count on it: write the \
                    attribute by itself, without `cfg_attr`";
                errors.at(Page::Signature, mark, text);
            }
            [mark] if is_mark(mark, "phase") => {
                if let Some(options) = errors.keep(phase_options(mark)) {
                    phases.push(Phase { options, function: Function::of(method) });
                }
            }
            [mark] => {
                if let Some(settles) = errors.keep(reconciled_phase(mark)) {
                    reconciles.push(Reconcile { settles, function: Function::of(method) });
                }
            }
            [_, second, ..] => {
                let text = "a method is one phase or one reconcile function: remove this attribute, \
                    and write all options of a phase into one `#[phase(.., ..)]`";
                errors.at(Page::Marks, second, text);
            }
        }
    }
    errors.into_result()?;
    Ok((phases, reconciles))
}

const MARKS: [&str; 2] = ["phase", "reconcile"];

/// Takes off `#[phase]` and `#[reconcile]`, also with a path in front, and where they are conditional.
pub(crate) fn take_marks(method: &mut ImplItemFn) -> Vec<Attribute> {
    let is_ours =
        |mark: &mut Attribute| MARKS.iter().any(|name| is_mark(mark, name)) || gives(mark, &MARKS);
    method.attrs.extract_if(.., is_ours).collect()
}

fn is_mark(attribute: &Attribute, name: &str) -> bool {
    is_last(attribute.path(), name)
}

fn is_last(path: &syn::Path, name: &str) -> bool {
    path.segments.last().is_some_and(|segment| segment.ident == name)
}

/// Whether it is a `cfg_attr` that gives an attribute with one of these names.
fn gives(attribute: &Attribute, names: &[&str]) -> bool {
    let list = Punctuated::<Meta, Token![,]>::parse_terminated;
    attribute.path().is_ident("cfg_attr")
        && attribute.parse_args_with(list).is_ok_and(|given| {
            let mut given = given.iter().skip(1);
            given.any(|meta| names.iter().any(|name| is_last(meta.path(), name)))
        })
}

/// Whether what stands behind it exists in some builds only.
fn is_condition(attribute: &&Attribute) -> bool {
    attribute.path().is_ident("cfg") || gives(attribute, &["cfg"])
}

impl Function {
    fn of(method: &ImplItemFn) -> Self {
        let signature = &method.sig;
        let bad_receiver = match signature.receiver() {
            Some(receiver) => {
                let shared = receiver.reference.is_some() && receiver.mutability.is_none();
                (!shared || receiver.colon_token.is_some()).then(|| receiver.to_token_stream())
            }
            None => Some(signature.ident.to_token_stream()),
        };
        // A lifetime can only be that of a borrow, which the caller's satisfies.
        let is_own = |param: &&GenericParam| !matches!(param, GenericParam::Lifetime(_));
        let generics: Vec<_> = signature.generics.params.iter().filter(is_own).collect();
        let of_parameters = signature.inputs.iter().flat_map(|input| match input {
            FnArg::Typed(parameter) => &parameter.attrs,
            FnArg::Receiver(receiver) => &receiver.attrs,
        });
        Self {
            name: signature.ident.clone(),
            is_async: signature.asyncness.is_some(),
            is_unsafe: signature.unsafety.is_some(),
            bad_receiver,
            parameters: signature.inputs.iter().filter_map(Parameter::of).collect(),
            returns: Returns::of(&signature.output, &signature.ident),
            generics: (!generics.is_empty()).then(|| quote!(#(#generics),*)),
            condition: method.attrs.iter().chain(of_parameters).find(is_condition).cloned(),
        }
    }

    /// Whether it hands its statements over.
    pub(crate) fn takes_batch(&self) -> bool {
        self.parameters.iter().any(|parameter| matches!(parameter.kind, ParameterKind::Batch(_)))
    }

    /// Whether the parameter may be its transaction or call, by an alias.
    pub(crate) fn seems_to_hide_its_handle(&self, parameter: &Parameter) -> bool {
        let is_handle = |parameter: &Parameter| {
            use ParameterKind::{Batch, Call, Tx};
            matches!(parameter.kind, Tx(_) | Batch(_) | Call)
        };
        matches!(parameter.kind, ParameterKind::Value)
            && matches!(parameter.held, Held::Owned | Held::Exclusively)
            && !self.parameters.iter().any(is_handle)
    }

    /// Whether any of its parameters may be that.
    pub(crate) fn hides_its_handle(&self) -> bool {
        self.parameters.iter().any(|parameter| self.seems_to_hide_its_handle(parameter))
    }

    /// The name as it is stored: `r#match` is called `match`.
    pub(crate) fn stored_name(&self) -> String {
        self.name.unraw().to_string()
    }
}

impl Parameter {
    fn of(input: &FnArg) -> Option<Self> {
        let FnArg::Typed(written) = input else { return None };
        let name = match &*written.pat {
            Pat::Ident(pattern) => Some(pattern.ident.clone()),
            _ => None,
        };
        let (held, ty) = match &*written.ty {
            Type::Reference(reference) => {
                let held = reference.mutability.map_or(Held::Shared, |_| Held::Exclusively);
                (held, (*reference.elem).clone())
            }
            other => match optional_reference(other) {
                Some(ty) => (Held::Optionally, ty),
                None => (Held::Owned, other.clone()),
            },
        };
        let kind = ParameterKind::of(&ty);
        // Its attributes are no part of what it asks for.
        let written = PatType { attrs: Vec::new(), ..written.clone() };
        Some(Self { written, name, held, ty, kind })
    }
}

/// `T` of `Option<&T>`.
fn optional_reference(ty: &Type) -> Option<Type> {
    let option = last_segment(ty).filter(|segment| segment.ident == "Option")?;
    match type_argument(&option.arguments, 0)? {
        Type::Reference(reference) if reference.mutability.is_none() => Some(*reference.elem),
        _ => None,
    }
}

impl ParameterKind {
    fn of(ty: &Type) -> Self {
        let Some(segment) = last_segment(ty) else { return Self::Value };
        match segment.ident.to_string().as_str() {
            "Tx" => Self::Tx(type_argument(&segment.arguments, 0).map(Box::new)),
            "Batch" => Self::Batch(type_argument(&segment.arguments, 0).map(Box::new)),
            "ForeignCall" => Self::Call,
            "RequestContext" => Self::Context,
            "DerivedKey" => Self::Key,
            _ => Self::Value,
        }
    }

    /// The name of the type by which a local phase writes.
    pub(crate) fn handle(&self) -> &'static str {
        match self {
            Self::Batch(_) => "Batch",
            _ => "Tx",
        }
    }
}

impl Returns {
    fn of(output: &ReturnType, function: &Ident) -> Self {
        let ReturnType::Type(_, ty) = output else {
            return Self { written: function.to_token_stream(), output: None, wrapper: None };
        };
        let written = ty.to_token_stream();
        let result = last_segment(ty)
            .filter(|segment| segment.ident == "PhaseResult" || segment.ident == "Result")
            .and_then(|segment| type_argument(&segment.arguments, 0));
        let Some(inner) = result else { return Self { written, output: None, wrapper: None } };
        let wrapped = last_segment(&inner)
            .filter(|segment| segment.ident == "Flow" || segment.ident == "Reconciled")
            .and_then(|segment| {
                Some((segment.ident.clone(), type_argument(&segment.arguments, 0)?))
            });
        match wrapped {
            Some((wrapper, output)) => {
                Self { written, output: Some(output), wrapper: Some(wrapper) }
            }
            None => Self { written, output: Some(inner), wrapper: None },
        }
    }

    pub(crate) fn is_reply(&self) -> bool {
        self.output.as_ref().is_some_and(|ty| is_called(ty, "Reply"))
    }

    pub(crate) fn is_wrapped_in(&self, name: &str) -> bool {
        self.wrapper.as_ref().is_some_and(|wrapper| wrapper == name)
    }
}

/// All mistakes together, so that a user can mend them in one go.
#[derive(Default)]
pub(crate) struct Errors(Option<Error>);

impl Errors {
    pub(crate) fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// Underlines all of `tokens`, and links to what explains the error.
    pub(crate) fn at(&mut self, page: Page, tokens: impl ToTokens, text: impl std::fmt::Display) {
        self.add(Error::new_spanned(tokens, page.explains(text)));
    }

    pub(crate) fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    pub(crate) fn into_result(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

/// Both, or the mistakes of both.
fn both<A, B>(one: Result<A>, other: Result<B>) -> Result<(A, B)> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(mut one), Err(other)) => {
            one.combine(other);
            Err(one)
        }
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
    }
}
