"""Every limit of the house, and the test that holds it at its value and one step beyond.

A *bound* is a quantity: its proof goes to it and one past it. A *deadline* is a time: its proof sees nothing before it and something after.
A *pace* is a period, a pause between tries or a size of steps: nothing can exceed it, the proof sees it at work. A *choice* bounds nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.conversation.limits import Limits as CoreLimits
from gateway.graph.kinds import AlignmentOptions, ChatOptions, DialogOptions
from gateway.graph.native import NativeSettings, OverlapDefaults
from gateway.graph.profile import Limits as ProfileLimits
from gateway.graph.profile import Pacing, ServerVadDefaults, SessionDefaults
from gateway.settings import Settings as GatewaySettings
from gateway.wire import WireLimits
from minicpmo45.slots import PlanSettings
from parley.client.limits import Limits as ClientLimits
from parley.supervisor.settings import SupervisorSettings
from session_store import StoreSettings
from stage_kit import Settings as StageSettings
from talker_svc.minicpmo45.settings import MiniCpmTalkerSettings
from talker_svc.settings import TalkerSettings
from thinker_svc.embedded.asr_settings import AsrSettings
from thinker_svc.embedded.llm_settings import LlmSettings
from thinker_svc.minicpmo45.settings import MiniCpmThinkerSettings
from thinker_svc.remote_chat_settings import RemoteChatSettings
from vad_svc.settings import TurnSettings
from vocoder_svc.minicpmo45.settings import MiniCpmVocoderSettings
from vocoder_svc.settings import VocoderSettings


class Bound(msgspec.Struct, frozen=True):
    proof: str
    """file::test, below tests/."""


class Deadline(msgspec.Struct, frozen=True):
    proof: str


class Pace(msgspec.Struct, frozen=True):
    proof: str


class Choice(msgspec.Struct, frozen=True):
    why: str


Limit = Bound | Deadline | Pace | Choice
CORE = "gateway/conversation"
DEADLINES = Deadline("limits/test_core.py::test_a_deadline_of_the_core_comes_when_its_time_is_up_and_not_before")
WIRE = Bound("gateway/wire/test_parse_refusals.py::test_size_limits_hold_at_the_limit_and_one_more")
FREE_FORM = Bound("gateway/wire/test_parse_refusals.py::test_free_form_json_is_bounded_in_depth_and_size")
SCHEMA = Bound("limits/test_settings.py::test_a_value_at_a_bound_is_taken_and_one_beyond_it_refused")
SLOTS = Bound("stage_kit/test_flow.py::test_opens_never_exceed_the_slots_and_a_duplicate_touches_nothing")

GATEWAY: dict[str, Limit] = {
    "tenant_max_sessions": Bound("e2e/test_bad_input.py::test_keys_by_header_and_by_subprotocol"),
    "key_max_sessions": Bound("security/test_keys.py::test_what_holds_for_keys_that_say_nothing_themselves"),
    "opens_per_minute": Bound("security/test_keys.py::test_what_holds_for_keys_that_say_nothing_themselves"),
    "client_secrets_per_minute": Bound(
        "security/test_client_secrets.py::test_a_key_makes_so_many_secrets_a_minute_at_all_gateways_and_not_one_more"
    ),
    "failed_auth_per_minute": Bound(
        "security/test_keys.py::test_an_address_may_show_so_many_bad_keys_and_then_nobody_from_there_is_let_in"
    ),
    "keys_cache_ms": Deadline("gateway/access/test_keys.py::test_a_key_of_the_store_is_believed_for_its_time_and_not_longer"),
    "client_secret_s": Deadline("session_store/test_api_keys.py::test_a_secret_lives_as_long_as_it_may"),
    "max_client_secret_s": Bound("security/test_client_secrets.py::test_how_long_a_secret_may_live"),
    "max_body_bytes": Bound("security/test_client_secrets.py::test_a_body_may_have_so_many_bytes_and_not_one_more"),
    "body_timeout_ms": Deadline("security/test_client_secrets.py::test_a_body_is_waited_for_as_long_as_it_may_take"),
    "http_tls_reload_s": Pace("security/test_tls.py::test_a_renewed_certificate_is_shown_without_a_restart_and_a_broken_one_is_not"),
    "max_event_bytes": Bound("gateway/wire/test_parse_refusals.py::test_an_event_may_have_15_mib_and_not_a_byte_more"),
    "max_frame_bytes": Bound("limits/test_gateway.py::test_a_frame_at_the_most_is_answered_and_one_byte_more_closes"),
    "max_pending_input_bytes": Bound(f"{CORE}/test_input.py::test_pending_input_is_bounded_to_the_byte_and_the_session_goes_on"),
    "max_output_bytes": Bound("gateway/shell/test_outbound.py::test_control_has_a_reserve_that_sound_cannot_take"),
    "max_items": Bound(f"{CORE}/test_items.py::test_a_typed_item_beyond_the_most_is_refused"),
    "max_image_bytes": Bound("gateway/wire/test_pictures.py::test_a_picture_at_its_most_is_taken_and_one_byte_more_refused"),
    "max_unit_frames": Bound(f"{CORE}/test_native_camera.py::test_a_unit_takes_so_many_frames_and_the_next_as_many_again"),
    "transcript_timeout_ms": DEADLINES,
    "first_output_timeout_ms": DEADLINES,
    "stall_timeout_ms": DEADLINES,
    "response_timeout_ms": DEADLINES,
    "update_timeout_ms": DEADLINES,
    "queue_wait_ms": Deadline("e2e/test_capacity.py::test_who_finds_no_place_waits_a_moment_in_a_queue"),
    "replace_wait_ms": Deadline("limits/test_gateway.py::test_a_lost_stage_waits_for_a_place_as_long_as_it_may"),
    "stage_wait_ms": Deadline("failover/test_waiting.py::test_a_stage_that_does_not_come_back_ends_the_session_by_type_after_the_wait"),
    "stay_ms": Pace("failover/test_draining.py::test_a_stage_stays_while_no_other_replica_has_room_and_leaves_when_one_comes"),
    "attach_timeout_ms": Deadline("limits/test_gateway.py::test_a_takeover_waits_for_a_silent_stage_as_long_as_it_may"),
    "resume_timeout_ms": Deadline("failover/test_resume.py::test_a_client_that_announced_a_resume_must_say_it"),
    "grace_ms": Deadline("failover/test_resume.py::test_after_the_grace_the_session_is_over_and_its_slots_are_free"),
    "pulse_timeout_ms": Deadline(
        "gateway/shell/test_pulse.py::test_a_replica_that_stands_still_is_lost_and_a_gateway_that_did_blames_nobody"
    ),
    "engine_timeout_ms": Deadline("limits/test_gateway.py::test_an_engine_may_stand_still_for_so_long_and_not_a_millisecond_more"),
    "reap_interval_s": Pace("failover/test_leaving.py::test_a_dead_gateways_sessions_are_ended_by_another"),
    "undurable_limit_ms": Deadline("gateway/shell/test_durable.py::test_a_session_without_durability_for_too_long_is_overdue"),
    "store_wait_ms": Deadline("gateway/shell/test_start.py::test_a_store_that_never_comes_is_said_in_one_line"),
    "open_timeout_ms": Deadline("limits/test_gateway.py::test_an_open_waits_for_a_silent_stage_as_long_as_it_may"),
    "close_timeout_ms": Deadline("limits/test_gateway.py::test_a_close_waits_for_a_silent_stage_as_long_as_it_may"),
    "drain_timeout_ms": Deadline("failover/test_leaving.py::test_a_drained_conversation_is_told_to_go_and_goes_on_elsewhere"),
    "ws_ping_interval_s": Pace("limits/test_gateway.py::test_a_client_that_answers_no_ping_is_gone"),
    "ws_ping_timeout_s": Deadline("limits/test_gateway.py::test_a_client_that_answers_no_ping_is_gone"),
    "lease_margin_ms": Deadline("gateway/shell/test_tenure.py::test_it_holds_until_the_margin_of_what_was_asked_last"),
    "gateway_beat_s": Pace("session_store/test_registry.py::test_gateways_live_by_their_beats"),
}

CORE_LIMITS: dict[str, Limit] = {
    "max_pending_input_bytes": GATEWAY["max_pending_input_bytes"],
    "min_commit_ms": Bound(f"{CORE}/test_turns.py::test_commit_needs_a_tenth_of_a_second"),
    "max_items": GATEWAY["max_items"],
    "max_unit_frames": GATEWAY["max_unit_frames"],
    "max_item_chars": Bound(f"{CORE}/test_items.py::test_an_item_has_at_most_so_many_characters"),
    "max_prompt_chars": Bound(f"{CORE}/test_responses.py::test_the_newest_messages_that_fit_are_sent_and_the_instructions_always"),
    "max_output_lead_ms": Bound(f"{CORE}/test_pacing.py::test_sound_leaves_as_it_comes_and_never_further_ahead_than_the_lead"),
    "credit_extra_ms": Bound(f"{CORE}/test_pacing.py::test_credit_covers_the_window_and_never_more"),
    "transcript_timeout_ms": DEADLINES,
    "update_timeout_ms": DEADLINES,
    "first_output_timeout_ms": DEADLINES,
    "stall_timeout_ms": DEADLINES,
    "response_timeout_ms": DEADLINES,
    "max_session_ms": DEADLINES,
    "max_held_commands": Bound(f"{CORE}/test_updates.py::test_what_waits_behind_an_update_is_bounded"),
}

WIRE_LIMITS: dict[str, Limit] = {
    "max_event_bytes": GATEWAY["max_event_bytes"],
    **dict.fromkeys(("max_instructions_chars", "max_item_text_chars", "max_item_parts", "max_input_items", "max_tools"), WIRE),
    "max_image_bytes": GATEWAY["max_image_bytes"],
    "max_reference_voice_bytes": Bound("gateway/wire/test_pictures.py::test_a_voice_at_its_most_is_taken_and_one_sample_more_refused"),
    "max_tool_bytes": FREE_FORM,
    "max_json_depth_levels": FREE_FORM,
    "max_output_tokens": WIRE,
}

STAGE: dict[str, Limit] = {
    "detached_ttl_s": Deadline("stage_kit/test_flow.py::test_an_abandoned_session_returns_its_slot"),
    "detached_recheck_s": Pace("stage_kit/test_service.py::test_a_store_that_is_away_keeps_detached_sessions"),
    "drain_s": Deadline("limits/test_stage.py::test_a_drain_waits_for_its_sessions_as_long_as_it_may"),
    "heartbeat_s": Pace("stage_kit/test_service.py::test_the_registry_knows_what_is_held"),
    "stuck_s": Deadline("limits/test_stage.py::test_an_engine_that_does_not_turn_is_not_live"),
    "append_bytes": Bound("stage_kit/test_flow.py::test_an_append_at_its_limit_passes_and_one_byte_more_is_refused"),
    "pending_append_bytes": Bound("stage_kit/test_flow.py::test_a_full_queue_turns_back_and_says_when_to_go_on"),
    "kept_output_bytes": Bound("stage_kit/test_flow.py::test_a_slow_reader_costs_bounded_memory_and_slows_nobody"),
    "pending_replies_count": Bound("limits/test_stage.py::test_a_stream_that_is_not_read_is_ended_at_its_bound"),
    "carried_streams_count": Bound("limits/test_stage.py::test_one_call_carries_so_many_streams_and_not_one_more"),
    "staged_updates_count": Bound("limits/test_stage.py::test_updates_that_wait_are_bounded"),
    "edges_count": Bound("limits/test_stage.py::test_edges_are_bounded"),
    "message_bytes": Bound("limits/test_stage.py::test_a_message_at_its_limit_passes_and_one_byte_more_ends_the_call"),
    "ended_placements_count": Bound("stage_kit/test_fence.py::test_the_memory_of_ended_placements_is_bounded"),
    "accepted_interval_ms": Deadline("stage_kit/test_converse.py::test_accepted_is_told_without_anything_to_ride_on"),
    "output_piece_ms": Bound("stage_kit/test_flow.py::test_audio_leaves_as_far_as_the_grand_total_goes"),
    "receive_burst_count": Bound("limits/test_stage.py::test_one_sessions_appends_let_the_next_session_in"),
    "fair_turns_count": Bound("stage_kit/test_loop.py::test_the_most_urgent_goes_first_and_nobody_starves"),
    "step_failures_count": Bound("stage_kit/test_flow.py::test_a_session_whose_engine_keeps_failing_ends_and_only_it"),
    "keepalive_ms": Pace("limits/test_stage.py::test_a_peer_that_answers_no_ping_is_gone"),
    "keepalive_timeout_ms": Deadline("limits/test_stage.py::test_a_peer_that_answers_no_ping_is_gone"),
}

STORE: dict[str, Limit] = {
    "redis_timeout_ms": Deadline("session_store/test_outage.py::test_a_frozen_redis_costs_one_timeout_and_no_answer_is_mixed_up_later"),
    "redis_connections": Bound("limits/test_store.py::test_one_process_has_so_many_connections_and_no_more"),
    "sentinel_poll_ms": Pace("session_store/test_sentinels.py::test_a_primary_that_was_given_up_and_still_answers_is_left"),
    "key_ttl_ms": Deadline("limits/test_store.py::test_no_key_outlives_the_backstop"),
    "closed_record_ttl_ms": Deadline("limits/test_store.py::test_a_closed_record_stays_for_its_time"),
    "replica_ttl_ms": Deadline("session_store/test_registry.py::test_a_replica_without_a_beat_is_gone_and_its_slots_with_it"),
    "gateway_ttl_ms": Deadline("session_store/test_registry.py::test_gateways_live_by_their_beats"),
    "lease_ttl_ms": Deadline("session_store/test_reaping.py::test_deadlines_make_candidates_and_the_record_judges"),
    "grace_ms": Deadline("session_store/test_records.py::test_deadlines_are_independent"),
    "idle_ms": Deadline("failover/test_idle.py::test_an_unused_session_is_told_that_its_time_is_over"),
    "closing_ms": Deadline("session_store/test_reaping.py::test_a_cleaner_that_dies_is_replaced_by_one"),
    "reservation_ttl_ms": Deadline("session_store/test_admission.py::test_an_unconfirmed_reservation_expires"),
    "stale_slot_ms": Deadline("session_store/test_registry.py::test_slots_that_neither_a_gateway_nor_the_replica_knows_are_freed"),
    "orphan_after_ms": Deadline("session_store/test_records.py::test_a_session_whose_gateway_died_expires_and_its_slot_is_freed"),
    "mute_ms": Deadline("session_store/test_registry.py::test_nothing_is_an_orphan_while_the_registry_is_mute"),
    "silence_ms": Deadline("session_store/test_registry.py::test_a_silence_of_everybody_mutes_the_registry_again"),
    "capacity_retry_after_ms": Choice("a hint that goes with a refusal"),
    "tenant_retry_after_ms": Choice("a hint that goes with a refusal"),
    "waiter_ttl_ms": Deadline("session_store/test_queue.py::test_a_dead_waiter_is_passed_over"),
    "queue_poll_ms": Pace("session_store/test_queue.py::test_who_does_not_wait_goes_after_those_who_do"),
    "journal_max_age_ms": Deadline("session_store/test_commit.py::test_the_journal_is_bounded_by_age_at_commit_and_at_renewal"),
    "journal_max_bytes": Bound("session_store/test_commit.py::test_the_journal_is_bounded_by_bytes_and_says_where_it_begins"),
    "hot_max_bytes": Bound("session_store/test_commit.py::test_limits_at_the_bound_and_above"),
    "commit_max_bytes": Bound("session_store/test_commit.py::test_limits_at_the_bound_and_above"),
    "commit_round_trips_count": Bound("session_store/test_committer.py::test_what_waits_rides_together_in_order_and_within_bounds"),
    "commit_batch_sessions": Bound("session_store/test_committer.py::test_what_waits_rides_together_in_order_and_within_bounds"),
    "commit_batch_bytes": Bound("session_store/test_committer.py::test_what_waits_rides_together_in_order_and_within_bounds"),
}

PROFILE_LIMITS: dict[str, Limit] = {
    "edge_capacity_positions": Bound("gateway/graph/test_edges.py::test_a_full_edge_holds_its_source_until_the_reader_accepts"),
    "max_nodes": Bound("limits/test_profile.py::test_a_profile_has_so_many_nodes_and_not_one_more"),
}
DIALOG: dict[str, Limit] = {
    "max_history_chars": CORE_LIMITS["max_prompt_chars"],
    "max_text_chars": CORE_LIMITS["max_item_chars"],
}
NATIVE: dict[str, Limit] = {
    "unit_ms": Pace(f"{CORE}/test_native_silence.py::test_silence_is_asked_for_a_period_after_the_unit_before_and_does_not_drift"),
    "first_unit_ms": Bound(f"{CORE}/test_native_terms.py::test_what_the_model_began_with_holds_from_the_first_unit_on"),
    "continuation_slack_ms": Deadline(f"{CORE}/test_native_silence.py::test_input_that_jitters_is_waited_for_and_input_that_stops_is_not"),
    "early_close_ms": Deadline(f"{CORE}/test_early_close.py::test_the_open_unit_is_closed_so_long_after_the_voice"),
    "recap_chars": Bound(f"{CORE}/test_native.py::test_a_recap_has_the_newest_whole_messages"),
    "unit_log_ms": Bound(f"{CORE}/test_unit_log.py::test_a_note_leaves_when_its_unit_is_too_old"),
    "reheard_ms": Bound(f"{CORE}/test_native_failover.py::test_a_lost_model_begins_anew_with_a_recap_and_the_latest_sound"),
}
OVERLAP: dict[str, Limit] = {
    "short_ack_ms": Deadline(f"{CORE}/test_native_overlap.py::test_speech_that_goes_on_is_no_acknowledgement"),
}
SESSION: dict[str, Limit] = {"max_session_ms": DEADLINES}
PACING: dict[str, Limit] = {name: CORE_LIMITS[name] for name in ("max_output_lead_ms", "credit_extra_ms")}
SERVER_VAD: dict[str, Limit] = dict.fromkeys(("threshold", "prefix_padding_ms", "silence_duration_ms", "idle_timeout_ms"), SCHEMA)
CHAT_KIND: dict[str, Limit] = {"max_tokens": SCHEMA, "temperature": SCHEMA}
ALIGNMENT: dict[str, Limit] = {"timeout_ms": SCHEMA}

CLIENT: dict[str, Limit] = {
    "open_timeout_s": Deadline("parley/test_session.py::test_a_server_that_says_nothing_is_unreachable"),
    "patience_s": Deadline("parley/test_session.py::test_a_wait_that_is_longer_than_the_patience_is_not_begun"),
    "ping_interval_s": Pace("limits/test_client.py::test_a_server_that_answers_no_ping_is_gone"),
    "ping_timeout_s": Deadline("limits/test_client.py::test_a_server_that_answers_no_ping_is_gone"),
    "close_timeout_s": Deadline("limits/test_client.py::test_a_goodbye_waits_for_its_answer_as_long_as_it_may"),
    "grace_s": Deadline("parley/test_resume.py::test_the_grace_ends"),
    "resume_timeout_s": Deadline("parley/test_resume.py::test_a_server_that_does_not_answer_is_dialled_again"),
    "backoff_first_s": Pace("parley/test_resume.py::test_a_server_that_takes_the_session_and_drops_it_each_time_is_not_hammered"),
    "backoff_max_s": Pace("parley/test_resume.py::test_a_server_that_takes_the_session_and_drops_it_each_time_is_not_hammered"),
    "audio_ring_ms": Bound("limits/test_client.py::test_an_outage_holds_back_so_much_sound_and_no_more"),
    "frame_ring_bytes": Bound("limits/test_client.py::test_an_outage_holds_back_so_many_pictures_and_not_a_byte_more"),
    "picture_bytes": Bound("limits/test_client.py::test_a_picture_may_have_so_many_bytes_and_not_one_more"),
    "command_log_bytes": Bound("limits/test_client.py::test_an_outage_holds_back_so_many_commands_and_not_a_byte_more"),
    "ack_interval_s": Pace("parley/test_resume.py::test_the_server_is_told_what_was_taken"),
    "ack_events": Bound("parley/test_resume.py::test_the_server_is_told_what_was_taken"),
    "inbox_bytes": Bound("parley/test_resume.py::test_a_reader_that_lags_costs_bounded_memory_and_hides_no_loss"),
}

SUPERVISOR: dict[str, Limit] = {
    "start_timeout_s": Deadline("parley/test_supervisor.py::test_no_readiness_in_time_is_said"),
    "poll_interval_s": Pace("parley/test_supervisor.py::test_the_store_comes_first_and_all_others_together"),
    "stop_gateway_s": Deadline("parley/test_supervisor.py::test_the_gateway_is_told_to_stop_before_the_services"),
    "stop_services_s": Deadline("parley/test_supervisor.py::test_what_ignores_sigterm_is_killed_in_time"),
    "stop_kill_s": Deadline("parley/test_supervisor.py::test_what_ignores_sigterm_is_killed_in_time"),
    "mps_start_s": Deadline("parley/test_mps.py::test_a_daemon_that_does_not_answer_in_time_is_ended"),
    "mps_stop_s": Deadline("parley/test_mps.py::test_a_daemon_that_does_not_quit_is_killed_with_its_servers"),
    "max_restarts": Bound("parley/test_supervisor.py::test_a_service_that_keeps_dying_ends_the_run"),
    "restart_window_s": Pace("parley/test_supervisor.py::test_a_service_that_keeps_dying_ends_the_run"),
    "restart_backoff_s": Pace("parley/test_supervisor.py::test_a_service_that_dies_while_serving_is_restarted_and_said"),
    "restart_backoff_max_s": Pace("parley/test_supervisor.py::test_a_service_that_keeps_dying_ends_the_run"),
}

TURN: dict[str, Limit] = {
    "slots": SLOTS,
    "min_speech_ms": Bound("vad_svc/test_detector.py::test_click_does_not_start_a_turn"),
    "hysteresis": Bound("vad_svc/test_detector.py::test_hysteresis_holds_open_speech_and_not_a_pause"),
    "prefix_most_ms": Bound("limits/test_services.py::test_what_a_session_may_ask_of_the_detector"),
    "silence_most_ms": Bound("limits/test_services.py::test_what_a_session_may_ask_of_the_detector"),
    "candidate_pause_ms": Deadline("vad_svc/test_detector.py::test_resumed_only_after_an_announced_pause"),
    "score_silence_ms": Deadline("vad_svc/test_detector.py::test_silence_that_each_score_needs"),
    "score_wall_ms": Deadline("vad_svc/test_engine.py::test_a_score_that_never_comes_ends_by_the_fallback"),
    "timeout_factor": Deadline("vad_svc/test_engine.py::test_no_packets_end_the_turn_by_the_wall_clock"),
    "timeout_wall_ms": Deadline("vad_svc/test_engine.py::test_no_packets_end_the_turn_by_the_wall_clock"),
    "frames_per_step": Bound("vad_svc/test_engine.py::test_a_burst_is_taken_in_pieces"),
    "max_pending_s": Bound("limits/test_services.py::test_sound_that_waits_for_the_detector_is_bounded"),
}

ASR: dict[str, Limit] = {
    "slots": SLOTS,
    "partial_interval_ms": Pace("thinker_svc/test_asr.py::test_partials_grow_every_half_second_and_stop_in_a_pause"),
    "partial_share": Bound("thinker_svc/test_asr.py::test_partials_leave_the_recognizer_half_its_time"),
    "piece_ms": Bound("thinker_svc/test_asr.py::test_long_audio_at_once_is_cut_at_its_quietest_points"),
    "hold_ms": Bound("thinker_svc/test_asr.py::test_idle_audio_is_let_go"),
    "hold_most_ms": Bound("limits/test_services.py::test_sound_that_the_recognizer_holds_is_bounded"),
    "judged_wall_ms": Deadline("thinker_svc/test_asr.py::test_a_long_utterance_is_settled_piece_by_piece"),
    "commit_wait_wall_ms": Deadline("thinker_svc/test_asr.py::test_commit_whose_audio_never_comes_is_answered_with_what_is_there"),
    "span_tolerance_ms": Bound(
        "thinker_svc/test_asr.py::test_manual_commit_in_a_pause_uses_the_early_result_and_one_with_more_speech_does_not"
    ),
    "least_ms": Bound("thinker_svc/test_asr.py::test_nothing_to_hear_is_answered_with_empty_text"),
    "silence_rms": Bound("thinker_svc/test_asr.py::test_nothing_to_hear_is_answered_with_empty_text"),
}

LLM: dict[str, Limit] = {
    "slots": SLOTS,
    "workers": Bound("thinker_svc/test_llm.py::test_a_waiting_answer_can_be_cancelled_and_another_session_goes_on"),
    "worker_threads": Choice("processor threads of one answer"),
    "max_tokens": Bound("thinker_svc/test_llm.py::test_answers_end_after_their_sentences_or_tokens"),
    "context_tokens": Bound("thinker_svc/test_llm_prompt.py::test_the_oldest_turns_leave_whole"),
    "history_tokens": Bound("thinker_svc/test_llm_prompt.py::test_history_has_a_room_of_its_own_and_the_newest_turn_is_whole"),
    "max_sentences": Bound("thinker_svc/test_llm_text.py::test_what_is_said"),
    "repetition_penalty": Choice("how answers are chosen"),
}

CHAT: dict[str, Limit] = {
    "slots": SLOTS,
    "temperature": Choice("how answers are chosen"),
    "max_tokens": Bound("thinker_svc/test_remote_chat.py::test_the_request_is_what_the_settings_and_the_prompt_say"),
    "max_output_chars": Bound("limits/test_services.py::test_an_outside_answer_has_so_many_characters_and_not_one_more"),
    "event_bytes": Bound("thinker_svc/test_remote_chat.py::test_a_line_without_an_end_is_bounded"),
    "connect_timeout_ms": Deadline("thinker_svc/test_remote_chat.py::test_a_failing_service_fails_one_response"),
    "timeout_ms": Deadline("thinker_svc/test_remote_chat.py::test_a_failing_service_fails_one_response"),
}

TALKER: dict[str, Limit] = {
    "slots": SLOTS,
    "first_clause_words": Bound("talker_svc/test_clauses.py::test_limits_hold"),
    "soft_clause_words": Bound("talker_svc/test_clauses.py::test_places"),
    "clause_words": Bound("talker_svc/test_clauses.py::test_limits_hold"),
    "clause_chars": Bound("talker_svc/test_clauses.py::test_limits_hold"),
    "part_chars": Bound("talker_svc/test_engine.py::test_a_clause_that_is_long_to_say_leaves_room_for_others"),
    "chunk_frames": Bound("talker_svc/test_engine.py::test_every_stretch_begins_and_ends_and_fits_an_append"),
    "noise": Choice("the manner of the voice"),
    "duration_noise": Choice("the manner of the voice"),
}

VOCODER: dict[str, Limit] = {
    "slots": SLOTS,
    "first_chunk_frames": Pace("vocoder_svc/test_engine.py::test_the_first_sound_leaves_before_the_clause_is_whole"),
    "chunk_frames": Pace("vocoder_svc/test_stretch.py::test_joined_windows_equal_the_whole_decode"),
    "sentence_pause_ms": Choice("silence between sentences"),
    "ahead_ms": Bound("vocoder_svc/test_engine.py::test_no_more_is_made_than_the_next_seconds_need"),
    "waiting_frames": Bound("vocoder_svc/test_engine.py::test_latents_that_wait_are_bounded"),
}

NATIVE_SLOTS = Bound("minicpmo45/test_slots.py::test_a_number_up_to_the_plan_is_taken_and_one_more_refused")
NATIVE_VOICE = Bound("limits/test_native.py::test_a_voice_may_be_so_long_and_not_a_sample_longer")
PLANNED = Bound("minicpmo45/test_slots.py::test_what_the_plan_depends_on_is_read_from_the_environment_by_all")
PLAN: dict[str, Limit] = dict.fromkeys(("window_tokens", "positions", "flow_steps", "voices_bytes"), PLANNED)

NATIVE_THINKER: dict[str, Limit] = {
    "slots": NATIVE_SLOTS,
    "warm_tokens": Pace("thinker_svc/minicpmo45/test_graphs.py::test_what_is_captured_at_start_is_what_is_met"),
    "window_tokens": Bound("thinker_svc/minicpmo45/test_stepper.py::test_a_context_that_overflows_ends_one_session_only"),
    "unit_frames": Bound("thinker_svc/minicpmo45/test_engine.py::test_frames_that_are_refused_change_nothing"),
    "input_s": Bound("thinker_svc/minicpmo45/test_engine.py::test_more_sound_than_may_wait_ends_the_session"),
    "voice_s": NATIVE_VOICE,
    "picture_threads": Choice("threads that decode pictures"),
}

NATIVE_TALKER: dict[str, Limit] = {
    "slots": NATIVE_SLOTS,
    "burst": Pace("talker_svc/minicpmo45/test_burst.py::test_sessions_that_come_and_go_draw_what_they_draw_one_by_one"),
    "positions": Bound("talker_svc/minicpmo45/test_turn.py::test_a_unit_as_large_as_its_place_lets_everything_else_go"),
    "window_units": Bound("talker_svc/minicpmo45/test_turn.py::test_a_long_turn_keeps_its_newest_whole_units"),
    "tail_codes": Bound("talker_svc/minicpmo45/test_turn.py::test_a_tail_without_an_end_is_cut_at_the_bound"),
    "min_piece_codes": Bound("talker_svc/minicpmo45/test_sampler.py::test_draws_follow_the_rule"),
    "thought_tokens": Bound("limits/test_native.py::test_a_thought_has_so_many_tokens_and_not_one_more"),
}

NATIVE_VOCODER: dict[str, Limit] = {
    "slots": NATIVE_SLOTS,
    "batch": Bound("stage_kit/test_loop.py::test_ready_sessions_share_a_step_up_to_the_batch"),
    "flow_steps": SCHEMA,
    "seed": Choice("of the noise"),
    "voices_bytes": Bound("vocoder_svc/minicpmo45/test_voices.py::test_one_more_than_fits_is_refused_by_type"),
    "voice_s": NATIVE_VOICE,
    "voice_wait_s": Deadline("limits/test_native.py::test_a_voice_waits_for_room_so_long_and_no_longer"),
    "onnx_threads": Choice("processor threads that hear a voice"),
    "waiting_codes": Bound("vocoder_svc/minicpmo45/test_engine.py::test_so_many_codes_of_a_response_may_wait_and_not_one_more"),
}

TABLE: dict[type[Any], dict[str, Limit]] = {
    GatewaySettings: GATEWAY,
    CoreLimits: CORE_LIMITS,
    WireLimits: WIRE_LIMITS,
    StageSettings: STAGE,
    StoreSettings: STORE,
    ProfileLimits: PROFILE_LIMITS,
    DialogOptions: DIALOG,
    SessionDefaults: SESSION,
    NativeSettings: NATIVE,
    OverlapDefaults: OVERLAP,
    Pacing: PACING,
    ServerVadDefaults: SERVER_VAD,
    ChatOptions: CHAT_KIND,
    AlignmentOptions: ALIGNMENT,
    ClientLimits: CLIENT,
    SupervisorSettings: SUPERVISOR,
    TurnSettings: TURN,
    AsrSettings: ASR,
    LlmSettings: LLM,
    RemoteChatSettings: CHAT,
    TalkerSettings: TALKER,
    VocoderSettings: VOCODER,
    PlanSettings: PLAN,
    MiniCpmThinkerSettings: NATIVE_THINKER,
    MiniCpmTalkerSettings: NATIVE_TALKER,
    MiniCpmVocoderSettings: NATIVE_VOCODER,
}
