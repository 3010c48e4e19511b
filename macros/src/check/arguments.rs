//! What each parameter of a phase or a reconcile function is given.

use syn::Type;

use super::{Checking, Role, output_of, same, shown};
use crate::parse::{Function, Held, Parameter, ParameterKind, Phase, is_called};

/// What a parameter is given.
#[derive(Clone)]
pub(crate) enum Argument {
    Tx,
    Batch,
    Call,
    Context,
    Key,
    App,
    /// The output of the phase with this index, of this type.
    Output(usize, Box<Type>),
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
            if let Some(text) = refusal(parameter, role) {
                self.errors.at(&parameter.written, text);
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
        let is_app = match &self.request.options.app {
            Some(app) => same(app, ty),
            None => is_called(ty, "App"),
        };
        if is_app {
            self.app = Some(ty.clone());
            return Some(Argument::App);
        }
        match self.source(parameter, index) {
            Ok(at) => Some(Argument::Output(at, Box::new(ty.clone()))),
            Err(text) => {
                self.errors.at(&parameter.written, text);
                None
            }
        }
    }

    /// The earlier phase that returns what the parameter asks for: the one it is named after, or
    /// the only one. Otherwise, what to write instead.
    fn source(&self, parameter: &Parameter, index: usize) -> Result<usize, String> {
        let phases = &self.request.phases;
        let wanted = shown(&parameter.ty);
        let returning: Vec<usize> =
            (0..phases.len()).filter(|at| returns(&phases[*at], &parameter.ty)).collect();
        let (earlier, later): (Vec<usize>, Vec<usize>) =
            returning.into_iter().partition(|at| *at < index);
        let is_named = |at: &&usize| parameter.name.as_ref() == Some(&phases[**at].function.name);
        let named = |among: &[usize]| among.iter().find(is_named).copied();

        if let Some(at) = named(&earlier) {
            return Ok(at);
        }
        // Named after a later phase, it must not quietly become the output of an earlier one.
        let later = match named(&later).filter(|at| *at > index) {
            Some(at) => Some(at),
            None if earlier.is_empty() => later.first().copied(),
            None => None,
        };
        match (later, earlier.as_slice()) {
            (None, [only]) => Ok(*only),
            (None, []) => Err(self.no_source(&wanted, index)),
            (None, several) => {
                let names: Vec<String> = several
                    .iter()
                    .map(|at| format!("`{}: &{wanted}`", phases[*at].function.name))
                    .collect();
                Err(format!(
                    "several earlier phases return `{wanted}`: name the parameter after the one \
                     you mean, {}",
                    names.join(" or ")
                ))
            }
            (Some(at), _) if at == index => {
                Err(format!("`{wanted}` is the output of this phase itself: remove this parameter"))
            }
            (Some(at), _) => Err(format!(
                "`{wanted}` is the output of `{0}`, which runs later: move `{0}` before this phase",
                phases[at].function.name
            )),
        }
    }

    fn no_source(&self, wanted: &str, index: usize) -> String {
        let outputs: String = self.request.phases[..index]
            .iter()
            .map(|phase| format!("`&{}` (of `{}`), ", output_of(phase), phase.function.name))
            .collect();
        let app = match self.request.options.app.as_ref().or(self.app.as_ref()) {
            Some(app) => format!("the application's state is `&{}`", shown(app)),
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

fn returns(phase: &Phase, ty: &Type) -> bool {
    phase.function.returns.output.as_ref().is_some_and(|output| same(output, ty))
}

/// Why a parameter cannot be given like this.
fn refusal(parameter: &Parameter, role: Role) -> Option<String> {
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
        | (ParameterKind::Context | ParameterKind::Value, _, Held::Shared) => return None,
        (ParameterKind::Tx(_), Role::Phase, _) => "take the transaction as `tx: &mut Tx<'_, Db>`",
        (ParameterKind::Batch(_), Role::Phase, _) => {
            "take the batch as `batch: &mut Batch<'_, Db>`"
        }
        (ParameterKind::Call, Role::Phase, _) => {
            "a call can be made once, so it is taken by value: `call: ForeignCall`"
        }
        (ParameterKind::Key | ParameterKind::Context | ParameterKind::Value, _, _) => {
            let ty = shown(&parameter.ty);
            return Some(format!(
                "{} is given everything else as it is stored, by shared reference: write `&{ty}`",
                role.text()
            ));
        }
    };
    Some(text.to_owned())
}
