"""The words that name an environment: ``accelerate==1.15.0``, ``torch``, ``latest``. Pytest circle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from gate.environments import UNDER_TEST
from gate.pip import Installer
from gate.problems import UsageError


def releases(pip: Installer, name: str) -> list[str]:
    """Published releases of ``name``, oldest first; no pre-releases."""
    found = []
    for word in pip.versions(name):
        try:
            version = Version(word)
        except InvalidVersion:
            continue
        if not version.is_prerelease:
            found.append(version)
    return [str(version) for version in sorted(set(found))]


def read(words: Iterable[str], pip: Installer) -> dict[str, str]:
    """Versions by canonical name for words such as ``accelerate==1.15.0``, ``torch>=2.9``, ``deepspeed``, ``latest``.

    :raises UsageError: for a word that names no published release.
    """
    found: dict[str, str] = {}
    named: dict[str, str] = {}  # with a release: beside `latest`, it is that one
    for word in _expanded(words):
        try:
            requirement = Requirement(word)
        except InvalidRequirement as error:
            raise UsageError(f"{word!r} is not NAME==VERSION, NAME or latest: {str(error).splitlines()[0]}") from error
        if requirement.url or requirement.extras:
            raise UsageError(f"{word!r}: only published releases can be laid over, NAME==VERSION")
        name = canonicalize_name(requirement.name)
        if requirement.marker is None or requirement.marker.evaluate():
            version = _newest(requirement, name, pip)
            if word != name and named.setdefault(name, version) != version:
                raise UsageError(f"{name} is named twice: {named[name]} and {version}")
            found[name] = named.get(name, version)
    return found


def read_file(path: Path, pip: Installer) -> dict[str, str]:
    """As :func:`read`, one requirement a line; ``#`` begins a comment.

    :raises UsageError: if there is no such file, or a line is an option of pip.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    words = [line.partition("#")[0].strip() for line in lines]
    options = [word for word in words if word.startswith("-")]
    if options:
        raise UsageError(f"{path}: {options[0]!r} is an option of pip; only NAME==VERSION is read here")
    return read([word for word in words if word], pip)


def _expanded(words: Iterable[str]) -> list[str]:
    return [each for word in words for each in (UNDER_TEST if word == "latest" else (word,))]


def _newest(requirement: Requirement, name: str, pip: Installer) -> str:
    published = releases(pip, name)
    fitting = [version for version in published if requirement.specifier.contains(version, prereleases=True)]
    if fitting:
        return fitting[-1]
    exact = [one.version for one in requirement.specifier if one.operator == "=="]
    if exact and exact[0] in pip.versions(name):  # a pre-release that was asked for by name
        return exact[0]
    newest = published[-1] if published else "none"
    raise UsageError(f"{requirement}: no such release is published for this interpreter (newest: {newest})")


def changed(pinned: Mapping[str, str], candidate: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """What differs between two sets of versions: old and new by name; ``None`` where a side does not say."""
    names = [*pinned, *(name for name in candidate if name not in pinned)]
    return {
        name: (pinned.get(name), candidate.get(name)) for name in names if pinned.get(name) != candidate.get(name)
    }
