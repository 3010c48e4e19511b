//! Declarations that compile, and do what they say.

macro_rules! declarations {
    ($($name:ident)+) => {
        $(mod $name;)+

        $(#[test]
        fn $name() {
            $name::main();
        })+

        /// No file is left out.
        #[test]
        fn each_file_is_a_module() {
            let mut files: Vec<_> = std::fs::read_dir("tests/ui/pass").unwrap().collect();
            files.retain(|file| file.as_ref().unwrap().file_name() != "mod.rs");
            assert_eq!(files.len(), [$(stringify!($name)),+].len());
        }
    };
}

declarations! {
    all_foreign
    batch
    batch_generic_over_db
    batch_of_their_own
    declared_app
    diesel_columns
    equal_outputs_by_name
    every_attribute
    flow
    generic_over_app
    generic_over_db
    impl_lifetime
    inside_a_function
    names_of_ours
    ordinary_methods
    outputs_by_name
    own_error
    reconcile
    single_phase
    small_forms
    twelve_phases
}
