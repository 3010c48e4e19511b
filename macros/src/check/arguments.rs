//! What each parameter of a phase or a reconcile function is given.

use syn::Type;

use super::{Checking, Role, output_of};
use crate::pages::Page;
use crate::parse::{Function, Held, Parameter, ParameterKind, Phase};
use crate::types::{alike, derefs, is_called, last_segment, same, type_argument, type_text};

/// What a parameter is given.
#[derive(Clone)]
pub(crate) enum Argument {
    Tx,
    Batch,
    Call,
    Context,
    Key,
    App,
    /// The output of the phase with this index.
    Output(Output),
}

/// How an output is handed to a parameter.
#[derive(Clone)]
pub(crate) struct Output {
    /// The index of the phase that returns it.
    pub(crate) of: usize,
    /// As that phase says it. Whether the parameter is of the same type is for rustc to compare.
    pub(crate) ty: Box<Type>,
    pub(crate) borrow: Borrow,
    /// The parameter's type, which an error of rustc is about.
    pub(crate) to: Box<Type>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Borrow {
    /// `&output`, which derefs by itself.
    Ref,
    /// `Option<&T>` of an `Option<T>`.
    AsRef,
    /// `Option<&str>` of an `Option<String>`.
    AsDeref,
}

impl Checking<'_> {
    /// What the parameters of a function at phase `index` are given.
    pub(super) fn arguments(
        &mut self,
        function: &Function,
        index: usize,
        role: Role,
    ) -> Vec<Argument> {
        let mut arguments = Vec::new();
        for parameter in &function.parameters {
            let is_alias = role == Role::Phase && function.seems_to_hide_its_handle(parameter);
            if let Some(text) = refusal(parameter, role, is_alias) {
                self.errors.at(Page::Asks, &parameter.written, text);
                continue;
            }
            arguments.extend(match &parameter.kind {
                ParameterKind::Tx(_) => Some(Argument::Tx),
                ParameterKind::Batch(_) => Some(Argument::Batch),
                ParameterKind::Call => Some(Argument::Call),
                ParameterKind::Context => Some(Argument::Context),
                ParameterKind::Key => Some(Argument::Key),
                ParameterKind::Value => self.value(parameter, index),
            });
        }
        arguments
    }

    /// The application's state or an output of an earlier phase.
    fn value(&mut self, parameter: &Parameter, index: usize) -> Option<Argument> {
        let ty = &parameter.ty;
        if parameter.held == Held::Shared && self.is_app(ty) {
            let app = self.request.options.app.as_ref().unwrap_or(ty);
            self.app.get_or_insert_with(|| app.clone());
            return Some(Argument::App);
        }
        match self.source(parameter, index) {
            Ok((of, borrow)) => {
                let output = self.request.phases[of].function.returns.output.clone()?;
                let (ty, to) = (Box::new(output), parameter.written.ty.clone());
                Some(Argument::Output(Output { of, ty, borrow, to }))
            }
            Err(text) => {
                self.errors.at(Page::Asks, &parameter.written, text);
                None
            }
        }
    }

    fn is_app(&self, ty: &Type) -> bool {
        match &self.request.options.app {
            Some(app) => alike(app, ty),
            None => {
                let is_output = |phase: &Phase| {
                    phase.function.returns.output.as_ref().is_some_and(|output| alike(output, ty))
                };
                is_called(ty, "App") && !self.request.phases.iter().any(is_output)
            }
        }
    }

    /// The earlier phase that returns what the parameter asks for: the one it is named after, or
    /// the only one. Otherwise, what to write instead.
    fn source(&self, parameter: &Parameter, index: usize) -> Result<(usize, Borrow), String> {
        let phases = &self.request.phases;
        let wanted = asked_for(parameter);
        let name_of = |at: usize| &phases[at].function.name;
        let runs_later = |at: usize| {
            format!(
                "`{wanted}` is the output of `{0}`, which runs later: move `{0}` before this phase",
                name_of(at)
            )
        };

        let is_namesake =
            |at: &usize| *at != index && parameter.name.as_ref() == Some(name_of(*at));
        if let Some(at) = (0..phases.len()).find(is_namesake) {
            return match Fit::of(&phases[at], parameter) {
                Some(fit) if at < index => Ok((at, fit.borrow)),
                Some(_) => Err(runs_later(at)),
                None => Err(format!(
                    "`{0}` is a phase and returns `{1}`, not `{wanted}`: ask for `&{1}`, or rename \
                     the parameter",
                    name_of(at),
                    output_of(&phases[at])
                )),
            };
        }

        let fit = |at: usize| Some((at, Fit::of(&phases[at], parameter)?));
        let mut fitting: Vec<(usize, Fit)> = (0..phases.len()).filter_map(fit).collect();
        // What is written alike goes before what only has the same name.
        if fitting.iter().any(|(_, fit)| fit.is_exact) {
            fitting.retain(|(_, fit)| fit.is_exact);
        }
        let (earlier, later): (Vec<_>, Vec<_>) =
            fitting.into_iter().partition(|(at, _)| *at < index);
        match (earlier.as_slice(), later.first()) {
            ([(only, fit)], _) => Ok((*only, fit.borrow)),
            ([], None) => Err(self.no_source(&wanted, index)),
            ([], Some((at, _))) if *at == index => {
                Err(format!("`{wanted}` is the output of this phase itself: remove this parameter"))
            }
            ([], Some((at, _))) => Err(runs_later(*at)),
            (several, _) => {
                let names: Vec<String> = several
                    .iter()
                    .map(|(at, _)| {
                        format!("`{}: {}`", name_of(*at), type_text(&parameter.written.ty))
                    })
                    .collect();
                Err(format!(
                    "several earlier phases return `{wanted}`: name the parameter after the one \
                     you mean, {}",
                    names.join(" or ")
                ))
            }
        }
    }

    fn no_source(&self, wanted: &str, index: usize) -> String {
        let outputs: String = self.request.phases[..index]
            .iter()
            .map(|phase| format!("`&{}` (of `{}`), ", output_of(phase), phase.function.name))
            .collect();
        let app = match self.request.options.app.as_ref().or(self.app.as_ref()) {
            Some(app) => format!("the application's state is `&{}`", type_text(app)),
            None => format!(
                "if it is the application's state, say `#[atomic_phases(.., app = {wanted})]`"
            ),
        };
        format!(
            "no earlier phase returns `{wanted}`: what can be asked for here is \
             {outputs}`&RequestContext`; {app}"
        )
    }
}

/// How a phase's output answers to a parameter.
#[derive(Clone, Copy)]
struct Fit {
    /// Whether both types are written alike.
    is_exact: bool,
    borrow: Borrow,
}

impl Fit {
    fn of(phase: &Phase, parameter: &Parameter) -> Option<Self> {
        let output = phase.function.returns.output.as_ref()?;
        let ty = &parameter.ty;
        let (output, plain, deref) = match parameter.held {
            Held::Optionally => (&optional(output)?, Borrow::AsRef, Borrow::AsDeref),
            _ => (output, Borrow::Ref, Borrow::Ref),
        };
        let is_exact = same(output, ty);
        let borrow = match derefs(output, ty) {
            true => deref,
            false if is_exact || alike(output, ty) => plain,
            false => return None,
        };
        Some(Self { is_exact, borrow })
    }
}

/// `T` of `Option<T>`.
fn optional(ty: &Type) -> Option<Type> {
    let option = last_segment(ty).filter(|segment| segment.ident == "Option")?;
    type_argument(&option.arguments, 0)
}

/// What a parameter asks for, as the phase that returns it would write it.
fn asked_for(parameter: &Parameter) -> String {
    let ty = type_text(&parameter.ty);
    match parameter.held {
        Held::Optionally => format!("Option<{ty}>"),
        _ => ty,
    }
}

/// Why a parameter cannot be given like this. `is_alias`: it may be an alias of a type of ours.
fn refusal(parameter: &Parameter, role: Role, is_alias: bool) -> Option<String> {
    let text = match (&parameter.kind, role, parameter.held) {
        (ParameterKind::Tx(_) | ParameterKind::Batch(_), Role::Reconcile, _) => {
            "a reconcile function asks the other side and has no transaction: return what it found"
        }
        (ParameterKind::Call, Role::Reconcile, _) => {
            "a reconcile function must not call again: ask the other side what happened, by \
             `key: &DerivedKey`"
        }
        (ParameterKind::Key, Role::Phase, _) => {
            "a phase is given the derived key by its call: `call.make(async |key| ..)`"
        }
        (ParameterKind::Tx(_) | ParameterKind::Batch(_), Role::Phase, Held::Exclusively)
        | (ParameterKind::Call, Role::Phase, Held::Owned)
        | (ParameterKind::Key, Role::Reconcile, Held::Shared)
        | (ParameterKind::Context, _, Held::Shared)
        | (ParameterKind::Value, _, Held::Shared | Held::Optionally) => return None,
        (ParameterKind::Tx(_), Role::Phase, _) => "take the transaction as `tx: &mut Tx<'_, Db>`",
        (ParameterKind::Batch(_), Role::Phase, _) => {
            "take the batch as `batch: &mut Batch<'_, Db>`"
        }
        (ParameterKind::Call, Role::Phase, _) => {
            "a call can be made once, so it is taken by value: `call: ForeignCall`"
        }
        (ParameterKind::Key | ParameterKind::Context | ParameterKind::Value, _, _) => {
            let ty = type_text(&parameter.ty);
            let mut text = format!(
                "{} is given everything else as it is stored, by shared reference: write `&{ty}`",
                role.text()
            );
            if is_alias {
                text += "; an alias of `Tx`, `Batch` or `ForeignCall` is not looked into: write the type itself";
            }
            return Some(text);
        }
    };
    Some(text.to_owned())
}
