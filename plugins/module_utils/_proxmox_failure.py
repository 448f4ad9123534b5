# Copyright: (c) 2026, the gpuops.inference founders
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What went wrong with the Proxmox API, in one sentence. Pure: the text of an error in, code and sentence out.

proxmoxer and the modules of community.proxmox hand on what requests and the server said, as text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Of a client that took it for an answer: the name of the exception before its words, or the words alone.
_PYTHONS_WORDS = re.compile(
    r"(?m)^(?:AttributeError|IndexError|JSONDecodeError|KeyError|RecursionError|TypeError)\b"
    r"|object has no attribute|indices must be|object is not|maximum recursion depth"
)


class Failure(NamedTuple):
    """``reason`` is a stable code."""

    reason: str
    sentence: str


def api_failure(text: str, host: str) -> Failure:
    """Read an error of a call to the API at ``host``."""
    where = f"The Proxmox API at {host}"
    if re.search(r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError", text):
        # OpenSSL's own words, such as: self-signed certificate in certificate chain
        found = re.search(r"certificate verify failed: ([^()'\"]+)", text)
        why = f" ({found[1].strip()})" if found else ""
        return Failure(
            "api_certificate",
            f"{where} shows a certificate that is not trusted here{why}, so the token was not sent. Name the file of "
            "the authority that signed it as ca_path; on a node it is /etc/pve/pve-root-ca.pem.",
        )
    if re.search(r"\bSSLError\b|\bSSL: |ssl\.SSL", text):
        return Failure("api_tls", f"{where} does not speak TLS as it should: {_last(text)}")
    if re.search(r"(?m)(?:^|: |HTTP )401 |authentication failure|no such token|invalid token", text, re.IGNORECASE):
        return Failure(
            "api_unauthorized",
            f"{where} does not accept the token. Check user (with its realm, such as ops@pve), token_id and "
            "token_secret, and that the token has not expired.",
        )
    if re.search(r"(?m)(?:^|: |HTTP )403 |Permission check failed|permission denied", text, re.IGNORECASE):
        return Failure(
            "api_forbidden",
            f"{where} does not permit that to the token: {_last(text)} See docs/proxmox.md for its rights.",
        )
    if _PYTHONS_WORDS.search(text):
        return no_answer(host)
    if re.search(r"proxmoxer|requests", text) and re.search(r"import|required|library|install|No module", text):
        return Failure(
            "api_library",
            "The Python that runs Ansible has no proxmoxer, or not what it needs: pip install proxmoxer requests",
        )
    if re.search(
        r"NewConnectionError|ConnectTimeout|ReadTimeout|timed out|Connection refused|NameResolution|Max retries|"
        r"Connection aborted|No route to host|(?:^|: )595 ",
        text,
    ):
        return Failure("api_unreachable", f"{where} gives no answer: {_last(text)}")
    return Failure("api_failed", f"{where} failed: {_last(text)}")


def no_answer(host: str) -> Failure:
    """Whatever is at ``host`` said something that no API of Proxmox says."""
    return Failure(
        "api_answer",
        f"What answers at {host} is not the Proxmox API: it says something else than that does. Check the host and the "
        "port (Proxmox's is 8006), and what stands between, such as a proxy with a page of its own.",
    )


def _last(text: str) -> str:
    """The last words of a text, on one line, without what a terminal would obey."""
    shown = "".join(one if one.isprintable() or one.isspace() else "?" for one in text)
    lines = [" ".join(line.split()) for line in shown.splitlines() if line.strip()]
    said = lines[-1] if lines else "no message"
    said = said if len(said) <= 300 else f"{said[:297]}..."
    return said if said.endswith((".", "!", "?")) else f"{said}."
