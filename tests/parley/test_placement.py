"""Which service gets which card, and what people are told of it: from what is there alone."""

from __future__ import annotations

import pytest

from parley.supervisor import Machine, NoSuchCard, place

NATIVE = dict.fromkeys(("thinker", "talker", "vocoder"), "auto")
ON_GPU = dict.fromkeys(NATIVE, "cuda")
ONE, THREE = ("GPU-a",), ("GPU-a", "GPU-b", "GPU-c")
CONTROL = "/usr/bin/nvidia-cuda-mps-control"
SLICES = "thinker, talker and vocoder share GPU 0 by time slices, so that real time is kept for fewer sessions"


def test_without_a_gpu_all_run_on_the_cpu() -> None:
    for machine in (Machine(), Machine(cards=())):
        placed = place(NATIVE, machine)
        assert placed.env == {name: {"PARLEY_DEVICE": "cpu"} for name in NATIVE}
        assert placed.said == ("no GPU was found: thinker, talker and vocoder run on the CPU",)
        assert (placed.sharings, placed.warnings) == ((), ())
    assert place(dict.fromkeys(NATIVE, "cpu"), Machine(cards=THREE, control=CONTROL)).said == ()
    assert place({}, Machine()) == place({}, Machine(cards=ONE, control=CONTROL))


@pytest.mark.parametrize("wanted", [NATIVE, ON_GPU])
def test_one_card_is_shared_through_mps(wanted: dict[str, str]) -> None:
    placed = place(wanted, Machine(cards=ONE, control=CONTROL))
    own = {"PARLEY_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "GPU-a", "PARLEY_STAGES_ON_CARD": "thinker,talker,vocoder"}
    assert placed.env == dict.fromkeys(NATIVE, own)
    [sharing] = placed.sharings
    assert (sharing.card, sharing.services, sharing.env) == ("GPU-a", ("thinker", "talker", "vocoder"), {})
    assert (sharing.said, sharing.otherwise) == ("thinker, talker and vocoder share GPU 0 through MPS", SLICES)
    assert (placed.said, placed.warnings) == ((), ())


def test_a_card_known_by_number_is_number_0_to_those_that_share_it() -> None:
    [sharing] = place(NATIVE, Machine(cards=("5",), control=CONTROL)).sharings
    assert (sharing.card, sharing.env) == ("5", {"CUDA_VISIBLE_DEVICES": "0"})
    assert sharing.said == "thinker, talker and vocoder share GPU 5 through MPS", "it is the machine's fifth all the same"


def test_without_the_program_cards_are_shared_by_time_slices_and_that_is_said() -> None:
    placed = place(NATIVE, Machine(cards=ONE))
    assert placed.warnings == (f"{SLICES}: nvidia-cuda-mps-control (MPS) is not on PATH",)
    assert placed.sharings == ()
    assert place(NATIVE, Machine(cards=ONE, control=CONTROL), mps=False).warnings == (f"{SLICES}: MPS is turned off",)


def test_a_daemon_that_was_there_is_used() -> None:
    machine = Machine(cards=ONE, control=CONTROL, pipes="/run/mps", serves=True)
    for placed in (place(NATIVE, machine), place(NATIVE, machine, mps=False)):
        assert placed.sharings == placed.warnings == ()
        assert {env["CUDA_MPS_PIPE_DIRECTORY"] for env in placed.env.values()} == {"/run/mps"}
        assert placed.said == ("thinker, talker and vocoder share GPU 0 through the MPS daemon of /run/mps, which was there before",)


def test_a_daemon_that_is_named_and_does_not_answer_is_said_and_none_is_started() -> None:
    placed = place(NATIVE, Machine(cards=ONE, control=CONTROL, pipes="/run/mps"))
    assert placed.warnings == (f"{SLICES}: no daemon answers in /run/mps (CUDA_MPS_PIPE_DIRECTORY)",)
    assert placed.sharings == ()


def test_each_has_its_own_card_where_there_are_enough() -> None:
    placed = place(NATIVE, Machine(cards=THREE, control=CONTROL))
    assert [env["CUDA_VISIBLE_DEVICES"] for env in placed.env.values()] == list(THREE)
    assert [env["PARLEY_STAGES_ON_CARD"] for env in placed.env.values()] == list(NATIVE), "each plans for itself alone"
    assert placed.said == ("thinker has GPU 0", "talker has GPU 1", "vocoder has GPU 2")
    assert placed.sharings == ()
    [sharing] = place(NATIVE, Machine(cards=THREE[:2], control=CONTROL)).sharings
    assert sharing.card == "GPU-a", "two are not enough, so the first is shared unless somebody names both"


def test_named_cards_are_dealt_round_robin() -> None:
    machine = Machine(cards=THREE, control=CONTROL)
    placed = place(NATIVE, machine, ["2", "1"])
    assert [env["CUDA_VISIBLE_DEVICES"] for env in placed.env.values()] == ["GPU-c", "GPU-b", "GPU-c"]
    assert [(each.card, each.services) for each in placed.sharings] == [("GPU-c", ("thinker", "vocoder"))]
    assert placed.said == ("talker has GPU 1",)
    assert place(NATIVE, machine, ["GPU-b"]).sharings[0].said == "thinker, talker and vocoder share GPU 1 through MPS"
    unknown = place(NATIVE, Machine(), ["0", "1", "7"])
    assert [env["CUDA_VISIBLE_DEVICES"] for env in unknown.env.values()] == ["0", "1", "7"], "nobody knows better"


def test_a_service_may_name_its_card() -> None:
    wanted = {"thinker": "cuda:1", "talker": "cuda", "vocoder": "cuda:1"}
    placed = place(wanted, Machine(cards=THREE, control=CONTROL))
    assert [env["CUDA_VISIBLE_DEVICES"] for env in placed.env.values()] == ["GPU-b", "GPU-a", "GPU-b"]
    assert {env["PARLEY_DEVICE"] for env in placed.env.values()} == {"cuda"}, "of those that it sees, it has the first"
    assert place(dict.fromkeys(NATIVE, "cuda:1"), Machine()).env["talker"]["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_card_of_its_own_beside_the_cpu() -> None:
    placed = place({"thinker": "cuda", "talker": "cpu"}, Machine(cards=ONE, control=CONTROL))
    assert placed.env["talker"] == {"PARLEY_DEVICE": "cpu"}
    assert (placed.said, placed.sharings) == (("thinker has GPU 0",), ())


def test_cards_that_are_not_there_are_refused() -> None:
    machine = Machine(cards=ONE)
    with pytest.raises(NoSuchCard, match="there is no GPU 1: 1 GPU can be seen, counted from 0"):
        place(NATIVE, machine, ["0", "1"])
    with pytest.raises(NoSuchCard, match="there is no GPU 3"):
        place({"thinker": "cuda:3"}, machine)
    with pytest.raises(NoSuchCard, match=r"thinker, talker and vocoder should run on a GPU \(PARLEY_DEVICE\), and there is none"):
        place(ON_GPU, Machine(cards=()))
    for wanted in ({}, dict.fromkeys(NATIVE, "cpu")):
        with pytest.raises(NoSuchCard, match="no service of this profile"):
            place(wanted, machine, ["0"])


@pytest.mark.parametrize("name", ["-1", "x", "0;rm", "", "GPU-", "gpu-a b"])
def test_what_names_no_card_is_refused(name: str) -> None:
    for machine in (Machine(cards=("0",)), Machine(cards=None)):
        with pytest.raises(NoSuchCard, match="names no GPU"):
            place(NATIVE, machine, [name])
