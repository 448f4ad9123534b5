"""What antsibull-docs and Sphinx need to make the reference of all modules, filters and roles: a site in build/docs.

No network is asked: the few labels of Ansible's own documentation that every page refers to are listed here.
"""

from __future__ import annotations

import shutil
import zlib

from tests.tooling import sanity
from tests.tooling.environment import BUILD, ROOT

NAME = "gpuops.inference"
SITE = BUILD / "docs"
WORK = BUILD / "reference"
PAGES = WORK / "rst"
# antsibull-docs takes every file for content, so it gets what belongs to the repository, and no more.
COPY = WORK / "ansible_collections" / "gpuops" / "inference"

ANSIBLE_DOCS = "https://docs.ansible.com/ansible/latest/"
# Label -> its page, as https://docs.ansible.com/ansible/latest/objects.inv has it.
LABELS = {
    **{
        f"ansible_collections.{name.replace('/', '.')}_module": f"collections/{name}_module.html"
        for name in ("community/proxmox/proxmox", "community/proxmox/proxmox_vm_info")
    },
    "action_plugins": "plugins/action.html",
    "ansible_configuration_settings": "reference_appendices/config.html",
    "common_return_values": "reference_appendices/common_return_values.html",
}

INVENTORY = WORK / "ansible.inv"
CONFIGURATION = f"""\
project = "gpuops.inference"
html_title = "gpuops.inference"
extensions = ["sphinx.ext.intersphinx", "sphinx_antsibull_ext"]
intersphinx_mapping = {{"ansible": ({ANSIBLE_DOCS!r}, {str(INVENTORY)!r})}}
highlight_language = "YAML+Jinja"
pygments_style = "ansible"
default_role = "any"
nitpicky = True
html_theme = "alabaster"
html_copy_source = False
html_use_index = False
"""


def prepare() -> None:
    """Make the copy, Sphinx's settings and the list of Ansible's labels afresh. What the last run made is removed."""
    for directory in (WORK, SITE):
        shutil.rmtree(directory, ignore_errors=True)
    sanity.copy_repository(ROOT, COPY)
    PAGES.mkdir()
    # antsibull-docs refuses a directory that others may write to.
    PAGES.chmod(0o755)
    (WORK / "conf.py").write_text(CONFIGURATION, encoding="utf-8")
    INVENTORY.write_bytes(inventory(LABELS))


def inventory(labels: dict[str, str]) -> bytes:
    """A Sphinx inventory, version 2: a head, then one compressed line for each label."""
    head = "# Sphinx inventory version 2\n# Project: Ansible\n# Version:\n# The remainder is compressed using zlib.\n"
    lines = [f"{label} std:label -1 {page}#{_anchor(label)} {label}\n" for label, page in labels.items()]
    return head.encode() + zlib.compress("".join(lines).encode())


def _anchor(label: str) -> str:
    """The id that docutils makes of a label."""
    return label.replace("_", "-").replace(".", "-")


def lint_arguments() -> list[str]:
    """antsibull-docs, strict: markup, references and the schema of everything that is documented."""
    only_ours = ("--validate-collection-refs", "self")
    # Sphinx reads the same pages right after, with every warning an error.
    return ["lint-collection-docs", "--plugin-docs", *only_ours, "--skip-rstcheck", str(COPY)]


def pages_arguments() -> list[str]:
    """antsibull-docs: one page each."""
    return ["collection", "--fail-on-error", "--use-current", "--squash-hierarchy", "--dest-dir", str(PAGES), NAME]


def site_arguments() -> list[str]:
    """Sphinx: pages to HTML."""
    strict = ("-W", "--keep-going", "--quiet", "--jobs", "auto")
    return ["-b", "html", *strict, "-c", str(WORK), "-d", str(WORK / "doctrees"), str(PAGES), str(SITE)]
