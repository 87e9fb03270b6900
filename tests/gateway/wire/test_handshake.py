"""What an upgrade request may ask for, and what it is refused for before the upgrade."""

from __future__ import annotations

import json

import pytest

from gateway.conversation.errors import ERRORS, Refusal
from gateway.wire.handshake import Handshake, HandshakePolicy, ResumeWish, credential, decide, digest_key
from gateway.wire.refusals import CLOSE_CODES, HTTP_STATUS, close_code, http_refusal

KEY = "sk-secret"
OPEN = HandshakePolicy(models=("parley", "gpt-realtime"))


def refused(
    query: str = "", headers: dict[str, str] | None = None, offered: tuple[str, ...] = (), policy: HandshakePolicy = OPEN
) -> Refusal:
    with pytest.raises(Refusal) as caught:
        decide(query, headers or {}, offered, policy)
    return caught.value


def test_a_plain_request_gets_the_first_model() -> None:
    assert decide("", {}, (), OPEN) == Handshake("parley", "openai_ga", None)


def test_the_model_may_be_named_by_any_of_its_names() -> None:
    assert decide("model=gpt-realtime", {}, (), OPEN).model == "gpt-realtime"


def test_unknown_parameters_are_left_alone() -> None:
    assert decide("model=parley&utm_source=x&duplex=0&session_id=", {}, (), OPEN).model == "parley"


@pytest.mark.parametrize("authorization", [f"Bearer {KEY}", f"bearer  {KEY} "])
def test_a_key_in_the_header(authorization: str) -> None:
    shown = credential({"authorization": authorization})
    assert shown is not None and shown.digest == digest_key(KEY) and not shown.ephemeral


def test_a_key_in_a_subprotocol_selects_exactly_realtime() -> None:
    offered = ("realtime", f"openai-insecure-api-key.{KEY}", "openai-beta.realtime-v1")
    shown = credential({}, offered)
    assert decide("", {}, offered, OPEN).subprotocol == "realtime" and shown is not None and shown.digest == digest_key(KEY)


def test_the_header_comes_before_the_subprotocol() -> None:
    shown = credential({"authorization": f"Bearer {KEY}"}, ("realtime", "openai-insecure-api-key.wrong"))
    assert shown is not None and shown.digest == digest_key(KEY)


def test_no_subprotocol_is_selected_that_was_not_offered() -> None:
    assert decide("", {}, ("openai-agents-sdk.0.20.0",), OPEN).subprotocol is None
    assert decide("", {}, (f"openai-insecure-api-key.{KEY}",), OPEN).subprotocol is None


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic c2s=", KEY, "Bearer " + "x" * 513])
def test_what_can_be_no_key_is_none(authorization: str) -> None:
    assert credential({"authorization": authorization}) is None


def test_a_key_may_be_any_text_of_512_characters() -> None:
    assert credential({"authorization": "Bearer \udce9"}) is not None
    assert credential({"authorization": "Bearer " + "x" * 512}) is not None


def test_a_client_secret_shows_what_it_is() -> None:
    shown = credential({}, ("realtime", "openai-insecure-api-key.ek_secret"))
    assert shown is not None and shown.ephemeral


def test_the_key_itself_is_not_kept() -> None:
    assert KEY not in repr(credential({"authorization": f"Bearer {KEY}"}))


@pytest.mark.parametrize(
    "query",
    [
        "intent=transcription",
        "duplex=1",
        "duplex=true",
        "session_id=sess_1",
        "resume=token&resume_token=t",
        "resume=sess_1",
        "resume=sess_1&resume_token=",
        "call_id=c",
    ],
)
def test_a_mode_that_is_not_offered_is_refused(query: str) -> None:
    refusal = refused(f"model=parley&{query}")
    assert (refusal.code, refusal.param) == ("unsupported_mode", query.partition("=")[0])


@pytest.mark.behaviour("R9", "Y1")
def test_a_stock_client_asks_for_its_session_by_query_or_by_headers() -> None:
    wish = ResumeWish("sess_1", "secret", "event_1_9")
    by_query = decide("model=parley&resume=sess_1&resume_token=secret&last_event_id=event_1_9", {}, (), OPEN)
    headers = {"parley-resume": "sess_1", "parley-resume-token": "secret", "parley-last-event-id": "event_1_9"}
    assert by_query.resume == decide("", headers, (), OPEN).resume == wish
    assert not by_query.extended and not by_query.awaits_resume
    assert decide("resume=sess_1&resume_token=secret", {}, (), OPEN).resume == ResumeWish("sess_1", "secret", None)
    assert decide("last_event_id=event_9", {}, (), OPEN).resume is None, "without a session it means nothing"
    assert "secret" not in repr(by_query)


def test_our_client_announces_its_resume_and_says_it_later() -> None:
    made = decide("parley=1&resume=1", {}, (), OPEN)
    assert (made.extended, made.awaits_resume, made.resume) == (True, True, None)
    plain = decide("parley=1", {}, (), OPEN)
    assert (plain.extended, plain.awaits_resume, plain.resume) == (True, False, None)
    by_query = decide("parley=1&resume=sess_1&resume_token=secret", {}, (), OPEN)
    assert by_query.extended and not by_query.awaits_resume and by_query.resume is not None
    assert decide("parley=0&resume=0", {}, (), OPEN) == decide("", {}, (), OPEN)


def test_a_foreign_model_is_refused() -> None:
    assert refused("model=gpt-9").code == "model_not_found"
    assert refused("model=").code == "model_not_found"
    assert refused("model=a&model=parley").code == "unsupported_mode"
    assert "\n" not in refused("model=%0Ax").message


def test_the_beta_is_refused_by_its_opt_in() -> None:
    refusal = refused("model=parley", {"openai-beta": "assistants=v2, realtime=v1"})
    assert (refusal.code, refusal.param) == ("beta_api_unsupported", "OpenAI-Beta")
    assert refused("", offered=("openai-beta.realtime-v1",)).code == "beta_api_unsupported"
    assert decide("", {"openai-beta": "assistants=v2"}, (), OPEN).model == "parley"


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (Refusal("invalid_api_key"), 401),
        (Refusal("origin_not_allowed", "Origin"), 403),
        (Refusal("rate_limit_exceeded", retry_after_s=3), 429),
        (Refusal("body_too_large", limit=1), 413),
        (Refusal("body_timeout"), 408),
        (Refusal("beta_api_unsupported", "OpenAI-Beta"), 400),
        (Refusal("unsupported_mode", "duplex"), 400),
        (Refusal("model_not_found", "model", model="x"), 404),
        (Refusal("invalid_resume_token"), 403),
        (Refusal("session_resume_expired"), 410),
        (Refusal("session_resume_conflict"), 409),
        (Refusal("tenant_limit", retry_after_s=3), 429),
        (Refusal("at_capacity", retry_after_s=3), 503),
        (Refusal("stages_unavailable", stage="llm"), 503),
        (Refusal("server_draining"), 503),
        (Refusal("internal_error"), 500),
    ],
)
def test_http_answers(refusal: Refusal, status: int) -> None:
    answer = http_refusal(refusal, retry_after_ms=2001)
    assert answer.status == status
    error = json.loads(answer.body)["error"]
    assert error == {"type": ERRORS[refusal.code].type, "code": refusal.code, "message": refusal.message, "param": refusal.param}
    assert answer.headers.get("Retry-After") == ("3" if status in (429, 503) else None)
    assert ("WWW-Authenticate" in answer.headers) == (status == 401)


def test_retry_after_is_never_zero() -> None:
    assert http_refusal(Refusal("server_draining"), retry_after_ms=0).headers["Retry-After"] == "1"


def test_a_code_that_cannot_refuse_an_upgrade_is_our_fault() -> None:
    answer = http_refusal(Refusal("item_not_found", item_id="i"))
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (500, "internal_error")


def test_codes_are_rows_of_the_table() -> None:
    assert HTTP_STATUS.keys() <= ERRORS.keys() and CLOSE_CODES.keys() <= ERRORS.keys()


def test_close_codes_make_stock_clients_dial_again_only_when_that_helps() -> None:
    assert {close_code(code) for code in ("server_draining", "at_capacity", "stage_lost")} == {1012, 1013, 1011}
    assert {close_code(code) for code in ("session_taken_over", "session_expired")} == {1008, 1000}
    assert close_code("event_too_large") == 1009
    assert close_code("item_not_found") == 1011
