# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may take a lease, and what a lease is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.inference.plugins.module_utils._lease import (
    Lease,
    LeaseError,
    Request,
    give_back,
    parse_lease,
    take,
)
from tests.unit.doubles import FakeClock

NOW = 1_800_000_000.0


def at(seconds: float) -> float:
    return NOW + seconds


class Desk:
    """Takes and gives back leases in one directory, at a time of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "ct-129.json"
        self.time = NOW

    def request(self, run: str, break_job: str | None = None, *, renew: bool = False) -> Request:
        return Request(str(self.directory), "ct-129", f"{run}@control", f"job-{run}", run, 60, break_job, renew)

    def take(self, run: str, break_job: str | None = None, *, renew: bool = False, dry_run: bool = False) -> object:
        return take(self.request(run, break_job, renew=renew), FakeClock(), lambda: self.time, dry_run=dry_run)

    def refused(self, run: str, break_job: str | None = None, *, renew: bool = False) -> LeaseError:
        before = self.file.read_bytes() if self.file.exists() else None
        with pytest.raises(LeaseError) as error:
            self.take(run, break_job, renew=renew)
        assert (self.file.read_bytes() if self.file.exists() else None) == before
        return error.value

    def holder(self) -> str:
        return str(json.loads(self.file.read_text(encoding="utf-8"))["run"])


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "leases")


def test_the_first_has_it_and_the_second_is_told_who_and_until_when(desk: Desk) -> None:
    outcome = desk.take("a")
    assert outcome == (True, Lease("a@control", "job-a", "a", at(0), at(60)), None)
    error = desk.refused("b")
    assert error.reason == "leased"
    assert "a@control (job job-a) since 2027-01-15T08:00:00Z, until 2027-01-15T08:01:00Z" in error.message
    assert error.fields["holder"]["run"] == "a"


def test_whoever_has_it_renews_it_and_nobody_else(desk: Desk) -> None:
    desk.take("a")
    desk.time = at(50)
    assert desk.take("a", renew=True) == (False, Lease("a@control", "job-a", "a", at(0), at(110)), None)
    assert desk.refused("b", renew=True).reason == "lease_lost"


def test_an_expired_lease_is_ended_and_named_and_its_late_owner_learns_it(desk: Desk) -> None:
    desk.take("a")
    desk.time = at(60)
    outcome = desk.take("b")
    assert outcome == (
        True,
        Lease("b@control", "job-b", "b", at(60), at(120)),
        Lease("a@control", "job-a", "a", NOW, at(60)),
    )
    assert desk.refused("a", renew=True).reason == "lease_lost"
    # What is another's now is not given back by the late one.
    assert give_back(desk.request("a"), FakeClock()).changed is False
    assert desk.holder() == "b"


def test_our_own_lease_is_renewed_also_when_it_has_expired_and_nobody_took_it(desk: Desk) -> None:
    desk.take("a")
    desk.time = at(100)
    desk.take("a", renew=True)
    assert desk.refused("b").reason == "leased"


def test_a_dead_job_s_lease_is_broken_by_its_name_and_by_no_other(desk: Desk) -> None:
    desk.take("a")
    assert desk.refused("b", break_job="job-x").reason == "leased"
    desk.take("b", break_job="job-a")
    assert desk.holder() == "b"


def test_what_was_given_back_is_free(desk: Desk) -> None:
    desk.take("a")
    assert give_back(desk.request("a"), FakeClock(), dry_run=True).changed is True
    assert desk.holder() == "a"
    assert give_back(desk.request("a"), FakeClock()).changed is True
    assert give_back(desk.request("a"), FakeClock()).changed is False
    desk.take("b")
    assert sorted(path.name for path in desk.directory.iterdir()) == ["ct-129.json"]


def test_check_mode_only_looks(desk: Desk) -> None:
    desk.take("a", dry_run=True)
    assert not desk.directory.exists()
    desk.take("a")
    with pytest.raises(LeaseError):
        desk.take("b", dry_run=True)


GOOD = {"owner": "a", "job": "1", "run": "r", "since": 1, "expires": 2.5}


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "7", "{}", "[" * 3000, *(json.dumps({**GOOD, name: None}) for name in GOOD)]
    + [json.dumps({**GOOD, "expires": value}) for value in (True, "2", -1, 1e300, float("inf"), float("nan"))],
)
def test_what_is_no_lease_counts_as_one(desk: Desk, text: str) -> None:
    assert parse_lease(text) is None
    desk.directory.mkdir(mode=0o755)
    desk.file.write_text(text, encoding="utf-8")
    error = desk.refused("b", break_job="1")
    assert error.reason == "lease_unreadable"
    assert "remove the file" in error.message


def test_a_file_that_is_no_file_counts_as_a_lease(desk: Desk) -> None:
    desk.directory.mkdir()
    elsewhere = desk.directory.parent / "elsewhere"
    elsewhere.write_text(json.dumps(GOOD), encoding="utf-8")
    desk.file.symlink_to(elsewhere)
    assert desk.refused("b").reason == "lease_unreadable"
    desk.file.unlink()
    desk.file.mkdir()
    with pytest.raises(LeaseError, match="holds no lease"):
        desk.take("b")
    desk.file.rmdir()
    os.mkfifo(desk.file)
    with pytest.raises(LeaseError, match="holds no lease"):
        desk.take("b")


def test_a_directory_that_others_may_write_is_refused(desk: Desk, tmp_path: Path) -> None:
    desk.directory.mkdir()
    desk.directory.chmod(0o777)
    assert desk.refused("a").reason == "lease_directory"
    desk.directory.rmdir()
    desk.directory.symlink_to(tmp_path)
    assert desk.refused("a").reason == "lease_directory"
    desk.directory.unlink()
    desk.directory.write_text("", encoding="utf-8")
    assert desk.refused("a").reason == "lease_directory"


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "a b", "x" * 101])
def test_a_name_is_no_path(desk: Desk, name: str) -> None:
    with pytest.raises(InputError):
        take(desk.request("a")._replace(name=name), FakeClock(), lambda: NOW)


def test_what_a_killed_writer_left_is_in_nobody_s_way(desk: Desk) -> None:
    desk.directory.mkdir()
    (desk.directory / ".ct-129.new").write_text("half", encoding="utf-8")
    desk.take("a")
    assert [path.name for path in desk.directory.iterdir()] == ["ct-129.json"]


@pytest.mark.parametrize("directory", ["", "leases", "./leases", "../leases"])
def test_a_directory_is_a_whole_path(desk: Desk, directory: str) -> None:
    with pytest.raises(InputError, match="begins with a slash"):
        take(desk.request("a")._replace(directory=directory), FakeClock())


def test_where_no_directory_can_be_made_nobody_has_a_lease(desk: Desk) -> None:
    nowhere = desk.request("a")._replace(directory="/proc/none/leases")
    with pytest.raises(LeaseError) as error:
        take(nowhere, FakeClock())
    assert error.value.reason == "lease_directory"
    assert take(nowhere, FakeClock(), dry_run=True).lease is not None
    assert give_back(nowhere, FakeClock()) == (False, None, None)


@pytest.mark.parametrize("option", ["owner", "job", "run"])
@pytest.mark.parametrize("text", ["x" * 201, "a\nb", "a\x1b[31m", "\udc80"])
def test_a_text_that_would_not_fit_or_would_steer_a_terminal_is_refused(desk: Desk, option: str, text: str) -> None:
    values: dict[str, Any] = {option: text}
    with pytest.raises(InputError, match=f"{option} has more than 200 characters"):
        take(desk.request("a")._replace(**values), FakeClock())
    assert not desk.directory.exists()
    lease = {"owner": "a", "job": "1", "run": "a", "since": NOW, "expires": NOW, option: text}
    assert parse_lease(json.dumps(lease)) is None


@pytest.mark.parametrize("sign", ["x", '"', "\\", "ü", "\U0001f600"])
def test_the_longest_texts_are_read_again(desk: Desk, sign: str) -> None:
    request = desk.request("a")._replace(owner=sign * 200, job=sign * 200, run=sign * 200)
    first = take(request, FakeClock(), lambda: NOW)
    assert take(request, FakeClock(), lambda: NOW)._replace(changed=True) == first
    assert give_back(request, FakeClock()).changed
