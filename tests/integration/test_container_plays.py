"""A card that the container's first process holds: pct restarts the container for it, but not one that is locked."""

from __future__ import annotations

import json

from tests.integration.conftest import MakeLab
from tests.integration.play import play
from tests.integration.test_container_restart import CLIMBED, SOON, assert_restarted, init_of


def test_only_a_restart_of_the_container_frees_the_card_that_its_first_process_holds(make_lab: MakeLab) -> None:
    lab = make_lab("init-holds", container=False)
    init = init_of(lab)
    assert_restarted(lab, play(lab, verified_restart_allow_container_restart=True, **SOON), init)


def test_a_locked_container_is_left_alone_and_the_lock_is_named(make_lab: MakeLab) -> None:
    lab = make_lab("init-holds", container=False)
    init = init_of(lab)
    (lab.state / "locks.json").write_text(json.dumps({"129": "backup"}), encoding="utf-8")
    locked = play(lab, verified_restart_allow_container_restart=True, **SOON)
    assert locked.result is not None, locked.output
    assert (locked.result["outcome"], locked.result["needs"]) == ("gpus_not_free", "container_restart")
    assert "Container 129 is locked (backup)" in locked.result["reason"]
    assert f"GPU 1 holds 559 MiB: {init} (systemd" in locked.result["reason"]
    assert locked.rungs == [*CLIMBED, "container_restart"]
    assert locked.result["rungs"][-1]["changed"] is False
    assert init_of(lab) == init
