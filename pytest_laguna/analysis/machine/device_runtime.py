# SPDX-License-Identifier: Apache-2.0
"""Rules over what an XPU's engine stands on: versions that go together, and a runtime of which nothing is missing.

Source: the preregistration of the persistent KV-cache views, whose second attempt was lost because six of ten libraries
were not there; and the versions that vLLM's own requirements pin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_laguna.analysis.arms.identity_case import IdentityCase
from pytest_laguna.analysis.findings import RuleFinding, not_applicable
from pytest_laguna.evidence.machine.xpu_stack import KERNELS, misfit
from pytest_laguna.verdict import Verdict

LANE = "xpu"


def stack_fits(case: IdentityCase) -> RuleFinding:
    """Rule ``stack-fits``: torch, vLLM, kernels and Intel's extension are a row of the table, and no other mixture."""
    if not _on_xpu(case):
        return not_applicable("no part of it is an XPU's")
    installed = {found.name: found.version for found in case.identity.engine.state.distributions}
    reason = misfit(installed)
    return None if reason is None else (Verdict.VOID, f"{case.identity.engine.state.interpreter}: {reason}")


def closure_whole(case: IdentityCase) -> RuleFinding:
    """Rule ``closure-whole``: every library that the kernels' package would load is there, and so is the driver."""
    if not _on_xpu(case):
        return not_applicable("no part of it is an XPU's")
    runtime = case.identity.engine.runtime
    if runtime is None or not runtime.closure.libraries:
        return Verdict.NOT_PROVEN, f"what {KERNELS} would load is not recorded, or it is not installed"
    if runtime.closure.absent:
        more = f", and {len(runtime.closure.absent) - 1} more" if len(runtime.closure.absent) > 1 else ""
        return Verdict.VOID, f"{runtime.closure.absent[0]}{more}"
    if runtime.host.driver is None:
        return Verdict.VOID, f"kernel {runtime.host.kernel}: its driver xe is not loaded"
    return None


def closure_mapped(case: IdentityCase) -> RuleFinding:
    """Rule ``closure-mapped``: what a process loaded of the closure is what was hashed before, under the same path."""
    if not _on_xpu(case):
        return not_applicable("no part of it is an XPU's")
    if case.identity.engine.runtime is None:
        return Verdict.NOT_PROVEN, f"what {KERNELS} would load is not recorded"
    expected = {library.target: library.sha256 for library in case.identity.engine.runtime.closure.libraries}
    # Modules of several packages have one name; what is linked is loaded once by its name, from wherever.
    linked = {_name(target): target for target in expected if _name(target).startswith("lib")}
    for process, mapped in case.processes():
        for file in mapped:
            target = linked.get(_name(file.path), file.path)
            if file.path != target:
                return Verdict.VOID, f"{process}: mapped {file.path}; expected {target}, which was hashed before"
            if target in expected and case.digest(file) != expected[target]:
                told = f"{file.path} is {case.digest(file)}"
                return Verdict.VOID, f"{process}: {told}; expected {expected[target]}, hashed before"
    return None


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _on_xpu(case: IdentityCase) -> bool:
    """Whether anything of it says so: what is left out of one record must not switch a rule off."""
    lanes = {record.request.lane for record in case.arms.values()}
    return case.identity.engine.runtime is not None or lanes == {LANE}


RUNTIME_RULES: Mapping[str, Callable[[IdentityCase], RuleFinding]] = {
    "stack-fits": stack_fits,
    "closure-whole": closure_whole,
    "closure-mapped": closure_mapped,
}
