"""Client secrets: made by the unmodified openai client, used by it, and by nobody longer or for more than their maker."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import msgspec
import pytest
from openai import APIStatusError, AsyncOpenAI, AuthenticationError, RateLimitError
from openai.types.realtime import ClientSecretCreateResponse
from redis.asyncio import Redis
from websockets.asyncio.client import ClientConnection

from gateway.wire.handshake import digest_key
from session_store import ClientSecret, Store, StoreSettings
from session_store.keys import secret_key
from tests.e2e.conftest import MakeHouse
from tests.native_e2e.conftest import PROFILE, STAGES
from tests.security.conftest import GOOD, OTHER, Keys, Knock, bearer, entry
from tests.support.house import House

BODY_BYTES = 2048
BODY_MS = 700
DEFAULT_S, MOST_S = 33, 44
SECRETS_PER_MINUTE = 5
SESSION: dict[str, Any] = {
    "type": "realtime",
    "model": "parley-embedded",
    "instructions": "words=1 and no more",
    "output_modalities": ["text"],
    "audio": {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 321}}},
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.json", entry(GOOD), entry(OTHER, "other", max_sessions=1))


@pytest.fixture(scope="module")
def house(make_house: MakeHouse, keys: Keys) -> House:
    env = {
        "PARLEY_KEYS_FILE": str(keys.path),
        "PARLEY_MAX_BODY_BYTES": str(BODY_BYTES),
        "PARLEY_BODY_TIMEOUT_MS": str(BODY_MS),
        "PARLEY_CLIENT_SECRET_S": str(DEFAULT_S),
        "PARLEY_MAX_CLIENT_SECRET_S": str(MOST_S),
        "PARLEY_CLIENT_SECRETS_PER_MINUTE": "1000",
        "PARLEY_FAILED_AUTH_PER_MINUTE": "1000",
    }
    return make_house(services=("all",), gateways=2, gateway=env)


def client(house: House, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(api_key=key, base_url=f"{house.http}/v1", max_retries=0)


async def make(house: House, key: str = GOOD, **fields: Any) -> ClientSecretCreateResponse:
    async with client(house, key) as openai:
        return await openai.realtime.client_secrets.create(**fields)


async def _now_s(house: House) -> int:
    async with Redis.from_url(house.valkey.url) as admin:
        seconds: int = (await admin.time())[0]
        return seconds


async def test_the_openai_client_makes_a_secret_and_another_talks_with_it(house: House) -> None:
    made = await make(house, session=SESSION, expires_after={"anchor": "created_at", "seconds": 40})
    assert made.value.startswith("ek_") and 0 <= made.expires_at - await _now_s(house) <= 40
    ClientSecretCreateResponse.model_validate(made.model_dump(), strict=True)
    told = made.session.to_dict()
    assert told["instructions"] == SESSION["instructions"] and told["object"] == "realtime.session"
    async with AsyncOpenAI(api_key=made.value, websocket_base_url=house.websocket) as openai:
        for _ in range(2):  # a secret opens as many sessions as its maker may have, until it expires
            async with openai.realtime.connect(model="parley-embedded") as connection:
                created = await connection.recv()
                assert created.type == "session.created"
                session = created.session.to_dict()
                for name in ("instructions", "output_modalities"):
                    assert session[name] == SESSION[name] == told[name]
                assert session["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 321
                await connection.response.create(response={"input": []})  # type: ignore[typeddict-item]


async def test_what_a_secret_begins_with_is_in_force_and_the_client_may_change_it(house: House, knock: Knock) -> None:
    made = await make(house, session=SESSION)
    offered = ["realtime", f"openai-insecure-api-key.{made.value}"]
    browser = await knock(house.realtimes[1], subprotocols=offered)
    assert browser.subprotocol == "realtime" and made.value not in str(browser.response.headers)
    seen: list[dict[str, Any]] = []

    async def until(kind: str) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while not seen or seen[-1]["type"] != kind:
                seen.append(json.loads(await browser.recv()))
        return seen[-1]

    await until("session.created")
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    await browser.send(json.dumps({"type": "conversation.item.create", "item": item}))
    await browser.send(json.dumps({"type": "response.create"}))
    (answer,) = (await until("response.done"))["response"]["output"]
    assert answer["content"][0]["type"] == "output_text" and len(answer["content"][0]["text"].split()) == 1
    await browser.send(json.dumps({"type": "session.update", "session": {"type": "realtime", "instructions": "words=2"}}))
    assert (await until("session.updated"))["session"]["instructions"] == "words=2"


@pytest.mark.parametrize("told", [{}, {"session": {"type": "realtime"}}])
async def test_without_wishes_it_is_the_profiles_session(house: House, told: dict[str, Any]) -> None:
    made = await make(house, **told)
    assert made.session.to_dict()["model"] == "parley-embedded"


@pytest.mark.behaviour("X14")
async def test_how_long_a_secret_may_live(house: House) -> None:
    now_s = await _now_s(house)
    for seconds in (None, 10, MOST_S):
        fields = {} if seconds is None else {"expires_after": {"anchor": "created_at", "seconds": seconds}}
        assert 0 <= (await make(house, **fields)).expires_at - now_s - (seconds or DEFAULT_S) <= 5
    for seconds in (9, MOST_S + 1):
        with pytest.raises(APIStatusError) as refused:
            await make(house, expires_after={"anchor": "created_at", "seconds": seconds})
        assert (refused.value.status_code, refused.value.code, refused.value.param) == (400, "invalid_field", "expires_after.seconds")


async def test_an_expired_secret_lets_nobody_in_and_who_is_in_stays(house: House, knock: Knock) -> None:
    made = await make(house)
    began = await knock(house.realtime, **bearer(made.value))
    async with Redis.from_url(house.valkey.url) as admin:
        await admin.pexpire(secret_key(digest_key(made.value)), 1)
        while await admin.exists(secret_key(digest_key(made.value))):
            pass
    assert (await knock(house.realtime, **bearer(made.value))).told == (401, "invalid_api_key")
    await began.send('{"type": "response.cancel"}')
    assert isinstance(began, ClientConnection) and await began.recv()


async def test_a_secret_is_worth_nothing_once_its_maker_is_revoked(house: House, keys: Keys, knock: Knock) -> None:
    made = await make(house)
    began = await knock(house.realtime, **bearer(made.value))
    keys.change(GOOD, revoked=True)
    try:
        assert (await knock(house.realtime, **bearer(made.value))).told == (401, "invalid_api_key")
        await asyncio.wait_for(began.wait_closed(), 10)
        assert (began.close_code, began.close_reason) == (1008, "api_key_revoked")
    finally:
        keys.change(GOOD, revoked=False)
    assert isinstance(await knock(house.realtime, **bearer(made.value)), ClientConnection)


async def test_a_secret_has_its_makers_tenant_and_limits(house: House, knock: Knock) -> None:
    made = await make(house, OTHER)
    assert isinstance(await knock(house.realtime, **bearer(made.value)), ClientConnection)
    assert (await knock(house.realtime, **bearer(made.value))).told == (429, "tenant_limit")
    assert (await knock(house.realtime, **bearer(OTHER))).told == (429, "tenant_limit")


async def test_a_secret_that_another_version_made_is_refused_by_type(house: House, knock: Knock) -> None:
    made = await make(house)
    patch = msgspec.msgpack.encode({"instructions": 5})
    for kept in (b"\xc1", msgspec.msgpack.encode(ClientSecret(key_id="good", tenant="acme", session=patch))):
        async with Redis.from_url(house.valkey.url) as admin:
            await admin.set(secret_key(digest_key(made.value)), kept, ex=60)
        assert (await knock(house.realtime, **bearer(made.value))).told == (503, "stages_unavailable")


async def test_a_secret_whose_makers_id_is_another_tenants_by_now_is_worth_nothing(house: House, keys: Keys, knock: Knock) -> None:
    made = await make(house)
    keys.change(GOOD, tenant="another")
    try:
        assert (await knock(house.realtime, **bearer(made.value))).told == (401, "invalid_api_key")
    finally:
        keys.change(GOOD, tenant="acme")


async def test_a_secret_makes_no_secret(house: House) -> None:
    made = await make(house)
    with pytest.raises(AuthenticationError) as refused:
        await make(house, made.value)
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(AuthenticationError):
        await make(house, "nobody's")


@pytest.mark.parametrize(
    ("session", "status", "code", "param"),
    [
        ({"type": "transcription"}, 400, "unsupported_value", "session.type"),
        ({"instructions": "x"}, 400, "missing_field", "session.type"),
        ({"type": "realtime", "model": "gpt-realtime"}, 404, "model_not_found", "session.model"),
        ({"type": "realtime", "tools": [{"type": "mcp", "server_label": "x"}]}, 400, "unsupported_value", "session.tools[0].type"),
        ({"type": "realtime", "temperature": 0.5}, 400, "beta_api_unsupported", "session.temperature"),
        ({"type": "realtime", "overlap": {"policy": "ignore"}}, 400, "unsupported_value", "session.overlap"),
        ({"type": "realtime", "audio": {"output": {"speed": 9}}}, 400, "invalid_field", "session.audio.output.speed"),
    ],
)
async def test_a_session_that_cannot_be_had_is_refused_by_type(house: House, session: Any, status: int, code: str, param: str) -> None:
    with pytest.raises(APIStatusError) as refused:
        await make(house, session=session)
    assert (refused.value.status_code, refused.value.code, refused.value.param) == (status, code, param)


async def test_a_page_from_elsewhere_makes_no_secret(house: House) -> None:
    async with client(house, GOOD) as openai:
        with pytest.raises(APIStatusError) as refused:
            await openai.realtime.client_secrets.create(extra_headers={"Origin": "https://evil.example"})
    assert (refused.value.status_code, refused.value.code) == (403, "origin_not_allowed")


def _post(house: House, body: bytes, length: int | None = None, chunked: bool = False) -> tuple[int, str]:
    """(status, code) of a raw request; with a length that is not the body's, the rest never comes."""
    host, _, port = house.gateway.ready["http"].rpartition(":")
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body) if length is None else length}"
    head = f"POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {GOOD}\r\n{framing}\r\n\r\n"
    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(head.encode() + sent)
        answer = b""
        while not answer.endswith(b"}"):
            piece = line.recv(65536)
            assert piece, answer
            answer += piece
    told = json.loads(answer.partition(b"\r\n\r\n")[2])
    return int(answer.split()[1]), told["error"]["code"] if "error" in told else "made"


@pytest.mark.behaviour("X14")
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_may_have_so_many_bytes_and_not_one_more(house: House, chunked: bool) -> None:
    assert await asyncio.to_thread(_post, house, b"{}".ljust(BODY_BYTES), None, chunked) == (200, "made")
    assert await asyncio.to_thread(_post, house, b"{}".ljust(BODY_BYTES + 1), None, chunked) == (413, "body_too_large")


async def test_a_body_that_is_declared_too_large_is_not_waited_for(house: House) -> None:
    assert await asyncio.to_thread(_post, house, b"", BODY_BYTES + 1) == (413, "body_too_large")


@pytest.mark.behaviour("X14")
async def test_a_body_is_waited_for_as_long_as_it_may_take(house: House) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await asyncio.to_thread(_post, house, b"{", 2) == (408, "body_timeout")
    assert loop.time() - began >= BODY_MS / 1000


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'"x"', b"\xff", b'{"expires_after": {"anchor": "now"}}', b'{"expires_after": {"seconds": "9"}}']
)
async def test_a_body_that_says_nothing_is_refused(house: House, body: bytes) -> None:
    status, code = await asyncio.to_thread(_post, house, body)
    assert status == 400 and code in ("invalid_json", "invalid_field")


@pytest.mark.behaviour("X14")
async def test_a_key_makes_so_many_secrets_a_minute_at_all_gateways_and_not_one_more(make_house: MakeHouse) -> None:
    env = {"PARLEY_API_KEYS": GOOD, "PARLEY_CLIENT_SECRETS_PER_MINUTE": str(SECRETS_PER_MINUTE)}
    house = make_house(services=("all",), gateways=2, gateway=env)
    bases = [f"http://{each.ready['http']}/v1" for each in house.gateways]

    async def ask(nth: int) -> str:
        async with AsyncOpenAI(api_key=GOOD, base_url=bases[nth % 2], max_retries=0) as openai:
            return (await openai.realtime.client_secrets.create()).value

    made = [await ask(nth) for nth in range(SECRETS_PER_MINUTE)]
    with pytest.raises(RateLimitError) as refused:
        await ask(SECRETS_PER_MINUTE)
    assert refused.value.code == "rate_limit_exceeded" and int(refused.value.response.headers["Retry-After"]) >= 1
    for child in house.gateways:
        assert not [value for value in (*made, GOOD) if value in child.log.read_text()]
    async with await Store.open(house.valkey.url, StoreSettings(redis_timeout_ms=5000)) as store:
        found = await store.client_secrets.find(digest_key(made[0]))
        assert found is not None and made[0] not in repr(found)


async def test_what_a_service_does_not_take_is_refused_when_a_session_would_begin_with_it(make_house: MakeHouse, knock: Knock) -> None:
    """Only the service can judge it, so the secret is made; the upgrade then says why there is no session."""
    house = make_house(services=("native",), gateway=PROFILE, stages=STAGES)
    made = await make(house, session={"type": "realtime", "model_options": {"script": "no such letters"}})
    refused = await knock(house.realtime, **bearer(made.value))
    assert refused.told == (400, "update_refused") and refused.error["param"] == "session"
    await house.wait_free()
    good = await make(house, session={"type": "realtime", "model_options": {"script": "l"}, "instructions": "be brief"})
    session = json.loads(await (await knock(house.realtime, **bearer(good.value))).recv())["session"]
    assert session["model_options"] == {"script": "l"} and session["instructions"] == "be brief"


async def test_where_no_key_is_asked_for_a_secret_still_carries_its_session(make_house: MakeHouse, knock: Knock) -> None:
    house = make_house(services=("all",), gateway={"PARLEY_MAX_CLIENT_SECRET_S": "30"})
    made = await make(house, "anything", session=SESSION)
    assert made.expires_at - await _now_s(house) <= 30, "also where it would live longer by default"
    socket = await knock(house.realtime, **bearer(made.value))
    assert json.loads(await socket.recv())["session"]["instructions"] == SESSION["instructions"]
    assert (await knock(house.realtime, **bearer("ek_nobody"))).told == (401, "invalid_api_key")
