# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may be signalled: tables of who must never be, and of who must not be spared by mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional, Sequence

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._device_handles import Holder
from ansible_collections.gpuops.inference.plugins.module_utils._patterns import (
    compile_patterns,
    matches,
)
from ansible_collections.gpuops.inference.plugins.module_utils._procfs import Process
from ansible_collections.gpuops.inference.plugins.module_utils._selection import (
    DEFAULT_PROTECT,
    HolderRules,
    Selection,
    select_holders,
    select_matching,
)
from tests.unit.fake_proc import make_process
from tests.unit.recorded import recorded

ROLE = Path(__file__).parents[4] / "roles" / "verified_restart"
PROTECT = compile_patterns(DEFAULT_PROTECT, "protect")

# name as the kernel cuts it, full command line
PROTECTED = [
    # the driver's own
    ("nvidia-persiste", "/usr/bin/nvidia-persistenced --user nvidia-persistenced --verbose"),
    ("nvidia-persiste", "nvidia-persistenced"),
    ("nv-fabricmanage", "/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg"),
    ("nvidia-fabricma", "nvidia-fabricmanager"),
    ("nvlsm", "/opt/nvidia/nvlsm/sbin/nvlsm -F x"),
    ("nvidia-imex", "/usr/bin/nvidia-imex -c /etc/nvidia-imex/config.cfg"),
    ("nvidia-powerd", "/usr/bin/nvidia-powerd"),
    ("nvidia-smi", "nvidia-smi -l 1"),
    ("nvidia-cuda-mps", "nvidia-cuda-mps-control -d"),
    ("nvidia-cuda-mps", "nvidia-cuda-mps-server"),
    # DCGM
    ("nv-hostengine", "/usr/bin/nv-hostengine -n --service-account nvidia-dcgm"),
    ("dcgm-exporter", "/usr/bin/dcgm-exporter -f /etc/dcgm-exporter/x.csv"),
    ("dcgmi", "dcgmi dmon"),
    # display servers
    ("Xorg", "/usr/lib/xorg/Xorg vt7 -displayfd 3"),
    ("X", "/usr/bin/X :0"),
    ("Xwayland", "/usr/bin/Xwayland :0 -rootless"),
    ("gdm", "/usr/sbin/gdm"),
    ("gdm3", "/usr/sbin/gdm3"),
    ("gdm-x-session", "/usr/libexec/gdm-x-session --run-script x"),
    ("gnome-shell", "/usr/bin/gnome-shell"),
    ("sddm", "/usr/bin/sddm"),
    ("lightdm", "/usr/sbin/lightdm"),
    ("kwin_wayland", "/usr/bin/kwin_wayland --xwayland"),
    ("weston", "weston"),
    ("sway", "sway"),
    # system managers
    ("systemd", "/sbin/init"),
    ("systemd", "/usr/lib/systemd/systemd --user"),
    ("systemd-logind", "/usr/lib/systemd/systemd-logind"),
    ("systemd-journal", "/usr/lib/systemd/systemd-journald"),
    ("systemd-udevd", "/usr/lib/systemd/systemd-udevd"),
    ("(sd-pam)", "(sd-pam)"),
    ("init", "init [3]"),
    ("dbus-daemon", "/usr/bin/dbus-daemon --system"),
    ("dbus-broker-lau", "/usr/bin/dbus-broker-launch --scope system"),
    ("agetty", "/sbin/agetty -o -p -- \\u --noclear tty1 linux"),
    ("login", "/bin/login -p --"),
    # container managers
    ("dockerd", "/usr/bin/dockerd -H fd://"),
    ("containerd", "/usr/bin/containerd"),
    ("containerd-shim", "/usr/bin/containerd-shim-runc-v2 -namespace moby -id 1"),
    ("conmon", "/usr/bin/conmon --api-version 1"),
    ("crio", "/usr/bin/crio"),
    ("podman", "/usr/bin/podman run x"),
    ("runc", "runc init"),
    ("crun", "crun run x"),
    ("lxc-start", "/usr/bin/lxc-start -F -n 129"),
    ("lxc-start", "[lxc monitor] /var/lib/lxc 129"),
    ("lxcfs", "/usr/bin/lxcfs /var/lib/lxcfs"),
    ("pvedaemon", "pvedaemon"),
    ("pvedaemon worke", "pvedaemon worker"),
    ("pvestatd", "pvestatd"),
    ("pve-ha-lrm", "pve-ha-lrm"),
    ("pmxcfs", "/usr/bin/pmxcfs"),
    ("corosync", "/usr/sbin/corosync -f"),
    ("kvm", "/usr/bin/kvm -id 100 -name vm"),
    ("qemu-system-x86", "/usr/bin/qemu-system-x86_64 -name vm"),
    # sshd
    ("sshd", "/usr/sbin/sshd -D"),
    ("sshd", "sshd: root@pts/0"),
    ("sshd-session", "sshd-session: root@pts/0"),
]

ORDINARY = [
    ("python3", "python3 -m sglang.launch_server --model-path /models/kimi"),
    ("python", "/opt/venv/bin/python /opt/venv/bin/sglang serve --model x"),
    ("sglang::schedul", "sglang::scheduler_TP1"),
    ("sglang::detoken", "sglang::detokenizer"),
    ("pt_main_thread", "python3 train.py --init systemd"),
    ("VLLM::EngineCor", "VLLM::EngineCore"),
    ("VLLM::Worker_TP", "VLLM::Worker_TP1"),
    ("vllm", "/usr/bin/python3 /usr/local/bin/vllm serve meta/x --api-key y"),
    ("ray::RayWorkerW", "ray::RayWorkerWrapper"),
    ("raylet", "/opt/ray/raylet --x"),
    ("llama-server", "/usr/bin/llama-server -m x.gguf"),
    ("ollama", "/usr/bin/ollama runner"),
    ("text-generation", "text-generation-server serve"),
    ("tritonserver", "tritonserver --model-store /models"),
    ("node", "/usr/bin/node x.js"),
    ("bash", "bash -c sshd"),
    ("python3", "python3 /usr/share/nvidia-persistenced/test.py"),
    # a directory on the way is not the program
    ("python3", "/home/sway/bin/python3 x"),
    ("python3", "/opt/systemd/bin/python3 x"),
    ("python3", "/opt/nvidia-smi-tools/bin/python3 x"),
    ("python3", "/home/pve/venv/bin/python3 x"),
    ("python3", "/srv/sshd/bin/python3 x"),
    ("", ""),
]


@pytest.mark.parametrize(("name", "command"), PROTECTED)
def test_what_keeps_the_machine_running_is_protected_by_name_and_by_command(name: str, command: str) -> None:
    assert len(name) <= 15
    assert matches(make_process(name=name, command=command), PROTECT)
    assert matches(make_process(name="", command=command), PROTECT), "by its command line alone"
    if command not in ("/sbin/init", "[lxc monitor] /var/lib/lxc 129"):
        assert matches(make_process(name=name, command=""), PROTECT), "by its name alone"


@pytest.mark.parametrize(("name", "command"), ORDINARY)
def test_whoever_computes_is_not_protected(name: str, command: str) -> None:
    assert not matches(make_process(name=name, command=command), PROTECT)


def role_patterns() -> dict[str, tuple[Any, ...]]:
    variables = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
    engines = variables["verified_restart__engines"]
    return {name: compile_patterns(engine["patterns"], name) for name, engine in engines.items()}


def test_the_role_s_patterns_find_the_schedulers_of_the_field_case() -> None:
    """B02: neither `python` nor `launch_server` finds them. The header of the listing is no process."""
    header, *rows = recorded("ps", "B02").stdout.splitlines()
    sglang = role_patterns()["sglang"]
    assert not matches(make_process(name=header, command=header), sglang)
    for row in rows:
        _user, pid, _parent, command = row.split(None, 3)
        assert matches(make_process(int(pid), command[:15], command), sglang)
        assert not matches(
            make_process(int(pid), command[:15], command), compile_patterns(["python", "launch_server"], "x")
        )


@pytest.mark.parametrize(
    ("engine", "name", "command"),
    [
        ("sglang", "python3", "python3 -m sglang.launch_server --tp 8"),
        ("sglang", "python3", "/opt/venv/bin/python /opt/venv/bin/sglang serve"),
        ("sglang", "sglang::detoken", "sglang::detokenizer"),
        ("vllm", "VLLM::EngineCor", "VLLM::EngineCore"),
        ("vllm", "VLLM::Worker_TP", ""),
        ("vllm", "vllm", "/usr/bin/python3 /usr/local/bin/vllm serve m"),
        ("vllm", "python3", "python3 -m vllm.entrypoints.openai.api_server"),
        ("llamacpp", "llama-server", "/usr/bin/llama-server -m x"),
    ],
)
def test_the_role_s_patterns_find_their_engine_by_name_or_command(engine: str, name: str, command: str) -> None:
    found = role_patterns()
    process = make_process(name=name, command=command)
    assert [other for other in found if matches(process, found[other])] == [engine]


def select(processes: Sequence[Process], *patterns: str, exclude: Sequence[str] = (), ourselves: Any = ()) -> Selection:
    return select_matching(
        processes,
        patterns=compile_patterns(patterns, "patterns"),
        exclude=compile_patterns(exclude, "exclude"),
        ourselves=ourselves,
    )


def summary(selection: Selection) -> tuple[list[int], dict[int, str]]:
    return [one.pid for one in selection.targets], {one.process.pid: one.reason for one in selection.spared}


def test_a_pattern_is_searched_in_the_name_and_in_the_command_line() -> None:
    processes = [
        make_process(10, "sglang::schedul", "sglang::scheduler_TP1"),
        make_process(11, "python3", "python3 -m sglang.launch_server"),
        make_process(12, "pt_main_thread", ""),
        make_process(13, "bash", "bash"),
    ]
    assert summary(select(processes, "scheduler_TP1$", r"sglang\.", "^pt_main")) == ([10, 11, 12], {})


def test_a_pattern_is_a_pattern_and_never_a_command() -> None:
    processes = [make_process(10, command="x a b; touch /tmp/x"), make_process(11, command="a b")]
    assert summary(select(processes, "a b; touch /tmp/x")) == ([10], {})


def test_whoever_is_excluded_is_spared_and_named() -> None:
    processes = [make_process(10, command="vllm --port 8000"), make_process(11, command="vllm --port 8001")]
    assert summary(select(processes, "vllm", exclude=["--port 8001"])) == ([10], {11: "excluded"})


def test_whoever_does_not_match_is_not_even_named() -> None:
    assert summary(select([make_process(1), make_process(10)], "vllm")) == ([], {})


def test_the_dead_are_neither_signalled_nor_named() -> None:
    dead, half_dead = make_process(10, "vllm", state="Z"), make_process(11, "vllm", state="Z", threads=2)
    assert summary(select([dead, half_dead], "vllm")) == ([11], {})


UNTOUCHABLE = [
    (make_process(1, "python3"), "init"),
    # To kill(2), 0 is our own process group: a place that no process has.
    (make_process(0, "python3"), "init"),
    (make_process(50, "python3"), "ourselves"),
    (make_process(60, "python3", kernel_thread=True), "kernel_thread"),
    (make_process(4100, "python3", namespace_pids=(4100, 1)), "container_init"),
]


@pytest.mark.parametrize(("process", "reason"), UNTOUCHABLE)
def test_nobody_signals_those(process: Process, reason: str) -> None:
    assert summary(select([process], "python", ourselves={50, 51})) == ([], {process.pid: reason})
    holder = Holder(process, gpus={1}, compute_context=True)
    assert summary(select_holders([holder], rules(ourselves={50, 51}))) == ([], {process.pid: reason})


def test_the_first_process_of_a_neighbours_container_is_no_reason_to_restart_ours() -> None:
    init = make_process(4100, "python3", namespace_pids=(4100, 1))
    holder = Holder(init, gpus={1}, compute_context=True)
    assert summary(select_holders([holder], rules(members={init.identity}))) == ([], {4100: "container_init"})
    assert summary(select_holders([holder], rules(members=set()))) == ([], {4100: "other_container"})


def test_the_second_process_of_a_small_machine_is_an_ordinary_one() -> None:
    assert summary(select([make_process(2, "python3")], "python")) == ([2], {})


def test_the_first_process_of_a_container_within_a_container_is_an_ordinary_one() -> None:
    assert summary(select([make_process(4300, namespace_pids=(4300, 77, 1))], "python")) == ([4300], {})


def rules(**fields: Any) -> HolderRules:
    known: dict[str, Any] = {
        "ourselves": (),
        "protect": PROTECT,
        "spare_monitors": True,
        "cards": {1},
        "computing": {},
        "members": None,
    }
    return HolderRules(**{**known, **fields})


def judged(rule: HolderRules, name: str = "python3", *, compute_context: bool = False, **fields: Any) -> Optional[str]:
    """The reason for which one holder is spared, or None."""
    holder = Holder(make_process(4242, name, **fields), gpus={1}, compute_context=compute_context)
    selection = select_holders([holder], rule)
    return selection.spared[0].reason if selection.spared else None


def test_a_holder_that_the_driver_lists_on_the_card_is_meant() -> None:
    assert judged(rules(computing={4242: frozenset({1})})) is None
    assert judged(rules(computing={4242: frozenset({0, 1})})) is None


def test_a_holder_with_a_compute_context_is_meant_even_if_the_driver_is_silent() -> None:
    assert judged(rules(), compute_context=True) is None
    assert judged(rules(computing=None), compute_context=True) is None


@pytest.mark.parametrize("computing", [None, {}, {4242: frozenset()}, {99: frozenset({1})}])
def test_who_only_watches_is_spared(computing: Optional[dict[int, frozenset[int]]]) -> None:
    assert judged(rules(computing=computing), "nvtop") == "monitor"
    assert judged(rules(computing=computing, spare_monitors=False), "nvtop") is None


@pytest.mark.parametrize("spare_monitors", [True, False])
def test_who_computes_on_other_cards_and_has_this_one_open_too_is_spared(spare_monitors: bool) -> None:
    """B23: whoever speaks CUDA opens every card."""
    rule = rules(computing={4242: frozenset({0})}, spare_monitors=spare_monitors)
    assert judged(rule, compute_context=True) == "computes_elsewhere"


def test_where_the_cards_behind_the_nodes_are_not_known_whoever_computes_is_meant() -> None:
    assert judged(rules(cards=set(), computing={4242: frozenset({0})})) is None


def test_a_holder_outside_the_container_is_spared() -> None:
    mine = make_process(4242)
    assert judged(rules(members={mine.identity}), compute_context=True) is None
    assert judged(rules(members={mine.identity}), compute_context=True, start_ticks=1) == "other_container"
    assert judged(rules(members=set()), compute_context=True) == "other_container"


@pytest.mark.parametrize(("name", "command"), PROTECTED)
def test_a_protected_holder_is_spared_even_if_it_computes(name: str, command: str) -> None:
    rule = rules(computing={4242: frozenset({1})}, spare_monitors=False)
    assert judged(rule, name, command=command, compute_context=True) == "protected"


def test_a_dead_holder_is_left_out() -> None:
    holder = Holder(make_process(4242, state="Z"), gpus={1}, compute_context=True)
    assert select_holders([holder], rules()) == Selection((), ())


# Hostile tables: whatever processes there are, and whatever they call themselves, some are never signalled.

PIDS = st.integers(min_value=1, max_value=40)
HOSTILE = st.one_of(st.text(max_size=15), st.sampled_from([name for name, _command in PROTECTED + ORDINARY]))


@st.composite
def any_process(draw: st.DrawFn) -> Process:
    pid = draw(PIDS)
    return make_process(
        pid,
        draw(HOSTILE),
        draw(st.one_of(HOSTILE, st.sampled_from([command for _name, command in PROTECTED + ORDINARY]))),
        start_ticks=draw(st.integers(1, 3)),
        state=draw(st.sampled_from("SRDZXT")),
        threads=draw(st.integers(0, 3)),
        parent_pid=draw(st.integers(0, 40)),
        namespace_pids=(pid, *draw(st.lists(st.integers(1, 3), max_size=2))),
        kernel_thread=draw(st.booleans()),
    )


TABLES = st.lists(any_process(), max_size=12, unique_by=lambda process: process.pid)
# Inputs are made anew each time; nothing is kept beside the checkout.
HARD = settings(max_examples=50, deadline=None, database=None)


def is_untouchable(process: Process, ourselves: set[int]) -> bool:
    is_init = process.pid == 1 or (len(process.namespace_pids) == 2 and process.namespace_pids[1] == 1)
    return is_init or process.kernel_thread or process.pid in ourselves


@HARD
@given(processes=TABLES, ourselves=st.sets(PIDS, max_size=4), exclude=st.sampled_from(["a", "sshd", "^nv", r"\d"]))
def test_no_table_of_processes_makes_the_untouchable_a_target(
    processes: list[Process], ourselves: set[int], exclude: str
) -> None:
    selection = select(processes, "(?s).*", exclude=[exclude], ourselves=ourselves)
    for target in selection.targets:
        assert not is_untouchable(target, ourselves)
        assert not matches(target, compile_patterns([exclude], "exclude"))
        assert not target.gone
    named = [*selection.targets, *(one.process for one in selection.spared)]
    assert sorted(one.pid for one in named) == sorted(one.pid for one in processes if not one.gone)


@HARD
@given(
    processes=TABLES,
    ourselves=st.sets(PIDS, max_size=4),
    inside=st.one_of(st.none(), st.sets(PIDS)),
    computing=st.one_of(st.none(), st.dictionaries(PIDS, st.frozensets(st.integers(0, 2)))),
    cards=st.sets(st.integers(0, 2)),
    contexts=st.sets(PIDS),
    spare_monitors=st.booleans(),
)
def test_no_table_of_holders_makes_the_protected_or_a_neighbour_a_target(
    processes: list[Process],
    ourselves: set[int],
    inside: Optional[set[int]],
    computing: Optional[dict[int, frozenset[int]]],
    cards: set[int],
    contexts: set[int],
    spare_monitors: bool,
) -> None:
    holders = [Holder(one, gpus={0}, compute_context=one.pid in contexts) for one in processes]
    members = None if inside is None else {one.identity for one in processes if one.pid in inside}
    selection = select_holders(
        holders,
        rules(ourselves=ourselves, spare_monitors=spare_monitors, cards=cards, computing=computing, members=members),
    )
    for target in selection.targets:
        assert not is_untouchable(target, ourselves)
        assert not matches(target, PROTECT)
        assert not target.gone
        assert inside is None or target.pid in inside
        elsewhere = (computing or {}).get(target.pid, frozenset())
        assert not elsewhere or not cards or elsewhere & cards
        assert not spare_monitors or elsewhere or target.pid in contexts


@pytest.mark.parametrize(
    ("name", "exclude", "reason"),
    [
        ("python3", (), "command_unknown"),
        ("sglang::sched", (), None),
        ("sglang::sched", ("important",), "command_unknown"),
        ("important", ("important",), "excluded"),
    ],
)
def test_one_whose_command_line_is_never_told_is_neither_passed_over_nor_taken_for_another(
    name: str, exclude: Sequence[str], reason: Optional[str]
) -> None:
    """A thread of it has its memory locked. It may be the hung server, and it may be what is to be left alone."""
    unknown = make_process(4242, name, command_known=False)
    chosen = select([unknown, make_process(4243, name="bash", command="bash")], "sglang", exclude=exclude)
    assert [one.reason for one in chosen.spared] == ([reason] if reason else [])
    assert list(chosen.targets) == ([] if reason else [unknown])


@pytest.mark.parametrize(
    ("protect", "reason"), [((), None), (("training",), "command_unknown"), (("python3",), "protected")]
)
def test_a_holder_that_a_pattern_may_protect_is_spared(protect: Sequence[str], reason: Optional[str]) -> None:
    """Our own patterns know their programs by the name, so they need no command line."""
    unknown = make_process(4242, "python3", command_known=False)
    rules = HolderRules(
        ourselves=(),
        protect=compile_patterns([*DEFAULT_PROTECT, *protect], "protect"),
        spare_monitors=True,
        cards={1},
        computing={4242: frozenset({1})},
        members=None,
    )
    chosen = select_holders([Holder(unknown, gpus={1})], rules)
    assert [one.reason for one in chosen.spared] == ([reason] if reason else [])
