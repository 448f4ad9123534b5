"""The lab's one exception."""

from __future__ import annotations


class LabError(Exception):
    """The lab cannot do what was asked. The text is one sentence for a person: what was seen, and what to do."""
