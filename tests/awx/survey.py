"""Surveys: what AWX accepts as one, and which variables a job gets from it.

JobTemplateSurveySpec in awx/api/views, SurveyJobTemplateMixin in awx/main/models/mixins.py (24.6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "textarea": str,
    "password": str,
    "multiplechoice": str,
    "multiselect": list,
    "integer": int,
    "float": (int, float),
}
_NEEDED: dict[str, type] = {"type": str, "question_name": str, "variable": str, "required": bool}
_KNOWN = {*_NEEDED, "question_description", "choices", "default", "min", "max", "new_question"}


def fault(spec: Mapping[str, Any]) -> str | None:
    """Why AWX would not take a survey, None when it would."""
    for key, kind in (("name", str), ("description", str), ("spec", list)):
        if not isinstance(spec.get(key), kind):
            return f"{key} is not a {kind.__name__}"
    if not spec["spec"]:
        return "spec does not contain any items"
    variables = [question.get("variable") for question in spec["spec"]]
    if len(set(variables)) != len(variables):
        return "a variable is asked for twice"
    faults = (_fault_of_question(question) for question in spec["spec"])
    return next((found for found in faults if found is not None), None)


def extra_vars(template: Mapping[str, Any], answers: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of a job: those of its template, then the survey's defaults, then the answers.

    Raises ValueError for an answer that AWX would not take.
    """
    questions = {question["variable"]: question for question in template["survey_spec"]["spec"]}
    for variable, answer in answers.items():
        if variable not in questions:
            raise ValueError(f"nobody asks for {variable}")
        _check_answer(questions[variable], answer)
    defaults = {name: question["default"] for name, question in questions.items() if "default" in question}
    missing = {name for name, question in questions.items() if question["required"]} - {*defaults, *answers}
    if missing:
        raise ValueError(f"no answer for {', '.join(sorted(missing))}")
    return {**template.get("extra_vars", {}), **defaults, **answers}


def _fault_of_question(question: Mapping[str, Any]) -> str | None:
    unknown = set(question) - _KNOWN
    if unknown:
        return f"unknown keys {sorted(unknown)}"
    for key, kind in _NEEDED.items():
        if not isinstance(question.get(key), kind):
            return f"{key} of {question.get('variable')} is not a {kind.__name__}"
    if question["type"] not in _TYPES:
        return f"{question['type']} is no type"
    if question["type"].startswith("multi") and not question.get("choices"):
        return f"{question['variable']} has no choices"
    try:
        if "default" in question:
            _check_answer(question, question["default"])
    except ValueError as exc:
        return str(exc)
    return None


def _check_answer(question: Mapping[str, Any], answer: Any) -> None:
    if not isinstance(answer, _TYPES[question["type"]]) or isinstance(answer, bool):
        raise ValueError(f"{answer!r} for {question['variable']} is no {question['type']}")
    chosen = answer if isinstance(answer, list) else [answer]
    if "choices" in question and not set(chosen) <= set(question["choices"]):
        raise ValueError(f"{answer!r} is none of the choices for {question['variable']}")
