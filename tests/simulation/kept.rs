//! Plans that are kept, and the broken guarantee that each finds.

use atomic_phases::fault::Mutant;

pub const PLANS: &[(Mutant, &str)] = &[];
