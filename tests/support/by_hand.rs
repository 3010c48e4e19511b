//! Requests that a test writes by hand, without the macro of the crate.

/// The functions of `Phases` that a request does not need whose phases are all local.
macro_rules! only_local_phases {
    ($store:ty) => {
        fn run_batch<'a>(
            &'a self,
            _: usize,
            _: &'a mut atomic_phases::Batch<'_, $store>,
            _: &'a (),
            _: &'a atomic_phases::__private::PhaseInputs<'a>,
        ) -> atomic_phases::__private::PhaseFuture<
            'a,
            atomic_phases::__private::Step,
            atomic_phases::PhaseError,
        > {
            atomic_phases::__private::no_such_phase()
        }

        fn run_foreign<'a>(
            &'a self,
            _: usize,
            _: atomic_phases::ForeignCall,
            _: &'a (),
            _: &'a atomic_phases::__private::PhaseInputs<'a>,
        ) -> atomic_phases::__private::PhaseFuture<
            'a,
            atomic_phases::__private::Step,
            atomic_phases::phase::ForeignError,
        > {
            atomic_phases::__private::no_such_phase()
        }

        fn reconcile<'a>(
            &'a self,
            _: usize,
            _: &'a (),
            _: &'a atomic_phases::__private::PhaseInputs<'a>,
        ) -> atomic_phases::__private::PhaseFuture<
            'a,
            atomic_phases::phase::Reconciled<atomic_phases::__private::Step>,
            atomic_phases::PhaseError,
        > {
            atomic_phases::__private::no_such_phase()
        }
    };
}

pub(crate) use only_local_phases;
