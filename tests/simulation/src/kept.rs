//! Shrunk plans that are kept as regression tests, each in one line.

/// The defect that each plan showed, and the plan.
pub const PLANS: &[(&str, &str)] = &[
    (
        "G9: another request that expected a new key, while a takeover of the row hung in its commit, was told \
     in progress and not mismatch",
        r#"{"seed":366,"nodes":1,"lease":10000,"poll":1000,"searchable":true,"slow_provider":false,"calls":[{"at":13929,"node":0,"scope":1,"key":1,"kind":"Ride","amount":7,"patience":3273,"tries":5,"pause":0,"manner":"ExpectNew"},{"at":4188,"node":0,"scope":0,"key":2,"kind":"Note","amount":13,"patience":2825,"tries":4,"pause":119,"manner":"ExpectNew"},{"at":133,"node":0,"scope":1,"key":3,"kind":"Ride","amount":20,"patience":500,"tries":5,"pause":0,"manner":"Plain"},{"at":488,"node":0,"scope":1,"key":1,"kind":"Ride","amount":20,"patience":504,"tries":6,"pause":0,"manner":"Accept"}],"events":[],"statements":{"83":{"there":0,"commit":12010461,"back":10884029,"cut":null}},"provider":{"1":{"before":28,"after":1831,"end":"Hangs"}}}"#,
    ),
    (
        "G17: a reconciler's run that was stopped was forgiven as an attempt, which it was not; the row was \
     unreadable from then on",
        r#"{"seed":1186,"nodes":3,"lease":10000,"poll":5000,"searchable":true,"slow_provider":true,"calls":[{"at":18696,"node":2,"scope":0,"key":0,"kind":"Note","amount":20,"patience":60000,"tries":4,"pause":474,"manner":"ExpectNew"},{"at":317,"node":0,"scope":1,"key":1,"kind":"Parcel","amount":20,"patience":60000,"tries":1,"pause":19,"manner":"Wait"},{"at":9509,"node":1,"scope":0,"key":2,"kind":"Ride","amount":20,"patience":60000,"tries":5,"pause":0,"manner":"Plain"}],"events":[{"at":36809,"lasts":8,"what":{"Kill":0}},{"at":12344,"lasts":59,"what":"DatabaseAway"},{"at":56186,"lasts":0,"what":{"Drain":1}}],"statements":{"1":{"there":0,"commit":0,"back":658,"cut":"SilentAfter"},"3":{"there":1539567,"commit":0,"back":0,"cut":"Before"},"11":{"there":0,"commit":0,"back":128625,"cut":null},"12":{"there":0,"commit":0,"back":0,"cut":"After"},"14":{"there":0,"commit":0,"back":0,"cut":"After"},"16":{"there":5035819,"commit":0,"back":0,"cut":"Before"},"22":{"there":0,"commit":0,"back":1,"cut":"After"},"37":{"there":0,"commit":0,"back":0,"cut":"SilentAfter"},"45":{"there":511542,"commit":0,"back":0,"cut":"Before"},"60":{"there":0,"commit":0,"back":12349676,"cut":"After"},"63":{"there":0,"commit":0,"back":3315211,"cut":"After"},"66":{"there":10000000,"commit":0,"back":0,"cut":"Before"},"69":{"there":1379757,"commit":0,"back":0,"cut":"Before"},"74":{"there":0,"commit":0,"back":13707,"cut":null},"78":{"there":1998953,"commit":0,"back":0,"cut":"Before"},"88":{"there":0,"commit":0,"back":173691,"cut":{"Inside":2}},"107":{"there":0,"commit":0,"back":1637785,"cut":"After"},"113":{"there":0,"commit":0,"back":0,"cut":"SilentAfter"},"115":{"there":10000000,"commit":0,"back":0,"cut":{"Inside":1}},"136":{"there":0,"commit":0,"back":0,"cut":"SilentAfter"},"165":{"there":912817,"commit":0,"back":0,"cut":"After"},"179":{"there":8550935,"commit":0,"back":0,"cut":"After"},"194":{"there":341,"commit":0,"back":0,"cut":"SilentAfter"},"197":{"there":0,"commit":0,"back":5022361,"cut":"Before"},"230":{"there":0,"commit":0,"back":57,"cut":"After"},"243":{"there":0,"commit":0,"back":7744894,"cut":null}},"provider":{"0":{"before":4,"after":25931,"end":"Refused"},"2":{"before":2675,"after":8218,"end":"Declined"},"3":{"before":1850,"after":26801,"end":"Answered"},"4":{"before":0,"after":1,"end":"Hangs"},"5":{"before":842,"after":0,"end":"Answered"}}}"#,
    ),
    (
        "the judge of G17 took a word for refused that had acquired the row, heard so after its lease, and found it \
     another's",
        r#"{"aimed":{"take over the key":{"0":{"back":9000000},"3":{"back":9000000},"4":{"back":6000000}},"write the key":{"0":{"stop":{"kill":true,"lasts":10000}}}},"calls":[{"key":3,"kind":"Alert","manner":"Accept","scope":1},{"at":3000,"key":2,"kind":"Note","scope":0},{"at":13703,"key":4,"kind":"Alert","scope":0}],"codec":{"encode response_body":[2]},"lease":5000,"provider":{"0":{"end":"Reset"}},"seed":6000,"webhooks":{"0":96}}"#,
    ),
    (
        "G17: a word about a call was held against a row that was read, and against outputs that were read behind \
     its end and its erasure",
        r#"{"aimed":{"take over the key":{"0":{"back":6000000},"1":{"back":3948026}}},"calls":[{"at":7000,"key":1,"kind":"Stray","manner":"Accept","pause":100,"scope":1,"tries":6},{"at":13117,"key":3,"kind":"Note","manner":"Accept","pause":0,"scope":1,"tries":5},{"at":9639,"key":2,"kind":"Fare","manner":"Decide","scope":0},{"at":13067,"key":2,"kind":"Fare","scope":0}],"events":[{"at":3000,"what":"DatabaseAway"},{"at":19291,"what":{"Erase":{"key":2,"node":0,"scope":0}}}],"lease":3000,"poll":5000,"provider":{"0":{"end":"Reset"},"1":{"end":"Reset"},"2":{"stop":{"kill":true,"lasts":3000}}},"searchable":false,"seed":2292,"statements":{"114":{"back":4000000},"18":{"there":5000000},"19":{"there":6000000},"24":{"back":1000000},"3":{},"30":{"back":10000000},"32":{"there":3865000},"33":{"there":5000000},"50":{"there":1911000},"69":{"back":3000000}},"webhooks":{"0":3594,"2":77}}"#,
    ),
    (
        "G2, G6: a completer gave back as never run what another node had begun and lost while it was in the completer's \
     backlog",
        r#"{"aimed":{"take over the key":{"8":{"back":8193396}},"write the key":{"1":{"back":700000}}},"calls":[{"key":0,"kind":"Ride","scope":0,"tries":3},{"at":9000,"key":51,"kind":"Note","manner":"Accept","scope":5},{"at":9237,"key":54,"kind":"Note","manner":"Accept","node":1,"scope":5},{"at":9286,"key":58,"kind":"Note","manner":"Accept","scope":5},{"at":9343,"key":60,"kind":"Note","manner":"Accept","scope":5},{"at":9281,"key":61,"kind":"Note","manner":"Accept","node":1,"scope":5},{"at":9386,"key":64,"kind":"Note","manner":"Accept","node":1,"scope":5},{"at":9167,"key":65,"kind":"Note","manner":"Accept","node":1,"scope":5},{"at":9231,"key":66,"kind":"Note","manner":"Accept","scope":5}],"lease":3000,"nodes":2,"provider":{"0":{"end":"Hangs"},"2":{"before":1656},"3":{"end":"Lost"},"6":{"stop":{"lasts":10000}},"7":{"end":"Lost"}},"seed":38}"#,
    ),
    (
        "the judge of G10 took a lease for alive that had ended when it was taken over, because the clock was set back \
     during the takeover's commit",
        r#"{"aimed":{"take over the key":{"1":{"commit":5000000}}},"calls":[{"key":1,"kind":"Ride","scope":1},{"at":4000,"key":0,"kind":"Ride","manner":"Accept","scope":0}],"events":[{"at":18887,"what":{"ClockBack":40000}}],"provider":{"1":{"stop":{"kill":true}}},"seed":200000}"#,
    ),
];
