"""The promises of SECURITY.md: which tests prove each, and that these exist. And promises that no other file tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from tracecvr.base.errors import UserError
from tracecvr.data.column_files import map_column

TESTS = Path(__file__).parents[1]
PROMISED = (TESTS.parent / "SECURITY.md").read_text().partition("## What is promised")[2].partition("\n## ")[0]
UNPICKLING = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


PROOFS: dict[str, dict[str, tuple[str, ...]]] = {
    "Localhost by default": {
        "test_service": ("test_nobody_outside_is_served_without_tokens",),
    },
    "Scopes": {
        "test_service": ("test_every_route_wants_a_token_of_its_scope",),
        "test_front": ("test_the_body_of_a_stranger_is_not_waited_for",),
    },
    "Tokens": {
        "test_service": (
            "test_a_token_is_made_and_works",
            "test_every_token_is_compared_whichever_it_is",
        ),
    },
    "Host names": {
        "test_front": (
            "test_without_tokens_it_is_asked_by_its_own_names_only",
            "test_names_that_it_is_given_are_its_own_with_tokens_too",
            "test_a_page_of_another_site_may_not_ask",
        ),
        "test_faults": ("test_pages_of_another_local_port_may_not_ask",),
    },
    "Replicas": {
        "test_replica": (
            "test_replicas_need_tokens_as_the_service_does",
            "test_a_replica_accepts_nothing",
            "test_a_writer_that_offers_other_files_is_not_believed",
            "test_commands",
        ),
        "test_faults": (
            "test_a_writer_that_answers_garbage_takes_nothing_away",
            "test_files_that_are_too_large_are_not_fetched",
            "test_another_store_does_not_replace_the_copy",
        ),
    },
    "TLS": {
        "test_front": ("test_it_speaks_tls",),
        "test_proxy": ("test_the_service_behind_the_proxy_that_is_shown",),
    },
    "Sizes and times": {
        "test_service": (
            "test_too_much_is_refused_and_harms_nobody",
            "test_a_body_that_declares_to_be_too_large_is_not_waited_for",
        ),
        "test_front": ("test_who_sends_all_before_he_reads_is_told_that_it_is_too_large",),
        "test_faults": ("test_of_a_click_with_very_many_actions_the_first_are_looked_at",),
    },
    "Rates": {
        "test_service": ("test_who_asks_too_often_is_slowed_down_alone",),
    },
    "Requests in progress": {
        "test_front": ("test_what_is_at_work_is_bounded_and_not_given_up",),
    },
    "Slow connections": {
        "test_front": (
            "test_idle_and_slow_connections_stop_nobody_and_are_closed_in_time",
            "test_bytes_now_and_then_do_not_keep_a_connection",
            "test_what_is_left_of_a_body_that_nobody_wanted_is_not_read_for_ever",
            "test_who_does_not_read_his_answers_is_dropped",
        ),
    },
    "Connections": {
        "test_front": (
            "test_of_too_many_connections_the_new_ones_are_closed",
            "test_what_is_at_work_is_bounded_and_not_given_up",
            "test_connections_leave_file_descriptors_for_the_work",
        ),
    },
    "Values": {
        "test_front": ("test_what_is_sent_is_a_value_and_never_a_statement_a_path_or_a_name_of_ours",),
    },
    "No server errors": {
        "test_service": (
            "test_whatever_is_sent_is_no_servers_error",
            "test_whatever_a_click_is_called_is_no_servers_error",
            "test_what_it_says_of_itself_is_true_and_no_request_is_its_error",
        ),
        "test_front": ("test_two_lengths_of_one_body_are_refused",),
    },
    "Logs": {
        "test_front": (
            "test_of_a_failure_of_ours_the_log_tells_where_and_nothing_of_the_request",
            "test_what_is_sent_is_a_value_and_never_a_statement_a_path_or_a_name_of_ours",
            "test_strangers_write_no_log_lines",
        ),
    },
    "Answers": {
        "test_front": (
            "test_a_choice_that_cannot_be_written_is_the_disks_fault",
            "test_nothing_is_answered_with_the_name_that_was_asked_for",
        ),
        "test_service": ("test_what_could_not_be_written_is_not_answered_with_success",),
    },
    "Browsers": {
        "test_front": (
            "test_every_answer_tells_a_browser_to_be_careful",
            "test_the_page_needs_no_more_than_its_policy_allows",
        ),
        "test_page_drawn": ("test_it_shows_what_happens_without_reloading",),
    },
    "Dates ahead": {
        "test_online_time": (
            "test_a_flood_of_future_dates_changes_nothing",
            "test_under_a_flood_of_future_dates_it_learns_as_if_they_had_not_been_sent",
        ),
        "test_service": ("test_a_receipt_says_what_became_of_each_event",),
    },
    "Units of time": {
        "test_online_time": (
            "test_a_time_that_cannot_be_is_told_what_was_expected",
            "test_whatever_is_sent_as_a_time_is_read_or_refused_in_one_line",
        ),
    },
    "Wrong clocks": {
        "test_online_crash": ("test_a_clock_that_jumps_ahead_lets_the_future_in_only_as_long_as_it_does",),
        "test_online_time": ("test_set_aside_and_accepted_by_the_command_line",),
    },
    "Bad values": {
        "test_feature_values": (
            "test_values_among_others_of_any_type_have_the_codes_that_they_have_alone",
            "test_a_bad_value_is_scored_as_missing_and_reported_everywhere",
            "test_a_log_that_holds_mixed_values_is_learnt_and_they_are_counted_the_same_in_every_replay",
        ),
    },
    "Contradictions": {
        "test_event_log": ("test_an_event_that_contradicts_an_earlier_one_is_set_aside_and_counted",),
        "test_online_time": ("test_what_is_set_aside_is_bounded_and_the_oldest_is_kept",),
    },
    "Harmful ticks": {
        "test_online_learner": (
            "test_at_few_clicks_a_day_a_learning_rate_of_50_is_undone_and_never_published",
            "test_the_last_good_versions_outlive_any_number_of_undone_ticks",
        ),
    },
    "All together": {
        "test_hostile": (
            "test_an_honest_client_is_not_harmed_by_a_dishonest_one_and_nothing_is_silent",
            "test_many_encounters_of_an_honest_and_a_dishonest_client",
        ),
    },
    "Credentials": {
        "test_pump": (
            "test_a_wrong_address_is_told_what_is_wrong_and_no_password",
            "test_credentials_come_from_a_file_and_are_never_shown",
            "test_poison_is_set_aside_counted_and_printed_to_be_mended",
        ),
        "test_sources": ("test_nats_credentials_come_from_the_file",),
    },
    "Owner only": {
        "test_front": ("test_nobody_else_reads_the_events",),
        "test_ledger_files": ("test_its_file_has_no_name",),
    },
    "No code": {
        "test_security": (
            "test_no_file_is_unpickled",
            "test_an_array_of_objects_is_refused",
        ),
        "test_no_code": (
            "test_no_command_executes_what_a_store_names",
            "test_no_command_executes_what_a_run_names",
            "test_a_bench_executes_a_file_only_if_the_command_names_it",
            "test_a_store_cannot_be_made_of_a_file",
        ),
        "test_challengers": (
            "test_commands",
            "test_a_damaged_version_is_made_again_and_a_damaged_definition_stops_it_alone",
        ),
        "test_routing": ("test_a_challenger_that_is_gone_or_damaged_is_passed_over",),
    },
    "Damage": {
        "test_store_checked": (
            "test_an_edited_file_is_refused",
            "test_a_lost_log_is_noticed",
            "test_a_lost_write_ahead_log_is_noticed",
            "test_events_that_were_acknowledged_and_not_yet_learnt_are_missed",
            "test_a_column_is_checked_by_size_at_once_and_by_hash_when_asked",
            "test_a_flipped_bit_is_noticed_or_changes_nothing",
        ),
        "test_online_crash": ("test_a_damaged_snapshot_is_left_out_and_made_again",),
        "test_ledger_files": (
            "test_damage_is_noticed_before_it_is_learnt_from",
            "test_an_array_of_other_content_is_noticed",
        ),
        "test_archive_order": (
            "test_damage_of_the_archive_is_not_hashed_anew",
            "test_an_archive_that_is_damaged_while_somebody_reads_it_is_refused",
        ),
        "test_table": ("test_a_flipped_bit_in_the_header_of_a_column_is_refused_or_changes_nothing",),
        "test_faults": (
            "test_a_damaged_choice_is_refused_in_one_line",
            "test_a_choice_that_is_damaged_later_changes_nothing",
        ),
        "test_exchanged_files": (
            "test_a_version_of_another_model_is_passed_over",
            "test_a_version_under_another_number_is_passed_over",
            "test_lost_versions_are_learnt_again_and_said",
            "test_another_choice_is_noticed_and_mended",
            "test_the_newer_choice_counts",
            "test_a_choice_that_nobody_made_is_refused",
            "test_the_definition_of_another_challenger_is_damage",
            "test_a_small_table_of_another_time_is_not_written_over",
            "test_what_is_set_aside_is_not_another",
            "test_positions_of_another_time_are_noticed",
            "test_a_folder_in_place_of_a_file_is_refused_in_words",
            "test_a_state_that_nobody_may_read_is_learnt_again",
            "test_a_lost_challenger_is_noticed_and_can_be_dropped",
            "test_exchanged_pages_of_the_log_are_noticed_before_anything_is_learnt",
            "test_a_log_that_is_older_than_what_was_learnt_is_refused",
            "test_a_log_that_is_older_than_what_a_challenger_has_learnt_is_noticed",
            "test_an_older_version_does_not_serve_in_silence",
            "test_a_page_of_long_features_that_is_another_is_noticed_before_it_is_learnt_from",
            "test_a_page_of_a_small_table_of_another_time_is_noticed",
            "test_a_tick_that_is_something_else_is_refused_in_one_line",
        ),
        "test_other_times": (
            "test_a_version_of_a_copy_is_not_learnt_from",
            "test_the_log_of_a_copy_is_not_learnt_from",
            "test_a_challengers_version_of_a_copy_is_not_served",
            "test_an_erasure_that_an_older_log_does_not_have_is_missed",
            "test_a_page_of_ticks_that_was_not_written_is_noticed",
            "test_the_end_of_a_long_row_that_is_another_is_noticed",
            "test_a_version_that_is_damaged_while_somebody_works_with_it_changes_nothing",
        ),
        "test_soak": ("test_bad_luck_changes_nothing_silently",),
        "test_failing_disk": (
            "test_a_description_that_is_a_list_is_refused_in_one_line",
            "test_what_comes_after_the_acknowledged_position_is_passed_over",
            "test_a_replica_serves_by_no_other_description",
            "test_a_challenger_does_not_learn_with_what_one_of_that_name_had",
            "test_what_reads_or_rewrites_all_of_a_log_looks_for_exchanged_pages_first",
            "test_a_list_of_archives_of_another_time_deletes_no_archive",
        ),
    },
    "Erasure": {
        "test_online_learner": ("test_a_user_who_is_erased_is_in_no_file_and_is_never_shown_again",),
        "test_ledger_files": ("test_an_erased_user_is_not_in_the_ledger",),
        "test_archive_order": (
            "test_an_erasure_next_to_a_compaction_leaves_nothing",
            "test_two_compactions_move_each_event_once",
        ),
        "test_failing_disk": ("test_an_erased_user_is_not_in_what_a_killed_compaction_has_left",),
        "test_challenger_ledgers": ("test_an_erased_user_is_in_no_ledger",),
        "test_challengers": ("test_a_user_who_is_erased_is_not_shown_to_challengers_either",),
        "test_pump": ("test_a_users_messages_that_were_set_aside_are_erased_with_him",),
    },
}
"""The tests that prove each promise, by file."""


def test_every_promise_has_tests_that_exist() -> None:
    promises = re.findall(r"^- \*\*(.*?)\.\*\*", PROMISED, flags=re.MULTILINE)
    assert len(promises) > 20
    assert set(promises) == set(PROOFS)
    for title, files in PROOFS.items():
        assert files, title
        for file, names in files.items():
            (path,) = TESTS.rglob(f"{file}.py")
            defined = set(re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE))
            assert defined.issuperset(names), f"{title}: {file}"


def test_the_page_of_promises_stays_short() -> None:
    assert (TESTS.parent / "SECURITY.md").stat().st_size < 6500


def test_no_file_is_unpickled() -> None:
    """Processes of a bench talk to each other by pickles, through libraries: those are not files."""
    for path in (TESTS.parent / "src").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
                assert not {name.partition(".")[0] for name in names} & UNPICKLING, path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called != "torch.load", path
                assert not any(keyword.arg == "allow_pickle" for keyword in node.keywords), path


def test_an_array_of_objects_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "column.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="column not readable"):
        map_column(tmp_path / "column.npy")
    np.save(tmp_path / "column.npy", np.array([1]))
    assert map_column(tmp_path / "column.npy").tolist() == [1]
