# SPDX-License-Identifier: Apache-2.0
"""Rules over an XPU's engine: its versions fit together, and its runtime is complete.

Source: the preregistration of the persistent KV-cache views, whose second attempt was lost because six of ten libraries
were missing; and the versions pinned by vLLM's own requirements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_laguna.analysis.arms.identity_case import IdentityCase
from pytest_laguna.analysis.findings import RuleFinding, not_applicable
from pytest_laguna.evidence.machine.xpu_stack import KERNELS, misfit
from pytest_laguna.verdict import Verdict

LANE = "xpu"


def stack_fits(case: IdentityCase) -> RuleFinding:
    """Rule ``stack-fits``: torch, vLLM, kernels and Intel's extension are one row of the table of fitting versions."""
    if not _on_xpu(case):
        return not_applicable("no XPU engine is recorded")
    installed = {found.name: found.version for found in case.identity.engine.state.distributions}
    reason = misfit(installed)
    return None if reason is None else (Verdict.VOID, f"{case.identity.engine.state.interpreter}: {reason}")


def closure_whole(case: IdentityCase) -> RuleFinding:
    """Rule ``closure-whole``: every library of the kernels' package is present, and the driver is loaded."""
    if not _on_xpu(case):
        return not_applicable("no XPU engine is recorded")
    runtime = case.identity.engine.runtime
    if runtime is None or not runtime.closure.libraries:
        return Verdict.NOT_PROVEN, f"{KERNELS}: seen no library; expected its closure; install it"
    if runtime.closure.absent:
        more = f", and {len(runtime.closure.absent) - 1} more" if len(runtime.closure.absent) > 1 else ""
        return Verdict.VOID, f"{runtime.closure.absent[0]}{more}"
    if runtime.host.driver is None:
        return Verdict.VOID, f"kernel {runtime.host.kernel}: seen no driver xe; expected it; load it"
    return None


def closure_mapped(case: IdentityCase) -> RuleFinding:
    """Rule ``closure-mapped``: each process loaded the closure's libraries as hashed before, from the same paths."""
    if not _on_xpu(case):
        return not_applicable("no XPU engine is recorded")
    if case.identity.engine.runtime is None:
        return Verdict.NOT_PROVEN, f"{KERNELS}: seen no closure; expected its libraries"
    expected = {library.target: library.sha256 for library in case.identity.engine.runtime.closure.libraries}
    # Modules of several packages share a name; a linked library is loaded once by its name, from anywhere.
    linked = {_name(target): target for target in expected if _name(target).startswith("lib")}
    for process, mapped in case.processes():
        for file in mapped:
            target = linked.get(_name(file.path), file.path)
            if file.path != target:
                return Verdict.VOID, f"{process}: seen mapped {file.path}; expected {target}, which was hashed before"
            if target in expected and case.digest(file) != expected[target]:
                told = f"{file.path} with digest {case.digest(file)}"
                return Verdict.VOID, f"{process}: seen {told}; expected {expected[target]}, hashed before"
    return None


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _on_xpu(case: IdentityCase) -> bool:
    """True if a runtime is recorded or all arms ran on the lane, so omitting one record cannot disable the rule."""
    lanes = {record.request.lane for record in case.arms.values()}
    return case.identity.engine.runtime is not None or lanes == {LANE}


RUNTIME_RULES: Mapping[str, Callable[[IdentityCase], RuleFinding]] = {
    "stack-fits": stack_fits,
    "closure-whole": closure_whole,
    "closure-mapped": closure_mapped,
}
