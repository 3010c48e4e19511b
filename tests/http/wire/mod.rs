//! The rows of the wire contract, each as one test over a real socket, for either profile.
//!
//! `rows!` makes the tests: rows about the header or the body on SQLite alone, rows about the life
//! of a key on each store.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

pub mod client;
pub mod expect;
pub mod header_rows;
pub mod life_rows;
pub mod request_rows;
pub mod server;

/// Every row, for one profile.
macro_rules! rows {
    ($profile:expr) => {
        crate::wire::rows_of! { $profile, header_rows, Sqlite => on_sqlite_header:
            w01_without_a_key_is_400,
            w02_a_quoted_key_is_read_without_its_quotes,
            w03_a_bare_key_is_read_whatever_its_first_character,
            w04_quoted_and_bare_name_one_key,
            w05_parameters_of_the_header_are_ignored,
            w06_surrounding_spaces_are_trimmed,
            w07_malformed_is_400_and_nothing_is_reserved,
            w08_two_lines_are_400_and_nothing_is_reserved,
            w09_255_characters_are_a_key_and_256_are_not,
            w10_letter_case_makes_two_keys,
            w11_malformed_on_an_optional_route_is_never_treated_as_absent,
        }
        crate::wire::rows_of! { $profile, life_rows, Sqlite => on_sqlite, Postgres => on_postgres, Mysql => on_mariadb:
            w20_the_first_answer_has_key_and_expiry_and_no_marker,
            w21_a_replay_is_equal_three_times,
            w22_a_rejection_is_stored_and_replayed,
            w23_parameters_that_do_not_parse_leave_the_key_unused,
            w24_answers_of_outer_layers_are_not_stored,
            w25_a_retryable_failure_is_503_and_resumes,
            g14_a_request_that_this_build_cannot_continue_has_a_503_of_its_own,
            w26_a_final_failure_is_stored_and_replayed,
            w27_a_panic_is_500_and_resumes,
            w28_a_duplicate_while_running_is_409,
            w28_retry_after_is_short_while_the_holder_gives_signs,
            w29_the_stripe_profile_waits_by_default,
            w29_a_duplicate_in_wait_mode_hears_the_end,
            w30_a_duplicate_in_accept_mode_is_202,
            w30_an_accepted_request_is_202_before_it_runs,
            w30_every_key_has_a_status_uri_that_clients_leave_alone,
            w31_a_duplicate_with_another_body_while_running_is_a_mismatch,
            w32_a_dead_holders_request_resumes,
            w33_a_stale_holders_client_hears_the_winners_answer,
            w34_an_unknown_outcome_is_409_and_is_not_repeated,
            w34_the_stripe_profile_waits_for_an_outcome_that_is_soon_known,
            g2_a_record_that_was_deleted_is_409_and_not_retryable,
            w35_a_client_that_hangs_up_cancels_nothing,
            w36_a_client_that_hangs_up_at_any_byte_reserves_nothing,
            w37_a_retry_after_the_effect_sends_the_same_derived_key,
            w38_past_its_expiry_a_key_is_new,
            w39_store_down_before_is_503_and_nothing_happened,
            w40_store_down_at_the_end_is_503_and_resumes,
            w41_a_dead_letter_is_409_and_not_retryable,
            a_quota_is_429_and_its_requests_are_not_stored,
            a_request_without_a_key_is_told_the_truth_by_a_quota_and_takes_no_key_of_it,
            a_request_without_a_key_that_meets_a_shutdown_may_be_sent_again,
        }
        crate::wire::rows_of! { $profile, request_rows, Sqlite => on_sqlite_request:
            w50_another_value_method_path_or_query_is_a_mismatch,
            w51_what_the_handler_does_not_see_is_the_same_request,
            w52_the_order_of_elements_counts,
            w53_integers_past_2_to_the_53_count,
            w54_normalization_forms_count,
            w55_a_member_given_twice_is_400_and_not_stored,
            w55_nothing_hides_a_member_that_is_given_twice,
            an_array_is_no_object,
            forms_that_do_not_decode_are_400,
            a_body_that_does_not_arrive_in_time_is_408,
            a_401_says_how_to_authenticate,
            types_and_codings_are_compared_as_http_says,
            w56_an_unfingerprinted_field_does_not_count,
            w57_json_and_form_of_equal_parameters_are_one_request,
            w58_another_key_is_another_request,
            w59_a_row_of_a_newer_fingerprint_is_left_alone,
            w70_scopes_are_independent,
            w71_scope_and_key_are_never_joined,
            w73_other_methods_pass_through,
            w73_what_passes_through_is_read_by_the_same_policy,
            w74_headers_of_the_allow_list_are_replayed_in_order,
            w74_what_a_phase_says_replaces_and_is_never_doubled,
            w74_a_header_line_that_would_be_two_is_an_error,
            w75_any_other_header_is_on_the_first_answer_only_and_not_stored,
            w76_empty_204_and_binary_bodies_are_exact,
            w77_a_reply_over_the_cap_is_410_on_replay,
            w78_a_body_over_the_cap_is_413_and_nothing_is_reserved,
            w79_hostile_json_is_400,
            bodies_of_another_type_are_415,
            a_caller_without_a_scope_is_401_before_its_key_is_read,
        }
    };
}
pub(crate) use rows;

macro_rules! rows_of {
    ($profile:expr, $rows:ident, $($store:ident => $module:ident),+ : $($name:ident),+ $(,)?) => {
        crate::wire::rows_of! { @ $profile, $rows, [$($store => $module),+] [$($name),+] }
    };
    (@ $profile:expr, $rows:ident, [$store:ident => $module:ident] $names:tt) => {
        crate::wire::rows_of! { @@ $profile, $rows, $store, $module, $names }
    };
    (@ $profile:expr, $rows:ident,
        [$store:ident => $module:ident, $two:ident => $other:ident, $three:ident => $third:ident] $names:tt
    ) => {
        crate::wire::rows_of! { @@ $profile, $rows, $store, $module, $names }
        crate::wire::rows_of! { @@ $profile, $rows, $two, $other, $names }
        #[cfg(feature = "mysql")]
        crate::wire::rows_of! { @@ $profile, $rows, $three, $third, $names }
    };
    (@@ $profile:expr, $rows:ident, $store:ident, $module:ident, [$($name:ident),+]) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let db = <atomic_phases::store::$store as crate::support::TestDb>::fresh().await;
                crate::wire::$rows::$name(db, $profile).await;
            })+
        }
    };
}
pub(crate) use rows_of;
