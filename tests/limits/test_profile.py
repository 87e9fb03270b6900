"""Limits that a profile sets itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.graph import ProfileError
from gateway.graph.profile import load_profile

EMBEDDED = Path(__file__).parents[2] / "profiles" / "embedded.yaml"


@pytest.mark.behaviour("X14")
def test_a_profile_has_so_many_nodes_and_not_one_more() -> None:
    document = yaml.safe_load(EMBEDDED.read_text(encoding="utf-8"))
    count = len(document["nodes"])
    document["limits"] = {"max_nodes": count}
    assert len(load_profile(yaml.safe_dump(document), "p").nodes) == count
    document["limits"] = {"max_nodes": count - 1}
    with pytest.raises(ProfileError, match=f"{count} nodes exceed max_nodes {count - 1}"):
        load_profile(yaml.safe_dump(document), "p")
