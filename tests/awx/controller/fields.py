"""What AWX's API knows of each kind of object: awx/api/serializers.py, and the models for choices (24.6).

The real API passes over what it does not know. This one refuses it, since a field that is not there would not be set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_PROMPTS = "scm_branch diff_mode variables limit tags skip_tags job_type verbosity inventory credential"
_PROMPTS += " execution_environment labels forks job_slice_count timeout instance_groups"
ASKS = frozenset(f"ask_{name}_on_launch" for name in _PROMPTS.split())
_LAUNCH = "inventory scm_branch job_type job_tags skip_tags limit diff_mode verbosity forks job_slice_count timeout"
_NOTIFY = ("notification_templates_started", "notification_templates_success", "notification_templates_error")


class Kind(NamedTuple):
    """``references``: field -> the list it points into. ``passed_over``: sent, known, and not to be set."""

    writable: frozenset[str]
    required: frozenset[str]
    references: Mapping[str, str] = {}
    choices: Mapping[str, frozenset[str]] = {}
    associations: Mapping[str, str] = {}
    passed_over: frozenset[str] = frozenset()


def _words(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).split())


KINDS: dict[str, Kind] = {
    "organizations": Kind(_words("name description max_hosts default_environment"), _words("name")),
    "execution_environments": Kind(
        _words("name description organization image credential pull"),
        _words("name image"),
        {"organization": "organizations", "credential": "credentials"},
        {"pull": frozenset({"", "always", "missing", "never"})},
    ),
    "credential_types": Kind(
        _words("name description kind inputs injectors"),
        _words("name kind"),
        choices={"kind": frozenset({"cloud", "net"})},
        passed_over=_words("managed"),
    ),
    "credentials": Kind(
        _words("name description organization credential_type inputs user team"),
        _words("name credential_type"),
        {"organization": "organizations", "credential_type": "credential_types"},
    ),
    "notification_templates": Kind(
        _words("name description organization notification_type notification_configuration messages"),
        _words("name organization notification_type notification_configuration"),
        {"organization": "organizations"},
        {
            "notification_type": _words(
                "awssns email grafana irc mattermost pagerduty rocketchat slack twilio webhook",
            )
        },
    ),
    "projects": Kind(
        _words(
            "name description organization local_path scm_type scm_url scm_branch scm_refspec scm_clean",
            "scm_track_submodules scm_delete_on_update credential timeout scm_update_on_launch",
            "scm_update_cache_timeout allow_override default_environment signature_validation_credential",
        ),
        _words("name"),
        {
            "organization": "organizations",
            "default_environment": "execution_environments",
            "credential": "credentials",
        },
        {"scm_type": frozenset({"", "git", "svn", "insights", "archive"})},
        dict.fromkeys(_NOTIFY, "notification_templates"),
    ),
    "inventories": Kind(
        _words("name description organization kind host_filter variables prevent_instance_group_fallback"),
        _words("name organization"),
        {"organization": "organizations"},
        {"kind": frozenset({"", "smart", "constructed"})},
    ),
    "inventory_sources": Kind(
        _words(
            "name description inventory source source_path source_project source_vars scm_branch credential",
            "enabled_var enabled_value host_filter overwrite overwrite_vars timeout verbosity limit",
            "execution_environment update_on_launch update_cache_timeout",
        ),
        _words("name inventory source"),
        {
            "inventory": "inventories",
            "source_project": "projects",
            "credential": "credentials",
            "execution_environment": "execution_environments",
        },
        {"source": _words("file constructed scm ec2 gce azure_rm vmware satellite6 openstack rhv controller insights")},
        dict.fromkeys(_NOTIFY, "notification_templates"),
    ),
    "job_templates": Kind(
        _words(
            "name description job_type inventory project playbook scm_branch forks limit verbosity extra_vars job_tags",
            "force_handlers skip_tags start_at_task timeout use_fact_cache execution_environment host_config_key",
            "survey_enabled become_enabled diff_mode allow_simultaneous job_slice_count webhook_service",
            "webhook_credential prevent_instance_group_fallback",
        )
        | ASKS,
        _words("name project playbook"),
        {"inventory": "inventories", "project": "projects", "execution_environment": "execution_environments"},
        {"job_type": _words("run check")},
        {"credentials": "credentials", **dict.fromkeys(_NOTIFY, "notification_templates")},
        # A template is of its project's organization.
        passed_over=_words("organization"),
    ),
    "workflow_job_templates": Kind(
        _words(
            "name description extra_vars organization survey_enabled allow_simultaneous inventory limit scm_branch",
            "job_tags skip_tags webhook_service webhook_credential ask_variables_on_launch ask_inventory_on_launch",
            "ask_limit_on_launch ask_scm_branch_on_launch ask_labels_on_launch ask_tags_on_launch",
            "ask_skip_tags_on_launch",
        ),
        _words("name"),
        {"organization": "organizations", "inventory": "inventories"},
        associations=dict.fromkeys((*_NOTIFY, "notification_templates_approvals"), "notification_templates"),
    ),
    "workflow_job_template_nodes": Kind(
        _words(
            _LAUNCH,
            "workflow_job_template unified_job_template identifier extra_data all_parents_must_converge",
            "execution_environment",
        ),
        _words("workflow_job_template"),
        {"workflow_job_template": "workflow_job_templates", "unified_job_template": "unified_job_templates"},
        associations=dict.fromkeys(
            ("success_nodes", "failure_nodes", "always_nodes"),
            "workflow_job_template_nodes",
        ),
        passed_over=_words("type"),
    ),
    "workflow_approval_templates": Kind(_words("name description timeout"), _words("name")),
    "schedules": Kind(
        _words(_LAUNCH, "name description rrule enabled unified_job_template extra_data execution_environment"),
        _words("name rrule unified_job_template"),
        {"unified_job_template": "unified_job_templates"},
    ),
}

# What a workflow, a schedule or a launch can name, in one list.
UNIFIED = ("projects", "inventory_sources", "job_templates", "workflow_job_templates", "workflow_approval_templates")
