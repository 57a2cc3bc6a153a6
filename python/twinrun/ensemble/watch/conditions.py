"""The conditions that a task runs under: its node, and its environment."""

from __future__ import annotations

import hashlib
import os
import re

from .hidden import either, without_secrets
from .kernel import node_name, read_text

__all__ = ["candidates", "environment_facts", "environment_of", "keeps_variable", "without_secrets"]


def keeps_variable(name: str, rules: dict[str, list[str]]) -> bool:
    """Filters variables like src/core/history/variables.hpp.

    The spec file has the rules: this program imports nothing of twinrun but `watch`.
    """
    words, more = either(rules["secret_words"]), either(rules["secret_variable_words"])
    listed = name in rules["names"] or name.startswith(tuple(rules["prefixes"]))
    bookkeeping = name.startswith(tuple(rules["bookkeeping"]))
    secret = re.search(rf"({words}|(?<![A-Z])({more}))(?![A-Z])", _upper(name))
    return listed and not bookkeeping and secret is None


def _upper(name: str) -> str:
    """Upper case of ASCII letters only, as in the core."""
    return re.sub("[a-z]+", lambda m: m[0].upper(), name)


def environment_facts(
    environment: dict[str, str], command: list[str], folder: str, rules: dict[str, list[str]]
) -> dict[str, dict[str, str]]:
    """Facts by group and name, all text, as a history keeps them: what is the same for tasks of one setting
    on one node. rules: which variables of the environment.
    """
    system = os.uname()
    facts: dict[str, dict[str, str]] = {
        "host": {
            "name": node_name(),
            "system": f"{system.sysname} {system.release}",
            "version": system.version,
        },
        "cpu": {"architecture": system.machine, "cores": str(os.cpu_count() or 0)},
        "environment": {
            # With its name, which may name a secret. Tasks of one setting have the same facts.
            k: without_secrets(f"{k}={v.replace(folder, '{folder}')}", rules)[len(k) + 1 :]
            for k, v in sorted(environment.items())
            if keeps_variable(k, rules) and k not in rules["of_one_job"]
        },
    }
    for line in (read_text("/etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            facts["host"]["distribution"] = line.partition("=")[2].strip('"')
    first = (read_text("/proc/cpuinfo") or "").split("\n\n")[0]
    for key, name in (("model name", "model"), ("microcode", "microcode"), ("flags", "flags")):
        found = re.search(rf"^{key}\s*:\s*(.*)$", first, re.M)
        if found:
            facts["cpu"][name] = (
                hashlib.sha256(found[1].encode()).hexdigest()[:16] if name == "flags" else found[1].strip()
            )
    for name, path in (
        ("governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        ("boost", "/sys/devices/system/cpu/cpufreq/boost"),
        ("no_turbo", "/sys/devices/system/cpu/intel_pstate/no_turbo"),
        ("smt", "/sys/devices/system/cpu/smt/control"),
        ("isolated", "/sys/devices/system/cpu/isolated"),
        ("online", "/sys/devices/system/cpu/online"),
        ("huge_pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
        ("numa_balancing", "/proc/sys/kernel/numa_balancing"),
        ("memory_overcommit", "/proc/sys/vm/overcommit_memory"),
        ("address_randomisation", "/proc/sys/kernel/randomize_va_space"),
    ):
        text = read_text(path)
        if text and text.strip():
            facts["cpu" if path.startswith("/sys/devices") else "host"][name] = text.strip()
    total = re.search(r"^MemTotal:\s*(.*)$", read_text("/proc/meminfo") or "", re.M)
    if total:
        facts["host"]["memory"] = total[1]
    program = next((p for p in candidates(command[0], environment) if os.access(p, os.X_OK)), None)
    if program is not None and os.path.isfile(program):
        facts["program"] = {"path": os.path.realpath(program)}
        try:
            if os.path.getsize(program) <= 64 << 20:
                with open(program, "rb") as file:
                    facts["program"]["sha256"] = hashlib.sha256(file.read()).hexdigest()
        except OSError:
            pass
    return facts


def candidates(program: str, environment: dict[str, str]) -> list[str]:
    """Folders in which a program may lie."""
    if "/" in program:
        return [program]
    return [os.path.join(f, program) for f in environment.get("PATH", os.defpath).split(":") if f]


def environment_of(changes: dict[str, str | None]) -> dict[str, str]:
    """The environment of a task: this one with changes; None removes a variable."""
    environment = dict(os.environ)
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment
