# SPDX-License-Identifier: Apache-2.0
"""Expected segments of the target's breakable graph, from its configuration file, and rules that compare them."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_laguna.analysis.arms import arm_pair
from pytest_laguna.analysis.arms.case import AnyCase
from pytest_laguna.analysis.diagnostic.case import GRAPH_ARMS, DiagnosticCase, Rule
from pytest_laguna.analysis.findings import RuleFinding
from pytest_laguna.evidence.arms.arm_record import Arm, CapturedGraph
from pytest_laguna.evidence.arms.plan import FolderModels, GeneratedModels, Topology
from pytest_laguna.evidence.arms.replay_profile import SegmentKind
from pytest_laguna.evidence.reading import CONFIG, DRAFT_CONFIG, TARGET_CONFIG, present
from pytest_laguna.verdict import JSON, UnusableEvidenceError, Verdict

ARCHITECTURE = "LagunaForCausalLM"
MOST_LAYERS = 1024
"""Above any model's count; the graph is written out, segment by segment."""


def target_layers(target_config: Mapping[str, JSON]) -> int:
    """Return the attention layers of the target: every decoder layer of this architecture has one.

    Raises:
        UnusableEvidenceError: ``config.json`` is another architecture's, or lacks the number of layers.
    """
    if target_config.get("architectures") != [ARCHITECTURE]:
        seen = target_config.get("architectures")
        message = f"config.json: seen architectures {seen!r}; expected ['{ARCHITECTURE}']"
        raise UnusableEvidenceError(message)
    return layer_count(target_config, CONFIG)


def layer_count(config: Mapping[str, JSON], name: str) -> int:
    """Return a model's decoder layers; UnusableEvidenceError names its configuration file by ``name``."""
    layers = config.get("num_hidden_layers")
    if type(layers) is not int or not 1 <= layers <= MOST_LAYERS:
        message = f"{name}: seen num_hidden_layers {layers!r}; expected a whole number from 1 to {MOST_LAYERS}"
        raise UnusableEvidenceError(message)
    return layers


def expected_topology(
    target_config: Mapping[str, JSON], tensor_parallel_size: int, *, collective_breaks: bool
) -> Topology:
    """Return the segments of one captured forward of the target, in replay order.

    vLLM's breakable graph ends a segment at each attention call, which stays eager, and begins the next one after it: L
    layers give L breaks between L + 1 graphs. With tensor parallelism the vocabulary-parallel embedding is summed over
    the ranks, and so is each row-parallel projection at the end of half a layer: attention's output, and the MLP's or
    the experts' output. So there is one all-reduce for the embedding and two a layer. With ``collective_breaks`` the
    embedding's comes before the first attention, a layer's two before the next one, and the last layer's two before the
    last graph. One rank has nothing to sum, and vLLM makes no such call.

    For 48 layers on two ranks and more there are 146 graphs and 145 breaks, 48 of attention and 97 collective, in the
    order with the digest e5b64443…; without collective breaks, or on one rank, 49 and 48. Source: the published
    preregistration, and upstream vLLM 0.32.0 as measured.

    Raises:
        UnusableEvidenceError: the configuration's graph is not known.
    """
    layers = target_layers(target_config)
    reduces = collective_breaks and tensor_parallel_size > 1
    one_sum: list[SegmentKind] = ["graph", "collective"] if reduces else []
    attention: list[SegmentKind] = ["graph", "attention"]
    between = [*one_sum, *one_sum, *attention]
    return Topology(kinds=[*one_sum, *attention, *between * (layers - 1), *one_sum, *one_sum, "graph"])


def plan_derived(case: AnyCase) -> RuleFinding:
    """Rule ``plan-derived``: the plan's graph follows from the target's configuration file."""
    config = present(case.evidence.target_config)
    derived = expected_topology(config, case.plan.ranks, collective_breaks=case.plan.collective_breaks)
    if (derived, target_layers(config)) != (case.plan.topology, case.plan.target_layers):
        told = f"{_described(case.plan.topology)} in {case.plan.target_layers} layers"
        expected = f"{_described(derived)} in {target_layers(config)}, by the configuration"
        return Verdict.VOID, f"plan: seen {told}; expected {expected}"
    return _judge_pair(case.plan.models, config)


def _judge_pair(models: GeneratedModels | FolderModels, target_config: Mapping[str, JSON]) -> RuleFinding:
    """Judge the layers and the width of a generated pair."""
    if isinstance(models, GeneratedModels):
        for name, expected in (("num_hidden_layers", models.layers), ("hidden_size", models.hidden_size)):
            if (seen := target_config.get(name)) != expected:
                return Verdict.VOID, f"target-config.json: seen {name} {seen!r}; expected the campaign's {expected}"
    return None


def graphs_frozen(case: DiagnosticCase) -> RuleFinding:
    """Rule ``graphs-frozen``: each rank of both graph arms captured the target once, in the plan's segments.

    Silent loss of all graphs leaves the tokens right: only the counts show it.
    """
    for arm, record in case.records(GRAPH_ARMS):
        for report in record.ranks:
            seen = [_captured(graph) for graph in report.graphs if graph.model == "target"]
            if seen != [_described(case.plan.topology)]:
                told = f"captured {'; '.join(seen) or 'no graph of the target'}"
                where = f"{arm} rank {report.rank}"
                return Verdict.FAIL, f"{where}: seen {told}; expected {_described(case.plan.topology)}"
    return None


def drafts_captured(case: DiagnosticCase) -> RuleFinding:
    """Rule ``drafts-captured``: the draft's graphs are captured, the same on every rank of both graph arms."""
    return arm_pair.drafts_captured(case.pair())


def configurations_hashed(case: DiagnosticCase) -> RuleFinding:
    """Rule ``configurations-hashed``: both configuration files have the digests of the hashed models' own."""
    request = case.record(Arm.EAGER).request
    hashed = {
        (folder.directory, file.path): file.sha256
        for folder in present(case.evidence.identity).models.folders
        for file in folder.files
    }
    for name, folder in ((TARGET_CONFIG, request.target), (DRAFT_CONFIG, request.draft)):
        expected, seen = hashed.get((folder or "", CONFIG)), case.evidence.config_sha256.get(name)
        if seen is None or expected is None:
            lost = name if seen is None else f"{folder}/config.json"
            return Verdict.NOT_PROVEN, f"{lost}: seen no digest; expected one here and in the model's identity"
        if seen != expected:
            return Verdict.VOID, f"{name}: seen digest {seen}; expected {expected}, that of {folder}/config.json"
    return None


def eager_without_graphs(case: DiagnosticCase) -> RuleFinding:
    """Rule ``eager-without-graphs``: the arms meant to run without graphs captured none."""
    for arm, record in case.records(tuple(arm for arm in Arm if not arm.graphs)):
        for report in record.ranks:
            if report.graphs:
                return Verdict.FAIL, f"{arm} rank {report.rank}: seen {len(report.graphs)} graphs; expected none"
    return None


def _described(topology: Topology) -> str:
    return _words(topology.graphs, topology.breaks, topology.counts, topology.order_sha256)


def _captured(graph: CapturedGraph) -> str:
    return _words(graph.graphs, graph.breaks, graph.kinds, graph.order_sha256)


def _words(graphs: int, breaks: int, kinds: Mapping[str, int], order_sha256: str) -> str:
    boundaries = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()) if kind != "graph")
    return f"{graphs} graphs and {breaks} breaks ({boundaries}) in order {order_sha256}"


TOPOLOGY_UNCHANGED: Mapping[str, Rule] = {
    "plan-derived": plan_derived,
    "configurations-hashed": configurations_hashed,
    "graphs-frozen": graphs_frozen,
    "drafts-captured": drafts_captured,
    "eager-without-graphs": eager_without_graphs,
}
