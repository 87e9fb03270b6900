"""What is started, with which settings; the folder of a run; the port."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from parley.supervisor import BusyPort, MissingBinary, RunFolder, check_port, devices, embedded_plan, find_profile
from parley.supervisor.folder import MAX_SOCKET_PATH_BYTES
from parley.supervisor.log import MAX_LINE_CHARS, last_line


def test_the_embedded_plan(folder: RunFolder) -> None:
    plan = embedded_plan(folder, host="127.0.0.1", port=8123, profile=Path("p.yaml"))
    assert [spec.name for spec in plan] == ["store", "vad", "thinker", "talker", "vocoder", "gateway"]
    assert [spec.command[1:] for spec in plan.services] == [("-m", f"{name}_svc") for name in ("vad", "thinker", "talker", "vocoder")]
    assert all(spec.command[0] == sys.executable for spec in (*plan.services, plan.gateway))
    for spec in (*plan.services, plan.gateway):
        assert spec.env["PARLEY_REDIS_URL"] == f"unix://{folder.store_socket}"
        assert spec.env["PARLEY_READY_FILE"] == str(folder.ready_file(spec.name))
        assert spec.env["OMP_NUM_THREADS"] == "1"
    assert {spec.env["PARLEY_BIND"] for spec in plan.services} == {"127.0.0.1:0"}
    assert plan.gateway.env["PARLEY_HTTP_BIND"] == "127.0.0.1:8123"
    assert plan.gateway.env["PARLEY_PROFILE"] == "p.yaml"


def test_a_profile_chooses_the_engines_of_its_services(folder: RunFolder, tmp_path: Path) -> None:
    plan = embedded_plan(folder, host="127.0.0.1", port=0, profile=find_profile("minicpmo45"))
    chosen = {spec.name: {key for key in spec.env if spec.env[key] == "minicpmo45"} for spec in plan.services}
    assert chosen == {"vad": set(), "thinker": {"PARLEY_THINKER"}, "talker": {"PARLEY_TALKER"}, "vocoder": {"PARLEY_VOCODER"}}
    strange = tmp_path / "strange.yaml"
    strange.write_text("services: {oven: {PARLEY_HEAT: '9'}}")
    with pytest.raises(MissingBinary, match="'strange' names services that are not there: oven"):
        embedded_plan(folder, host="127.0.0.1", port=0, profile=strange)
    for text in ("services: 7", "- a list", "{", "services: {thinker: 3}"):
        strange.write_text(text)
        assert embedded_plan(folder, host="127.0.0.1", port=0, profile=strange).services, "the gateway says what is wrong with it"


def test_what_a_profile_wants_its_services_to_run_on(tmp_path: Path) -> None:
    native = find_profile("minicpmo45")
    assert devices(native, None) == dict.fromkeys(("thinker", "talker", "vocoder"), "auto")
    assert devices(native, "cpu") == dict.fromkeys(("thinker", "talker", "vocoder"), "cpu"), "the operator knows better than the profile"
    assert devices(find_profile("embedded"), "cuda") == {}, "what no profile sets up has no use for a GPU"
    own = tmp_path / "own.yaml"
    own.write_text("services: {thinker: {PARLEY_DEVICE: 'cuda:1'}, talker: {PARLEY_TALKER: minicpmo45}, vocoder: {PARLEY_DEVICE: auto}}")
    assert devices(own, None) == {"thinker": "cuda:1", "talker": "cpu", "vocoder": "auto"}
    assert devices(own, "cuda") == {"thinker": "cuda:1", "talker": "cuda", "vocoder": "cuda"}


def test_the_store_has_no_tcp_port(folder: RunFolder) -> None:
    command = embedded_plan(folder, host="127.0.0.1", port=0, profile=Path("p.yaml")).store.command
    assert command[command.index("--port") + 1] == "0"
    assert command[command.index("--unixsocket") + 1] == str(folder.store_socket)


def test_profiles_are_found_by_path_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiles").mkdir()
    named = tmp_path / "profiles" / "mine.yaml"
    named.touch()
    monkeypatch.chdir(tmp_path)
    assert find_profile("mine") == find_profile(str(named)) == named
    with pytest.raises(MissingBinary, match="there is no profile 'yours'"):
        find_profile("yours")


def test_a_busy_port_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(BusyPort) as caught:
            check_port("127.0.0.1", port)
    assert str(caught.value).startswith(f"port {port} on 127.0.0.1 is in use by another process")
    assert f"PORT={port + 1}" in str(caught.value)
    check_port("127.0.0.1", port)


def test_an_address_of_another_machine_is_said() -> None:
    with pytest.raises(BusyPort, match=r"cannot listen on 192\.0\.2\.1 port 80"):
        check_port("192.0.2.1", 80)


def test_a_socket_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * MAX_SOCKET_PATH_BYTES)
    with pytest.raises(OSError, match="too long a path"):
        RunFolder.create(deep)
    assert list(deep.iterdir()) == []


def test_logs_stay_where_all_else_goes(folder: RunFolder) -> None:
    folder.log("vad").write_text("x")
    folder.ready_file("vad").write_text("{}")
    folder.pid_file.write_text("{}")
    folder.keep_logs()
    assert [path.name for path in folder.path.iterdir()] == ["vad.log"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        ('{"event": "listening", "level": "info"}\n', "listening"),
        ('{"event": "failed", "error": "no\\nmemory"}', "failed: memory"),
        ('{"broken', '{"broken'),
        ("x" * 5000, "x" * (MAX_LINE_CHARS - 1) + "…"),
    ],
)
def test_the_last_line_of_a_log(text: str, said: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    assert last_line(log) == said


def test_a_log_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert last_line(tmp_path / "none") == ""
