"""Every option of Config names a test that shows its effect, so that no option can be wired to nothing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from mmserve.config.options import OPTIONS

TESTS = Path(__file__).parents[2]
PLAN = "unit/supervisor/startup/test_plan.py"
REQUEST_LOGS = "integration/httpserver/operations/test_request_logs.py"
LIFE = "integration/supervisor/test_life.py"
OPERATIONS = "integration/httpserver/operations/test_operations.py"
BUDGETS = "integration/httpserver/limits/test_budgets.py"
PERMITS = "integration/visualserver/test_permits.py"
READER = "unit/httpserver/media/test_reader.py"
KV_EVENTS = "integration/router/test_kv_events.py"
ROUTER = "unit/router/test_run.py"
CONNECTIONS = "unit/httpserver/http/test_connection_limits.py"
FETCH = (
    "integration/httpserver/pictures/test_media_fetch.py"
    "::test_a_reader_fetches_from_allowed_domains_within_the_configured_time"
)

SHOWN_BY = {
    "model": f"{PLAN}::test_clients_see_the_base_name",
    "served_model_name": f"{PLAN}::test_clients_see_the_base_name",
    "device": f"{PLAN}::test_given_options_are_kept",
    "dtype": f"{PLAN}::test_given_options_are_kept",
    "quantization": "unit/model_backend/platforms/cpu/linear/test_quantization.py"
    "::test_tokens_equal_transformers_with_the_rounded_weights",
    "model_impl": "unit/supervisor/startup/test_find_model.py::test_transformers_describes_the_model",
    "tp": f"{LIFE}::test_the_ready_line_names_the_model_settings_and_address",
    "cpu_threads": f"{PLAN}::test_threads_default_to_the_number_of_cores",
    "kernel_level": "unit/model_backend/platforms/cpu/library/test_build.py::test_the_option_names_the_fastest_level",
    "kernel_ways": "unit/model_backend/worker/test_model_runner.py::test_the_ways_of_the_kernels_follow_their_option",
    "attention_backend": f"{PLAN}::test_a_cpu_has_one_attention",
    "rank_sums": "unit/model_backend/platforms/cuda/test_sums.py::test_ranks_measure_where_the_option_lets_them",
    "max_model_len": f"{PLAN}::test_given_options_are_kept",
    "tool_call_parser": "integration/httpserver/protocols/test_tools.py::test_the_options_name_the_formats",
    "reasoning_parser": "integration/httpserver/protocols/test_tools.py::test_the_options_name_the_formats",
    "seed": "unit/httpserver/api/openai/test_chat.py::test_seeds",
    "host": f"{LIFE}::test_both_ports_listen_on_the_address_of_host",
    "port": f"{LIFE}::test_a_port_in_use_is_refused_before_anything_starts",
    "health_port": f"{LIFE}::test_both_ports_listen_on_the_address_of_host",
    "http_workers": "integration/supervisor/test_restarts.py::test_a_restarted_http_worker_is_told_the_phase",
    "api_key": f"{OPERATIONS}::test_all_routes_except_probes_need_the_key",
    "api_key_file": "integration/httpserver/operations/test_api_keys.py"
    "::test_each_key_opens_its_areas_and_is_counted_by_its_name",
    "caches_by_key": "unit/httpserver/request/test_tenants.py::test_the_option_overrules_the_number_of_keys",
    "allowed_hosts": "unit/httpserver/http/test_browser_guard.py::test_hosts_of_the_list_are_admitted",
    "allowed_origins": "integration/httpserver/operations/test_foreign_pages.py"
    "::test_cors_headers_are_sent_to_listed_origins_alone",
    "max_connections": f"{OPERATIONS}::test_a_connection_too_many_is_refused",
    "keep_alive_timeout": f"{CONNECTIONS}::test_limits_follow_their_options",
    "head_timeout": f"{CONNECTIONS}::test_limits_follow_their_options",
    "body_timeout": f"{CONNECTIONS}::test_limits_follow_their_options",
    "unread_timeout": f"{CONNECTIONS}::test_limits_follow_their_options",
    "web_ui": "integration/httpserver/operations/test_web_page.py::test_without_the_page_its_files_are_not_there",
    "enable_admin": f"{OPERATIONS}::test_an_operator_changes_the_share_of_allocations_without_a_restart",
    "max_body_mb": f"{OPERATIONS}::test_a_body_over_the_cap_is_413_before_more_of_it_is_read",
    "batch_dir": "integration/httpserver/stored/test_batches.py::test_a_batch_goes_on_after_a_restart",
    "batch_file_mb": "integration/httpserver/stored/test_batches.py::test_sizes_are_capped",
    "batch_storage_mb": "integration/httpserver/stored/test_batches.py::test_sizes_are_capped",
    "responses_store_mb": "integration/httpserver/stored/test_stored_responses.py"
    "::test_a_server_without_a_store_says_so",
    "responses_ttl": "integration/httpserver/stored/test_stored_responses.py"
    "::test_a_response_that_nobody_uses_is_deleted",
    "max_queued_requests": f"{OPERATIONS}::test_requests_beyond_the_limit_get_429_with_retry_after",
    "body_budget_mb": f"{BUDGETS}::test_a_body_that_waits_too_long_gets_503_with_retry_after",
    "stuck_timeout": "integration/supervisor/test_stuck.py::test_a_suspended_process_is_killed_and_started_again",
    "start_timeout": "integration/supervisor/test_stuck.py::test_a_hanging_start_ends_the_server_with_names_and_stacks",
    "request_timeout": f"{OPERATIONS}::test_a_request_beyond_the_servers_timeout_is_ended_with_504",
    "shutdown_timeout": f"{OPERATIONS}::test_requests_that_outlast_the_shutdown_timeout_are_aborted_with_an_error",
    "max_num_seqs": f"{ROUTER}::test_limits_of_the_scheduler_follow_their_options",
    "max_num_batched_tokens": f"{ROUTER}::test_limits_of_the_scheduler_follow_their_options",
    "max_step_ms": f"{ROUTER}::test_limits_of_the_scheduler_follow_their_options",
    "overlap_scheduling": "integration/router/test_run.py"
    "::test_the_ranks_have_the_next_plan_before_they_finish_the_last_one",
    "jump_forward": "integration/router/test_grammars.py::test_text_that_a_grammar_forces_takes_few_steps",
    "speculative": "e2e/models/test_speculation.py::test_answers_are_the_same_in_fewer_steps",
    "speculative_model": "e2e/models/test_speculation.py::test_answers_are_the_same_in_fewer_steps",
    "kv_cache_dtype": f"{PLAN}::test_a_cpu_takes_either_dtype_of_the_kv_cache_with_either_dtype",
    "kv_cache_gb": f"{PLAN}::test_kv_cache_gb_is_per_rank",
    "mm_cache_gb": f"{PLAN}::test_an_arena_too_small_for_one_image_is_refused",
    "prefault": "unit/httpserver/test_services.py::test_the_arena_is_mapped_at_start_only_with_prefault",
    "arena_huge_pages": f"{PLAN}::test_an_arena_in_huge_pages_may_exceed_available_memory",
    "data_budget_mb": "unit/config/resolved/test_deployment.py::test_budgets_in_the_arena_follow_their_options",
    "embed_budget_mb": "unit/httpserver/mm_cache/test_leases.py::test_embeddings_larger_than_their_budget_are_refused",
    "pixel_budget_mb": f"{PERMITS}::test_requests_that_decode_at_once_are_limited_in_bytes",
    "fetch_budget_mb": f"{BUDGETS}::test_fetched_images_have_a_separate_budget",
    "visual_workers": f"{PLAN}::test_topology_counts_and_titles",
    "enforce_eager": "unit/model_backend/worker/test_kv_cache.py::test_the_cache_takes_what_steps_and_graphs_leave",
    "visual_devices": f"{PLAN}::test_a_rank_starts_after_the_visual_servers_of_its_card",
    "visual_share": "unit/visualserver/test_card.py::test_a_tower_on_a_ranks_card_is_bounded",
    "gpu_memory_utilization": "unit/model_backend/worker/test_kv_cache.py"
    "::test_the_cache_takes_what_steps_and_graphs_leave",
    "visual_batch_size": f"{PERMITS}::test_a_request_with_more_images_than_a_batch_completes_under_one_permit",
    "enable_concurrent_alloc": f"{OPERATIONS}::test_a_server_without_v2_allocates_all_by_v1",
    "concurrent_alloc_fraction": "integration/httpserver/operations/test_traffic_split.py"
    "::test_a_new_fraction_applies_to_all_workers_and_to_a_restarted_one",
    "concurrent_alloc_workers": f"{READER}::test_large_images_are_read_in_parallel",
    "mm_hash_seed": f"{PLAN}::test_servers_share_a_hash_seed_that_was_given",
    "replicas": "ray/test_replicas.py::test_streams_go_on_when_a_replica_is_killed_and_ray_places_another_one",
    "min_replicas": "ray/test_replicas.py::test_servers_end_while_nobody_asks_and_come_back",
    "ray_address": "unit/cli/test_replicas.py::test_servers_get_the_options_that_are_not_the_fronts_and_no_secrets",
    "reports_endpoint": "e2e/machines/test_front.py::test_streams_go_on_with_equal_text_when_a_replica_is_killed",
    "embedding_events_endpoint": "integration/cache_server/test_run.py::test_the_server_serves_reports_and_stops",
    "kv_events_endpoint": f"{KV_EVENTS}::test_a_router_process_tells_what_it_caches",
    "kv_events_replay_endpoint": f"{KV_EVENTS}::test_a_router_process_tells_what_it_caches",
    "kv_events_topic": f"{KV_EVENTS}::test_a_router_process_tells_what_it_caches",
    "kv_events_format": f"{KV_EVENTS}::test_events_are_arrays_and_few_are_kept_if_asked_for",
    "kv_events_buffer_mb": f"{KV_EVENTS}::test_events_are_arrays_and_few_are_kept_if_asked_for",
    "mm_hash": f"{READER}::test_the_hash_is_the_configured_one",
    "max_mm_preprocess_concurrency": f"{PERMITS}::test_requests_that_decode_at_once_are_limited_in_number",
    "max_queued_mm_requests": f"{PERMITS}::test_waiting_is_bounded_in_number_and_time",
    "mm_queue_timeout": f"{PERMITS}::test_waiting_is_bounded_in_number_and_time",
    "mm_processor_kwargs": "unit/supervisor/startup/test_find_model.py"
    "::test_the_users_settings_of_the_image_processor_are_part_of_the_model",
    "limit_mm_per_prompt": "unit/httpserver/api/openai/test_chat.py"
    "::test_images_for_a_text_model_and_too_many_images_name_the_part",
    "max_image_pixels": f"{READER}::test_too_many_pixels_are_refused_from_the_header",
    "media_fetch_timeout": FETCH,
    "allowed_media_domains": FETCH,
    "allowed_local_media_path": f"{READER}::test_files_below_the_allowed_directory_are_read",
    "nnodes": f"{PLAN}::test_ranks_are_divided_among_nodes",
    "node_rank": f"{PLAN}::test_ranks_are_divided_among_nodes",
    "head": "unit/config/test_node_options.py::test_what_cannot_work_is_refused",
    "cluster_key_file": "unit/config/test_node_options.py::test_what_cannot_work_is_refused",
    "encoders": "integration/visualserver/test_remote.py::test_rows_equal_those_of_this_machine",
    "join": "unit/config/test_node_options.py::test_encoders_need_a_key",
    "node_timeout": "integration/cluster/nodes/test_links.py::test_a_silent_node_is_lost_after_node_timeout",
    "fault_injection": "unit/ipc/test_faults.py::test_a_process_takes_faults_only_with_the_option",
    "log_level": f"{LIFE}::test_the_log_level_applies_to_supervisor_and_servers",
    "log_format": f"{LIFE}::test_every_process_logs_json_lines",
    "access_log": f"{REQUEST_LOGS}::test_the_access_log_has_a_line_for_every_response",
    "trace_requests": f"{REQUEST_LOGS}::test_a_trace_has_every_stage_and_the_id_of_the_answer",
    "otlp_traces_endpoint": "integration/httpserver/operations/test_otlp_export.py"
    "::test_a_request_is_a_span_with_a_child_for_each_stage_in_the_trace_of_its_client",
}
"""Option -> the test that fails when the option has no effect, as file below tests/ and function."""


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_names_a_test_of_its_effect(option: str) -> None:
    assert option in SHOWN_BY, (
        f"no test shows the effect of {OPTIONS[option].flag}: write one that fails when the option is ignored, "
        "and enter it in SHOWN_BY of this file"
    )
    file, _, function = SHOWN_BY[option].partition("::")
    path = TESTS / file
    assert path.is_file(), f"the test of {OPTIONS[option].flag} is not in tests/{file} any more: correct SHOWN_BY"
    source = path.read_text()
    functions = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert function in functions, f"tests/{file} has no {function} any more: correct SHOWN_BY of {option}"
    conftest = path.parent / "conftest.py"
    sources = source + (conftest.read_text() if conftest.is_file() else "")
    named = re.search(rf"\b{option}\b|{OPTIONS[option].flag}\b", sources)
    assert named, f"tests/{file} does not use {OPTIONS[option].flag}: it cannot show its effect"


def test_the_table_names_no_option_that_is_gone() -> None:
    assert not SHOWN_BY.keys() - OPTIONS.keys()
