//! Plans that were shrunk once and are kept, each in one line.

/// What each showed, and the plan.
pub const PLANS: &[(&str, &str)] = &[(
    "G9: another request that expected a new key, while a takeover of the row hung in its commit, was told \
     in progress and not mismatch",
    r#"{"seed":366,"nodes":1,"lease":10000,"poll":1000,"searchable":true,"slow_provider":false,"calls":[{"at":13929,"node":0,"scope":1,"key":1,"kind":"Ride","amount":7,"patience":3273,"tries":5,"pause":0,"manner":"ExpectNew"},{"at":4188,"node":0,"scope":0,"key":2,"kind":"Note","amount":13,"patience":2825,"tries":4,"pause":119,"manner":"ExpectNew"},{"at":133,"node":0,"scope":1,"key":3,"kind":"Ride","amount":20,"patience":500,"tries":5,"pause":0,"manner":"Plain"},{"at":488,"node":0,"scope":1,"key":1,"kind":"Ride","amount":20,"patience":504,"tries":6,"pause":0,"manner":"Accept"}],"events":[],"statements":{"83":{"there":0,"commit":12010461,"back":10884029,"cut":null}},"provider":{"1":{"before":28,"after":1831,"end":"Hangs"}}}"#,
)];
