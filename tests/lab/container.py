"""What a container of the lab can do, and which class does it.

Two implementations: `container_rootless` (user, pid and mount namespaces over the same files) and `container_lxc`
(LXC with real systemd). Either is made from (vmid, state directory, cards) alone, also by a later process: what it
must remember lies in the state directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Protocol

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from tests.lab.cards import Card

VMID = 129
NEIGHBOUR_VMID = 130
STOPPED_VMID = 131


class Container(Protocol):
    """One container.

    The state directory and the repository's `tests/` are visible inside at the same paths as outside.
    """

    vmid: int
    python: str
    """The interpreter inside."""
    device_directory: str
    """Where the card nodes are, as seen from inside."""

    def start(self) -> None:
        """Create and boot; return when the service manager inside answers. Raises LabError."""

    def halt(self, seconds: Optional[float]) -> bool:
        """Shut down within so many seconds, None: by force at once. Whether it is stopped; `start` boots it again."""

    def destroy(self) -> None:
        """Leave no process, mount, cgroup or loop device. Idempotent, also after a start that was cut off."""

    def init_pid(self) -> Optional[int]:
        """The container's init as the node sees it; None when the container is stopped."""

    def attach_argv(self, argv: list[str], env: Optional[dict[str, str]] = None) -> list[str]:
        """An argv for the node that runs `argv` inside: stdio passed through, exit code handed through.

        `env` None: the caller's environment goes along (as `pct exec` does); otherwise the command gets exactly `env`.
        """

    def install_unit(self, name: str, text: str) -> None:
        """Write the unit file inside and make the service manager read it."""

    def service_manager_argv(self, *args: str) -> list[str]:
        """`attach_argv` of `systemctl ARGS`."""


def open_container(vmid: int, state: pathlib.Path, cards: Sequence[Card], *, lxc: bool) -> Container:
    """The container `vmid` of the lab in `state`. The import waits until here: `pct` must start fast."""
    if lxc:
        from tests.lab.container_lxc import LxcContainer

        return LxcContainer(vmid, state, cards)
    from tests.lab.container_rootless import RootlessContainer

    return RootlessContainer(vmid, state, cards)
